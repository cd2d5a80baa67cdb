"""The recent past of one subject, in memory: what the detectors look at.

Points are kept in cells of a few seconds, at most two per cell (its lowest and its highest), so
that a fast sampling rate costs no more memory than a slow one and neither the retained floor nor
a peak is lost. A point takes eight bytes: time as ticks of 10 ms, memory as a 32-bit float, which
holds every multiple of the driver's 2 MiB exactly and anything else to a part in 16 million.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

CELL_S = 5.0
"""Width of a cell; all points are kept while they are at least this far apart."""
_TICK_S = 0.01
_TICKS_PER_S = 100.0
_FULL = 2**32
_TRIM_AT = 1024
_TRIM_LOOK = 64
"""Once in so many points it is looked whether some are too old."""


class Ring:
    """Points (t, bytes) of one subject over ``span_s`` seconds; older ones go now and then."""

    __slots__ = (
        "_base_s", "_cell", "_clock", "_count", "_high", "_last", "_low", "_read", "_t", "_v",
        "bounds", "moves", "span_s",
    )  # fmt: skip

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._t = array("I")
        self._v = array("f")
        self._base_s = 0.0
        self._cell = -1
        self._low = self._high = self._last = (0.0, 0.0)
        self._count = 0
        self._clock: list[float] | None = None
        self._read = 0
        self.moves = 0
        """How often the value differed from the one before."""
        self.bounds = (0.0, 0.0)
        """No value is below the first or above the second: as narrow as it gets after
        :meth:`window`; wider when the lowest or highest has grown too old since."""

    @property
    def count(self) -> int:
        """Samples ever added."""
        return self._count + (0 if self._clock is None else len(self._clock) - self._read)

    def follow(self, clock: list[float]) -> None:
        """Stay at the last value whenever a time is appended to ``clock``, until ``add``.

        Many rings follow one clock: what stands still costs nothing until somebody looks. They
        are told to ``catch_up`` before the clock is begun anew.
        """
        self.catch_up()
        self._clock, self._read = clock, len(clock)

    def leave(self) -> None:
        """Follow no clock any more: what it tells from now on is nothing to this one."""
        self.catch_up()
        self._clock = None

    def catch_up(self) -> None:
        """Take in the times that the clock has told meanwhile."""
        clock = self._clock
        if clock is None or self._read == len(clock):
            return
        times, self._read = clock[self._read :], len(clock)
        value = self._last[1]
        self._clock = None
        self._repeat(times, value)
        self._clock = clock

    def _repeat(self, times: list[float], value: float) -> None:
        """Add one value at several times."""
        known, low, base_s, width = self._t, self._low, self._base_s, CELL_S
        if low is self._high and known and times[0] > self._last[0]:
            # Cell -> its first time: the one that counts, and the cell before is closed then.
            firsts = {int(t_s / width): t_s for t_s in reversed(times)}
            firsts.pop(self._cell, None)
            begun = [low[0], *reversed(firsts.values())]
            ticks = [int((at_s - base_s) * _TICKS_PER_S + 0.5) for at_s in begun[:-1]]
            whole = [known[-1], *ticks, _FULL]
            if not ticks or (begun == sorted(begun) and whole == sorted(set(whole))):
                known.extend(ticks)
                self._v.extend([value] * len(ticks))
                if ticks:
                    self._cell = next(iter(firsts))
                    self._low = self._high = (begun[-1], value)
                self._last = (times[-1], value)
                self._count += len(times)
                self._trim()
                return
        for t_s in times:
            self.add(t_s, value)

    def __len__(self) -> int:
        self.catch_up()
        return len(self._t) + (0 if self._cell < 0 else 1)

    @property
    def last(self) -> tuple[float, float] | None:
        """The newest point, None when there is none."""
        if self._cell < 0:
            return None
        clock = self._clock
        if clock is not None and self._read < len(clock):
            return clock[-1], self._last[1]
        return self._last

    @property
    def first_s(self) -> float:
        """Time of the oldest point; 0 when there is none."""
        return self._base_s + self._t[0] * _TICK_S if self._t else self._low[0]

    def add(self, t_s: float, value: float) -> None:
        """Append a point; one that is not newer than the last is ignored."""
        if self._clock is not None:
            self.catch_up()
            self._clock = None
        cell, current = int(t_s / CELL_S), self._cell
        if cell > current:
            self._close_cell()
            if current < 0:
                self.bounds = (value, value)
            if value != self._last[1]:
                self.moves += 1
                self._widen(value)
            self._cell = cell
            self._last = self._low = self._high = (t_s, value)
        elif cell == current:
            if t_s <= self._last[0]:
                return
            if value != self._last[1]:
                self.moves += 1
                self._widen(value)
            self._last = (t_s, value)
            if value < self._low[1]:
                self._low = self._last
            elif value > self._high[1]:
                self._high = self._last
        else:
            return
        self._count += 1

    def _widen(self, value: float) -> None:
        low, high = self.bounds
        if not low <= value <= high:
            self.bounds = (min(low, value), max(high, value))

    def _close_cell(self) -> None:
        low, times = self._low, self._t
        if self._cell < 0:
            return
        if low is self._high:
            # The same as _append, for the usual cell of a single point.
            ticks = int((low[0] - self._base_s) * _TICKS_PER_S + 0.5)
            if times and times[-1] < ticks < _FULL and len(times) % _TRIM_LOOK:
                times.append(ticks)
                self._v.append(low[1])
                return
            self._append(*low)
        else:
            for point in sorted((self._low, self._high)):
                self._append(*point)
        self._trim()

    def _trim(self) -> None:
        if len(self._t) >= _TRIM_AT and self._t[_TRIM_AT // 8] * _TICK_S < (
            self._last[0] - self.span_s - self._base_s
        ):
            # Dropping from the front moves the whole array: rarely, and an eighth at a time.
            del self._t[: _TRIM_AT // 8]
            del self._v[: _TRIM_AT // 8]

    def _append(self, t_s: float, value: float) -> None:
        times = self._t
        ticks = round((t_s - self._base_s) / _TICK_S) if times else _FULL
        if ticks >= _FULL:
            self._rebase(t_s)
            times = self._t
            ticks = round((t_s - self._base_s) / _TICK_S)
        if times and ticks <= times[-1]:
            return
        times.append(ticks)
        self._v.append(value)

    def _rebase(self, t_s: float) -> None:
        pairs = [(self._base_s + t * _TICK_S, v) for t, v in zip(self._t, self._v, strict=True)]
        pairs = [point for point in pairs if point[0] >= t_s - self.span_s]
        self._base_s = pairs[0][0] if pairs else t_s
        self._t = array("I", [round((point[0] - self._base_s) / _TICK_S) for point in pairs])
        self._v = array("f", [point[1] for point in pairs])

    def shift(self, by_s: float) -> None:
        """Move every point in time: the clock that they were stamped by has been stepped."""
        self.catch_up()
        self._base_s += by_s
        if self._cell < 0:
            return
        alone = self._low is self._high
        self._low = (self._low[0] + by_s, self._low[1])
        self._high = self._low if alone else (self._high[0] + by_s, self._high[1])
        self._last = (self._last[0] + by_s, self._last[1])
        self._cell = int(self._last[0] / CELL_S)

    def copy(self) -> Ring:
        """Return another one with the same points, which follows no clock."""
        self.catch_up()
        other = Ring(self.span_s)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(other, name, value[:] if isinstance(value, array) else value)
        other.leave()
        return other

    def window(self) -> tuple[FloatArray, FloatArray]:
        """Return copies of times and values, (n,) each, times strictly ascending."""
        import numpy as np  # noqa: PLC0415 - numpy is loaded when something is judged first

        self.catch_up()
        tail = self._tail()
        old = np.frombuffer(self._t, dtype=np.uint32) * _TICK_S + self._base_s
        t = np.concatenate([old, [point[0] for point in tail]])
        v = np.concatenate(
            [np.frombuffer(self._v, dtype=np.float32), [point[1] for point in tail]],
            dtype=np.float64,
        )
        start = int(np.searchsorted(t, t[-1] - self.span_s)) if t.size else 0
        t, v = t[start:], v[start:]
        if v.size:
            self.bounds = (float(v.min()), float(v.max()))
        return t, v

    def _tail(self) -> list[tuple[float, float]]:
        """Return the points of the cell that is not closed yet, oldest first."""
        if self._cell < 0:
            return []
        closed_s = self._base_s + self._t[-1] * _TICK_S if self._t else float("-inf")
        return [p for p in sorted({self._low, self._high, self._last}) if p[0] > closed_s]

    def extent(self) -> tuple[int, float]:
        """Return how many points :meth:`window` has, and its length in seconds."""
        self.catch_up()
        tail = self._tail()
        newest_s = self._last[0] if tail else self._base_s + self._t[-1] * _TICK_S
        start = self._position(newest_s - self.span_s)
        oldest_s = self._base_s + self._t[start] * _TICK_S if start < len(self._t) else tail[0][0]
        return len(self._t) - start + len(tail), newest_s - oldest_s

    def _position(self, at_s: float) -> int:
        """Return how many closed points are older than an instant."""
        return bisect_left(self._t, (at_s - self._base_s) / _TICK_S - 1e-6)

    def has_gap(self, least_s: float) -> bool:
        """Say whether there is a gap, as :func:`.numerics.pauses` has it, above ``least_s``."""
        self.catch_up()
        times = [self._base_s + tick * _TICK_S for tick in self._t]
        times += [point[0] for point in self._tail()]
        steps = sorted([b - a for a, b in pairwise(times)])
        if not steps or steps[-1] <= least_s:
            return False
        part, at = math.modf(0.95 * (len(steps) - 1))
        low, high = steps[int(at)], steps[min(int(at) + 1, len(steps) - 1)]
        return steps[-1] > 3.0 * (low + part * (high - low))

    def lowest(self, begin_s: float, end_s: float) -> float | None:
        """Return the lowest value from ``begin_s`` until before ``end_s``; None of no point."""
        self.catch_up()
        values = list(self._v[self._position(begin_s) : self._position(end_s)])
        values += [value for t_s, value in self._tail() if begin_s <= t_s < end_s]
        return min(values, default=None)

    def recent(self, count: int, step_s: float) -> tuple[int | None, ...]:
        """Return up to ``count`` values, oldest first, ``step_s`` apart; a gap is None."""
        self.catch_up()
        if self._cell < 0:
            return ()
        now, value = self._last
        out: list[int | None] = [int(value)]
        patience = 2 * max(step_s, CELL_S) / _TICK_S
        for back in range(1, count):
            upper = (now - back * step_s - self._base_s) / _TICK_S
            position = bisect_right(self._t, upper) - 1
            if position < 0:
                break
            fresh = self._t[position] > upper - patience
            out.append(int(self._v[position]) if fresh else None)
        return tuple(reversed(out))


def thin(t_s: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the points (n,) that a :class:`Ring` would keep of a whole recording, in one go."""
    import numpy as np  # noqa: PLC0415

    if t_s.size < 3 or float(np.median(np.diff(t_s))) >= CELL_S:
        return t_s, values
    cell = (t_s / CELL_S).astype(np.int64)
    order = np.lexsort((values, cell))
    first = np.r_[True, np.diff(cell[order]) != 0]
    last = np.r_[first[1:], True]
    keep = np.unique(np.r_[order[first], order[last]])
    return t_s[keep], values[keep]
