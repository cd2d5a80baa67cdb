"""One subject's readings -> runs of ascending time, without doubles, with their gaps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs.fields import MIB

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

GAP_INTERVALS = 10.0
DISORDER_SHARE = 0.1
"""With more backward steps than this the rows are not in time order at all."""


@dataclass(slots=True, eq=False)
class Run:
    """A stretch of strictly ascending time."""

    t: FloatArray
    used: FloatArray
    breaks: tuple[int, ...]


@dataclass(slots=True)
class Repairs:
    """What was done to make runs; counts of readings."""

    doubles: int = 0
    strays: int = 0
    """Readings dropped since their time lies apart from both neighbours."""
    jumps_back: int = 0
    resorted: bool = False


def median_interval_s(t: FloatArray) -> float:
    """Return the median of the positive steps; 0 when there is none."""
    steps = np.diff(t)
    steps = steps[steps > 0]
    return float(np.median(steps)) if steps.size else 0.0


def split(t: FloatArray, used: FloatArray, repairs: Repairs) -> list[Run]:
    """Return the runs of one subject in file order.

    A step back of at most one sampling interval is disorder and is sorted; a longer one starts a
    new run (a second job, the end of summer time). Of readings with the same time the last counts.
    """
    interval = median_interval_s(t)
    t, used = _without_strays(t, used, interval, repairs)
    back = np.flatnonzero(np.diff(t) < 0)
    if back.size > max(3.0, DISORDER_SHARE * t.size):
        repairs.resorted = True
        return [_run(t, used, interval, repairs)]
    cuts = (np.flatnonzero(np.diff(t) < -max(interval, 1e-9)) + 1).tolist()
    repairs.jumps_back += len(cuts)
    edges = [0, *cuts, t.size]
    return [
        _run(t[start:end], used[start:end], interval, repairs)
        for start, end in itertools.pairwise(edges)
    ]


def _without_strays(
    t: FloatArray, used: FloatArray, interval: float, repairs: Repairs
) -> tuple[FloatArray, FloatArray]:
    """Drop single readings whose time is torn: their neighbours fit together without them."""
    if t.size < 5 or interval <= 0:
        return t, used
    before, here, after = t[:-2], t[1:-1], t[2:]
    near = (after >= before) & (after - before <= GAP_INTERVALS * interval)
    apart = (here - after > GAP_INTERVALS * interval) | (before - here > GAP_INTERVALS * interval)
    stray = np.concatenate(([False], near & apart, [False]))
    repairs.strays += int(stray.sum())
    return (t[~stray], used[~stray]) if stray.any() else (t, used)


def last_of_each_time(t: FloatArray, used: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return readings in strictly ascending time; of several with one time the last counts."""
    if not (np.diff(t) <= 0).any():
        return t, used
    order = np.argsort(t, kind="stable")
    t, used = t[order], used[order]
    last = np.concatenate((np.diff(t) > 0, [True]))
    return t[last], used[last]


def _run(t: FloatArray, used: FloatArray, interval: float, repairs: Repairs) -> Run:
    before = t.size
    t, used = last_of_each_time(t, used)
    repairs.doubles += before - t.size
    gaps = np.flatnonzero(np.diff(t) > GAP_INTERVALS * interval) + 1
    breaks = tuple(gaps.tolist()) if interval > 0 else ()
    return Run(np.ascontiguousarray(t), np.ascontiguousarray(used), breaks)


def interleaved(t: FloatArray, used: FloatArray, *, timed: bool = True) -> bool:
    """Say whether two devices seem to write one series in turn.

    Either nearly every time occurs more than once with different levels in it, or levels and time
    steps both alternate: one device alone does not do that. Without times, levels must do.
    """
    if t.size < 8:
        return False
    if timed and _levels_within_ticks(t, used):
        return True
    steps = np.diff(t)
    least = 0.1 * float(np.median(np.abs(steps[1:])))
    return _alternates(used, 64 * MIB) and (not timed or _alternates(steps[1:], least))


def _levels_within_ticks(t: FloatArray, used: FloatArray) -> bool:
    values, counts = np.unique(t, return_counts=True)
    count = int(np.median(counts))
    if count < 2 or values.size < 2 or float((counts == count).mean()) < 0.8:
        return False
    order = np.argsort(t, kind="stable")
    ranked = used[order]
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))[counts == count]
    table = ranked[starts[:, None] + np.arange(count)]
    within = np.median(np.ptp(table, axis=1))
    between = np.median(np.abs(np.diff(table, axis=0))) if table.shape[0] > 1 else 0.0
    return bool(within > 16 * MIB + 10 * between)


def _alternates(values: FloatArray, least: float) -> bool:
    if values.size < 6:
        return False
    one = float(np.median(np.abs(np.diff(values))))
    two = float(np.median(np.abs(values[2:] - values[:-2])))
    return one > least and two * 10 <= one
