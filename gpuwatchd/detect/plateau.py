"""Growth that ends: warm-ups, caches, pools. It exists to say "not a leak"."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd import robust
from gpuwatchd.model import Signal

if TYPE_CHECKING:
    from gpuwatchd.model import FloatArray, Series
    from gpuwatchd.robust import View

LEAST_GROWTH = 16.0 * robust.MIB
NOISE_FACTOR = 8.0
"""The floor of pure noise rises by up to five standard deviations at its very end."""
LEAST_CELLS = 12
LATE_SHARE = 0.12
"""The last third may hold this share of the growth (a straight line: a third)."""
BLOCKS = 48
"""Blocks that a rise is cut into before laws are fitted."""
CURVED = 0.3
"""A law explains a curve when it leaves this share of the line's squared error, or less."""
SLOWER = 0.75
"""Rate at the end over rate at the beginning of the last half: below this it slows down."""
LEAST_Z = 0.75
"""The second quarter before now must stand out above the last by this many standard errors."""


CLEAR_Z, SURE_Z, LEAST_BETA = 1.3, 3.0, 0.6
"""Without a law that fits: the same, and what the exponent of the whole growth must show."""
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


class Plateau:
    """Decelerating growth, or growth that has stopped.

    When it fires
        The floor rose by 16 MiB or more, and the last third of the time brought less than an
        eighth of it (fact ``ended`` is 1), or :func:`slowing` proves that it slows down (0; then
        the rate is that of now, and ``level_bytes`` is where it is heading).
    When it must not
        Steady or accelerating growth, a late onset, a series that never rose.
    Cost
        O(n); 90 µs more where growth goes on.

    References
    ----------
        Share of growth in the last third: the simplest deceleration test that needs no fit.
        Otherwise fitted laws and the Crow-AMSAA exponent; see :func:`slowing`.

    Examples
    --------
    >>> from gpuwatchd.model import Series, Subject
    >>> t = np.arange(0.0, 3600.0, 10.0)
    >>> warm = 4e9 + 2e9 * (1 - np.exp(-t / 300))
    >>> Plateau().look(Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=warm,
    ...                       limit_bytes=None)).pattern
    'plateau'
    """

    name = "plateau"

    def look(self, series: Series) -> Signal | None:
        """Return what is seen in the whole series, or None."""
        return self.look_at(robust.prepare(series))

    def look_at(self, view: View) -> Signal | None:
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
        late = float(x[-width:].mean() - x[-third : -third + width].mean())
        share = max(late, 0.0) / growth
        top = float(np.quantile(x, 0.9))
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

    def _slowing(self, view: View, share: float, growth: float) -> Signal | None:
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


class _Fits:
    """Laws of slowing growth on the midpoints of ``BLOCKS`` blocks, each a unit vector."""

    def __init__(self) -> None:
        u = (np.arange(BLOCKS) + 0.5) / BLOCKS
        log = np.array([0.02, 0.06, 0.2, 0.6, 1.5])
        hyper = np.array([0.02, 0.06, 0.2, 0.6, 1.5, 4.0])
        decay = np.array([0.06, 0.12, 0.25, 0.5, 1.0, 2.0])
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


def slowing(view: View, begin_s: float | None = None) -> Slowing | None:
    """Return the proof that the rise since ``begin_s`` slows down, or None.

    The rise is cut into 48 blocks; over all of it and over its last half the straight line is
    compared with logarithmic, hyperbolic, exponential and root laws by least squares. It slows
    down when such a law leaves less than :data:`CURVED` of the line's squared error over the last
    half (so that a warm-up before a steady leak does not count), its rate falls below
    :data:`SLOWER` there, and the last quarter brought less than the one before by more than the
    size of single rises explains (compound Poisson: variance = rise size × growth).

    Parameters
    ----------
    view
        What is looked at.
    begin_s
        Seconds before now (<= 0); without it, the last instant at the lowest level.

    References
    ----------
        Deceleration as a falling intensity of a power-law process (Crow-AMSAA with β < 1); here
        by direct comparison of fitted laws, which bears quanta and says where it levels off.

    Cost
    ----
        Two products of 48 × 20; about 40 µs.
    """
    begin = float(view.t_s[view.start]) if begin_s is None else begin_s
    if view.t_s.size < LEAST_CELLS or -begin < LEAST_CELLS * view.step_s:
        return None
    whole = _blocks(view, begin)
    late = _blocks(view, 0.5 * begin)
    growth = float(whole[-1] - whole[0])
    noise = view.noise_bytes
    if growth < max(LEAST_GROWTH, NOISE_FACTOR * noise):
        return None
    quarter = BLOCKS // 2
    first = float(late[quarter : quarter + 2].mean() - late[:2].mean())
    second = float(late[-2:].mean() - late[quarter : quarter + 2].mean())
    tail = view.floor[np.searchsorted(view.t_s, 0.5 * begin) :]
    usual = noise * noise * BLOCKS / tail.size
    if first + second <= max(0.02 * growth, 2.0 * noise, 4.0 * robust.MIB):
        level = float(late[-2:].mean())
        rate = max(second, 0.0) / (-0.25 * begin)
        return Slowing(begin, growth, rate, rate, level, level, 1.0, stopped=True)
    steps = np.diff(tail)
    unit = float(steps @ steps) / max(float(steps.sum()), 1.0)
    if noise > 0.25 * unit:
        # The single rises are those of the noise: those from block to block stand in.
        steps = np.diff(late)
        squares = float(steps @ steps) - 2.0 * usual * steps.size
        unit = min(unit, max(squares, 0.0) / max(float(steps.sum()), 1.0))
    error = np.sqrt(unit * max(first + second, 0.0) + 2.0 * usual)
    if first - second < LEAST_Z * error:
        return None
    fit = _fit(late, 0.5 * begin, usual)
    if fit is not None and fit.share <= CURVED and fit.rate_now <= SLOWER * fit.rate_before:
        return Slowing(
            begin, growth, max(fit.rate_now, 0.0), fit.rate_before, fit.level, fit.ahead,
            1.0 - max(fit.share, 0.0), stopped=False,
        )  # fmt: skip
    if first - second < CLEAR_Z * error or second > 0.6 * first:
        return None
    beta, z = crow_amsaa(view.t_s - begin, view.floor)
    if beta > LEAST_BETA or z < SURE_Z:
        return None
    # By the power law, growth goes on as t ** beta.
    rate, ahead = second / (-0.25 * begin), growth * (2.0**beta - 1.0)
    now = float(late[-2:].mean())
    return Slowing(
        begin, growth, rate, first / (-0.25 * begin), None, now + ahead, 1.0 - beta, stopped=False
    )


def crow_amsaa(age_s: FloatArray, floor: FloatArray) -> tuple[float, float]:
    """Return the exponent of growth ~ age ** β, and how surely it is below one (z).

    Maximum likelihood with each rise weighted by its size: 1/β is the mean of ln(age / age of the
    rise), which is exponential with mean one under steady growth; its error follows from the
    effective number of rises (Σs)²/Σs².

    Parameters
    ----------
    age_s
        (n,) seconds since the growth began; what is not positive is left out.
    floor
        (n,) bytes, never falling.

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
    first = int(np.searchsorted(age_s, 0.0, side="right"))
    # A rise is as old as the middle of its cell.
    age = 0.5 * (age_s[first + 1 :] + age_s[first:-1])
    rise = np.diff(floor[first:])
    some = rise > 0.0
    age, rise = age[some], rise[some]
    total = float(rise.sum())
    if total <= 0.0:
        return 1.0, 0.0
    mean = float(rise @ np.log(age_s[-1] / age)) / total
    number = total * total / float(rise @ rise)
    return 1.0 / max(mean, 1e-3), (mean - 1.0) * np.sqrt(number)


def _blocks(view: View, begin: float) -> FloatArray:
    """Return the level (BLOCKS,) of equal blocks of time from ``begin`` to now.

    Means bear noise; where they fall back (swings, spikes) only the floor is what was kept.
    """
    edges = np.linspace(begin, 0.0, BLOCKS + 1)
    at = np.searchsorted(view.t_s, edges, side="right")
    number = np.diff(at)
    if number.min() > 0:
        means: FloatArray = np.diff(view.sums[at]) / number + view.mean[0]
        fall = float((np.maximum.accumulate(means) - means).max())
        usual = view.noise_bytes / np.sqrt(float(number.min()))
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
    middle = float(y.mean())
    centred = y - middle
    weight = centred @ _FITS.laws
    left = float(centred @ centred) - weight * weight
    left[weight <= 0.0] = np.inf
    best = 1 + int(left[1:].argmin())
    if not np.isfinite(left[best]) or not np.isfinite(left[0]):
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
