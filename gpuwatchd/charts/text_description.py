"""A picture in words and numbers: for those who cannot see it, and where it cannot be drawn."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gpuwatchd.charts.chart_model import limit_texts
from gpuwatchd.core import units
from gpuwatchd.core.design import FLAGS, LEGEND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.charts.chart_model import Curve, Forecast, Picture
    from gpuwatchd.core.model import Chart

MOST_ROWS: Final = 50
NOTHING: Final = "No data for this time."


def sentence(picture: Picture) -> str:
    """Return what a chart shows, in words: its alternative text.

    Examples
    --------
    >>> from gpuwatchd.charts.chart_model import Curve, Picture
    >>> empty = Picture(key="a", title="GPU 0", kind="unknown", verdict="no verdict yet",
    ...                 begin_s=0.0, end_s=3600.0, now_s=3600.0, curve=Curve())
    >>> sentence(empty).startswith("GPU 0: no verdict yet. No data from ")
    True
    """
    first = f"{picture.title}: {picture.verdict}"
    stop = "" if first.endswith((".", "?", "!")) else "."
    texts = [f"{first}{stop} {_history_text(picture)}"]
    if picture.limit_bytes is not None and not picture.empty:
        texts.append(f"The limit is {units.size(picture.limit_bytes)}.")
    if picture.forecast is not None:
        texts.append(_future(picture.forecast, picture.now_s))
    if picture.gaps:
        texts.append(units.count(len(picture.gaps), "gap") + ".")
    if picture.marks:
        texts.append(units.count(len(picture.marks), "mark") + ".")
    return " ".join(part for part in texts if part)


def _history_text(picture: Picture) -> str:
    now_s = picture.now_s
    begin = units.moment(picture.begin_s, now_s=now_s)
    span = f"from {begin} to {units.moment(picture.end_s, now_s=now_s, zone=True)}"
    known = [value for value in picture.curve.used_bytes if value is not None]
    if not known:
        return f"No data {span}."
    low, high = extremes(picture.curve)
    if len(known) == 1:
        return f"One sample {span}: {units.size(known[0])} used."
    if units.size(low) == units.size(high):
        return f"Memory used {span}: {units.size(low)} throughout."
    first, last = units.size(known[0]), units.size(known[-1])
    return (
        f"Memory used {span}: {first} at first, {last} at last, "
        f"between {units.size(low)} and {units.size(high)}."
    )


def _future(forecast: Forecast, now_s: float) -> str:
    rate = f"The fit grows {units.rate(forecast.rate_bytes_per_s)}"
    if forecast.mid_s is None:
        return f"{rate}; there is no forecast of when memory is full."
    return f"{rate}: {limit_texts(forecast, now_s)[0]}."


def extremes(curve: Curve) -> tuple[float | None, float | None]:
    """Return the lowest and the highest known level, bytes; None where nothing is known."""
    low = [value for value in (*curve.low_bytes, *curve.used_bytes) if value is not None]
    high = [value for value in (*curve.high_bytes, *curve.used_bytes) if value is not None]
    return (min(low), max(high)) if low and high else (None, None)


def parts(picture: Picture) -> list[str]:
    """Return the keys of :data:`gpuwatchd.core.design.LEGEND` that a chart shows."""
    curve, forecast = picture.curve, picture.forecast
    band = forecast is not None and forecast.low_s is not None and forecast.limit_bytes is not None
    shown = {
        "curve": not picture.empty,
        "range": curve.low_bytes != curve.high_bytes,
        "floor": picture.floor is not None and bool(picture.floor.at_s),
        "fit": forecast is not None,
        "band": band,
        "limit": picture.limit_bytes is not None,
        "gap": bool(picture.gaps),
    }
    return [part for part, there in shown.items() if there]


def heads(picture: Picture) -> tuple[str, ...]:
    """Return the titles of the columns of :func:`rows`."""
    pair = ("time", LEGEND["curve"])
    return (*pair, "lowest", "highest") if _ranged(picture) else pair


def _ranged(picture: Picture) -> bool:
    curve = picture.curve
    return len(curve.at_s) > MOST_ROWS or curve.low_bytes != curve.used_bytes


def rows(picture: Picture) -> list[tuple[str, ...]]:
    """Return the numbers of the curve, at most :data:`MOST_ROWS` rows and one for each gap in them.

    A row of several points has their mean, lowest and highest; none is left out.
    """
    curve, found = picture.curve, []
    count = sum(value is not None for value in curve.used_bytes)
    size = max(1, -(-count // MOST_ROWS))
    ranged = _ranged(picture)
    for start, stop in _runs(curve, size):
        used = [value for value in curve.used_bytes[start:stop] if value is not None]
        when = units.moment(curve.at_s[start], now_s=picture.now_s)
        if not used:
            found.append((when, LEGEND["gap"], *(("", "") if ranged else ())))
            continue
        row: tuple[str, ...] = (when, units.size(sum(used) / len(used)))
        if ranged:
            low = [value for value in curve.low_bytes[start:stop] if value is not None]
            high = [value for value in curve.high_bytes[start:stop] if value is not None]
            row = (*row, units.size(min(low or used)), units.size(max(high or used)))
        found.append(row)
    return found


def _runs(curve: Curve, size: int) -> Iterator[tuple[int, int]]:
    """Return begin and end of runs of at most ``size`` points; a gap is a run of its own."""
    edges = [0]
    for n, value in enumerate(curve.used_bytes):
        before = curve.used_bytes[n - 1] if n else None
        if n - edges[-1] >= size or (n and (value is None) != (before is None)):
            edges.append(n)
    yield from pairwise([*edges, len(curve.at_s)]) if curve.at_s else ()


def mark_rows(picture: Picture) -> list[tuple[str, str, str]]:
    """Return time, kind and text of everything that is marked on the chart."""
    return [
        (units.moment(mark.at_s, now_s=picture.now_s), FLAGS[mark.kind].word, mark.text)
        for mark in picture.marks
    ]


# A chart in words, and as a line of block characters: for those who see no picture. Pure.

SPARK_CHARS = 40


def drawable(chart: Chart | None) -> Chart | None:
    """Return a chart that has a curve; None of anything else.

    Examples
    --------
    >>> from gpuwatchd.core.model import Chart
    >>> drawable(Chart(at_s=(1.0, 2.0), used_bytes=(5.0,))) is None
    True
    """
    if chart is None or len(chart.at_s) < 2 or len(chart.at_s) != len(chart.used_bytes):
        return None
    return chart if chart.at_s[-1] > chart.at_s[0] else None


def sparkline(chart: Chart) -> str:
    """Return the curve in two lines: the marks, and what they mean.

    Examples
    --------
    >>> from gpuwatchd.core.model import Chart
    >>> curve = Chart(at_s=(0.0, 60.0, 120.0, 180.0), used_bytes=(0.0, 1e9, 2e9, 3e9),
    ...               limit_bytes=4 * 1024.0**3)
    >>> print(sparkline(curve).splitlines()[0][::13])
    ▁▃▆█
    """
    low, high = min(chart.used_bytes), max(chart.used_bytes)
    marks = units.spark(list(_even(chart, SPARK_CHARS)), low=low, high=high)
    begin, end = chart.at_s[0], chart.at_s[-1]
    scale = f"{units.size(low)} to {units.size(high)}"
    if chart.limit_bytes is not None:
        scale += f" of {units.size(chart.limit_bytes)}"
    span = f"{units.moment(begin, now_s=end)} to {units.moment(end, now_s=end)} {units.zone(end)}"
    return f"{marks}\n{scale}, {span}"


def _even(chart: Chart, count: int) -> list[float | None]:
    """Return the highest value within each of so many equal spans of time, or the one before."""
    begin, span = chart.at_s[0], max(chart.at_s[-1] - chart.at_s[0], 1e-9)
    cells: list[float | None] = [None] * count
    for at_s, value in zip(chart.at_s, chart.used_bytes, strict=True):
        k = min(count - 1, int((at_s - begin) / span * count))
        cells[k] = value if cells[k] is None else max(value, cells[k] or value)
    for k in range(1, count):
        if cells[k] is None:
            cells[k] = cells[k - 1]
    return cells


def words(chart: Chart) -> str:
    """Return what the picture shows, in sentences: for those who cannot see it."""
    last_s = chart.at_s[-1] if chart.judged_at_s is None else chart.judged_at_s
    begin_s = chart.at_s[0]
    if chart.onset_at_s is not None and begin_s < chart.onset_at_s < last_s:
        begin_s = chart.onset_at_s
    first = _near(chart, begin_s)
    newest = chart.used_bytes[-1]
    moved = "grew" if newest >= first else "went"
    text = (
        f"Memory {moved} from {units.size(first)} at {units.moment(begin_s, now_s=last_s)} to "
        f"{units.size(newest)} at {units.moment(last_s, now_s=last_s)} ({units.zone(last_s)})"
    )
    if chart.rate_bytes_per_s:
        text += f", by {units.rate(chart.rate_bytes_per_s)}"
    if chart.died_at_s is not None:
        text += f", and ran out of memory at {units.moment(chart.died_at_s, now_s=last_s)}"
    if chart.limit_bytes is None:
        return f"{text}. Its limit is not known."
    if chart.mid_s is None:
        return f"{text}. Its limit is {units.size(chart.limit_bytes)}."
    full = units.moment(last_s + chart.mid_s, now_s=last_s)
    text += f". It reaches its limit of {units.size(chart.limit_bytes)} at {full}"
    if chart.low_s is None:
        return f"{text}."
    low = units.moment(last_s + chart.low_s, now_s=last_s)
    if chart.high_s is None:
        return f"{text}, hardly before {low}; it may also level off."
    high = units.moment(last_s + chart.high_s, now_s=last_s)
    return f"{text}, in nine of ten cases between {low} and {high}."


def _near(chart: Chart, at_s: float) -> float:
    """Return the value of the fit at an instant, where there is one; else that of the curve."""
    if chart.level_bytes is not None and chart.rate_bytes_per_s and chart.judged_at_s is not None:
        return max(0.0, chart.level_bytes - chart.rate_bytes_per_s * (chart.judged_at_s - at_s))
    nearest = min(range(len(chart.at_s)), key=lambda k: abs(chart.at_s[k] - at_s))
    return chart.used_bytes[nearest]
