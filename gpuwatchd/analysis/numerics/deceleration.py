"""Does growth slow down? Fitted laws, and the exponent of a power-law process."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.analysis.numerics.series import MIB

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics.series import SeriesWindow
    from gpuwatchd.core.model import FloatArray

LEAST_GROWTH = 16.0 * MIB
NOISE_FACTOR = 8.0
"""The floor of pure noise rises by up to five standard deviations at its very end."""
LEAST_CELLS = 12
BLOCKS = 48
"""Blocks that a rise is cut into before laws are fitted."""
CURVED = 0.3
"""A law explains a curve when it leaves this share of the line's squared error, or less."""
SLOWER = 0.75
"""Rate at the end over rate at the beginning of the last half: below this it slows down."""
LEAST_Z = 0.75
"""The second quarter before now must stand out above the last by this many standard errors."""


FLOOR_BIAS = 5.0
"""The lowest of many noisy samples lies this many standard deviations below their mean."""
LEAST_LATE = 8.0 * MIB
"""Less than this in the last half of a rise is nothing."""
LEAST_EVENTS = 4.0
"""Fewer rises in the last half than this prove nothing."""
CLEAR_Z, SURE_Z, LEAST_BETA = 1.0, 2.5, 0.65
"""Without a law that fits: the same, and what the exponent of the whole growth must show."""
OVER_SHARE = 0.125
"""When the last half brought no more than this share of the growth, single rises do not count."""
SURE = 20.0
"""Gain in squared error, in variances of the noise, that cannot be chance (χ² with one degree)."""


class Slowing(NamedTuple):
    """Proof that growth slows down. Bytes, seconds and bytes/s."""

    begin_s: float
    """When the rise began, seconds before now, <= 0."""
    growth_bytes: float
    rate_now: float
    """Rate of the fitted law at the present, bytes/s; >= 0."""
    rate_before: float
    """Rate half of the rise's age ago, bytes/s."""
    level_bytes: float | None
    """Where the law that fits best levels off; None when it has no such level (logarithm)."""
    ahead_bytes: float
    """Level after as much time again as the rise has lasted, by that law."""
    explained: float
    """1 - squared error of the law / squared error of the line, over the last half; 0 to 1."""
    stopped: bool
    """The last half brought next to nothing: it has ended."""


class _Fits:
    """Laws of slowing growth on the midpoints of ``BLOCKS`` blocks, each a unit vector."""

    def __init__(self) -> None:
        u = (np.arange(BLOCKS) + 0.5) / BLOCKS
        log = np.array([0.02, 0.06, 0.2, 0.6, 1.5])
        hyper = np.array([0.02, 0.06, 0.2, 0.6, 1.5, 4.0])
        decay = np.array([0.06, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0])
        root = np.array([0.0, 0.3])

        def values(at: FloatArray) -> FloatArray:
            at = at[:, None]
            parts = (
                np.log(at + log),
                -1.0 / (at + hyper),
                -np.exp(-at / decay),
                np.sqrt(at + root),
            )
            return np.concatenate([at, *parts], axis=1)

        here = values(u)
        middle = here.mean(axis=0)
        size = np.linalg.norm(here - middle, axis=0)
        self.laws: FloatArray = (here - middle) / size
        """(BLOCKS, laws); the first is the straight line."""
        step = 0.02
        self.rate_end = (values(np.array([1.0])) - values(np.array([1.0 - step])))[0] / step / size
        self.rate_begin = (values(np.array([step])) - values(np.array([0.0])))[0] / step / size
        self.ahead = (values(np.array([2.0]))[0] - middle) / size
        far = np.full(middle.size, np.nan)
        bounded = slice(1 + log.size, 1 + log.size + hyper.size + decay.size)
        far[bounded] = 0.0
        self.level = (far - middle) / size
        """Asymptote of each law; nan where there is none."""


_FITS = _Fits()
_EDGES = np.arange(BLOCKS + 1.0)


@lru_cache(maxsize=4)  # one judgement asks several times
def slowing(view: SeriesWindow, begin_s: float | None = None) -> Slowing | None:
    """Return the proof that the rise since ``begin_s`` slows down, or None.

    The last half of the rise is cut into 48 blocks. If it brought next to nothing, growth has
    stopped. Otherwise its last quarter must have brought less than the one before by more than
    the size of single rises explains (compound Poisson: variance = rise size × growth), and

    - a logarithmic, hyperbolic, exponential or root law leaves less than :data:`CURVED` of the
      straight line's squared error, and its rate falls below :data:`SLOWER` (only the last half
      is fitted, so that a warm-up before a steady leak does not count); or
    - the exponent of the whole rise is surely below one (:func:`crow_amsaa`), for rises too few
      and too irregular to fit.

    ``begin_s``: seconds before now (<= 0); without it, the last instant at the lowest level.

    References
    ----------
        Deceleration as a falling intensity: Crow-AMSAA with β < 1, the Laplace test's
        alternative; fitted laws besides, because they bear quanta and say where growth levels
        off. Wrongly called slowing (tuning shapes): bursts at random 7 %, steady leaks 0 %.

    Cost
    ----
        10 µs where growth plainly goes on, else one product of 48 × 24; about 60 µs.
    """
    if view.t_s.size < LEAST_CELLS:
        return None
    begin = float(view.t_s[view.start]) if begin_s is None else begin_s
    if -begin < LEAST_CELLS * view.step_s:
        return None
    noise = view.noise_bytes
    low, middle, high, last = np.interp(
        [begin, 0.5 * begin, 0.25 * begin, 0.0], view.t_s, view.floor
    ).tolist()
    growth = last - low
    if growth < max(LEAST_GROWTH, NOISE_FACTOR * noise):
        return None
    if last - high > high - middle + 8.0 * noise:
        return None  # Plainly not: most growing series end here.
    late = _Late(view, begin, growth)
    if late.stopped(growth - FLOOR_BIAS * noise):
        whole = view.floor[view.t_s.searchsorted(begin) :]
        if growth < LEAST_EVENTS * _unit(whole):
            return None  # A jump or two: nothing that could have slowed down.
        level = float(late.level[-2:].mean())
        return Slowing(begin, growth, late.rate, late.rate, level, level, 1.0, stopped=True)
    return late.by_law() or late.by_exponent(view)


def _unit(floor: FloatArray) -> float:
    """Return the usual size of a single rise, weighted by size."""
    steps = floor[1:] - floor[:-1]
    return float(steps @ steps) / max(float(floor[-1] - floor[0]), 1.0)


class _Late:
    """The last half of a rise, in blocks, and what its two halves brought."""

    def __init__(self, view: SeriesWindow, begin: float, growth: float) -> None:
        self.begin, self.growth = begin, growth
        self.level = _blocks(view, 0.5 * begin)
        quarter = BLOCKS // 2
        middle = _mean_of_two(self.level, quarter)
        self.first = middle - _mean_of_two(self.level, 0)
        self.second = _mean_of_two(self.level, BLOCKS - 2) - middle
        self.rate = max(self.second, 0.0) / (-0.25 * begin)
        tail = view.floor[view.t_s.searchsorted(0.5 * begin) :]
        self.noise_variance = view.noise_bytes**2 * BLOCKS / tail.size
        """Of one block."""
        unit = _unit(tail)
        if view.noise_bytes > 0.25 * unit:
            # The single rises are those of the noise: those from block to block stand in.
            steps = self.level[1:] - self.level[:-1]
            squares = float(steps @ steps) - 2.0 * self.noise_variance * steps.size
            unit = min(unit, max(squares, 0.0) / max(float(steps.sum()), 1.0))
        variance = unit * max(self.first + self.second, 0.0) + 2.0 * self.noise_variance
        self.events = (self.first + self.second) / max(unit, 1.0)
        """Rises that the last half is made of, as far as they can be told apart."""
        self.z = (self.first - self.second) / max(math.sqrt(variance), 1.0)

    def stopped(self, growth: float) -> bool:
        """Say whether it brought next to nothing, though steady growth would have brought half.

        ``growth`` is that of the whole rise, without what the noise lends to a floor.
        """
        error = math.sqrt(self.noise_variance)
        late = self.first + self.second
        return late <= max(LEAST_LATE, 2.0 * error) and late + 3.0 * error <= 0.2 * growth

    def by_law(self) -> Slowing | None:
        """Return the proof by a law that fits much better than a line."""
        if self.z < LEAST_Z or self.events < LEAST_EVENTS:
            return None
        fit = _fit(self.level, 0.5 * self.begin, self.noise_variance)
        if fit is None or fit.share > CURVED or fit.rate_now > SLOWER * fit.rate_before:
            return None
        return Slowing(
            self.begin, self.growth, max(fit.rate_now, 0.0), fit.rate_before, fit.level,
            fit.ahead, 1.0 - max(fit.share, 0.0), stopped=False,
        )  # fmt: skip

    def by_exponent(self, view: SeriesWindow) -> Slowing | None:
        """Return the proof by the exponent of the whole rise, where no law fits (few rises)."""
        over = self.first + self.second <= OVER_SHARE * self.growth
        clear = self.z >= CLEAR_Z and self.events >= LEAST_EVENTS
        if self.second > 0.6 * self.first or not (over or clear):
            return None
        beta, z = crow_amsaa(view.t_s - self.begin, view.floor)
        if beta > LEAST_BETA or z < SURE_Z:
            return None
        # By the power law, growth goes on as age ** beta; never faster than of late.
        more = min(self.growth * (2.0**beta - 1.0), 2.0 * (self.first + self.second))
        ahead = float(self.level[-2:].mean()) + more
        before = self.first / (-0.25 * self.begin)
        return Slowing(
            self.begin, self.growth, self.rate, before, None, ahead, 1.0 - beta, stopped=False
        )


def crow_amsaa(age_s: FloatArray, floor: FloatArray) -> tuple[float, float]:
    """Return the exponent of growth ~ age ** β, and how surely it is below one (z).

    Maximum likelihood with each rise weighted by its size: 1/β is the mean of ln(age / age of the
    rise), which is exponential with mean one under steady growth; its error follows from the
    effective number of rises (Σs)²/Σs².

    ``age_s`` (n,) is seconds since the growth began, of which what is not positive is left out;
    ``floor`` (n,) bytes, never falling.

    References
    ----------
        Crow, "Reliability analysis for complex, repairable systems" (1974); MIL-HDBK-189.

    Examples
    --------
    >>> t = np.arange(1.0, 2000.0)
    >>> beta, z = crow_amsaa(t, np.sqrt(t))
    >>> round(beta, 1), z > 3.0
    (0.5, True)
    >>> round(crow_amsaa(t, t)[0], 1)
    1.0
    """
    first = int(age_s.searchsorted(0.0, side="right"))
    # A rise is as old as the middle of its cell.
    age = 0.5 * (age_s[first + 1 :] + age_s[first:-1])
    rise = floor[first + 1 :] - floor[first:-1]
    some = rise > 0.0
    age, rise = age[some], rise[some]
    total = float(rise.sum())
    if total <= 0.0:
        return 1.0, 0.0
    mean = float(rise @ np.log(age_s[-1] / age)) / total
    number = total * total / float(rise @ rise)
    return 1.0 / max(mean, 1e-3), (mean - 1.0) * math.sqrt(number)


def _mean_of_two(level: FloatArray, first: int) -> float:
    return float(level[first] + level[first + 1]) / 2.0


def _blocks(view: SeriesWindow, begin: float) -> FloatArray:
    """Return the level (BLOCKS,) of equal blocks of time from ``begin`` to now.

    Means bear noise; where they fall back (swings, spikes) only the floor is what was kept.
    """
    edges = _EDGES * (-begin / BLOCKS) + begin
    edges[-1] = 0.0
    at = view.t_s.searchsorted(edges, side="right")
    number = at[1:] - at[:-1]
    least = int(number.min())
    if least > 0:
        sums = view.sums[at]
        means: FloatArray = (sums[1:] - sums[:-1]) / number + view.mean[0]
        fall = float((np.maximum.accumulate(means) - means).max())
        usual = view.noise_bytes / math.sqrt(least)
        if fall <= max(6.0 * usual, 0.02 * float(means[-1] - means[0])):
            return means
    return np.interp(0.5 * (edges[1:] + edges[:-1]), view.t_s, view.floor)


class _Fit(NamedTuple):
    """The law of slowing growth that fits a curve best."""

    share: float
    """What it leaves of the straight line's squared error."""
    rate_now: float
    rate_before: float
    level: float | None
    ahead: float


def _fit(y: FloatArray, begin: float, usual: float) -> _Fit | None:
    """Return the best law of slowing growth; None where a line is as good.

    ``usual`` is the variance of the noise of one block.
    """
    middle = float(np.add.reduce(y)) / BLOCKS
    centred = y - middle
    weight = centred @ _FITS.laws
    left = float(centred @ centred) - weight * weight
    left[weight <= 0.0] = np.inf
    best = 1 + int(left[1:].argmin())
    if not math.isfinite(left[best]) or not math.isfinite(left[0]):
        return None
    if float(left[0] - left[best]) < SURE * usual:
        return None
    # What white noise of this variance leaves is no fault of a law.
    left -= usual * (BLOCKS - 2)
    scale = float(weight[best])
    level = _FITS.level[best]
    return _Fit(
        share=max(float(left[best]), 0.0) / max(float(left[0]), 1.0),
        rate_now=scale * float(_FITS.rate_end[best]) / -begin,
        rate_before=scale * float(_FITS.rate_begin[best]) / -begin,
        level=None if np.isnan(level) else middle + scale * float(level),
        ahead=middle + scale * float(_FITS.ahead[best]),
    )
