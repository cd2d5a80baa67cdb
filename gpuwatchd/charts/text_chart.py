"""A chart in words, and as a line of block characters: for those who see no picture. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import units

if TYPE_CHECKING:
    from gpuwatchd.core.model import Chart

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
    zone = units.zone(last_s)
    text = (
        f"Memory {moved} from {units.size(first)} at {units.moment(begin_s, now_s=last_s)} to "
        f"{units.size(newest)} at {units.moment(last_s, now_s=last_s)} ({zone})"
    )
    if chart.rate_bytes_per_s:
        text += f", by {units.rate(chart.rate_bytes_per_s)}"
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
