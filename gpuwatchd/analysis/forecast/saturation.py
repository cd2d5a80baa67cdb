"""Where growth that slows down levels off, with an interval.

Relaxation of order q: what is still missing shrinks as ``d missing / dt ~ -missing ** q``. Order 1
is the exponential, 2 the hyperbola, below 1 it ends in finite time, 3 takes very long; every order
is closed under a shift of time, so that it does not matter when the growth began. Beside them stand
laws without an end: the straight line, powers and logarithms. Each law is fitted by least squares
to the levels since the onset, and weighed by its likelihood (Bayesian model average; Hoeting et
al., Statistical Science 1999) with a variance that admits that no law is quite right. The levels
that the laws name then have a distribution, infinite where the growth goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.analysis.numerics import View
    from gpuwatchd.core.model import FloatArray

BLOCKS = 32
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
        u = (np.arange(BLOCKS) + 0.5) / BLOCKS
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
_EDGES = np.arange(BLOCKS + 1.0)


def saturation(view: View, onset_s: float) -> Saturation | None:
    """Return where the growth since ``onset_s`` levels off; None where it does not slow down.

    Parameters
    ----------
    view
        What is looked at.
    onset_s
        When the growth began, seconds before now (< 0).

    Cost
    ----
        One product of 32 × 273; about 60 µs.
    """
    level = _levels(view, onset_s)
    if level is None:
        return None
    half = BLOCKS // 2
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
    number = BLOCKS / INDEPENDENT
    own = float(rest.min()) / BLOCKS
    variance = own + (MISFIT * growth) ** 2
    weight = _LAWS.log_prior - 0.5 * (rest / BLOCKS) * number / variance
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


def _levels(view: View, onset_s: float) -> FloatArray | None:
    """Return the mean level (BLOCKS,) of equal blocks of time since the onset."""
    t = view.t_s
    begin = int(t.searchsorted(onset_s - 1e-6))
    if t.size - begin < LEAST_CELLS:
        return None
    oldest = float(t[begin])
    edges = _EDGES * (-oldest / BLOCKS) + oldest
    edges[-1] = 0.0
    at = t.searchsorted(edges)
    at[-1] = t.size
    number = at[1:] - at[:-1]
    if int(number.min()) > 0:
        sums = view.sums[at]
        means: FloatArray = (sums[1:] - sums[:-1]) / number + view.mean[0]
        return means
    return np.interp(0.5 * (edges[1:] + edges[:-1]), t, view.mean)
