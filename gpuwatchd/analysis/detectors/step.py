"""A staircase: sharp rises between plateaus, never given back, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.core.model import Signal

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray, Series

LEAST_RISERS = 3
LEAST_RISER = 40.0 * numerics.MIB
"""Smaller rises are how an allocator follows a steady leak: that is called gradual."""
SHARP_S = 45.0
LEAST_DWELL_S = 60.0
NOISE_FACTOR = 3.0
LEAST_DWELL = 3.0
"""The usual plateau lasts at least this many times as long as the usual riser."""
ALIKE = 4.0
"""Risers belong to one staircase within this factor of the usual one."""
SHARE = 0.6
"""Risers bring at least this share of the growth."""
MAIN_SHARE = 0.15
"""A rise of this share of the riser that it touches belongs to it; less is noise, or a crumb."""
MEMORY = 64
"""As many risers back as are looked at."""
_FIRST = np.zeros(1, dtype=np.intp)


class Step:
    """Sharp rises of the retained floor that are alike and go on.

    Rises of the floor that touch are one riser. The usual riser is the size-weighted median: half
    of the growth came in risers of at least this size, so that crumbs between them do not count
    and noise on the plateaus does not either.

    When it fires
        The usual riser has 40 MiB or more and stands three times above the noise; three or more
        risers within a factor of four of it, each within 45 s (or three samples), bring 60 % of
        the growth; the usual plateau lasts a minute or more, and three times as long as the riser.
    When it must not
        A single model load; a ramp (no plateaus); jumps that are given back (the floor does not
        rise); noise.
    Cost
        O(n).

    References
    ----------
        Retained floor instead of change points: a change point does not tell whether memory ever
        came back. Size-weighted median as N50 in the assembly of genomes.

    Examples
    --------
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 3000.0, 10.0)
    >>> stairs = 4e9 + np.floor(t / 600) * 5e8
    >>> signal = Step().detect(Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=stairs,
    ...                             limit_bytes=None))
    >>> signal.pattern, signal.n, round(signal.facts["riser_bytes"])
    ('step', 4, 500000000)
    """

    name = "step"

    def detect(self, series: Series) -> Signal | None:
        """Return what is seen in the whole series, or None."""
        return self.look_at(numerics.prepare(series))

    def look_at(self, view: SeriesWindow) -> Signal | None:
        """Return what is seen in the view, or None."""
        if view.t_s.size < 2 * LEAST_RISERS:
            return None
        at, size, lasted = risers(view, max(LEAST_RISER, NOISE_FACTOR * view.noise_bytes))
        if at.size < LEAST_RISERS:
            return None
        pause = at[1:] - at[:-1]
        usual, rising = numerics.median(pause), numerics.median(lasted)
        dwell = usual - rising
        if dwell < max(LEAST_DWELL_S, LEAST_DWELL * max(rising, view.step_s)):
            return None
        since = -float(at[-1])
        first = int(view.t_s.searchsorted(at[0])) - 1
        whole = float(view.floor[-1] - view.floor[max(first, 0)])
        total = float(np.add.reduce(size))
        share = total / max(whole, 1.0)
        if share < SHARE:
            return None
        even = 1.0 / (1.0 + _spread(size) + _spread(pause))
        live = min(1.0, 2.0 * float(pause.max()) / max(since, 1.0))
        # From the top of the first riser to the top of the last: n - 1 risers, n - 1 plateaus,
        # and the small rises between them.
        low, high = view.floor[view.t_s.searchsorted(at[[0, -1]])].tolist()
        slope = (high - low) / float(at[-1] - at[0])
        return Signal(
            detector=self.name,
            pattern="step",
            rate_bytes_per_s=slope,
            confidence=min(1.0, share) * even * live * (1.0 - 1.0 / at.size),
            since_s=view.now_s + float(at[0]),
            n=int(at.size),
            facts={
                "riser_bytes": numerics.median(size),
                "pause_s": usual,
                "share": share,
                "even": even,
                "stall": since / max(float(pause.max()), 1.0),
                "growth_bytes": total,
            },
        )


def _spread(values: FloatArray) -> float:
    """Return the standard deviation over the mean."""
    return numerics.deviation(values) * values.size / float(np.add.reduce(values))


def risers(view: SeriesWindow, least: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return instants (k,), sizes (k,) and durations (k,) of the sharp rises of the floor.

    ``least`` bytes is the least size of the usual riser; none when that is smaller.
    """
    none = np.empty(0)
    sharp = max(SHARP_S, 2.5 * view.step_s)
    rise = view.rises
    if float(rise.max()) * (sharp / view.step_s + 2.0) < least:
        return none, none, none  # No rise is both sharp and large.
    index = (rise >= 0.1 * least).nonzero()[0]
    if not index.size:
        return none, none, none
    t = view.t_s
    # Rises that touch (within one cell) are one riser.
    large = rise[index]
    edge = np.concatenate((_FIRST, (index[1:] - index[:-1] > 1).nonzero()[0] + 1))
    size = np.add.reduceat(large, edge)
    # It begins and ends with the rises that make it up, not with the noise that touches them.
    riser = np.zeros(index.size, dtype=np.intp)
    riser[edge[1:]] = 1
    riser = riser.cumsum()
    main = large >= MAIN_SHARE * size[riser]
    index, riser = index[main], riser[main]
    if not index.size:
        return none, none, none
    edge = np.concatenate((_FIRST, (riser[1:] != riser[:-1]).nonzero()[0] + 1))
    size = size[riser[edge]]
    begin = t[index[edge]]
    last = np.empty_like(edge)
    last[:-1], last[-1] = edge[1:] - 1, index.size - 1
    end = t[index[last] + 1]
    cut = max(size.size - MEMORY, 0)
    cut += after_loads(size[cut:], least)
    size, begin, end = size[cut:], begin[cut:], end[cut:]
    usual = n50(size)
    if usual < least:
        return none, none, none
    good = (size * ALIKE >= usual) & (end - begin <= sharp)
    return end[good], size[good], (end - begin)[good]


def n50(size: FloatArray) -> float:
    """Return the size-weighted median: half of the sum is in values of at least this size.

    Examples
    --------
    >>> n50(np.array([1.0, 1.0, 1.0, 10.0, 12.0]))
    10.0
    """
    falling = np.sort(size)[::-1]
    total = np.add.accumulate(falling)
    return float(falling[total.searchsorted(0.5 * total[-1])])


def after_loads(size: FloatArray, least: float = 0.0) -> int:
    """Return the index after the last riser that dwarfs what follows: a load, not a stair.

    What follows must be stairs itself, the usual one of ``least`` bytes or more: crumbs and noise
    are dwarfed by any stair.
    """
    cut = 0
    while size.size - cut > LEAST_RISERS:
        largest = cut + int(size[cut:].argmax())
        rest = size[largest + 1 :]
        if rest.size < LEAST_RISERS or not least <= n50(rest) < size[largest] / ALIKE:
            break
        cut = largest + 1
    return cut
