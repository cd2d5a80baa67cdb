"""When memory is full: what each law of growth says, weighed by evidence, as a range of time."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.forecast import score_weights
from gpuwatchd.analysis.forecast.eta_coefficients import COEFFICIENTS, FEATURES, LEVELS
from gpuwatchd.analysis.forecast.program_prior import LEAK_PRIOR, STOP_SCALE_S, STOP_SHAPE
from gpuwatchd.analysis.forecast.windows import BINS
from gpuwatchd.core.model import EtaRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.analysis.forecast.bounds import Bounds
    from gpuwatchd.analysis.forecast.program_prior import ProgramPrior
    from gpuwatchd.analysis.forecast.rises import EarlierRises
    from gpuwatchd.analysis.forecast.windows import Windows
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray


BLOCKS = 16
"""Increments that the growth since its onset is cut into."""
CHANCE = 5.0
"""A change of pace counts as far as its squared t statistic exceeds this."""
BREAK_SHARE, BREAK_T = 0.35, 4.0
"""The pace changed at once when two paces leave less than this share of what a trend leaves, and
differ by so many standard errors; the best of 13 instants is looked at."""
NARROWEST = 0.03
"""Each end is at least this far from the middle: a log of the ratio, about 3 per cent."""
WIDEST = 3.0
"""No end is further from the middle than this; e³ is twentyfold."""
_EDGES = np.arange(BLOCKS + 1)
_BEFORE = np.arange(2, BLOCKS - 1)
_AFTER = BLOCKS - _BEFORE
_AT = (np.arange(BLOCKS) + 0.5) / BLOCKS - 0.5
_AT_SQUARED = float(_AT @ _AT)
_EARLY = float(_AT[: BLOCKS // 2].sum()) / BLOCKS
_COEFFICIENTS = np.array(COEFFICIENTS)
_LOW, _HIGH = LEVELS.index(0.05), LEVELS.index(0.95)
_HALF = sum(level < 0.5 for level in LEVELS)


class Pace(NamedTuple):
    """What the increments since the onset say."""

    mean: float
    """Bytes per block."""
    change: float
    """Change of the increment from the first block to the last, over the mean."""
    error: float
    """Standard error of ``change``."""
    half: float
    """Log of the pace of the second half over that of the whole."""
    rough: float
    """Bytes: standard deviation of the level around its line."""
    after: float = 0.0
    """Bytes per block since the pace changed at once; 0 where it did not."""

    @property
    def proven(self) -> float:
        """The part of ``change`` that chance does not explain."""
        square = self.change * self.change
        chance = CHANCE * self.error * self.error
        return self.change * (1.0 - chance / square) if square > chance else 0.0


class Forecast(NamedTuple):
    """The middle, and what the width of the interval depends on."""

    mid_s: float
    features: FloatArray


def pace(view: SeriesWindow, onset_s: float) -> Pace:
    """Return how the level grew since ``onset_s`` (seconds before now, < 0).

    The levels at the edges of the blocks are means over one block around them, so that noise and
    swings shorter than a block do not count.
    """
    t, n = view.t_s, view.t_s.size
    width = -onset_s / BLOCKS
    edges = onset_s + width * _EDGES
    first = np.minimum(t.searchsorted(edges - 0.5 * width), n - 1)
    first[0] = min(int(t.searchsorted(onset_s - 1e-6)), n - 1)
    last = np.maximum(t.searchsorted(edges + 0.5 * width), first + 1)
    level = (view.sums[last] - view.sums[first]) / (last - first)
    step = level[1:] - level[:-1]
    # At both ends only half of the block around the edge is there.
    step[0] /= 0.75
    step[-1] /= 0.75
    mean = float(np.add.reduce(step)) / BLOCKS
    slope = float(_AT @ step) / _AT_SQUARED
    rest = step - mean - slope * _AT
    square = float(rest @ rest)
    scale = max(abs(mean), 1.0)
    rho = min(max(float(rest[1:] @ rest[:-1]) / square, 0.0), 0.8) if square > 0.0 else 0.0
    variance = square / (BLOCKS - 2) * (1.0 + rho) / (1.0 - rho)
    here = slice(int(first[0]), n)
    off = view.mean[here] - np.interp(t[here], edges, level)
    late = float(np.add.reduce(step[BLOCKS // 2 :])) / (BLOCKS // 2)
    late = max(late / scale, 0.05)
    return Pace(
        mean=mean,
        change=slope / scale,
        error=math.sqrt(variance / _AT_SQUARED) / scale,
        half=math.log(late),
        after=_after(step, square),
        rough=numerics.deviation(off) if off.size else 0.0,
    )


def _after(step: FloatArray, straight: float) -> float:
    """Return the pace since it changed at once; 0 unless two paces explain far more than a trend.

    ``straight`` is what a straight trend of the increments leaves, squared. Least squares over all
    instants of the change (Quandt 1958).
    """
    first, last = _BEFORE, _AFTER
    total = np.add.accumulate(step)
    before = total[1 : BLOCKS - 2]
    after = total[-1] - before
    rest = float(step @ step) - before * before / first - after * after / last
    best = int(rest.argmin())
    left = max(float(rest[best]), 0.0)
    k, m = int(first[best]), int(last[best])
    old, new = float(before[best]) / k, float(after[best]) / m
    mean = abs(float(total[-1])) / BLOCKS
    error = math.sqrt(left / (BLOCKS - 3) * (1.0 / k + 1.0 / m)) + 1e-3 * mean
    clear = left < BREAK_SHARE * straight and abs(new - old) > BREAK_T * error
    return new if clear and new > 0.05 * mean else 0.0


def forecast_median(
    seen: Pace, *, age_s: float, headroom: float, rate: float, parcel: float, law_s: float
) -> Forecast:
    """Return the middle of the forecast, and the features of its interval.

    Parameters
    ----------
    age_s
        Time since the onset.
    headroom
        Bytes that are left for this subject.
    rate
        Bytes per second of the straight line since the onset; positive.
    parcel
        Bytes that arrive at once.
    law_s
        Median time to the limit under the growth laws.
    """
    room = max(headroom, 1.0)
    line_s = max(room / rate, 1.0)
    if seen.after > 0.0:
        bend = math.log(rate * age_s / (BLOCKS * seen.after))
        bend = min(max(bend, -WIDEST), WIDEST)
    else:
        bend = _bend(seen.proven, room / max(rate * age_s, 1.0))
    far = min(max(math.log(line_s / age_s), -5.0), 3.0)
    unsure = math.log(seen.error + 0.003)
    laws = min(max(math.log(max(law_s, 1.0) / line_s), -2.5), 2.5)
    values = {
        "one": 1.0,
        "far": far,
        "farther": max(far, 0.0),
        "unsure": unsure,
        "very_unsure": max(unsure + 2.0, 0.0),
        "laws_differ": math.log(abs(laws - bend) + 0.02),
        "half_differs": math.log(abs(seen.half) + 0.02),
        "rough": math.log(min(seen.rough / room, 30.0) + 0.001),
        "parcel": math.log(min(parcel / room, 30.0) + 0.0005),
        "bend": abs(bend),
        "soon": max(-far - 2.0, 0.0),
        "next": max(math.log(min(parcel / room, 30.0) + 1e-9) + 1.5, 0.0),
    }
    return Forecast(line_s * math.exp(bend), np.array([values[name] for name in FEATURES]))


def _bend(change: float, ratio: float) -> float:
    """Return the log of (time to the limit / time on a straight line).

    ``change`` of the pace over the age, relative to its mean; ``ratio`` of headroom to growth.
    """
    if change == 0.0:
        return 0.0
    early = min(max(0.5 + change * _EARLY, 0.03), 0.9)
    if change > 0.0:
        growth = 2.0 * math.log((1.0 - early) / early)
        time = math.log1p(ratio * -math.expm1(-growth)) / growth if growth > 1e-6 else ratio
    else:
        time = (1.0 + ratio) ** (-1.0 / math.log2(early)) - 1.0
    return min(max(math.log(time / ratio), -WIDEST), WIDEST)


def offsets(features: FloatArray, coefficients: FloatArray = _COEFFICIENTS) -> FloatArray:
    """Return log(quantile / middle) for each of ``LEVELS``, from features (..., features).

    Ordered, at least ``NARROWEST`` and at most ``WIDEST`` from the middle.
    """
    out = np.asarray(features @ coefficients.T, dtype=np.float64)
    low = np.minimum(np.maximum(out[..., :_HALF], -WIDEST), -NARROWEST)
    high = np.minimum(np.maximum(out[..., _HALF:], NARROWEST), WIDEST)
    low = np.minimum.accumulate(low[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate((low, np.maximum.accumulate(high, axis=-1)), axis=-1)


def eta(one: Forecast, *, may_stop: bool = False) -> EtaRange:
    """Return the 90 % interval of the time to the limit; open-ended when growth may stop before."""
    ends = offsets(one.features)
    mid_s = one.mid_s
    return EtaRange(
        low_s=mid_s * math.exp(float(ends[_LOW])),
        mid_s=mid_s,
        high_s=None if may_stop else mid_s * math.exp(float(ends[_HIGH])),
    )


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
        exponents = np.concatenate(([1.0], power, root))
        kind = 0.65 / 7
        kinds = (root, log, hyper, shifted, decay, stopped, logistic)
        self.prior: FloatArray = np.concatenate(
            [np.array([0.25]), np.full(3, 0.1 / 3)]
            + [np.full(k.size, kind / k.size) for k in kinds]
        )
        u = np.linspace(0.0, 1.0, BINS + 1)[:, None]
        values = np.concatenate(
            [
                u**exponents,
                np.log(u + log),
                -1.0 / (u + hyper),
                np.sqrt(u + shifted),
                1.0 - np.exp(-u / decay),
                np.minimum(u, stopped),
                1.0 / (1.0 + np.exp(-10.0 * (u - logistic))),
            ],
            axis=1,
        )
        rise = values[-1] - values[0]
        share = 0.97 * np.diff(values, axis=0) / rise + 0.03 / BINS
        self.log_odds: FloatArray = np.log(BINS * share)
        """(16, laws): log of each law's share of growth per bin over the even share."""
        self.log_prior = np.log(self.prior)
        # One row per law: each kind is a block of memory of its own.
        self.first, self.rise = values[0][:, None], rise[:, None]
        self.exponents, self.log, self.hyper = exponents[:, None], log[:, None], hyper[:, None]
        self.shifted, self.decay = shifted[:, None], decay[:, None]
        self.logistic = logistic[:, None]
        edges = np.cumsum([0, exponents.size, *(k.size for k in kinds[1:])]).tolist()
        blocks = [slice(first, last) for first, last in pairwise(edges)]
        # Those that have stopped never reach anything.
        self._kinds = [*blocks[:5], blocks[6]]

    def reach(self, ratio: FloatArray) -> FloatArray:
        """Return u (k, laws) where a law has grown (1 + ratio) times the window's growth.

        ``ratio`` (k,) is headroom over growth. Infinite where the law stops before.
        """
        target = self.first + self.rise * (1.0 + ratio)
        out = np.empty(target.shape)
        out.fill(np.inf)
        powers, log, hyper, shifted, decay, logistic = self._kinds
        np.power(target[powers], 1.0 / self.exponents, out=out[powers])
        here = out[log]
        np.exp(np.minimum(target[log], 60.0), out=here)
        here -= self.log
        # What is left out below stays infinite: there the law has stopped before.
        value, here = target[hyper], out[hyper]
        np.divide(-1.0, value, out=here, where=value < 0.0)
        here -= self.hyper
        value, here = target[shifted], out[shifted]
        np.multiply(value, value, out=here)
        here -= self.shifted
        rest, here = 1.0 - target[decay], out[decay]
        some = rest > 0.0
        np.log(rest, out=here, where=some)
        np.multiply(here, -self.decay, out=here, where=some)
        value, here = target[logistic], out[logistic]
        some = value < 1.0
        np.divide(value, 1.0 - value, out=here, where=some)
        np.log(here, out=here, where=some)
        here /= 10.0
        here += self.logistic
        return out.T


LAWS = Laws()


HORIZON_S = 72 * 3600.0
HORIZON_AGES = 10.0
"""Growth is followed as far as this, or as many times its age, where that is further."""


class Weights(NamedTuple):
    """What the laws say about each window."""

    law: FloatArray
    """(k, laws) posterior weight."""
    reach_s: FloatArray
    """(k, laws) seconds from now until the limit; infinite where it is never reached."""
    reaches: FloatArray
    """(k,) probability that the growth reaches the limit before it stops by itself."""
    score: FloatArray
    """(k,) log odds of the score."""
    evidence: FloatArray
    """(k, terms) what the score was made from."""


def weigh(
    windows: Windows,
    headroom: FloatArray,
    personal: ProgramPrior | None = None,
    bounds: Bounds | None = None,
    rises: EarlierRises | None = None,
) -> Weights:
    """Return what the laws say about each window.

    The score is in log odds; even odds are the level of a watch.

    ``headroom`` (k,) is bytes from the recent peak to the limit; ``personal`` what earlier runs of
    the same program say about stopping, else all programs' prior holds; ``bounds`` is what else is
    known of where the growth ends, ``rises`` where earlier rises of the subject itself did.
    """
    support = windows.events[:, None] * (windows.shares @ LAWS.log_odds) + LAWS.log_prior
    support -= support.max(axis=1, keepdims=True)
    law = np.exp(support)
    law /= law.sum(axis=1, keepdims=True)
    ratio = np.maximum(headroom, 0.0) / windows.growth
    reach = windows.age_s[:, None] * (LAWS.reach(ratio) - 1.0) + windows.end_s[:, None]
    reach = np.maximum(reach, 0.0)
    age = windows.age_s
    if personal is not None:
        chance = personal.chance(windows, headroom, reach)
    else:
        survive = (1.0 + age / STOP_SCALE_S) ** -STOP_SHAPE
        leak = LEAK_PRIOR / (LEAK_PRIOR + (1.0 - LEAK_PRIOR) * survive)
        old = (STOP_SCALE_S + age)[:, None]
        in_time = (old / (old + reach)) ** STOP_SHAPE
        chance = leak[:, None] + (1.0 - leak[:, None]) * in_time
    if bounds is not None:
        chance = bounds.chance(chance)
    if rises is not None:
        chance = rises.chance(windows, headroom, chance)
    horizon_s = np.maximum(HORIZON_S, HORIZON_AGES * age)
    chance = np.where(reach < horizon_s[:, None], chance, 0.0)
    p = np.minimum(np.maximum((law * chance).sum(axis=1), 0.001), 0.999)
    evidence = terms(windows, headroom, p)
    return Weights(law, reach, p, SCORE(evidence), evidence)


# The score of a window: a few terms of evidence, and what each of them weighs.
# The weights are those of :mod:`gpuwatchd.analysis.forecast.score_weights`, a file of plain
# numbers that ``make train`` writes. A term is oriented so that more of it speaks for a leak.

YOUNG_S = 2400.0
"""Growth younger than this is judged with reserve."""
URGENT_S = 3600.0
"""With less time left than this an alert asks for less evidence."""
TERMS = ("one", "reach", "excess", "deficit", "stall", "calm", "returned", "young", "urgent")
"""Names of the columns of :func:`terms`."""


def terms(windows: Windows, headroom: FloatArray, p: FloatArray) -> FloatArray:
    """Return the evidence (k, terms) of each window.

    ``headroom`` (k,) is bytes from the recent peak to the limit, ``p`` (k,) the probability that
    the growth reaches the limit before it stops by itself.

    Notes
    -----
    With A the age, k₊ and k₋ the largest excess and deficit of the growth against its chord (less
    1/2n for n >= 4 events), s the stall and d the calm, the columns are 1, ln(p / (1 - p)), -k₊,
    -k₋, -max(s - 1, 0), d, -max(1.5 - d, 0) where as much was given back twice or more, and
    clip(ln(A / 40 min), -1.5, 0): the shorter the growth, the more a harmless ramp looks like it.
    The last is clip(ln(1 h / R), 0, 1) with R the time that is left at this rate: with half an hour
    to out-of-memory the minutes count that certainty costs.
    """
    # A staircase of n even risers is off its chord by up to 1/n, a half of it on either side.
    slack = np.where(windows.events >= 4.0, 0.5 / windows.events, 0.0)
    out = np.empty((windows.growth.size, len(TERMS)))
    out[:, 0] = 1.0
    out[:, 1] = np.log(p / (1.0 - p))
    out[:, 2] = np.minimum(slack - windows.excess, 0.0)
    out[:, 3] = np.minimum(slack - windows.deficit, 0.0)
    out[:, 4] = np.minimum(1.0 - windows.stall, 0.0)
    out[:, 5] = windows.calm
    # What was given back again and again will be given back again.
    out[:, 6] = -np.where(windows.returns >= 2.0, np.maximum(1.5 - windows.calm, 0.0), 0.0)
    out[:, 7] = np.minimum(np.maximum(np.log(windows.age_s / YOUNG_S), -1.5), 0.0)
    left_s = np.maximum(headroom, 1.0) * (windows.age_s / windows.growth)
    out[:, 8] = np.minimum(np.maximum(np.log(URGENT_S / left_s), 0.0), 1.0)
    return out


class Score:
    """Weights of the terms; replaceable as a whole, so that folds can be compared."""

    def __init__(self, coefficients: Mapping[str, float]) -> None:
        self.use(coefficients)

    def use(self, coefficients: Mapping[str, float]) -> None:
        """Take these weights from now on; a term that is not named weighs nothing."""
        self.coefficients = dict(coefficients)
        self.weights: FloatArray = np.array([coefficients.get(name, 0.0) for name in TERMS])

    def __call__(self, evidence: FloatArray) -> FloatArray:
        """Return the log odds (k,) of the evidence (k, terms)."""
        out: FloatArray = evidence @ self.weights
        return out


SCORE = Score(score_weights.COEFFICIENTS)
