"""What prepared processes say of themselves: their allocator's figures, and who keeps what grows.

Read between two ticks from the mailboxes of :mod:`gpuwatchd.collect.mailboxes`, and fed to the
tracks of those processes. The heap of one whose alert is open is looked into only where its owner
has said so.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.collect import mailboxes
from gpuwatchd.core.model import AllocatorReading, AllocatorSeries, Holder
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.collect.mailboxes import Census, Counters, Mailbox
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device
    from gpuwatchd.pipeline.track import Track, TrackedDevice
    from gpuwatchd.pipeline.tracker import SampleIntake

MOST_FILES: Final = 4096
"""Of so many names in a directory of mailboxes is looked at."""
SILENT_S: Final = 30.0
"""A mailbox that was not written for so long says nothing of now."""
UNCHANGED_S: Final = 60.0
"""A figure that stays the same is noted again after this time."""
_ANSWER_S: Final = 180.0


class Allocator(msgspec.Struct, kw_only=True, eq=False):
    """What is remembered of one process on one device."""

    allocated: Ring
    reserved: Ring
    peak: Ring
    newest: AllocatorReading | None = None
    fragmentation_ratio: float = 0.3
    holder: Holder | None = None
    census: str | None = None
    """Id of the inspection that it comes from."""
    asked: tuple[float, str] | None = None
    """The alert, and its state, that an inspection was last asked for."""

    @classmethod
    def over(cls, span_s: float) -> Allocator:
        """Return an empty one that remembers as many seconds."""
        return cls(allocated=Ring(span_s), reserved=Ring(span_s), peak=Ring(span_s))

    @property
    def moves(self) -> int:
        """How often a figure has changed."""
        return self.allocated.moves + self.reserved.moves

    def add(self, reading: AllocatorReading, now_s: float) -> bool:
        """Take in the figures of now; say whether they are worth a row."""
        last, before = self.allocated.last, self.newest
        same = before is not None and _figures(before) == _figures(reading)
        if same and last is not None and now_s - last[0] < UNCHANGED_S:
            return False
        self.newest = reading
        self.allocated.add(now_s, reading.allocated_bytes)
        self.reserved.add(now_s, reading.reserved_bytes)
        if reading.peak_bytes is not None:
            self.peak.add(now_s, reading.peak_bytes)
        return True

    def series(self) -> AllocatorSeries | None:
        """Return its figures as the detectors want them; None before there are any."""
        t_s, allocated = self.allocated.window()
        reserved_s, reserved = self.reserved.window()
        newest = self.newest
        if not t_s.size or newest is None:
            return None
        import numpy as np  # noqa: PLC0415 - comes with the detectors

        peak_s, peak = self.peak.window()
        return AllocatorSeries(
            t_s=t_s,
            allocated_bytes=allocated,
            # Cells keep the lowest and the highest point, which differ between two series.
            reserved_bytes=np.interp(t_s, reserved_s, reserved),
            peak_bytes=np.interp(t_s, peak_s, peak) if peak_s.size else None,
            inactive_split_bytes=newest.inactive_split_bytes,
            limit_bytes=newest.limit_bytes,
            fragmentation_ratio=self.fragmentation_ratio,
        )


def _figures(reading: AllocatorReading) -> AllocatorReading:
    return msgspec.structs.replace(reading, at_s=0.0)


class PreparedProcesses:
    """Feeds the tracks of prepared processes."""

    def __init__(self, config: Config, intake: SampleIntake) -> None:
        self.config = config
        self._intake = intake

    def feed(self, source: str, now_s: float, wall_s: float) -> list[AllocatorReading]:
        """Take in what the mailboxes say of a source's processes; return what is new of it."""
        owners = dict(self._present())
        rows: list[AllocatorReading] = []
        for device in self._intake.devices.values() if owners else ():
            if device.source != source:
                continue
            for key, track in device.processes.items():
                uid = owners.get(key.pid)
                if uid is None or track.info is None or track.info.foreign:
                    continue
                place = mailboxes.folder(uid)
                mailbox = mailboxes.read(place, key.pid, uid)
                if isinstance(mailbox, mailboxes.Mailbox) and wall_s - mailbox.at_s < SILENT_S:
                    rows += self._take(device, track, mailbox, now_s)
        return rows

    def _present(self) -> Iterator[tuple[int, int]]:
        """Yield the pids that have a mailbox, each with the user whose it is."""
        uids = {os.geteuid()}
        if uids == {0}:
            uids |= {info.uid for info in self._intake.infos.values() if info.uid is not None}
        for uid in uids:
            try:
                with os.scandir(mailboxes.folder(uid)) as entries:
                    names = [entry.name for entry in islice(entries, MOST_FILES)]
            except OSError:
                continue
            stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
            yield from ((int(stem), uid) for stem in stems if stem.isdecimal())

    def _take(
        self, device: TrackedDevice, track: Track, mailbox: Mailbox, now_s: float
    ) -> Iterator[AllocatorReading]:
        counters = counters_of(device.device, mailbox, alone=self._is_alone(device, track))
        allocator = track.allocator
        if allocator is None:
            if counters is None:
                return
            allocator = track.allocator = self._begin(track)
        allocator.fragmentation_ratio = self.config.probe.fragmentation_ratio
        reading = None if counters is None else _reading(track, counters, now_s)
        if reading is not None and allocator.add(reading, now_s):
            yield reading
        census = mailbox.last
        if census is not None and census.id != allocator.census:
            allocator.census = census.id
            allocator.holder = holder_of(census, now_s) or allocator.holder
            track.due_s = now_s
        self._inspect(track, allocator, mailbox)

    def _begin(self, track: Track) -> Allocator:
        allocator = Allocator.over(self._intake.span_s)
        alert = track.alert
        if alert is not None and alert.finding.holder:
            allocator.holder = alert.finding.holder
        return allocator

    def _is_alone(self, device: TrackedDevice, track: Track) -> bool:
        """Say whether a process is on no other device: its only counters are of this one."""
        key = track.subject.process
        others = [one for one in self._intake.devices.values() if one is not device]
        return not any(key in one.processes for one in others)

    def _inspect(self, track: Track, allocator: Allocator, mailbox: Mailbox) -> None:
        """Have the heap of a process looked into whose alert is open, once for each state of it."""
        alert = track.alert
        own = track.info is not None and track.info.uid == os.geteuid()
        agreed = mailbox.inspect_on_alert or (own and self.config.probe.inspect_on_alert)
        if not agreed or mailbox.counters_only or track.lead is not None:
            return
        if alert is None or alert.state not in {"watch", "firing"} or alert.finding.holder:
            return
        asked = (alert.opened_at_s, alert.state)
        if allocator.asked != asked and track.info is not None and track.info.uid is not None:
            allocator.asked = asked
            uid = track.info.uid
            mailboxes.ask(
                mailboxes.folder(uid), mailbox, "census", uid=uid, limit_s=_ANSWER_S, answer=False
            )


def counters_of(device: Device, mailbox: Mailbox, *, alone: bool) -> Counters | None:
    """Return the counters of a device: by its UUID; the only ones, of a process that is alone."""
    rows = [row for row in mailbox.devices if row.allocated is not None]
    for row in rows:
        if row.uid is not None and device.uid.endswith(row.uid.removeprefix("GPU-")):
            return row
    return rows[0] if alone and len(rows) == 1 else None


def _reading(track: Track, counters: Counters, now_s: float) -> AllocatorReading:
    """Return figures that can be true: what the job writes is limited to the device's size."""
    most = int(track.room.total_bytes or 1 << 62)

    def amount(value: int | None) -> int | None:
        return None if value is None else min(max(value, 0), most)

    process = track.subject.process
    assert process is not None  # noqa: S101 - a process track
    allocated = amount(counters.allocated) or 0
    return AllocatorReading(
        key=process,
        device_uid=track.subject.device_uid,
        at_s=now_s,
        allocated_bytes=allocated,
        reserved_bytes=max(allocated, amount(counters.reserved) or 0),
        inactive_split_bytes=amount(counters.inactive_split),
        peak_bytes=amount(counters.peak),
        limit_bytes=amount(counters.limit) or None,
    )


def holder_of(census: Census, now_s: float) -> Holder | None:
    """Return the variable that keeps most of the growth of an inspection; None of several alike."""
    span_s = census.every_s * max(census.censuses - 1, 1)
    best: dict[tuple[str, str | None, int | None], Holder] = {}
    for group in census.groups:
        holder = group.holder
        if holder is None or " or " in holder.name or group.sure not in {"named", "graph"}:
            continue
        first, last = group.counts[0], max(group.counts[-1], 1)
        held = float(group.bytes)
        place = (holder.name, holder.file, holder.line)
        before = best.get(place) or Holder(
            name=holder.name,
            kind=holder.kind,
            at_s=now_s,
            length=holder.len,
            file=holder.file,
            line=holder.line,
        )
        bound = group.bounded_at_bytes
        best[place] = msgspec.structs.replace(
            before,
            kind=holder.kind if before.kind == "graph" else before.kind,
            graph=before.graph or group.sure == "graph",
            held_bytes=before.held_bytes + held,
            rate_bytes_per_s=before.rate_bytes_per_s + held * (1.0 - first / last) / span_s,
            bounded_at_bytes=before.bounded_at_bytes
            if bound is None
            else bound + (before.bounded_at_bytes or 0.0),
        )
    return max(best.values(), key=lambda one: (one.rate_bytes_per_s, one.graph), default=None)
