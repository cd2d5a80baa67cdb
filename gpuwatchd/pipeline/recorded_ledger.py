"""Whose the memory of a device is, as a recorded log tells it: by instant, never ahead of time.

What the live ledger says at a tick, said of a whole recording at once: when the process list was
read, what no listed process owned then, and the device without what processes brought as they came.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpuwatchd.analysis.attribution import JOIN_S
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model import GrowthFact, Subject
from gpuwatchd.pipeline.device_rings import is_crowd
from gpuwatchd.pipeline.track import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.collect.logs.log_types import LogSeries
    from gpuwatchd.core.model import FloatArray

_SLIP = 5
"""Readings of the median that takes a slip between the two logs of one tick for what it is."""
_HOLD_INTERVALS = 3.0


class RecordedLedger(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the process list of a machine says of one device of it."""

    listed_s: FloatArray
    """Instants (n,), ascending, at which the list was read."""
    interval_s: float
    """Usual time between two of them, seconds."""
    alone: LogSeries
    """The device, without what each process held after :data:`JOIN_S`, as long as it was there."""
    rest: LogSeries | None
    """What no listed process owned at each reading of both, and what a crowd brought; None where
    that is never known."""
    moves_s: FloatArray
    """Instants (m,), ascending, at which a process came or went while the device was recorded."""

    stays_s: FloatArray
    """Instants, ascending, from which on one more of a crowd counts as growth."""

    def attributed_s(self, instants: FloatArray) -> FloatArray:
        """Return for each instant (k,) when its processes were last known; -inf: never before.

        A list that is read rarely holds until the next readings should have come.
        """
        at = self.listed_s.searchsorted(instants, side="right") - 1
        last = np.where(at >= 0, self.listed_s[np.maximum(at, 0)], -np.inf)
        hold_s = max(GRACE_S, _HOLD_INTERVALS * self.interval_s)
        return np.where(instants - last < hold_s, instants, last)

    def facts(self, since_s: float, until_s: float) -> tuple[GrowthFact, ...]:
        """Return that processes came or went in a span of epoch seconds; () where none did."""
        moved, stayed = (
            int(np.diff(at_s.searchsorted((since_s, until_s), side="right"))[0])
            for at_s in (self.moves_s, self.stays_s)
        )
        if not moved:
            return ()
        text = f"processes came or went {moved} times"
        counted = f"; {stayed} alike ones that came and stayed are" if stayed else ""
        fact = GrowthFact(
            name=FactName.JOINED_OR_LEFT,
            source="process list",
            weight=0.0,
            text=f"{text}: not counted as growth{counted}",
        )
        return (fact,)


def ledgers(every_series: Sequence[LogSeries]) -> dict[int, RecordedLedger]:
    """Return by the position of its series what is known of each device with processes.

    A device that is known by the sum of its processes has nothing that none of them owns.
    """
    parts: dict[str, list[LogSeries]] = {}
    for series in every_series:
        if series.process is not None and series.t_s.size:
            parts.setdefault(series.device.uid, []).append(series)
    every = [series for own in parts.values() for series in own]
    if not every:
        return {}
    # A list names the processes of all devices of its machine.
    listed_s = np.unique(np.concatenate([series.t_s for series in every]))
    steps = [float(np.median(np.diff(s.t_s))) for s in every if s.t_s.size > 1]
    return {
        position: _ledger(whole, parts[whole.device.uid], listed_s, steps)
        for position, whole in enumerate(every_series)
        if whole.process is None and whole.device.uid in parts
        if whole.t_s.size and not whole.lower_bound
    }


def unowned(every_series: Sequence[LogSeries]) -> list[LogSeries]:
    """Return what no listed process owned of each device where that is known."""
    return [ledger.rest for ledger in ledgers(every_series).values() if ledger.rest is not None]


def _ledger(
    whole: LogSeries, parts: Sequence[LogSeries], listed_s: FloatArray, steps: Sequence[float]
) -> RecordedLedger:
    t, used = whole.t_s, whole.used_bytes
    own_s = float(np.median(np.diff(t))) if t.size > 1 else 0.0
    interval_s = float(np.median(steps)) if steps else own_s
    lives: list[tuple[LogSeries, slice, float]] = []
    listed = np.zeros(t.size)
    for part in sorted(parts, key=lambda part: float(part.t_s[0])):
        gone_s = _gone_s(part, whole, listed_s, interval_s)
        here = slice(*t.searchsorted((part.t_s[0], gone_s)).tolist())
        listed[here] += _held(part, t[here])
        lives.append((part, here, gone_s))
    owned, brought, beside = listed.copy(), np.zeros(t.size), used - listed
    stays: list[float] = []
    crowds: dict[str, list[tuple[float, float]]] = {}
    for part, here, gone_s in lives:
        came_s = float(part.t_s[0]) + JOIN_S
        level = float(_held(part, np.array([came_s]))[0])
        # Only what the device shows of it came with it: a list that begins, or goes on, names
        # processes that were there before. What others took or gave back meanwhile is theirs.
        last = max(here.start, int(t.searchsorted(came_s, side="right")) - 1)
        settled = np.minimum(np.arange(here.start, here.stop), last)
        before = max(0, int(t.searchsorted(part.t_s[0] - interval_s)) - 1)
        held = _held(part, t[settled])
        came_with = np.clip(beside[settled] + held - beside[before], 0.0, held)
        alike = crowds.setdefault("" if part.process is None else part.process.name, [])
        if gone_s > came_s and is_crowd(level, [size for size, until in alike if until > came_s]):
            stays.append(came_s)
            late = t[here] > came_s
            owned[here] -= np.where(late, np.minimum(_held(part, t[here]), level), 0.0)
        alike.append((level, gone_s))
        brought[here] += came_with
    moves = [at_s for part, _, gone_s in lives for at_s in (float(part.t_s[0]), gone_s)]
    inside = np.array(sorted(moves))
    inside = inside[(inside > t[0] + own_s) & (inside <= t[-1])]
    alone = dataclasses.replace(whole, used_bytes=np.maximum(used - brought, 0.0))
    # Both were read since the reading before: else one of the two is of another time.
    lists = listed_s.searchsorted(np.append(t[0] - own_s, t), side="right")
    read = lists[1:] > lists[:-1]
    # Processes that hold more than is used share memory: then nobody knows what nobody owns.
    known = np.flatnonzero(read & (owned <= used))
    return RecordedLedger(
        listed_s=listed_s,
        interval_s=interval_s,
        alone=alone,
        rest=_rest(whole, known, used[known] - owned[known]),
        moves_s=inside,
        stays_s=np.array(stays),
    )


def _held(part: LogSeries, instants: FloatArray) -> FloatArray:
    """Return what a process held at instants (k,), none before its first."""
    at = part.t_s.searchsorted(instants, side="right") - 1
    held: FloatArray = part.used_bytes[np.maximum(at, 0)]
    return held


def _gone_s(part: LogSeries, whole: LogSeries, listed_s: FloatArray, interval_s: float) -> float:
    """Return when a process had gone: the first list without it.

    Where no list follows it is there until the device holds less than it alone did.
    """
    last_s = float(part.t_s[-1])
    after = int(listed_s.searchsorted(last_s + 0.5 * interval_s, side="right"))
    if after < listed_s.size:
        return float(listed_s[after])
    begin = int(whole.t_s.searchsorted(last_s, side="right"))
    less = np.flatnonzero(whole.used_bytes[begin:] < float(part.used_bytes[-1]))
    return float(whole.t_s[begin + int(less[0])]) if less.size else np.inf


def _rest(whole: LogSeries, known: Iterable[int], values: FloatArray) -> LogSeries | None:
    at = np.asarray(known, dtype=np.intp)
    if not at.size:
        return None
    # Device and processes are not read in one instant: between two readings one may allocate.
    padded = np.pad(values, (_SLIP - 1, 0), mode="edge")
    used = np.median(np.lib.stride_tricks.sliding_window_view(padded, _SLIP), axis=1)
    return dataclasses.replace(
        whole,
        subject=Subject(device_uid=whole.device.uid, unattributed=True),
        t_s=whole.t_s[at],
        used_bytes=used,
        breaks=tuple(int(k) for k in np.unique(at.searchsorted(whole.breaks)) if 0 < k < at.size),
    )
