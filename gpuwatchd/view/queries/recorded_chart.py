"""The recorded past as parts of a picture: the curve with its gaps, the floor, the forecast."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gpuwatchd.charts.chart_model import Curve, Forecast, Gap
from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS
from gpuwatchd.store.curves import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.charts.chart_model import Mark
    from gpuwatchd.core.model import Finding, FloatArray
    from gpuwatchd.store.curves import RecordedCurve, Span

MOST_MARKS: Final = 200
_FEWEST_FOR_FLOOR: Final = 16
_LEAST_SWING: Final = 16.0 * 2**20
_SWING_SHARE: Final = 0.02
_NOISES: Final = 8.0
"""A swing of less than these (of the highest value, of the noise) is no cycle."""
_FLOOR_RETURNS: Final = 2
_FEWEST_FOR_FIT: Final = 3
_CLOSE: Final = 1e-6


def curve(recorded_curve: RecordedCurve, live: tuple[float, int] | None = None) -> Curve:
    """Return what the history drew as a curve; where nothing is known, one point of None.

    ``live`` is the newest sample (epoch seconds, bytes), which may not be written yet.
    """
    at_s: list[float] = []
    rows: list[tuple[float | None, ...]] = []
    last_s: float | None = None

    def put(when_s: float, low: float | None, used: float | None, high: float | None) -> None:
        if not at_s or when_s > at_s[-1]:
            at_s.append(when_s)
            rows.append(tuple(None if v is None else float(v) for v in (low, used, high)))

    def leave_gap(begin_s: float | None, end_s: float) -> None:
        if begin_s is not None and any(
            a >= begin_s - _CLOSE and b <= end_s + _CLOSE for a, b in recorded_curve.holes
        ):
            put((begin_s + end_s) / 2, None, None, None)

    for point in recorded_curve.points:
        leave_gap(last_s, point.first_s)
        put((point.first_s + point.last_s) / 2, point.low_bytes, point.mean_bytes, point.high_bytes)
        last_s = point.last_s
    if live is not None and (not rows or live[0] > max(at_s[-1], last_s or 0.0)):
        leave_gap(last_s, live[0])
        put(live[0], live[1], live[1], live[1])
    low, used, high = zip(*rows, strict=True) if rows else ((), (), ())
    return Curve(
        at_s=tuple(at_s),
        used_bytes=used,
        low_bytes=low,
        high_bytes=high,
        width_s=recorded_curve.width_s,
    )


def sparse(values: Sequence[int | None], step_s: float, end_s: float) -> Curve:
    """Return the few values of a live state as a curve, the last at ``end_s``."""
    known = [n for n, value in enumerate(values) if value is not None]
    if not known or not step_s > 0:
        return Curve()
    at_s: list[float] = []
    used: list[float | None] = []
    for n in range(known[0], known[-1] + 1):
        value = values[n]
        if value is None and used and used[-1] is None:
            continue
        at_s.append(end_s - (len(values) - 1 - n) * step_s)
        used.append(None if value is None else float(value))
    return Curve(
        at_s=tuple(at_s), used_bytes=tuple(used), low_bytes=tuple(used), high_bytes=tuple(used)
    )


def joined(
    recorded_curve: RecordedCurve, recent: Curve, live_s: float, late_s: float
) -> RecordedCurve:
    """Return what the history drew, on to the newest look: what is not written yet is no line.

    Parameters
    ----------
    recent
        What the live state remembers, as :func:`sparse` has it; empty where it remembers nothing.
    live_s
        Instant of the newest look, epoch seconds.
    late_s
        A pause up to this long is none.
    """
    if not recorded_curve.points or live_s - recorded_curve.points[-1].last_s <= late_s:
        return recorded_curve
    last_s, together = recorded_curve.points[-1].last_s, False
    points, holes = list(recorded_curve.points), list(recorded_curve.holes)
    for at_s, used in zip(recent.at_s, recent.used_bytes, strict=True):
        if at_s > last_s and used is not None:
            if not together and at_s - last_s > late_s:
                holes.append((last_s, at_s))
            points.append(Point(at_s, at_s, 1, 1, int(used), used, int(used)))
            last_s = at_s
        together = used is not None
    if live_s - last_s > late_s:
        holes.append((last_s, live_s))
    return recorded_curve._replace(points=points, holes=holes)


def gaps(
    holes: Iterable[Span], reasons: Sequence[tuple[float, float | None, str]]
) -> tuple[Gap, ...]:
    """Return the gaps of a span, each with why, as far as that is known.

    A reason is (instant, seconds before it that are missing or None, why): a gap that an instant
    lies in, or at the end of, is explained by it. One whose length is known is a gap of its own.
    """
    spans = [*holes, *((at - gone, at) for at, gone, _ in reasons if gone)]
    found = merged(spans, _CLOSE)
    return tuple(Gap(begin_s=a, end_s=b, why=_why(a, b, reasons)) for a, b in found)


def merged(spans: Iterable[tuple[float, float]], apart_s: float) -> list[tuple[float, float]]:
    """Return spans in order, those that begin at most so long after another ends as one."""
    whole: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans):
        if whole and begin_s <= whole[-1][1] + apart_s:
            whole[-1] = whole[-1][0], max(whole[-1][1], end_s)
        else:
            whole.append((begin_s, end_s))
    return whole


def _why(begin_s: float, end_s: float, reasons: Sequence[tuple[float, float | None, str]]) -> str:
    # Time goes on a moment before its first sample is taken.
    texts = [why for at_s, _, why in reasons if begin_s - 60.0 <= at_s <= end_s + 5.0]
    return texts[-1] if texts else ""


def floor(whole: Curve) -> Curve | None:
    """Return the level that memory always came back to; None where it did not, or too briefly.

    The retained floor of detection: at each instant the lowest value from then on, within each
    stretch without a gap. Memory that came down less than twice has none worth drawing: it would
    be the curve again, or one line below it.
    """
    import numpy as np  # noqa: PLC0415 - 50 ms

    at_s: list[float] = []
    level: list[float | None] = []
    for begin, end in _stretches(whole):
        low = np.array(whole.low_bytes[begin:end], dtype=np.float64)
        high = np.array(whole.high_bytes[begin:end], dtype=np.float64)
        if end - begin < _FEWEST_FOR_FLOOR or _returns(low, high) < _FLOOR_RETURNS:
            continue
        if at_s:
            at_s.append((at_s[-1] + whole.at_s[begin]) / 2)
            level.append(None)
        at_s += whole.at_s[begin:end]
        level += np.minimum.accumulate(low[::-1])[::-1].tolist()
    if not at_s:
        return None
    values = tuple(level)
    return Curve(at_s=tuple(at_s), used_bytes=values, low_bytes=values, high_bytes=values,
                 width_s=whole.width_s)  # fmt: skip


def _stretches(whole: Curve) -> list[tuple[int, int]]:
    """Return from where to where values follow each other without a gap."""
    edges = [-1, *(n for n, v in enumerate(whole.used_bytes) if v is None), len(whole.at_s)]
    return [(before + 1, end) for before, end in pairwise(edges) if end - before > 1]


def _returns(low: FloatArray, high: FloatArray) -> int:
    """Return how often memory came down and went up again; what is noise does not count."""
    import numpy as np  # noqa: PLC0415 - 50 ms

    from gpuwatchd.analysis import numerics  # noqa: PLC0415 - 75 ms

    swing = np.empty(2 * low.size)
    swing[0::2], swing[1::2] = high, low
    noise = numerics.noise((low + high) / 2)
    least = max(_LEAST_SWING, _SWING_SHARE * float(high.max()), _NOISES * noise)
    turns = numerics.turns(np.arange(swing.size, dtype=np.float64), swing, least)
    # The last trough may only be where it is now.
    return sum(kind < 0 for _, _, kind in turns[:-1])


def forecast(finding: Finding | None, drawn: Curve, limit_bytes: float | None) -> Forecast | None:
    """Return where a growth leads; None of what does not leak, or not grow, now.

    The fit has the slope that was judged live, on the subject of the curve or on what makes it
    grow, and goes through the growth as a mail's chart has it.
    """
    if finding is None or finding.pattern not in LEAK_PATTERNS or finding.tier == "none":
        return None
    rate = finding.rate_bytes_per_s
    if rate is None or not rate > 0.0:
        return None
    from gpuwatchd.pipeline import chart_points  # noqa: PLC0415 - 80 ms: numpy comes with it

    pairs = [(at, v) for at, v in zip(drawn.at_s, drawn.used_bytes, strict=True) if v is not None]
    if len(pairs) < _FEWEST_FOR_FIT or pairs[-1][0] < (finding.onset_at_s or pairs[0][0]):
        return None
    limit_bytes = limit_bytes if limit_bytes is not None else finding.limit_bytes
    return Forecast.of(finding, chart_points.level(pairs, finding, rate), limit_bytes)


def notes(drawn: Curve, missing: Sequence[Gap], *, left_out: int = 0) -> tuple[str, ...]:
    """Return what has to be known to read a picture rightly.

    Examples
    --------
    >>> notes(Curve(at_s=(1.0,), used_bytes=(1.0,), low_bytes=(1.0,), high_bytes=(1.0,),
    ...             width_s=720.0), [Gap(begin_s=0.0, end_s=7800.0, why="")])
    ('one point is 12 minutes', '1 gap, 2 h 10 min missing')
    """
    texts: list[str] = []
    if drawn.width_s:
        texts.append(f"one point is {_length(drawn.width_s)}")
    if missing:
        gone_s = sum(gap.end_s - gap.begin_s for gap in missing)
        texts.append(f"{units.count(len(missing), 'gap')}, {units.duration(gone_s)} missing")
    if left_out:
        texts.append(f"{left_out} earlier marks are left out")
    return tuple(texts)


def _length(value_s: float) -> str:
    """Return a length in whole words: "12 minutes"."""
    for factor, unit in ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second")):
        if value_s >= factor and value_s % factor == 0:
            return units.count(round(value_s / factor), unit)
    return units.duration(value_s)


def ordered(marks: Iterable[Mark], begin_s: float, end_s: float) -> tuple[tuple[Mark, ...], int]:
    """Return the marks within a span, oldest first, the newest of too many; and how many went."""
    # What is new is in the live state and in the history.
    once = dict.fromkeys(m for m in marks if begin_s <= m.at_s <= end_s)
    inside = sorted(once, key=lambda m: m.at_s)
    kept = inside[-MOST_MARKS:]
    return tuple(kept), len(inside) - len(kept)
