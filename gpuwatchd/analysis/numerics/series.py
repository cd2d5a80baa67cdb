"""What all detectors look at: the last stretch without a gap, on a grid, with its floor.

The **retained floor** m(t) = min of x over [t, now] is what was never given back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis.numerics.estimators import median, noise

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray, Series

GRID_S = 10.0
"""Grid of a long window; short windows are finer, coarse logs keep their own interval."""
FINE_POINTS = 720
"""A window shorter than this many grid steps is cut finer."""
LONGEST_S = 6.4 * 3600
STACK_POINTS = 240
"""Points at which holding times are worked out; more precision buys nothing."""
STEADY_T = 9.0
"""With 14 degrees of freedom, one chance in ten million: many windows are looked at."""
LEAST_BACK = 40
"""As many pauses between samples are looked back at, however long they are."""
FEW = 6
"""Grid cells of at most this many samples are worked out sample by sample."""
RECENT = 4.0
"""A hold that ended longer ago than this many times its length says nothing about now."""
PHASE_SHARE = 0.85
"""A phase has this share of its level in the first half of its time; a tooth has half of it."""
MIB = float(1 << 20)
PAUSE_STEPS = 3.0
"""Between two cells further apart than so many steps nobody has looked."""
MOST_PAUSES = 16
"""As many of them are looked into: irregular sampling is not a row of pauses."""
AROUND_S = 60.0
ALIKE = 2.0
"""Growth went on over a pause where its rate is that of before and after, up to this factor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesWindow:
    """The last stretch of a series without a gap, on a grid; times are seconds before now (<= 0).

    ``low``, ``mean`` and ``high`` (n,) are minimum, mean and maximum of each grid cell, in bytes;
    a cell without samples is absent.
    """

    now_s: float
    t_s: FloatArray
    low: FloatArray
    mean: FloatArray
    high: FloatArray
    samples: int
    """Samples of the stretch, before the grid."""
    interval_s: float
    """Mean time between samples."""
    step_s: float
    """Grid step: at least the interval."""

    @property
    def span_s(self) -> float:
        """Length of the stretch, seconds."""
        return -float(self.t_s[0]) if self.t_s.size else 0.0

    @cached_property
    def floor(self) -> FloatArray:
        """Retained floor (n,): minimum from each instant to now; never falls."""
        return np.ascontiguousarray(np.minimum.accumulate(self.low[::-1])[::-1])

    @cached_property
    def start(self) -> int:
        """Index of the last instant at the lowest level: growth cannot be older."""
        if not self.t_s.size:
            return 0
        return int(self.floor.searchsorted(self.floor[0], side="right")) - 1

    @cached_property
    def noise_bytes(self) -> float:
        """Standard deviation of the noise from one grid cell to the next; 0 when there is none."""
        return noise(self.mean)

    @cached_property
    def holds(self) -> Releases:
        """How long memory was held before it was given back."""
        return memory_releases(self.t_s, self.low)

    @cached_property
    def rises(self) -> FloatArray:
        """Rises of the floor (n-1,) from each cell to the next, in bytes; never negative."""
        out: FloatArray = self.floor[1:] - self.floor[:-1]
        return out

    @cached_property
    def squares(self) -> FloatArray:
        """Cumulative sum of the squared rises of the floor (n,), for size-weighted steps.

        The rise over a pause (the daemon was started anew) is no single step where the growth went
        on: it is taken for as many steps as it has of the size of those around it.
        """
        out = np.zeros(self.floor.size)
        squares = self.rises * self.rises
        looked = self.t_s[1:] - self.t_s[:-1] <= PAUSE_STEPS * self.step_s
        if not looked.all():
            for at in np.flatnonzero(~looked & (self.rises > 0.0))[-MOST_PAUSES:].tolist():
                squares[at] = min(squares[at], self.rises[at] * self._step_around(at, looked))
        np.add.accumulate(squares, out=out[1:])
        return out

    def _step_around(self, at: int, looked: npt.NDArray[np.bool_]) -> float:
        """Return the size of the steps around a pause in bytes; infinite unless growth went on."""
        t, floor, pause_s = self.t_s, self.floor, float(self.t_s[at + 1] - self.t_s[at])
        look_s = max(pause_s, AROUND_S)
        first = int(t.searchsorted(t[at] - look_s - 1e-6))
        last = int(t.searchsorted(t[at + 1] + look_s + 1e-6)) - 1
        rate = float(self.rises[at]) / pause_s
        for begin, end in ((first, at), (at + 1, last)):
            near = float(floor[end] - floor[begin]) / max(float(t[end] - t[begin]), 1e-6)
            if not rate / ALIKE <= near <= rate * ALIKE:
                return math.inf
        rises = self.rises[first:last][looked[first:last]]
        return float((rises * rises).sum() / max(float(rises.sum()), 1.0))

    @cached_property
    def risen_s(self) -> FloatArray:
        """Instants (m,) at which the floor had risen."""
        return self.t_s[1:][self.rises > 0.0]

    @cached_property
    def sums(self) -> FloatArray:
        """Cumulative sum of ``mean`` above its first value (n+1,), for means over blocks."""
        out = np.empty(self.mean.size + 1)
        out[0] = 0.0
        np.add.accumulate(self.mean - self.mean[0], out=out[1:])
        return out

    def coarser(self, factor: int) -> SeriesWindow:
        """Return the view with ``factor`` cells averaged into one: less noise, less detail.

        The floor of the result is that of the lower half of each cell: white noise no longer hides
        a slow rise, the lucky low of a single sample does not count as a release, and peaks that
        grow while what is kept does not are no rise.
        """
        head = self.t_s.size % factor
        cells = self.mean[head:].reshape(-1, factor)
        # Cells side by side: a pass per sample of a cell costs less than one per cell.
        across = np.ascontiguousarray(cells.T)
        return SeriesWindow(
            now_s=self.now_s,
            t_s=self.t_s[head + factor - 1 :: factor].copy(),
            low=_lower_half(cells, across),
            mean=np.add.reduce(across, axis=0) / factor,
            high=np.maximum.reduce(self.high[head:].reshape(-1, factor).T.copy(), axis=0),
            samples=self.samples,
            interval_s=self.interval_s,
            step_s=self.step_s * factor,
        )


def _lower_half(cells: FloatArray, across: FloatArray) -> FloatArray:
    """Return the mean of the lower half of each cell (k, m); ``across`` is the same, (m, k)."""
    half = max(1, len(across) // 2)
    out: FloatArray
    if len(across) != 4:
        out = np.add.reduce(np.sort(cells, axis=1)[:, :half], axis=1) / half
    else:
        low, high = np.minimum(across[:2], across[2:]), np.maximum(across[:2], across[2:])
        second = np.minimum(np.maximum(low[0], low[1]), np.minimum(high[0], high[1]))
        out = (np.minimum(low[0], low[1]) + second) / half
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class Releases:
    """Releases of memory: for each amount, the longest time that so much was held and let go.

    ``amount`` (k,) falls, ``held_s`` (k,) rises: ``held_s[i]`` is the longest hold of at least
    ``amount[i]`` bytes.
    """

    amount: FloatArray
    held_s: FloatArray
    falls: FloatArray
    """(m,) bytes given back at once, each time that something was; rising."""
    phase_s: float = math.inf
    """For how long the last phase of the program has been over, in seconds."""

    def times(self, amount: FloatArray) -> FloatArray:
        """Return how often at least ``amount`` bytes were given back at once."""
        out: FloatArray = (self.falls.size - self.falls.searchsorted(amount)).astype(np.float64)
        return out

    def longest_s(self, amount: FloatArray) -> FloatArray:
        """Return the longest hold of at least ``amount`` bytes (0 where nothing was let go)."""
        rising, held_s = self._table
        return held_s[rising.searchsorted(-amount, side="right")]

    @cached_property
    def _table(self) -> tuple[FloatArray, FloatArray]:
        """Amounts (k,) with their sign changed, so that they rise; holds (k+1,) from 0 on."""
        return -self.amount, np.concatenate(([0.0], self.held_s))


def look_back_s(t_s: FloatArray, window_s: float) -> float:
    """Return how far to look back: ``window_s``, and :data:`LEAST_BACK` usual pauses at least.

    So a log with a sample every two hours has a past as well; for samples every few seconds it is
    ``window_s``. A single long pause among short ones is a gap and no reason to look beyond it.

    Examples
    --------
    >>> look_back_s(np.arange(100) * 30.0, 23040.0), look_back_s(np.arange(9) * 7200.0, 23040.0)
    (23040.0, 288000.0)
    """
    recent = t_s[-LEAST_BACK - 1 :]
    if recent.size < 3 or (recent[-1] - recent[0]) * LEAST_BACK <= window_s * (recent.size - 1):
        return window_s
    return max(window_s, LEAST_BACK * median(np.diff(recent)))


def prepare(
    series: Series, window_s: float = LONGEST_S, *, across_gaps: bool = False
) -> SeriesWindow:
    """Return the view of the last :func:`look_back_s` seconds, back to the last unbridged gap.

    The series may have any number of samples, also none. ``across_gaps`` does not stop at the last
    gap: that is for naming what happened, not for judging growth.

    Examples
    --------
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 600.0, 5.0)
    >>> view = prepare(Series(subject=Subject(device_uid="G"), t_s=t, used_bytes=t * 1e6,
    ...                       limit_bytes=None))
    >>> view.samples, round(view.interval_s, 1), view.floor.size
    (120, 5.0, 120)
    """
    t = np.asarray(series.t_s, dtype=np.float64)
    x = np.asarray(series.used_bytes, dtype=np.float64)
    if t.size == 0:
        empty = np.empty(0)
        return SeriesWindow(
            now_s=0.0, t_s=empty, low=empty, mean=empty, high=empty, samples=0,
            interval_s=0.0, step_s=GRID_S,
        )  # fmt: skip
    now = float(t[-1])
    first = int(np.searchsorted(t, now - look_back_s(t, window_s) - 1e-6))
    t = t[first:] - now
    x = x[first:]
    gaps = pauses(t)
    cut = 0 if across_gaps else _last_end(t, x, gaps)
    if not across_gaps and series.subject.process is None and series.limit_bytes is not None:
        cut = max(cut, last_crash(t, x, series.limit_bytes))
    t, x = t[cut:], x[cut:]
    n = t.size
    sampled_s, steps = -float(t[0]) if n else 0.0, n - 1
    if gaps.size and not across_gaps:
        # A bridged pause says nothing of how often is sampled.
        inside = gaps[gaps >= cut] - cut
        sampled_s -= float((t[inside + 1] - t[inside]).sum())
        steps -= inside.size
    interval = sampled_s / steps if steps > 0 else 0.0
    step = max(interval, min(GRID_S, -float(t[0]) / FINE_POINTS))
    low, mean, high, grid = _grid(t, x, step, interval)
    return SeriesWindow(
        now_s=now, t_s=grid, low=low, mean=mean, high=high, samples=n,
        interval_s=interval, step_s=step,
    )  # fmt: skip


def _grid(
    t: FloatArray, x: FloatArray, step: float, interval: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return minimum, mean, maximum and last instant of each cell; cells end at now."""
    if step < interval * 1.3 or t.size < 3:
        return x, x, x, t
    cell = np.floor(t * (-1.0 / step) + 1e-9)
    edge = np.concatenate(([0], np.flatnonzero(cell[1:] != cell[:-1]) + 1))
    last = np.append(edge[1:], t.size) - 1
    most = int((last - edge).max())
    if most >= FEW:
        low = np.minimum.reduceat(x, edge)
        high = np.maximum.reduceat(x, edge)
        return low, np.add.reduceat(x, edge) / (last - edge + 1), high, t[last]
    # Cells of a few samples, the usual case: a pass per sample costs less than one per cell.
    low = high = first = x[edge]
    rest = np.zeros(edge.size)
    for k in range(1, most + 1):
        at = edge + k
        inside = at <= last
        more = x[np.minimum(at, last)]
        low, high = np.minimum(low, more), np.maximum(high, more)
        rest += np.where(inside, more, 0.0)
    return low, (first + rest) / (last - edge + 1), high, t[last]


def memory_releases(t_s: FloatArray, low: FloatArray) -> Releases:
    """Return the releases of a series, from the stack of its retained floor.

    Each value that a later, lower one pops from the stack was held for the time between them.
    Holds that ended long ago compared with their length are left out: the subject has changed.
    """
    n = low.size
    nothing = np.empty(0)
    if n < 2:
        return Releases(amount=nothing, held_s=nothing, falls=nothing)
    falls = low[:-1] - low[1:]
    if not falls.max() > 0.0:
        return Releases(amount=nothing, held_s=nothing, falls=nothing)
    block = -(-n // STACK_POINTS)
    if block > 1:
        edge = np.arange(n % block, n, block)
        low, t_s = np.minimum.reduceat(low, edge), t_s[edge + block - 1]
        falls = low[:-1] - low[1:]
    until = _next_lower(low.tolist())
    begin = (until < low.size).nonzero()[0]
    end = until[begin]
    end_s = t_s[end]
    age = end_s - t_s[begin]
    released = low[begin] - low[end]
    habit = -end_s <= RECENT * age + GAP_S
    over = _phase(end, age, released, falls)
    phase_s = math.inf
    if over is not None:
        phase_s = -float(t_s[over])
        habit &= end != over
    falls = falls[falls > 0.0]
    falls.sort()
    age, released = age[habit], released[habit]
    order = (-released).argsort()
    held_s = np.maximum.accumulate(age[order])
    return Releases(amount=released[order], held_s=held_s, falls=falls, phase_s=phase_s)


def _phase(
    end: npt.NDArray[np.intp], age: FloatArray, released: FloatArray, falls: FloatArray
) -> int | None:
    """Return where a single phase of the program ended; None without one.

    Memory that stood at its level, and was given back once, was a phase; what grows after it is
    another story, so that it does not say how long growth is held. A tooth had been growing until
    it fell. Only the largest fall can be the only one of its size. ``end``, ``age`` and
    ``released`` (k,) are those of the releases, ``falls`` (n-1,) those from each point to the next.
    """
    last = int(falls.argmax()) + 1
    top = float(falls[last - 1])
    if top <= 0.0 or np.count_nonzero(falls >= 0.5 * top) > 1:
        return None
    own = end == last
    age, released = age[own], released[own]
    early = released[age >= 0.5 * float(age.max())]
    return last if float(early.max()) >= PHASE_SHARE * top else None


def _next_lower(values: list[float]) -> npt.NDArray[np.intp]:
    """Return for each value the index of the first lower one after it, or the length (n,).

    From the back, leaping over what is known to be no lower: each index is passed once or twice.
    """
    n = len(values)
    values.append(-math.inf)
    after = [n] * n
    for i in range(n - 1, -1, -1):
        value, j = values[i], i + 1
        while values[j] >= value:
            j = after[j]
        after[i] = j
    return np.array(after, dtype=np.intp)


def steady_rise(view: SeriesWindow, look_s: FloatArray, least: float) -> float:
    """Return the longest of ``look_s`` seconds in which the means rise steadily, or 0.

    Sixteen batch means of each window: the t statistic of their slope must be beyond
    :data:`STEADY_T`, the growth ``least`` bytes or more, each half must bring a third of it, the
    last quarter must still rise, and over three windows nothing comparable was given back. It sees
    a slow rise under noise earlier than the retained floor does.
    """
    look = look_s[(look_s <= view.span_s) & (look_s >= 32.0 * view.step_s)]
    if not look.size:
        return 0.0
    here, number = _batches(view, look, _LAST_16)
    slope = here @ _SLOPE_16
    rest = here - np.add.reduce(here, axis=1, keepdims=True) / 16 - slope[:, None] * _TIMES_16
    variance = np.maximum(np.add.reduce(rest * rest, axis=1), 1.0) / 14.0
    error = np.sqrt(variance * _SPREAD_16)
    growth = 15.0 * slope
    filled = np.minimum.reduce(number, axis=1) > 0
    good = (growth >= least) & (slope > STEADY_T * error) & filled
    if not good.all():
        if not good.any():
            return 0.0
        look, here, slope, growth = look[good], here[good], slope[good], growth[good]
    start, middle, end = (
        np.add.reduce(here[:, part], axis=1) / (part.stop - part.start) for part in _THIRDS
    )
    whole = np.maximum(end - start, 1.0)
    even = np.minimum(middle - start, end - middle) >= whole / 3.0
    late = np.add.reduce(here[:, 12:], axis=1) / 4 - np.add.reduce(here[:, 8:12], axis=1) / 4
    means, number = _batches(view, look, _EDGES_48)
    filled = number > 0
    before = np.where(filled, means, _NOTHING)
    fall = np.where(filled, np.maximum.accumulate(before, axis=1) - before, 0.0)
    fall = np.maximum.reduce(fall, axis=1)
    sure = look[even & (late >= 1.2 * slope) & (fall < growth / 3.0)]
    return float(sure.max()) if sure.size else 0.0


def _batches(
    view: SeriesWindow, look: FloatArray, edges: FloatArray
) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    """Return the means between ``edges`` of each look-back, and how many cells each is of."""
    at_s = look[:, None] * edges
    at_s[:, -1] = 1.0
    at = view.t_s.searchsorted(at_s)
    number = at[:, 1:] - at[:, :-1]
    sums = view.sums[at]
    return (sums[:, 1:] - sums[:, :-1]) / np.maximum(number, 1), number


_EDGES_48 = -np.linspace(3.0, 0.0, 49)
_LAST_16 = _EDGES_48[32:]
_THIRDS = (slice(0, 5), slice(5, 11), slice(11, 16))
_TIMES_16 = np.arange(16.0) - 7.5
_SLOPE_16 = _TIMES_16 / float(_TIMES_16 @ _TIMES_16)
_SPREAD_16 = float(_SLOPE_16 @ _SLOPE_16)
_NOTHING = -1e30


# Where the story of a subject begins anew: after a gap in the record, or a crash at the limit.

GAP_S = 60.0
"""A pause up to this long is never a gap; above it, one of more than three intervals is."""
BRIDGE_S = 1800.0
"""A gap up to this long is bridged where the level went on."""
BRIDGE_BYTES, BRIDGE_SHARE = 64.0 * MIB, 0.01
"""What a level may have changed by over any gap: the larger of bytes and share of itself."""
FULL = 0.93
"""What fills this share of the limit is about to run out."""
CRASH_FALL = 0.4
"""A crash leaves at least this share of the limit free."""
CRASH_S = 120.0
"""It does so within this time."""
LIFE_S = 3600.0
"""A life shorter than this does not end in a crash, but swings at the limit."""


def pauses(t_s: FloatArray) -> npt.NDArray[np.intp]:
    """Return the indices (k,) of the samples that gaps follow, ascending.

    A gap is a pause above three usual intervals (the 95 % quantile: irregular sampling is not a
    row of gaps) and above one minute.
    """
    nothing = np.empty(0, dtype=np.intp)
    if t_s.size < 2:
        return nothing
    steps = t_s[1:] - t_s[:-1]
    if float(steps.max()) <= GAP_S:
        return nothing
    return np.flatnonzero(steps > max(GAP_S, 3.0 * float(np.quantile(steps, 0.95))))


def last_gap(t_s: FloatArray) -> int:
    """Return the index of the first sample after the last gap that nothing bridges; 0 without one.

    Of many series that were sampled together: a shorter gap ends only some of them.
    """
    gaps = pauses(t_s)
    long = gaps[t_s[gaps + 1] - t_s[gaps] > BRIDGE_S]
    return int(long[-1]) + 1 if long.size else 0


def goes_on(t_s: FloatArray, used_bytes: FloatArray, at: int) -> bool:
    """Say whether the level of a series (n,) went on over the pause before sample ``at``.

    The pause is :data:`BRIDGE_S` at most. It brought no more than the time before it at its pace,
    and took no more than was given back then: another program, or another story, begins elsewhere.

    Examples
    --------
    >>> t = np.r_[np.arange(0.0, 900.0, 10.0), 1500.0]
    >>> used = 8e9 + 1e6 * t
    >>> goes_on(t, used, 90), goes_on(t, np.r_[used[:90], 4e9], 90)
    (True, False)
    """
    last, after = float(used_bytes[at - 1]), float(used_bytes[at])
    pause_s = float(t_s[at] - t_s[at - 1])
    if pause_s > BRIDGE_S:
        return False
    first = int(t_s.searchsorted(t_s[at - 1] - BRIDGE_S))
    before = used_bytes[first:at]
    # A load in the minutes before is no pace.
    times = min(max(pause_s / max(float(t_s[at - 1] - t_s[first]), 1.0), 1.0), 2.0)
    high, low = float(before.max()), float(before.min())
    fell = float((np.maximum.accumulate(before) - before).max())
    slack = max(BRIDGE_BYTES, BRIDGE_SHARE * last)
    return last - fell - slack <= after <= max(high, last + times * (last - low)) + slack


def _last_end(t_s: FloatArray, used_bytes: FloatArray, gaps: npt.NDArray[np.intp]) -> int:
    """Return the index of the first sample after the last gap over which no level went on."""
    for gap in gaps[::-1].tolist():
        if not goes_on(t_s, used_bytes, gap + 1):
            return int(gap) + 1
    return 0


def last_crash(t_s: FloatArray, used_bytes: FloatArray, limit_bytes: float) -> int:
    """Return the index of the first sample after the last crash; 0 without one.

    A crash is a fall from the limit, at least by :data:`CRASH_FALL` within two minutes, after an
    hour or more: what filled the device has died, and has given nothing back. What follows is
    another run. A program that lets go at the limit every few minutes does not crash.
    """
    full = FULL * limit_bytes
    if t_s.size < 3 or not used_bytes.max() >= full:
        return 0
    empty = (1.0 - CRASH_FALL) * limit_bytes
    first, since = 0, float(t_s[0])
    tops = np.flatnonzero((used_bytes[:-1] >= full) & (used_bytes[1:] < full))
    for top in tops.tolist():
        soon = int(t_s.searchsorted(t_s[top] + CRASH_S, side="right"))
        fallen = np.flatnonzero(used_bytes[top + 1 : max(soon, top + 2)] < empty)
        if fallen.size:
            if t_s[top] - since >= LIFE_S:
                first = top + 1 + int(fallen[0])
            since = float(t_s[top])
    return first
