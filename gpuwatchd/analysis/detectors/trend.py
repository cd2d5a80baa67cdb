"""Gradual growth: the retained floor rises steadily."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.core.model import Signal

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import Series

LEAST_GROWTH = 16.0 * numerics.MIB
NOISE_FACTOR = 6.0
"""The floor of pure noise rises by up to five standard deviations at its very end."""
LEAST_CELLS = 6
MOST_BEND = 0.3
"""Largest distance of the floor from its chord, as a share of the growth."""
_SIXTEENTHS = np.linspace(0.0, 1.0, 17)


class Trend:
    """Least squares over the time in which the retained floor rises.

    When it fires
        The floor rose by 16 MiB or more (and more than the noise), in both halves of the window,
        and stays near its chord.
    When it must not
        Flat, a single jump, a rise that has stopped, a sawtooth that returns to the same floor.
    Cost
        O(n).

    References
    ----------
        Ordinary least squares for the rate and R²; p-value from batch means, which is valid for
        autocorrelated samples (Law and Kelton). R² is reported because people know it.

    Examples
    --------
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 1200.0, 10.0)
    >>> signal = Trend().detect(Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=t * 1e6,
    ...                              limit_bytes=None))
    >>> signal.pattern, round(signal.rate_bytes_per_s)
    ('gradual', 1000000)
    """

    name = "trend"

    def detect(self, series: Series) -> Signal | None:
        """Return what is seen in the whole series, or None."""
        return self.look_at(numerics.prepare(series))

    def look_at(self, view: SeriesWindow, begin_s: float | None = None) -> Signal | None:
        """Return what is seen since ``begin_s`` (seconds before now, <= 0), or None.

        Without ``begin_s``: since the last instant at the lowest level.
        """
        if view.t_s.size < LEAST_CELLS:
            return None
        first = view.start if begin_s is None else int(view.t_s.searchsorted(begin_s - 1e-6))
        t, floor = view.t_s[first:], view.floor[first:]
        if t.size < LEAST_CELLS:
            return None
        growth = float(floor[-1] - floor[0])
        if growth < max(LEAST_GROWTH, NOISE_FACTOR * view.noise_bytes):
            return None
        begin, end = float(t[0]), float(t[-1])
        shape = np.interp(begin + (end - begin) * _SIXTEENTHS, t, floor)
        share = (shape - shape[0]) / growth
        bend = float(np.abs(share - _SIXTEENTHS).max())
        if bend > MOST_BEND:
            return None
        slope, _, r_squared = numerics.least_squares(t, view.mean[first:])
        if slope <= 0.0:
            return None
        statistic, p_value = numerics.batch_means_p(t, view.mean[first:])
        half = float(share[8])
        return Signal(
            detector=self.name,
            pattern="gradual",
            rate_bytes_per_s=slope,
            confidence=max(0.0, 1.0 - 2.0 * bend) * min(1.0, growth / (growth + view.noise_bytes)),
            since_s=view.now_s + float(t[0]),
            n=int(t.size),
            facts={
                "r_squared": r_squared,
                "p_value": p_value,
                "t": min(statistic, 1e9),
                "growth_bytes": growth,
                "second_half_share": 1.0 - half,
                "bend": bend,
            },
        )
