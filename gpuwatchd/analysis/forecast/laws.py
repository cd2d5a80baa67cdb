"""The library of growth laws: how growth may go on, and when it then reaches the limit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray

BINS = 16
"""Increments that a window's growth is cut into."""


class Laws:
    """The library: each law φ on [0, 1] (window), its increments, and its inverse.

    Columns are grouped by kind, so that inverses are vectorised.
    """

    def __init__(self) -> None:
        power = np.array([1.35, 2.0, 3.0])
        root = np.array([0.75, 0.5, 0.33])
        log = np.array([0.02, 0.06, 0.2, 0.6, 2.0, 5.0])
        hyper = np.array([0.06, 0.2, 0.6, 2.0, 5.0])
        shifted = np.array([0.2, 0.6, 2.0])
        decay = np.array([0.12, 0.25, 0.5, 1.0, 2.0])
        stopped = np.array([0.45, 0.6, 0.75, 0.88])
        logistic = np.array([0.25, 0.5])
        self.exponents = np.concatenate(([1.0], power, root))
        self.log, self.hyper, self.shifted, self.decay = log, hyper, shifted, decay
        kind = 0.65 / 7
        kinds = (root, log, hyper, shifted, decay, stopped, logistic)
        self.prior: FloatArray = np.concatenate(
            [np.array([0.25]), np.full(3, 0.1 / 3)]
            + [np.full(k.size, kind / k.size) for k in kinds]
        )
        u = np.linspace(0.0, 1.0, BINS + 1)[:, None]
        values = np.concatenate(
            [
                u**self.exponents,
                np.log(u + log),
                -1.0 / (u + hyper),
                np.sqrt(u + shifted),
                1.0 - np.exp(-u / decay),
                np.minimum(u, stopped),
                1.0 / (1.0 + np.exp(-10.0 * (u - logistic))),
            ],
            axis=1,
        )
        self.first, self.rise = values[0], values[-1] - values[0]
        share = 0.97 * np.diff(values, axis=0) / self.rise + 0.03 / BINS
        self.log_odds: FloatArray = np.log(BINS * share)
        """(16, laws): log of each law's share of growth per bin over the even share."""
        self.log_prior = np.log(self.prior)
        self._start, self._height = self.first[:, None], self.rise[:, None]
        self._roots, self._decay = 1.0 / self.exponents[:, None], -decay[:, None]
        self._log, self._hyper = log[:, None], hyper[:, None]
        self._shifted, self._logistic = shifted[:, None], logistic[:, None]
        edges = np.cumsum([0, self.exponents.size, *(k.size for k in kinds[1:])]).tolist()
        blocks = [slice(first, last) for first, last in pairwise(edges)]
        # Those that have stopped never reach anything.
        self._kinds = [*blocks[:5], blocks[6]]

    def reach(self, ratio: FloatArray) -> FloatArray:
        """Return u (k, laws) where a law has grown (1 + ratio) times the window's growth.

        ``ratio`` (k,) is headroom over growth. Infinite where the law stops before.
        """
        # One row per law: each kind is a block of memory of its own.
        target = self._start + self._height * (1.0 + ratio)
        out = np.empty(target.shape)
        out.fill(np.inf)
        powers, log, hyper, shifted, decay, logistic = self._kinds
        np.power(target[powers], self._roots, out=out[powers])
        here = out[log]
        np.exp(np.minimum(target[log], 60.0), out=here)
        here -= self._log
        # What is left out below stays infinite: there the law has stopped before.
        value, here = target[hyper], out[hyper]
        np.divide(-1.0, value, out=here, where=value < 0.0)
        here -= self._hyper
        value, here = target[shifted], out[shifted]
        np.multiply(value, value, out=here)
        here -= self._shifted
        rest, here = 1.0 - target[decay], out[decay]
        some = rest > 0.0
        np.log(rest, out=here, where=some)
        np.multiply(here, self._decay, out=here, where=some)
        value, here = target[logistic], out[logistic]
        some = value < 1.0
        np.divide(value, 1.0 - value, out=here, where=some)
        np.log(here, out=here, where=some)
        here /= 10.0
        here += self._logistic
        return out.T


LAWS = Laws()


# Where growth that slows down levels off, with an interval.
# Relaxation of order q: what is still missing shrinks as ``d missing / dt ~ -missing ** q``.
# Order 1 is the exponential, 2 the hyperbola, below 1 it ends in finite time, 3 takes very long;
# every order is closed under a shift of time, so that it does not matter when the growth began.
# Beside them stand laws without an end: the straight line, powers and logarithms. Each law is
# fitted by least squares to the levels since the onset, and weighed by its likelihood (Bayesian
# model average; Hoeting et al., Statistical Science 1999) with a variance that admits that no
# law is quite right. The levels that the laws name then have a distribution, infinite where the
# growth goes on.

LEVEL_BLOCKS = 32
LEAST_CELLS = 24
"""Cells of the grid that a curve is looked for in."""
LEAST_RATIO = 0.7
"""Growth of the second half over that of the first: above, it does not slow down."""
MISFIT = 0.004
"""Usual error of a law that is right in kind, as a share of the growth."""
INDEPENDENT = 3.0
"""Neighbouring blocks err alike: so many count as one."""


class Saturation(NamedTuple):
    """Levels at which the growth ends, in bytes; infinite where it may go on for ever."""

    low: float
    """5 % quantile."""
    mid: float
    high: float
    """95 % quantile."""
    ends: float
    """Probability that there is such a level, under the laws."""

    def below(self, limit: float) -> bool:
        """Say whether the growth rather ends below a limit than reaches it."""
        return self.mid < limit


class _Laws:
    """Laws on the middles of the blocks, centred, of unit length, and where each of them ends."""

    def __init__(self) -> None:
        u = (np.arange(LEVEL_BLOCKS) + 0.5) / LEVEL_BLOCKS
        shapes, ends, prior = [], [], []
        pace = np.geomspace(0.06, 3.0, 48)
        for order, weight in ((0.5, 0.08), (1.0, 0.2), (1.5, 0.12), (2.0, 0.1), (3.0, 0.1)):
            for tau in pace.tolist():
                shapes.append(1.0 - _missing(u, tau, order))
                ends.append(1.0)
                prior.append(weight / pace.size)
        shifts = np.geomspace(0.01, 2.0, 12).tolist()
        endless = [u, *((u + c) ** p for p in (0.3, 0.45, 0.6, 0.8) for c in (0.0, *shifts[::3]))]
        endless += [np.log(u + c) for c in shifts]
        for shape in endless:
            shapes.append(shape)
            ends.append(np.inf)
            prior.append(0.4 / len(endless))
        values = np.array(shapes).T
        middle = values.mean(axis=0)
        size = np.linalg.norm(values - middle, axis=0)
        self.unit: FloatArray = (values - middle) / size
        self.end: FloatArray = (np.array(ends) - middle) / size
        self.log_prior: FloatArray = np.log(np.array(prior))


def _missing(u: FloatArray, tau: float, order: float) -> FloatArray:
    """Return what is missing after ``u``, as a share of what was missing at 0."""
    if order == 1.0:
        return np.exp(-u / tau)
    power: FloatArray = np.maximum(1.0 + (order - 1.0) * u / tau, 0.0) ** (-1.0 / (order - 1.0))
    return power


_LAWS = _Laws()
_EDGES = np.arange(LEVEL_BLOCKS + 1.0)


def saturation(view: SeriesWindow, onset_s: float) -> Saturation | None:
    """Return where the growth since ``onset_s`` levels off; None where it does not slow down.

    Parameters
    ----------
    onset_s
        When the growth began, seconds before now (< 0).

    Cost
    ----
        One product of 32 × 273; about 60 µs.
    """
    level = _levels(view, onset_s)
    if level is None:
        return None
    half = LEVEL_BLOCKS // 2
    first, second = float(level[half] - level[0]), float(level[-1] - level[half])
    growth = first + second
    if first <= 0.0 or growth <= 0.0 or second > LEAST_RATIO * first:
        return None
    middle = float(level.mean())
    centred = level - middle
    scale = centred @ _LAWS.unit
    if not (scale > 0.0).any():
        return None  # It rose and fell: like none of the laws.
    rest = np.maximum(float(centred @ centred) - scale * scale, 0.0)
    number = LEVEL_BLOCKS / INDEPENDENT
    own = float(rest.min()) / LEVEL_BLOCKS
    variance = own + (MISFIT * growth) ** 2
    weight = _LAWS.log_prior - 0.5 * (rest / LEVEL_BLOCKS) * number / variance
    weight = np.where(scale > 0.0, weight, -np.inf)
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    ends = np.where(np.isfinite(_LAWS.end), middle + scale * _LAWS.end, np.inf)
    # It will not level off below where it is.
    ends = np.maximum(ends, float(level[-1]))
    order = np.argsort(ends)
    total = np.cumsum(weight[order])
    at = np.minimum(np.searchsorted(total, (0.05, 0.5, 0.95)), total.size - 1)
    low, mid, high = ends[order][at].tolist()
    return Saturation(low, mid, high, min(float(weight[np.isfinite(ends)].sum()), 1.0))


def _levels(view: SeriesWindow, onset_s: float) -> FloatArray | None:
    """Return the mean level (LEVEL_BLOCKS,) of equal blocks of time since the onset."""
    t = view.t_s
    begin = int(t.searchsorted(onset_s - 1e-6))
    if t.size - begin < LEAST_CELLS:
        return None
    oldest = float(t[begin])
    edges = _EDGES * (-oldest / LEVEL_BLOCKS) + oldest
    edges[-1] = 0.0
    at = t.searchsorted(edges)
    at[-1] = t.size
    number = at[1:] - at[:-1]
    if int(number.min()) > 0:
        sums = view.sums[at]
        means: FloatArray = (sums[1:] - sums[:-1]) / number + view.mean[0]
        return means
    return np.interp(0.5 * (edges[1:] + edges[:-1]), t, view.mean)
