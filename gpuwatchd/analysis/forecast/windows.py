"""The candidate windows that growth laws are weighed on, and where growth levels off."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuwatchd.analysis.numerics import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray


BINS = 16
"""Increments that a window's growth is cut into."""


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


def saturation(view: SeriesWindow, onset_s: float, end_s: float = 0.0) -> Saturation | None:
    """Return where the growth since ``onset_s`` levels off; None where it does not slow down.

    ``onset_s``: when the growth began, seconds before now (< 0). Where memory is given back now and
    then, ``end_s`` (< 0) is until when the floor is certain: then the floor is what levels off.

    Cost
    ----
        One product of 32 × 273; about 60 µs.
    """
    level = _levels(view, onset_s) if end_s == 0.0 else _floors(view, onset_s, end_s)
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


def _floors(view: SeriesWindow, onset_s: float, end_s: float) -> FloatArray | None:
    """Return the floor (LEVEL_BLOCKS,) in the middles of equal blocks of time until ``end_s``."""
    first, last = view.t_s.searchsorted((onset_s - 1e-6, end_s)).tolist()
    if last - first < LEAST_CELLS:
        return None
    edges = _EDGES * ((end_s - onset_s) / LEVEL_BLOCKS) + onset_s
    return np.interp(0.5 * (edges[1:] + edges[:-1]), view.t_s, view.floor)


LOOKBACKS_S = 30.0 * np.sqrt(2.0) ** np.arange(20)
"""30 s to 6 h in steps of √2; the growth since the last low point is always added."""
HOLD_SHARE = 0.25
"""Releases smaller than this share of a window's growth do not delay it."""
HOLD_MARGIN = 1.25
"""Growth must be older than this many times the longest hold."""
HOLDS = 2.0
"""A window covers at least this many holds: a rise between two releases proves nothing."""
NOISE_FACTOR = 20.0
"""Growth above this many standard deviations of the noise needs no smoothing."""
BLOCKS = 48


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """Candidate windows (k,): growth of the retained floor that is older than what is let go."""

    view: SeriesWindow
    """What they were seen in."""
    begin_s: FloatArray
    """Seconds before now, <= 0."""
    end_s: FloatArray
    age_s: FloatArray
    """How long each is."""
    growth: FloatArray
    """Bytes; at least the minimum asked for."""
    shares: FloatArray
    """(k, 16): share of the growth in each sixteenth of the window."""
    lag_s: FloatArray
    """How long the subject holds this much before it lets go."""
    events: FloatArray
    """Independent events seen, 1 to 60."""
    excess: FloatArray
    """Largest excess of the cumulative shares over the straight line."""
    deficit: FloatArray
    """Largest excess of the straight line over them."""
    stall: FloatArray
    """Time since the last rise over the longest pause between rises, 0 to 4."""
    calm: FloatArray
    """ln((growth + 4 MiB) / (drawdown + 4 MiB)), -3 to 4."""
    returns: FloatArray
    """How often half of the growth, or more, was given back at once."""
    noise_bytes: FloatArray
    """Standard deviation of the noise where the window was seen."""
    whole: Windows | None = None
    """The windows of all groups that were found together, these among them."""


_COLUMNS = tuple(field.name for field in fields(Windows) if field.name not in {"view", "whole"})


def windows(view: SeriesWindow, minimum_growth: float) -> list[Windows]:
    """Return the windows in which the floor grew by ``minimum_growth`` or more, if any.

    Grouped by the view that they are seen in: windows whose growth does not stand far above the
    noise are looked at in a coarser one, cells a 24th to a 96th of the window.

    Cost: about 30 vectorised passes over at most 21 windows × 48 points, for each group.
    """
    t, floor = view.t_s, view.floor
    if t.size < 4:
        return []
    oldest, noise = float(t[view.start]), NOISE_FACTOR * view.noise_bytes
    if float(floor[-1] - floor[0]) < minimum_growth and noise < minimum_growth:
        return []
    shortest, longest = LOOKBACKS_S.searchsorted((4.0 * view.step_s, -0.85 * oldest)).tolist()
    look = np.concatenate((LOOKBACKS_S[shortest:longest], [*_knees(view), -oldest]))
    quiet = noise <= minimum_growth
    groups = [(view, [look])] if quiet else _groups(view, look, noise)
    spans = [_span(one, looks, minimum_growth) for one, looks in groups]
    found = [span for span in spans if span is not None]
    return _described(found) if found else []


def joined(groups: Sequence[Windows]) -> Windows:
    """Return the windows of all groups as one, with the view of the first."""
    if len(groups) == 1:
        return groups[0]
    whole = groups[0].whole
    if whole is not None and whole.growth.size == sum(group.growth.size for group in groups):
        return whole
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(group, name) for group in groups]) for name in _COLUMNS
    }
    return Windows(view=groups[0].view, **columns)


def _knees(view: SeriesWindow) -> list[float]:
    """Return how long ago the floor was furthest below its chord: where a late leak began."""
    out = []
    for begin in (view.start, view.t_s.size - view.t_s.size // 4):
        t, x = view.t_s[begin:], view.floor[begin:]
        if t.size >= 8 and x[-1] > x[0]:
            slope = (x[-1] - x[0]) / (t[-1] - t[0])
            knee = int((x - slope * t).argmin())
            if 0 < knee < t.size - 4:
                out.append(-float(t[knee]))
    return out


def _groups(
    view: SeriesWindow, look: FloatArray, noise: float
) -> list[tuple[SeriesWindow, list[FloatArray]]]:
    """Return which look-backs are looked at in which view."""
    growth = view.floor[-1] - np.interp(-look, view.t_s, view.floor)
    fine = growth >= noise
    any_fine = bool(fine.any())
    # A noisy lowest point says nothing about the age of the growth: the whole view counts.
    rest = LOOKBACKS_S[: int(LOOKBACKS_S.searchsorted(0.85 * view.span_s))]
    rest = rest[rest > (np.maximum.reduce(look[fine]) if any_fine else 0.0)]
    rest = np.concatenate((rest, [view.span_s], look[~fine]))
    level = np.floor(np.log(np.maximum(rest / (24.0 * view.step_s), 1.0)) / _LOG_4 + 1e-9)
    own = [look[fine]] if any_fine else []
    groups: list[tuple[SeriesWindow, list[FloatArray]]] = []
    for exponent in sorted(set(level.tolist())):
        factor = 4 ** int(exponent)
        if view.t_s.size >= 4 * factor:
            if factor == 1:
                own.append(rest[level == exponent])
            else:
                groups.append((view.coarser(factor), [rest[level == exponent]]))
    return [(view, own), *groups] if own else groups


class _Span(NamedTuple):
    """Windows (k,) that are seen in one view, not yet described."""

    view: SeriesWindow
    sizes: tuple[int, ...]
    """How many of them are of each group."""
    begin: FloatArray
    end: FloatArray
    lag: FloatArray


def _span(view: SeriesWindow, looks: list[FloatArray], minimum_growth: float) -> _Span | None:
    """Return those look-backs of each group that are windows; None without any."""
    t, floor = view.t_s, view.floor
    if float(floor[-1] - floor[0]) < minimum_growth:
        return None
    least = 4.0 * view.step_s
    oldest = float(t[view.start])
    look = np.minimum(looks[0] if len(looks) == 1 else np.concatenate(looks), -oldest)
    growth = floor[-1] - np.interp(-look, t, floor)
    lag = view.holds.longest_s(HOLD_SHARE * growth)
    if not lag.any():
        end, begin = -lag, -look
        good = (growth >= minimum_growth) & (look >= least)
    else:
        for _ in range(2):
            end, begin, growth = _shifted(view, look, lag)
            lag = np.maximum(lag, view.holds.longest_s(HOLD_SHARE * growth))
        end, begin, growth = _shifted(view, look, lag)
        # The delay must follow from this growth, not from a smaller one before the shift.
        justified = view.holds.longest_s(HOLD_SHARE * growth) >= 0.5 * lag
        long_enough = end - begin >= np.maximum(np.maximum(0.5 * look, HOLDS * lag), least)
        good = (growth >= minimum_growth) & long_enough & justified
    own = good.nonzero()[0]
    if not own.size:
        return None
    if len(looks) == 1:
        return _Span(view, (own.size,), begin[own], end[own], lag[own])
    ends = own.searchsorted(list(accumulate(part.size for part in looks))).tolist()
    sizes = (last - first for first, last in pairwise([0, *ends]))
    return _Span(view, tuple(sizes), begin[own], end[own], lag[own])


def _shifted(
    view: SeriesWindow, look: FloatArray, lag: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return end, begin and growth of windows that end before what may still be let go."""
    end = -HOLD_MARGIN * lag
    begin = np.maximum(end - look, float(view.t_s[view.start]))
    growth = np.interp(end, view.t_s, view.floor) - np.interp(begin, view.t_s, view.floor)
    return end, begin, np.maximum(growth, 0.0)


def _described(spans: list[_Span]) -> list[Windows]:
    """Return the windows of all groups with what is seen in them.

    What needs no view is worked out for all groups at once: the cost is by pass, not by window.
    """
    begin, end, lag = (np.concatenate([span[k] for span in spans]) for k in (2, 3, 4))
    views = [span.view for span in spans]
    # What a phase gave back when it ended says nothing of what has grown since.
    known = [(one.noise_bytes, one.step_s, min(one.span_s, one.holds.phase_s)) for one in views]
    rows = [k for k, span in enumerate(spans) for _ in range(span.begin.size)]
    noise, step_s, seen_s = np.array(known).T[:, rows]
    age = end - begin
    edges = begin[:, None] + age[:, None] * _UNIT
    block = np.maximum(np.maximum(age / 8.0, lag), step_s)
    count = np.minimum(np.floor(np.minimum(6.0 * age, seen_s) / block), BLOCKS)
    back = block[:, None] * _BACK
    back[:, -1] = 1.0
    seen, first = [], 0
    for span in spans:
        here = slice(first, first + span.begin.size)
        first = here.stop
        seen.append(_looked_up(span, edges[here], back[here]))
    columns = seen[0] if len(seen) == 1 else tuple(map(np.concatenate, zip(*seen, strict=True)))
    level, rise, square, stall, total, number, returns = columns
    jump = square / np.maximum(rise, 1.0)
    delta = level[:, 1:] - level[:, :-1]
    growth = level[:, -1] - level[:, 0]
    shares = delta / growth[:, None]
    over = shares.cumsum(axis=1) - _UNIT[1:]
    turn = delta[:, 1:] - delta[:, :-1]
    bend = np.add.reduce(turn * turn, axis=1) / 30.0 / (growth / BINS)
    unit = np.maximum(np.maximum(jump, bend), 2.0 * MIB)
    events = np.minimum(np.maximum(growth / unit, 1.0), 60.0)
    excess = np.maximum(np.maximum.reduce(over, axis=1), 0.0)
    deficit = np.maximum(-np.minimum.reduce(over, axis=1), 0.0)
    calm = _calm(total, number, count, growth)
    # A group without windows is left out.
    groups = [(span.view, size) for span in spans for size in span.sizes if size]
    whole = Windows(
        view=groups[0][0], begin_s=begin, end_s=end, age_s=age, growth=growth, shares=shares,
        lag_s=lag, events=events, excess=excess, deficit=deficit, stall=stall, calm=calm,
        returns=returns, noise_bytes=noise,
    )  # fmt: skip
    if len(groups) == 1:
        return [whole]
    out, first = [], 0
    for view, size in groups:
        part = {name: getattr(whole, name)[first : first + size] for name in _COLUMNS}
        first += size
        out.append(Windows(view=view, whole=whole, **part))
    return out


def _looked_up(span: _Span, edges: FloatArray, back: FloatArray) -> tuple[npt.NDArray[Any], ...]:
    """Return what must be looked up in the view, for each window.

    Level (k, 17) at the edges of its sixteenths; rise of the floor, and the sum of its squares;
    stall; sums and numbers (k, 48) of the blocks before now, between ``back`` (k, 49); returns.
    """
    view, _, begin, end, lag = span
    t, floor, squares, risen_s = view.t_s, view.floor, view.squares, view.risen_s
    level, at = np.interp(edges, t, floor), t.searchsorted(back)
    sums, number = view.sums[at], at[:, 1:] - at[:, :-1]
    returns = view.holds.times(0.5 * (level[:, -1] - level[:, 0]))
    first = t.searchsorted(begin)
    rise: FloatArray
    square: FloatArray
    if not lag.any():
        # They all end at the last sample, before which each of them began.
        rise, square = floor[-1] - floor[first], squares[-1] - squares[first]
        stall = _stall_now(risen_s, begin)
    else:
        first = np.minimum(first, t.size - 1)
        last = np.maximum(t.searchsorted(end, side="right") - 1, first)
        rise, square = floor[last] - floor[first], squares[last] - squares[first]
        stall = _stall(risen_s, begin, end)
    return level, rise, square, stall, sums[:, 1:] - sums[:, :-1], number, returns


_LOG_4 = math.log(4.0)
_UNIT = np.linspace(0.0, 1.0, BINS + 1)
_BACK = -np.arange(BLOCKS, -1.0, -1.0)
_NUMBER = np.arange(BLOCKS, 0, -1)
_NOTHING = -1e30
"""Below every mean: a block without samples is never the highest."""


def _stall_now(at: FloatArray, begin: FloatArray) -> FloatArray:
    """Return the same as :func:`_stall` for windows that all end now."""
    if at.size < 2:
        return np.full(begin.size, 4.0)
    pauses = at[1:] - at[:-1]
    first = at.searchsorted(begin)
    longest = np.maximum.accumulate(pauses[::-1])[::-1][np.minimum(first, pauses.size - 1)]
    return np.where(first < pauses.size, np.minimum(-float(at[-1]) / longest, 4.0), 4.0)


def _stall(at: FloatArray, begin: FloatArray, end: FloatArray) -> FloatArray:
    """Return the time since the last of the rises ``at`` over the longest pause between two."""
    out = np.full(begin.size, 4.0)
    if at.size < 2:
        return out
    pauses = at[1:] - at[:-1]
    first = at.searchsorted(begin)
    last = at.searchsorted(end, side="right") - 1
    rose = (last > first).nonzero()[0]
    if rose.size:
        first, last = first[rose], last[rose]
        # Longest pause of each window: every other stretch of the maxima between these edges.
        edge = np.empty(2 * rose.size, dtype=np.intp)
        edge[::2], edge[1::2] = first, np.minimum(last, pauses.size - 1)
        longest = np.maximum.reduceat(pauses, edge)[::2]
        longest = np.where(last == pauses.size, np.maximum(longest, pauses[-1]), longest)
        out[rose] = np.minimum(4.0, (end[rose] - at[last]) / longest)
    return out


def _calm(
    total: FloatArray, number: FloatArray, count: FloatArray, growth: FloatArray
) -> FloatArray:
    """Return growth against the largest drawdown of block means over six times the window."""
    used = (count[:, None] >= _NUMBER) & (number > 0)
    mean = np.where(used, total / np.maximum(number, 1), _NOTHING)
    top = np.maximum.accumulate(mean, axis=1)
    fall = np.maximum.reduce(np.where(used, top - mean, 0.0), axis=1)
    calm = np.log((growth + 4.0 * MIB) / (fall + 4.0 * MIB))
    return np.where(count >= 3, np.minimum(np.maximum(calm, -3.0), 4.0), 2.0)
