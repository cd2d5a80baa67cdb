"""The curve of a run as a few straight stages, and how a later run follows it.

A curriculum climbs the same stairs at every run, a cache fills for as long as it did yesterday.
Where a run has followed the curve of an earlier one so far, at its own pace and size, that curve
says where its growth ends much more precisely than the highest level of the earlier run does.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd.core.model.findings import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.core.model import FloatArray

MOST_STAGES = 16
STAGE_SHARE = 0.05
"""A stage brings at least this share of what a run grew by."""
SETTLED_S = 120.0
"""What comes before this age is loading: it is in the base."""
DRAWN_SHARE = 0.7
"""Stages that bring less than this share of the growth of a run do not draw its curve."""
PACES: FloatArray = 1.5 ** np.linspace(-1.0, 1.0, 7)
"""A run may take from 1/1.5 to 1.5 times as long for the same stages."""
SMALLEST, LARGEST = 0.6, 1.6
"""And grow by so many times as much, but not faster than the larger of them."""
LIKELY_SIZE = 0.5
"""That it grows by as much as before counts for so many points at the full height."""
MISFIT = 0.06
"""A run follows a curve that it is off by less than this share of its height, on average."""
AHEAD = 1.1
"""A stage may come earlier or later by this much of the age, a level be so much higher."""
LEAST_STAGES = 3
"""Fewer stages than this are no curriculum: a ramp may be longer or shorter the next time."""
ASSUMED = 0.15
"""What runs are assumed to differ by before they are compared; it counts for one run's stage."""
ALIKE = 0.1
"""Runs that differ by no more than this, in levels and in times, take the same stages."""
MOST_CURVES = 3
"""Newest runs whose curves are followed: more cost time and say the same."""
POINTS = 16
_EVEN: FloatArray = np.linspace(0.0, 1.0, POINTS)
_LARGEST: FloatArray = LARGEST * np.minimum(PACES, 1.0)
_APART_S = 1e9
"""Curves lie so far apart on one axis: one interpolation asks all of them."""


def fitted_stages(
    age_s: FloatArray, level: FloatArray, base: float, least: float
) -> tuple[Stage, ...]:
    """Return the large rises of a level (n,) that never falls, oldest first, at most 16.

    The curve is drawn with straight lines that are nowhere off by more than half of the smallest
    stage (Ramer 1972), or as few of them as 16 stages take. ``base`` and ``least`` are in bytes.

    Examples
    --------
    >>> age = np.arange(0.0, 3600.0, 10.0)
    >>> level = 4e9 + 1e9 * (age >= 600.0) + 2e9 * np.clip((age - 1200.0) / 900.0, 0.0, 1.0)
    >>> stages = fitted_stages(age, level, 4e9, 1e8)
    >>> [(stage.age_s, stage.rise_s, stage.rise_bytes) for stage in stages]
    [(590, 10, 1000000000), (1200, 900, 2000000000)]
    """
    first = int(age_s.searchsorted(SETTLED_S))
    age_s, level = age_s[first:], np.maximum(level[first:], base)
    if age_s.size < 2:
        return ()
    least = max(least, STAGE_SHARE * float(level[-1] - level[0]))
    knots = [0, age_s.size - 1]
    while len(knots) <= 2 * MOST_STAGES:
        off = np.abs(level - np.interp(age_s, age_s[knots], level[knots]))
        worst = int(off.argmax())
        if off[worst] <= 0.5 * least:
            break
        insort(knots, worst)
    at, took, rose = age_s[knots[:-1]], np.diff(age_s[knots]), np.diff(level[knots])
    large = np.flatnonzero(rose >= max(least, np.sort(rose)[-MOST_STAGES:][0])).tolist()
    return tuple(
        Stage(age_s=round(at[k]), rise_s=round(took[k]), rise_bytes=round(rose[k])) for k in large
    )


class Curves(NamedTuple):
    """The curves of those earlier runs (r,) that have one, side by side on one axis of time."""

    has: npt.NDArray[np.intp]
    """Positions (c,) of these runs among all."""
    at_s: FloatArray
    """(knots,)"""
    height: FloatArray
    """(knots,) bytes above the base."""
    shift_s: FloatArray
    """(c, 1, 1) where it begins on the axis."""
    end_s: FloatArray
    """(c, 1, 1) age at the end of the last stage."""
    usual: FloatArray
    """(c, 1) what counts for a run of its own size."""
    spread: float | None
    """How much the levels of these runs differ from stage to stage, as a standard deviation of the
    logarithm; None where they do not take the same stages."""
    delay: float
    """How much later a stage may come, by how much their times differ; a factor."""

    def scaled(self, larger: FloatArray) -> Curves:
        """Return the curves of runs (r,) that are so many times as large."""
        by = larger[self.has]
        knots = by[(self.at_s / _APART_S).astype(np.intp)]
        usual = by[:, None] ** 2 * self.usual
        return self._replace(height=knots * self.height, usual=usual)


def curves(stages: Sequence[tuple[Stage, ...]], heights: Sequence[float]) -> Curves | None:
    """Return the curves of the newest runs (r,), which grew by ``heights`` bytes; None without any.

    A run without stages, or whose stages do not make up its height, has none.
    """
    has: list[int] = []
    at_s: list[float] = []
    height: list[float] = []
    ends: list[float] = []
    tops: list[float] = []
    for k, (own, whole) in reversed([*enumerate(zip(stages, heights, strict=True))]):
        total = sum(stage.rise_bytes for stage in own)
        if not own or whole <= 0.0 or total < DRAWN_SHARE * whole:
            continue
        if len(has) == MOST_CURVES:
            break
        level = 0.0
        shift, larger = len(has) * _APART_S, whole / total
        at_s.append(shift)
        height.append(0.0)
        for stage in own:
            at_s += [shift + stage.age_s, shift + stage.age_s + max(stage.rise_s, 1.0)]
            height += [larger * level, larger * (level + stage.rise_bytes)]
            level += stage.rise_bytes
        has.append(k)
        ends.append(at_s[-1] - shift)
        at_s.append(shift + 0.9 * _APART_S)
        height.append(whole)
        tops.append(whole)
    if not has:
        return None
    spread, delay = _differences([stages[k] for k in has])
    return Curves(
        np.array(has),
        np.array(at_s),
        np.array(height),
        _APART_S * np.arange(float(len(has)))[:, None, None],
        np.array(ends)[:, None, None],
        LIKELY_SIZE * np.array(tops)[:, None] ** 2,
        spread,
        delay,
    )


def _differences(runs: list[tuple[Stage, ...]]) -> tuple[float | None, float]:
    """Return how much runs differ in levels, and how much later a stage may come."""
    count = len(runs[0])
    if len(runs) < 2 or count < LEAST_STAGES or any(len(run) != count for run in runs):
        return None, 1.0
    levels = np.log(np.cumsum([[stage.rise_bytes for stage in run] for run in runs], axis=1))
    times = np.log([[stage.age_s for stage in run] for run in runs])
    # A run that is slower is so in all of its stages: that is its pace.
    times -= times.mean(axis=1, keepdims=True)
    counted = min(count, 4)
    seen = 1.0 + counted * (len(runs) - 1)
    squares = [counted * len(runs) * float(each.var(axis=0).mean()) for each in (levels, times)]
    spread, late = (((ASSUMED * ASSUMED + square) / seen) ** 0.5 for square in squares)
    return (spread if max(spread, late) <= ALIKE else None), max(float(np.exp(1.5 * late)), AHEAD)


class Followed(NamedTuple):
    """How the present run follows the curve of an earlier one."""

    run: int
    """Position of that run among all."""
    pace: float
    """How many times as long it takes."""
    size: float
    """How many times as much it grows by as it should by its base."""
    due: float
    """Bytes above its base that it may have by now."""


def follow(known: Curves, view: SeriesWindow, *, age_s: float, base: float) -> list[Followed]:
    """Return how a run of an age and base follows earlier ones: those whose curve it follows.

    Its size is that of the growth so far, by least squares. What comes after the last stage says
    nothing of pace and size: there it only must not be lower.

    Cost: one interpolation of 17 points × 7 paces × 3 runs, and some 25 small steps: 0.04 ms.
    """
    first_s = max(SETTLED_S, age_s + float(view.t_s[view.start]))
    if age_s - first_s < SETTLED_S or first_s > 0.5 * age_s + SETTLED_S:
        return []
    age = np.empty(POINTS + 1)
    age[:-1], age[-1] = first_s + (age_s - first_s) * _EVEN, AHEAD * age_s
    at = view.t_s.searchsorted(age[:-1] - age_s)
    level = np.maximum(view.floor[np.minimum(at, view.t_s.size - 1)] - base, 0.0)
    when = age / PACES[:, None]
    expected = np.interp(known.shift_s + when, known.at_s, known.height)
    expected, soon = expected[:, :, :-1], expected[:, :, -1]
    climbs = when[:, :-1] < known.end_s
    counted = expected * climbs
    square = np.add.reduce(counted * counted, axis=2)
    size = (counted @ level + known.usual) / (square + known.usual)
    size = np.minimum(np.maximum(size, SMALLEST), _LARGEST)
    expected *= size[:, :, None]
    over = expected - level
    off = np.add.reduce(np.maximum(over, -over * climbs), axis=2)
    misfit = off / (POINTS * np.maximum(expected[:, :, -1], 1.0))
    misfit[square == 0.0] = np.inf
    out = []
    for row, best in enumerate(misfit.argmin(axis=1).tolist()):
        if misfit[row, best] <= MISFIT:
            larger = float(size[row, best])
            due = larger * float(soon[row, best])
            out.append(Followed(int(known.has[row]), float(PACES[best]), larger, due))
    return out
