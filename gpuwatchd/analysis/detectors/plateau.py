"""Growth that ends: warm-ups, caches, pools. It exists to say "not a leak"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.numerics.deceleration import slowing
from gpuwatchd.core.model import Signal

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import Series

LEAST_GROWTH = 16.0 * numerics.MIB
NOISE_FACTOR = 8.0
"""The floor of pure noise rises by up to five standard deviations at its very end."""
LEAST_CELLS = 12
LATE_SHARE = 0.12
"""The last third may hold this share of the growth (a straight line: a third)."""


class Plateau:
    """Decelerating growth, or growth that has stopped.

    When it fires
        The floor rose by 16 MiB or more, and the last third of the time brought less than an
        eighth of it (fact ``ended`` is 1), or
        :func:`~gpuwatchd.analysis.numerics.deceleration.slowing` proves that it slows down
        (``ended`` is 0; then the rate is that of now, and ``level_bytes`` where it is heading).
    When it must not
        Steady or accelerating growth, a late onset, a series that never rose.
    Cost
        O(n); 90 µs more where growth goes on.

    References
    ----------
        Share of growth in the last third: the simplest deceleration test that needs no fit.
        Otherwise fitted laws and the Crow-AMSAA exponent; see
        :func:`~gpuwatchd.analysis.numerics.deceleration.slowing`.

    Examples
    --------
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 3600.0, 10.0)
    >>> warm = 4e9 + 2e9 * (1 - np.exp(-t / 300))
    >>> Plateau().detect(Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=warm,
    ...                       limit_bytes=None)).pattern
    'plateau'
    """

    name = "plateau"

    def detect(self, series: Series) -> Signal | None:
        """Return what is seen in the whole series, or None."""
        return self.look_at(numerics.prepare(series))

    def look_at(self, view: SeriesWindow) -> Signal | None:
        """Return what is seen in the view, or None."""
        first = view.start
        t, x = view.t_s[first:], view.mean[first:]
        if t.size < LEAST_CELLS:
            return None
        third = t.size // 3
        growth = float(view.floor[-1] - view.floor[first])
        if growth < max(LEAST_GROWTH, NOISE_FACTOR * view.noise_bytes):
            return None
        # Means of the ends of the last third, so that a single sample does not decide.
        width = max(2, third // 4)
        before = x[-third : -third + width]
        late = float(np.add.reduce(x[-width:]) / width - np.add.reduce(before) / width)
        share = max(late, 0.0) / growth
        top = numerics.quantile(x, 0.9)
        reached = int(np.argmax(x >= x[0] + 0.9 * (top - x[0])))
        if share > LATE_SHARE:
            return self._slowing(view, share, growth)
        return Signal(
            detector=self.name,
            pattern="plateau",
            rate_bytes_per_s=0.0,
            confidence=min(1.0, (1.0 - share / LATE_SHARE) * (-float(t[reached]) / view.span_s)),
            since_s=view.now_s + float(t[reached]),
            n=int(t.size),
            facts={
                "growth_bytes": growth,
                "late_share": share,
                "level_bytes": top,
                "rise_s": float(t[reached] - t[0]),
                "ended": 1.0,
            },
        )

    def _slowing(self, view: SeriesWindow, share: float, growth: float) -> Signal | None:
        """Return what is seen of growth that goes on, but provably slows down."""
        proof = slowing(view)
        if proof is None:
            return None
        level = proof.level_bytes if proof.level_bytes is not None else proof.ahead_bytes
        return Signal(
            detector=self.name,
            pattern="plateau",
            rate_bytes_per_s=proof.rate_now,
            confidence=0.5 * proof.explained,
            since_s=view.now_s + proof.begin_s,
            n=int(view.t_s.size),
            facts={
                "growth_bytes": growth,
                "late_share": share,
                "level_bytes": level,
                "rise_s": -proof.begin_s,
                "ended": 0.0,
            },
        )
