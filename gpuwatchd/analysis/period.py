"""The epochs of a job as they show from outside: falls of activity that come again and again.

Sources: candidates from the autocorrelation, verified in another way (AUTOPERIOD; Vlachos, Yu,
Castelli, SDM 2005); its variance under "no period" by Bartlett's formula (1946) from the short
lags, so that bursts that last for a while are no period; the verification is a binomial test of
how many pauses between falls are alike. Jitter of each epoch adds up, so no folding: a phase would
be lost after a few epochs.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gpuwatchd.analysis.numerics import median
from gpuwatchd.core.model.findings import Period

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import FloatArray

SHORTEST_S: Final = 120.0
LEAST_PERIODS: Final = 4
CELL_S: Final = 10.0
SCALE: Final = 3
"""Each grid has cells so many times as wide as those of the one before: a fall that is short, or
does not come on time, is lost in cells that are too fine."""
LAGS: Final = (10, 36)
"""Cells of a period on one grid."""
LEAST_BUSY: Final = 20.0
"""Per cent, or W: less is idle most of the time, and what interrupts that is no epoch."""
LEAST_FALL: Final = 0.1
"""Share of the busy level by which activity falls."""
CHANCE: Final = 0.01
"""How often what has no period may seem to have one."""
SPREAD: Final = 0.2
"""Pauses between falls are alike within this share of the period."""
NEAR: Final = 0.3
"""Falls closer than this share of a period are one boundary: evaluation, then a checkpoint."""
LEAST_ALIKE: Final = 0.75
GOES_ON: Final = 1.6
"""With no boundary for so many periods it is over."""
_NORMAL: Final = NormalDist()


class _Grid(NamedTuple):
    cell_s: float
    begin_s: float
    means: FloatArray
    """(k,): activity of each cell, NaN where nothing is known."""


def period_of(
    activity: Iterable[tuple[str, FloatArray, FloatArray]], now_s: float
) -> Period | None:
    """Return the epochs of a device's job at ``now_s``; None where none are to be seen.

    Parameters
    ----------
    activity:
        Of each source its name, times (n,) ascending in seconds and figures (n,) in per cent or W,
        NaN where unknown; sampling may be irregular and have gaps. The first with a period counts.
    now_s:
        Instant to which they are known, on the same clock.

    Notes
    -----
    At least four pauses between falls must be seen: 8 minutes at the least. Falls that last a
    second are lost in noise. Cost: about 0.7 ms for 2,880 points.

    Examples
    --------
    >>> t = np.arange(0.0, 6000.0, 10.0)
    >>> found = period_of([("utilisation", t, np.where(t % 720 < 60, 5.0, 97.0))], 6000.0)
    >>> round(found.period_s), len(found.boundaries_s)
    (720, 8)
    """
    for source, t_s, values in activity:
        known = np.isfinite(values)
        grid = _cells(t_s[known], values[known])
        if grid is None:
            continue
        for base, lag in _candidates(grid):
            found = _verified(source, grid, base, lag, now_s)
            if found is not None:
                return found
    return None


def _cells(t_s: FloatArray, values: FloatArray) -> _Grid | None:
    """Return the finest grid; None where activity is idle or does not fall."""
    if t_s.size < 4 * LEAST_PERIODS:
        return None
    ranked = np.sort(values)
    busy, low = float(ranked[3 * ranked.size // 4]), float(ranked[ranked.size // 200])
    if busy < LEAST_BUSY or busy - low < LEAST_FALL * busy:
        return None
    cell_s = max(CELL_S, median(np.diff(t_s)))
    at = ((t_s - t_s[0]) / cell_s + 1e-6).astype(np.intp)
    return _Grid(cell_s, float(t_s[0]), _means(at, values, int(at[-1]) + 1))


def _means(at: FloatArray, values: FloatArray, size: int) -> FloatArray:
    count = np.bincount(at, minlength=size)
    total = np.bincount(at, values, size)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _candidates(grid: _Grid) -> list[tuple[_Grid, int]]:
    """Return grids with lags at which the autocorrelation is beyond chance, the surest first."""
    out: list[tuple[float, _Grid, int]] = []
    first = max(4, math.ceil(SHORTEST_S / grid.cell_s))
    while (last := min(grid.means.size // LEAST_PERIODS, LAGS[1])) >= first:
        size = grid.means.size
        known = grid.means == grid.means
        x = np.where(known, grid.means, 0.0)
        x -= known * (x.sum() / max(int(known.sum()), 1))
        power = np.abs(np.fft.rfft(x, 1 << (size + LAGS[1] + 2).bit_length())) ** 2
        r = np.fft.irfft(power)[: last + 2]
        r = r / max(float(r[0]), 1e-12) * size / (size - np.arange(r.size))
        short = int((r <= 0.0).argmax()) or r.size
        spread = math.sqrt((1.0 + 2.0 * float((r[1:short] ** 2).sum())) / size)
        tests = max((last - first + 1) / short, 1.0)
        needed = _NORMAL.inv_cdf(1.0 - CHANCE / tests) * spread
        peaks = (r[1:-1] > needed) & (r[1:-1] >= r[:-2]) & (r[1:-1] >= r[2:])
        lags = (peaks.nonzero()[0] + 1).tolist()
        out += [(float(r[k]) / spread, grid, k) for k in lags if k >= max(first, short)]
        first = LAGS[0]
        at = known.nonzero()[0]
        means = _means(at // SCALE, grid.means[at], -(-size // SCALE))
        grid = _Grid(grid.cell_s * SCALE, grid.begin_s, means)
    return [(base, lag) for _, base, lag in sorted(out, key=lambda row: -row[0])[:3]]


def _verified(source: str, fine: _Grid, grid: _Grid, lag: int, now_s: float) -> Period | None:
    """Return the period if the falls of activity keep to it."""
    known = np.sort(grid.means[grid.means == grid.means])
    high = float(known[3 * known.size // 4])
    means = np.where(grid.means == grid.means, grid.means, high)
    # The usual lowest cell of a period.
    lowest = np.sort(means[: means.size - means.size % lag].reshape(-1, lag).min(axis=1))
    low = float(lowest[lowest.size // 2])
    if high - low < LEAST_FALL * high:
        return None
    below = means < 0.5 * (low + high)
    falls = np.flatnonzero(below[1:] & ~below[:-1]) + 1
    period_s, at = lag * grid.cell_s, [_begin(fine, grid, int(k)) for k in falls]
    boundaries: list[float] = []
    for at_s in at:
        if not boundaries or at_s - boundaries[-1] > NEAR * period_s:
            boundaries.append(at_s)
    pauses = np.diff(boundaries)
    alike = np.sort(pauses[np.abs(pauses / period_s - 1.0) <= SPREAD])
    if alike.size < LEAST_PERIODS:
        return None
    period_s = 0.5 * float(alike[(alike.size - 1) // 2] + alike[alike.size // 2])
    number = int((np.abs(pauses / period_s - 1.0) <= SPREAD).sum())
    if number < LEAST_PERIODS or now_s - boundaries[-1] > GOES_ON * period_s:
        return None
    # Whole periods without data, or with a boundary that was missed, say nothing against it.
    odd = np.abs(pauses / period_s - np.maximum(np.round(pauses / period_s), 1.0)) > SPREAD
    share, chance = number / (number + int(odd.sum())), _chance(number, pauses.size)
    if share < LEAST_ALIKE or chance > CHANCE:
        return None
    return Period(
        source=source,
        period_s=period_s,
        weight=share * (1.0 - chance),
        boundaries_s=tuple(boundaries),
    )


def _begin(fine: _Grid, grid: _Grid, cell: int) -> float:
    """Return when activity fell in a cell, to a cell of the finest grid."""
    ratio = round(grid.cell_s / fine.cell_s)
    first = max((cell - 1) * ratio, 0)
    part = fine.means[first : (cell + 1) * ratio].tolist()
    known = [value for value in part if not math.isnan(value)]
    deep = 0.75 * min(known) + 0.25 * max(known)
    return fine.begin_s + (first + next(k for k, x in enumerate(part) if x <= deep)) * fine.cell_s


def _chance(alike: int, pauses: int) -> float:
    """Return how often so many pauses between falls at random are alike; one is free to choose.

    A pause of a Poisson process lies within ``SPREAD`` of any length in less than 2 ``SPREAD`` / e.
    """
    p, n = 2.0 * SPREAD / math.e, pauses - 1
    return sum(math.comb(n, k) * p**k * (1.0 - p) ** (n - k) for k in range(alike - 1, n + 1))
