"""A staircase: sharp rises between plateaus, never given back, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd import robust
from gpuwatchd.model import Signal

if TYPE_CHECKING:
    from gpuwatchd.model import FloatArray, Series
    from gpuwatchd.robust import View

LEAST_RISERS = 3
LEAST_RISER = 64.0 * robust.MIB
"""Smaller rises are how an allocator follows a steady leak: that is called gradual."""
SHARP_S = 45.0
ALIKE = 4.0
"""Risers belong to one staircase within this factor of their median."""
MEMORY = 64
"""As many risers back as are looked at."""


class Step:
    """Sharp rises of the retained floor that are alike and go on.

    When it fires
        Three or more risers of 64 MiB or more, each within 45 s (or three samples), alike within
        a factor of four, with plateaus between that make up most of the time.
    When it must not
        A single model load; a ramp (no plateaus); jumps that are given back (the floor does not
        rise); noise (a riser stands four times above it).
    Cost
        O(n).

    References
    ----------
        Retained floor instead of change points: a change point does not tell whether memory ever
        came back.

    Examples
    --------
    >>> from gpuwatchd.model import Series, Subject
    >>> t = np.arange(0.0, 3000.0, 10.0)
    >>> stairs = 4e9 + np.floor(t / 600) * 5e8
    >>> signal = Step().look(Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=stairs,
    ...                             limit_bytes=None))
    >>> signal.pattern, signal.n, round(signal.facts["riser_bytes"])
    ('step', 4, 500000000)
    """

    name = "step"

    def look(self, series: Series) -> Signal | None:
        """Return what is seen in the whole series, or None."""
        return self.look_at(robust.prepare(series))

    def look_at(self, view: View) -> Signal | None:
        """Return what is seen in the view, or None."""
        if view.t_s.size < 2 * LEAST_RISERS:
            return None
        at, size = risers(view, max(LEAST_RISER, 4.0 * view.noise_bytes))
        at, size = alike(at, size)
        if at.size < LEAST_RISERS:
            return None
        pause = np.diff(at)
        usual = float(np.median(pause))
        since = -float(at[-1])
        first = int(np.searchsorted(view.t_s, at[0])) - 1
        whole = float(view.floor[-1] - view.floor[max(first, 0)])
        share = float(size.sum()) / max(whole, 1.0)
        if share < 0.6:
            return None
        even = 1.0 / (1.0 + float(size.std() / size.mean()) + float(pause.std() / pause.mean()))
        live = min(1.0, 2.0 * float(pause.max()) / max(since, 1.0))
        # From the top of the first riser to the top of the last: n - 1 risers, n - 1 plateaus,
        # and the small rises between them.
        low, high = view.floor[np.searchsorted(view.t_s, at[[0, -1]])].tolist()
        slope = (high - low) / float(at[-1] - at[0])
        return Signal(
            detector=self.name,
            pattern="step",
            rate_bytes_per_s=slope,
            confidence=min(1.0, share) * even * live * (1.0 - 1.0 / at.size),
            since_s=view.now_s + float(at[0]),
            n=int(at.size),
            facts={
                "riser_bytes": float(np.median(size)),
                "pause_s": usual,
                "share": share,
                "even": even,
                "stall": since / max(float(pause.max()), 1.0),
                "growth_bytes": float(size.sum()),
            },
        )


def risers(view: View, least: float) -> tuple[FloatArray, FloatArray]:
    """Return instants (k,) and sizes (k,) of the sharp rises of the floor."""
    rise = np.diff(view.floor)
    index = np.flatnonzero(rise >= 0.1 * least)
    if not index.size:
        return np.empty(0), np.empty(0)
    t = view.t_s
    sharp = max(SHARP_S, 2.5 * view.step_s)
    # Rises that touch (within one cell) are one riser.
    edge = np.concatenate(([0], np.flatnonzero(np.diff(index) > 1) + 1))
    size = np.add.reduceat(rise[index], edge)
    begin = t[index[edge]]
    last = np.append(edge[1:], index.size) - 1
    end = t[index[last] + 1]
    good = (size >= least) & (end - begin <= sharp)
    return end[good], size[good]


def alike(at: FloatArray, size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the last risers, back to the first that is unlike them."""
    at, size = at[-MEMORY:], size[-MEMORY:]
    if at.size < LEAST_RISERS:
        return at, size
    middle = float(np.median(size[-8:]))
    unlike = np.flatnonzero((size > ALIKE * middle) | (size * ALIKE < middle))
    cut = int(unlike[-1]) + 1 if unlike.size else 0
    return at[cut:], size[cut:]
