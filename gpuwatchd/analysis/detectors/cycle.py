"""Rise and fall, again and again: the floor creeps up, or it comes back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.core.model import Signal

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray, Pattern, Series

LEAST_CYCLES = 3
LEAST_SWING = 32.0 * numerics.MIB
LEAST_GROWTH = 16.0 * numerics.MIB
MEMORY = 24
SWING_SHARE = 0.3
"""Swings smaller than this share of the third largest do not count."""
_LATER = np.triu(np.ones((MEMORY, MEMORY), dtype=bool))


class Cycle:
    """Troughs of the swings: a rising row is a leak, a level one a sawtooth.

    The size that counts as a swing follows from the third largest fall: one or two odd ones (a
    model swapped, a crash) neither hide the rest nor make a cycle.

    When it fires
        ``cyclic``: four or more troughs whose line rises, most of them above the one before (or
        nearly all above all before), and whose rise stands out of their scatter. ``sawtooth``:
        three or more troughs that do not.
    When it must not
        Noise (a swing is at least eight times the noise and 32 MiB), a single rise and fall.
        Rising peaks over a level floor are a sawtooth: a day of ever larger jobs looks so.
    Cost
        O(n) for the zigzag, on at most 720 points; next to nothing where nothing falls.

    References
    ----------
        Rainflow-style turning points (ASTM E1049); the floor, because only what is never given
        back leaks. Scatter of the troughs: median absolute deviation.

    Examples
    --------
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 3000.0, 10.0)
    >>> swing = 4e9 + 2e9 * (t % 300) / 300
    >>> series = Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=swing, limit_bytes=None)
    >>> Cycle().detect(series).pattern
    'sawtooth'
    """

    name = "cycle"

    def detect(self, series: Series) -> Signal | None:
        """Return what is seen in the whole series, or None."""
        return self.look_at(numerics.prepare(series))

    def look_at(self, view: SeriesWindow) -> Signal | None:
        """Return what is seen in the view, or None."""
        if view.t_s.size < 3 * LEAST_CYCLES:
            return None
        points = swings(view)
        if len(points) > 2 and points[0][2] < 0 and points[0][1] > points[2][1]:
            # No fall led there: it is where the window cuts a rise, not what was kept.
            points = points[1:]
        troughs = [(t, x) for t, x, kind in points if kind < 0][-MEMORY:]
        peaks = [(t, x) for t, x, kind in points if kind > 0][-MEMORY:]
        if len(troughs) < LEAST_CYCLES or len(peaks) < LEAST_CYCLES:
            return None
        at, low = np.array(troughs).T
        top_at, top = np.array(peaks).T
        return self._signal(view, at, low, top_at, top)

    def _signal(
        self,
        view: SeriesWindow,
        at: FloatArray,
        low: FloatArray,
        top_at: FloatArray,
        top: FloatArray,
    ) -> Signal | None:
        slope, _, r_squared = numerics.least_squares(at, low)
        swing = max(numerics.median(top) - numerics.median(low), 1.0)
        growth = float(low[-1] - low[0])
        pauses = at[1:] - at[:-1]
        up = int(np.count_nonzero(low[1:] > low[:-1])) / pauses.size
        order = concordance(low)
        pause = numerics.median(pauses)
        since = -float(max(at[-1], top_at[-1]))
        rest = low - slope * at
        middle = numerics.median(rest)
        scatter = numerics.median(np.abs(rest - middle))
        live = min(1.0, 2.0 * pause / max(since, 1.0))
        leak = (
            low.size > LEAST_CYCLES
            and slope > 0.0
            and ((up >= 0.75 and r_squared >= 0.7) or (order >= 0.88 and r_squared >= 0.8))
            and growth >= max(LEAST_GROWTH, 0.02 * swing)
        )
        pattern: Pattern = "cyclic" if leak else "sawtooth"
        even = 1.0 / (1.0 + numerics.deviation(pauses) / pause)
        # Both rise: the troughs that a peak follows come first.
        before = at[: int(at.searchsorted(top_at[-1], side="right"))]
        rises = top_at[top_at.searchsorted(before)] - before
        first = int(view.t_s.searchsorted(float(at[0])))
        level = view.mean[first:] - slope * view.t_s[first:]
        return Signal(
            detector=self.name,
            pattern=pattern,
            rate_bytes_per_s=slope if leak else 0.0,
            confidence=live
            * (r_squared * max(up, 2.0 * order - 1.0) if leak else even)
            * (1.0 - 1.0 / low.size),
            since_s=view.now_s + float(at[0]),
            n=int(low.size),
            facts={
                "swing_bytes": swing,
                "period_s": pause,
                "floor_growth_bytes": growth,
                "rising_share": up,
                "order": order,
                "r_squared": r_squared,
                "peaks_slope_bytes_per_s": numerics.least_squares(top_at, top)[0],
                "peak_bytes": float(top.max()),
                "scatter_bytes": scatter,
                "longest_rise_s": float(rises.max(initial=0.0)),
                "last_fall_s": -float(at[-1]),
                "slope_bytes_per_s": slope,
                "busy_share": int(np.count_nonzero(level > middle + 0.5 * swing)) / level.size,
            },
        )


@lru_cache(maxsize=4)  # one judgement asks several times
def swings(view: SeriesWindow) -> list[tuple[float, float, int]]:
    """Return the turning points of what counts as a swing here; see ``estimators.turns``."""
    least = max(LEAST_SWING, 8.0 * view.noise_bytes)
    if view.mean.size < 3 or numerics.drawdown(view.mean) < least:
        return []
    t_s, x = numerics.extremes(view.t_s, view.mean)
    points = numerics.zigzag(t_s, x, least)
    values = [value for _, value, _ in points]
    kinds = [kind for _, _, kind in points]
    falls = sorted(
        (values[k] - values[k + 1] for k in range(len(values) - 1) if kinds[k] > 0), reverse=True
    )
    if len(falls) < LEAST_CYCLES:
        return []
    size = SWING_SHARE * falls[LEAST_CYCLES - 1]
    return numerics.zigzag(t_s, x, size) if size > least else points


def concordance(values: FloatArray) -> float:
    """Return the share of the pairs that rise among those that differ: 1 rising, 0.5 neither.

    Kendall's rank correlation with the times, moved to 0..1; the statistic of the Mann-Kendall
    test. Equal neighbours, as quanta make them, do not count against a rise.

    Examples
    --------
    >>> concordance(np.array([1.0, 1.0, 2.0, 2.0])), concordance(np.array([1.0, 3.0, 2.0]))
    (1.0, 0.6666666666666666)
    """
    # Row by column, every pair that differs is above zero one way round.
    above = values > values[:, None]
    differ = int(np.count_nonzero(above))
    later = _LATER[: values.size, : values.size] if values.size <= MEMORY else np.triu(above)
    return int(np.count_nonzero(above & later)) / differ if differ else 0.5
