"""What one run did with its memory, in a few numbers: where it stopped, and how fast it grew.

Two facts of an earlier run carry what is worth knowing about the next one: the level at which it
*provably* stopped, and the most that it ever grew, harmlessly, within each look-back. Proof of a
stop is standing still while work is done for a quarter of the age, or giving the memory back; a
run that idles after it leaked proves nothing, nor does one that stands at the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.forecast.stages import fitted_stages
from gpuwatchd.analysis.forecast.windows import HOLD_MARGIN
from gpuwatchd.analysis.numerics.series import STACK_POINTS
from gpuwatchd.core.model import Profile

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray, Series

    Index = npt.NDArray[np.intp]

PROFILE_LOOKBACKS_S: FloatArray = 60.0 * np.sqrt(2.0) ** np.arange(18)
"""One minute to six hours in steps of √2."""
PROFILE_AGES_S: FloatArray = 600.0 * np.sqrt(2.0) ** np.arange(14)
"""Ten minutes to fifteen hours in steps of √2."""
TOLERANCE = 0.01
"""Share of the memory that standing still may rise by."""
STAND_S = 900.0
STAND_SHARE = 0.25
"""A stop is proven by standing for this share of the age, and for a quarter of an hour."""
NEAR_LIMIT = 0.95
"""Above this share of the limit, standing proves nothing: there is no room to grow into."""
BUSY_PCT = 5.0
"""GPU utilisation from which on work is done."""
CELLS = 2880
GRID_S = 10.0
LEAST_S = 300.0
"""A shorter run has no profile."""
LAST_S = 60.0
"""Memory that comes back in the last minute comes back because the process ends."""
DAY_S = 86400.0
BEFORE_S, AFTER_S = 6 * 3600.0, 2 * 3600.0
"""What is yesterday's same hour: this much before it and after it."""
_HOLD_SHARE = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """A run on its grid; (n,) arrays of cells."""

    age_s: FloatArray
    """Age of the process at the end of each cell."""
    low: FloatArray
    floor: FloatArray
    """Lowest value until 1.25 holds later."""
    level: FloatArray
    """Highest floor so far."""
    given_back: FloatArray
    """Lowest level that it came down to later and stayed at for five minutes."""
    lowest_later: FloatArray
    """Lowest value from here on."""
    base: float
    hold_s: float
    scale: float
    """Memory of the card, bytes."""
    limit: float


def profile(
    series: Series,
    *,
    busy: FloatArray | None = None,
    alerted: bool = False,
    ended_at_s: float,
    kind: Literal["run", "sibling"] = "run",
) -> Profile | None:
    """Return the profile of a run, finished or going on; None when it is too short to tell.

    Parameters
    ----------
    series
        The whole run, or as much of it as was seen; ``age_s`` says how much is missing in front.
        Its arrays are not changed. It may have gaps.
    busy
        (n,) GPU utilisation in per cent for each sample, NaN where unknown; None when nothing is
        known. Only standing still while work is done proves that growth has stopped.
    alerted
        Whether it was at the level of an alert at its end, by the ordinary score.
    ended_at_s
        When it ended, or now.
    kind
        A "sibling" is another rank of the same job, which still runs.

    Notes
    -----
    Costs a few vectorised passes over at most 2880 cells for each of 18 look-backs: about 2 ms.

    Examples
    --------
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 7200.0, 10.0)
    >>> ramp = Series(subject=Subject(device_uid="G"), t_s=t, limit_bytes=24e9, total_bytes=24e9,
    ...               used_bytes=4e9 + 8e9 * np.clip(t / 1800.0, 0.0, 1.0))
    >>> known = profile(ramp, ended_at_s=7200.0)
    >>> round(known.proven_bytes / 1e9, 1), round(known.top_bytes / 1e9, 1)
    (12.0, 12.0)
    """
    cut = _cut(series)
    if cut is None:
        return None
    run, edge = cut
    last = max(int(np.searchsorted(run.age_s, run.age_s[-1] - HOLD_MARGIN * run.hold_s)), 1)
    top = float(run.level[last - 1])
    clock = _clock(run, edge, busy, np.asarray(series.t_s))
    proven = _proven(run, clock, last)
    limit = run.limit
    recent = run.low[run.age_s > run.age_s[-1] - 600.0]
    grown, rose = _growth(run, proven, slice(0, run.low.size))
    return Profile(
        kind=kind,
        ended_at_s=ended_at_s,
        run_s=float(run.age_s[-1]),
        base_bytes=run.base,
        hold_s=run.hold_s,
        proven_bytes=proven,
        top_bytes=max(top, proven),
        grown_bytes=grown,
        rose_bytes=rose,
        late_bytes=_late(run, proven),
        near_limit=bool(recent.max() > NEAR_LIMIT * limit),
        alerted=alerted,
        stages=fitted_stages(run.age_s[:last], run.level[:last], run.base, TOLERANCE * run.scale),
    )


def profile_of_yesterday(series: Series, *, now_s: float) -> Profile | None:
    """Return what a subject did around the same hour of yesterday; None when it was not seen.

    Growth of the six hours before that hour and the two after it counts as harmless if it was
    given back since; what was not given back by now is not normal because it is a day old.

    ``series``: the same subject from about 30 hours ago until now.
    """
    cut = _cut(series)
    if cut is None:
        return None
    run, _ = cut
    hour = run.age_s[-1] - (now_s - float(series.t_s[-1])) - DAY_S
    first, last = np.searchsorted(run.age_s, (hour - BEFORE_S, hour + AFTER_S)).tolist()
    if last - first < 30 or run.age_s[first] > hour - LEAST_S:
        return None
    same = slice(first, last)
    base = float(run.low[same].min())
    level = np.maximum.accumulate(run.floor[same])
    back = level[run.given_back[same] <= base + 0.5 * (level - base)]
    proven = float(back.max()) if back.size else base
    grown, rose = _growth(run, -np.inf, same)
    return Profile(
        kind="yesterday",
        ended_at_s=now_s - DAY_S + AFTER_S,
        run_s=float(run.age_s[last - 1] - run.age_s[first]),
        base_bytes=base,
        hold_s=run.hold_s,
        proven_bytes=proven,
        top_bytes=max(float(level[-1]), proven),
        grown_bytes=grown,
        rose_bytes=rose,
    )


def _cut(series: Series) -> tuple[_Run, Index] | None:
    """Return a run on its grid and the first sample of each cell."""
    t = np.asarray(series.t_s, dtype=np.float64)
    x = np.asarray(series.used_bytes, dtype=np.float64)
    if t.size < 10 or t[-1] - t[0] < LEAST_S:
        return None
    span = float(t[-1] - t[0])
    step = max(GRID_S, span / CELLS)
    cell = np.floor((t - t[0]) * (1.0 / step) + 1e-9)
    edge = np.flatnonzero(np.concatenate(([True], cell[1:] != cell[:-1])))
    low = np.minimum.reduceat(x, edge)
    seen = t[np.append(edge[1:] - 1, t.size - 1)]
    age = seen - t[0] + max((series.age_s or span) - span, 0.0)
    scale = float(series.total_bytes or series.limit_bytes or x.max())
    early = low[(age >= 120.0) & (age <= 360.0)]
    base = float(early.min() if early.size else low[: max(int(240.0 / step), 1)].min())
    amount = np.array([max(_HOLD_SHARE * (float(low.max()) - base), TOLERANCE * scale)])
    # Times from the beginning on: a hold that ended long ago counts in a whole run. It is seen
    # in blocks of cells, so that one at either end of it may be missing.
    hold = float(numerics.memory_releases(seen - seen[0], low).longest_s(amount)[0])
    if hold > 0.0:
        hold += 2.0 * step * -(-low.size // STACK_POINTS)
    lowest = _Lowest(low)
    at = np.arange(low.size)
    until = np.searchsorted(age, age + HOLD_MARGIN * hold, side="right") - 1
    floor = lowest(at, np.maximum(until, at))
    five = np.searchsorted(age, age + 300.0, side="right") - 1
    stayed = -_Lowest(-low)(at, np.maximum(five, at))
    # A few cells at the end stay for less than five minutes, and the end itself gives back all.
    closing = age > age[-1] - 300.0 - LAST_S
    stayed[closing] = np.inf
    lived = low[: max(int(np.searchsorted(age, age[-1] - LAST_S)), 1)]
    later = np.full(low.size, np.inf)
    later[: lived.size] = np.minimum.accumulate(lived[::-1])[::-1]
    run = _Run(
        age_s=age, low=low, floor=floor, level=np.maximum.accumulate(floor),
        given_back=np.minimum.accumulate(stayed[::-1])[::-1], lowest_later=later,
        base=base, hold_s=hold, scale=scale, limit=float(series.limit_bytes or scale),
    )  # fmt: skip
    return run, edge


def _clock(run: _Run, edge: Index, busy: FloatArray | None, t: FloatArray) -> FloatArray:
    """Return for each cell for how long work was done until then; the age where unknown."""
    if busy is None:
        return run.age_s
    pct = np.asarray(busy, dtype=np.float64)
    working = np.where(np.isnan(pct), 100.0, pct) >= BUSY_PCT
    some = np.logical_or.reduceat(working, edge)
    # Utilisation is a moment's: a pause of a minute between two batches is no idling.
    width = max(int(LAST_S / max(float(t[-1] - t[0]) / some.size, 1e-9)), 1)
    near = np.convolve(some.astype(np.float64), np.ones(2 * width + 1), mode="same") > 0.5
    steps = np.diff(run.age_s, prepend=0.0)
    out: FloatArray = np.cumsum(np.where(near[: steps.size], steps, 0.0))
    return out


def _proven(run: _Run, clock: FloatArray, last: int) -> float:
    """Return the highest level at which the run stood under load, or that it gave back."""
    level = run.level[:last]
    need = clock[:last] + np.maximum(STAND_SHARE * clock[:last], STAND_S)
    then = np.searchsorted(clock[:last], need)
    reached = then < last
    rise = run.level[np.minimum(then, last - 1)] - level
    stood = reached & (rise <= TOLERANCE * run.scale) & (level <= NEAR_LIMIT * run.limit)
    back = run.given_back[:last] <= run.base + 0.5 * (level - run.base)
    good = level[stood | (back & (level > run.base + TOLERANCE * run.scale))]
    if good.size:
        return float(good.max())
    early = int(np.searchsorted(run.age_s, LEAST_S))
    return float(run.level[min(early, last - 1)])


def _growth(run: _Run, proven: float, ends: slice) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the largest harmless growth, and any growth, within each look-back."""
    low, age = run.low, run.age_s
    lowest = _Lowest(low)
    at = np.arange(low.size)[ends]
    value, later = low[ends], run.lowest_later[ends]
    below = value <= proven + TOLERANCE * run.scale
    grown, rose = [], []
    for look in PROFILE_LOOKBACKS_S.tolist():
        begin = np.searchsorted(age, age[ends] - look - 1e-6)
        growth = value - lowest(begin, at)
        harmless = below | (later <= value - 0.5 * growth)
        grown.append(float(np.max(growth, where=harmless, initial=0.0)))
        rose.append(float(growth.max()))
    return _rising(grown), _rising(rose)


def _late(run: _Run, proven: float) -> tuple[float, ...]:
    """Return the largest harmless growth that begins after each age, as far as the run lived."""
    out = []
    for since in PROFILE_AGES_S.tolist():
        first = int(np.searchsorted(run.age_s, since))
        low = run.low[first:]
        if low.size < 2:
            break
        growth = low - np.minimum.accumulate(low)
        harmless = low <= proven + TOLERANCE * run.scale
        harmless |= run.lowest_later[first:] <= low - 0.5 * growth
        out.append(float(np.max(growth, where=harmless, initial=0.0)))
    return tuple(out)


def _rising(values: list[float]) -> tuple[float, ...]:
    return tuple(np.maximum.accumulate(values).tolist())


class _Lowest:
    """Minimum of any stretch of an array in constant time: a sparse table of powers of two."""

    def __init__(self, values: FloatArray) -> None:
        self._rows = [values]
        width = 1
        while 2 * width <= values.size:
            row = self._rows[-1]
            self._rows.append(np.minimum(row[: row.size - width], row[width:]))
            width *= 2
        self._table = np.full((len(self._rows), values.size), np.inf)
        for k, row in enumerate(self._rows):
            self._table[k, : row.size] = row

    def __call__(self, first: Index, last: Index) -> FloatArray:
        """Return the minima of the stretches from ``first`` to ``last``, both included."""
        rank = np.log2(last - first + 1.0).astype(np.intp)
        out: FloatArray = np.minimum(
            self._table[rank, first], self._table[rank, last + 1 - (1 << rank)]
        )
        return out
