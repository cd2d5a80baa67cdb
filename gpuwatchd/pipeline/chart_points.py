"""What a picture of one alert is drawn from: few points, round numbers, small enough to be kept."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.core.model import Chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.core.model import Alert, Finding, FloatArray
    from gpuwatchd.pipeline.track import Track

MOST_POINTS = 160
"""Some 4 KiB of JSON: the message that holds them may have 16 KiB in all."""
_LEAD_SHARE = 0.35
"""Of the time since the onset so much is shown before it: growth is seen against what was flat."""
_AHEAD_SHARE = 0.15
"""And at least so much of the time that is left: a day ahead of an hour's past hides the past."""
_SHORTEST_LEAD_S = 300.0
_FEWEST = 3


def chart(track: Track | None, alert: Alert) -> Chart | None:
    """Return what is drawn of an alert; None where too little is known of its curve.

    The fit has the slope that was judged; its level is the median of what the points since the
    onset say, so that neither a spike nor the tooth of a saw moves it. A device that is lost has no
    curve, and an alert that is over no time left.
    """
    if track is None:
        return None
    try:
        return _chart(*track.window.window(), alert)
    except (ArithmeticError, IndexError, ValueError):
        # Odd numbers cost the picture, never the message.
        return None


def _chart(t_s: FloatArray, used: FloatArray, alert: Alert) -> Chart | None:
    finding = alert.finding
    left_s = 0.0 if finding.eta is None else finding.eta.mid_s
    t_s, used = _since(t_s, used, finding.onset_at_s, left_s)
    if t_s.size < _FEWEST or not float(t_s[-1]) > float(t_s[0]):
        return None
    over = alert.state == "resolved"
    rate = None if over else finding.rate_bytes_per_s
    eta = None if over or not rate or rate < 0 else finding.eta
    values = thinned(used, MOST_POINTS)
    return Chart(
        at_s=tuple(_ascending(t_s[values]).tolist()),
        used_bytes=tuple(float(round(value)) for value in used[values]),
        limit_bytes=_whole(finding.limit_bytes),
        onset_at_s=_whole(finding.onset_at_s),
        judged_at_s=_whole(finding.judged_at_s),
        rate_bytes_per_s=None if rate is None else float(f"{rate:.5g}"),
        level_bytes=None if rate is None else _level(t_s, used, finding, rate),
        low_s=None if eta is None else _whole(eta.low_s),
        mid_s=None if eta is None else _whole(eta.mid_s),
        high_s=None if eta is None else _whole(eta.high_s),
        died_at_s=_whole(alert.resolved_at_s) if alert.died else None,
    )


def thinned(values: FloatArray, most: int) -> npt.NDArray[np.intp]:
    """Return the positions (k,) of at most ``most`` values, extremes, first and last among them.

    The values are cut into equal runs; of each the lowest and the highest stay.

    Examples
    --------
    >>> thinned(np.array([5.0, 5, 5, 9, 5, 5, 1, 5]), 4).tolist()
    [0, 3, 6, 7]
    """
    n = values.size
    if n <= most:
        return np.arange(n)
    edges = np.linspace(0, n, (most - 2) // 2 + 1).astype(int).tolist()
    kept = {0, n - 1}
    for begin, end in pairwise(edges):
        kept.add(begin + int(np.argmin(values[begin:end])))
        kept.add(begin + int(np.argmax(values[begin:end])))
    return np.array(sorted(kept))


def _since(
    t_s: FloatArray, used: FloatArray, onset_at_s: float | None, left_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return what is worth showing: the growth, and a part of the time before it."""
    if onset_at_s is None or not t_s.size:
        return t_s, used
    grown_s = float(t_s[-1]) - onset_at_s
    begin_s = onset_at_s - max(_LEAD_SHARE * grown_s, _AHEAD_SHARE * left_s, _SHORTEST_LEAD_S)
    first = int(np.searchsorted(t_s, begin_s))
    if t_s.size - first < _FEWEST:
        return t_s, used
    return t_s[first:], used[first:]


def _level(t_s: FloatArray, used: FloatArray, finding: Finding, rate: float) -> float:
    """Return the level at the judgement of a line with this slope through the growth."""
    begun = t_s >= (finding.onset_at_s if finding.onset_at_s is not None else t_s[0])
    if not begun.any():
        begun = np.ones_like(begun)
    residual = used[begun] - rate * (t_s[begun] - finding.judged_at_s)
    return float(round(numerics.median(residual)))


def level(points: Sequence[tuple[float, float]], finding: Finding, rate: float) -> float:
    """Return where a line of this slope through a growth stands at the judgement."""
    t_s, used = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    return _level(t_s, used, finding, rate)


def _ascending(t_s: FloatArray) -> FloatArray:
    """Keep times ascending where rounding to whole seconds would make two the same."""
    whole = np.round(t_s)
    return whole if (np.diff(whole) > 0).all() else np.round(t_s, 3)


def _whole(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(round(value))
