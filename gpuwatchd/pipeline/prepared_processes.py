"""What prepared processes say of themselves: their allocator's figures, and who keeps what grows.

Read between two ticks from the mailboxes of :mod:`gpuwatchd.collect.mailboxes`, and fed to the
tracks of those processes. The heap of one whose alert is open is looked into only where its owner
has said so.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuwatchd.collect import mailboxes
from gpuwatchd.core.model import AllocatorReading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpuwatchd.collect.mailboxes import Counters, Mailbox
    from gpuwatchd.core.model import Device, ProcessKey
    from gpuwatchd.pipeline.allocator import Allocator
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track, TrackedDevice

SILENT_S: Final = 30.0
"""A mailbox that was not written for so long says nothing of now."""
RESUMED_S: Final = 600.0
"""What was said before a start waits this long for the first word of its process."""
_ANSWER_S: Final = 180.0


class PreparedProcesses:
    """Feeds the tracks of prepared processes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._earlier: dict[tuple[str, ProcessKey], list[AllocatorReading]] = {}
        self._forget_s = 0.0
        self._places: tuple[int, dict[int, Path]] = -1, {}
        """``State.infos.changes``, and user id -> the directory of that user's mailboxes."""
        self.news: list[AllocatorReading] = []
        """What the last look brought."""

    def resume(self, past: Iterable[tuple[tuple[str, ProcessKey], list[AllocatorReading]]]) -> None:
        """Remember what was said before this start, for the processes that are still there."""
        self._earlier = dict(past)

    def feed(self, source: str, now_s: float, wall_s: float) -> None:
        """Take in what the mailboxes say of a source's processes."""
        self.news.clear()
        self._forget_s = self._forget_s or now_s + RESUMED_S
        if now_s > self._forget_s:
            self._earlier.clear()
        present = self._present()
        for device in self._state.devices.values() if present else ():
            if device.source != source:
                continue
            for key, track in device.processes.items():
                uid = None if track.info is None or track.info.foreign else track.info.uid
                if uid is None or (key.pid, uid) not in present:
                    continue
                place = mailboxes.folder(uid)
                mailbox = mailboxes.read(place, key.pid, uid)
                if not isinstance(mailbox, mailboxes.Mailbox):
                    continue
                if abs(wall_s - mailbox.at_s) < SILENT_S:  # nor of a clock that is ahead
                    self.news += self._take(device, track, mailbox, now_s)

    def _present(self) -> set[tuple[int, int]]:
        """Return the pids that have a mailbox, each with the user whose directory it is in."""
        infos, (changes, places) = self._state.infos, self._places
        if changes != infos.changes:
            uids = {os.geteuid()}
            if 0 in uids:
                uids |= {info.uid for info in infos.values() if info.uid is not None}
            places = {uid: mailboxes.folder(uid) for uid in uids}
            self._places = infos.changes, places
        # On most machines nobody has ever prepared a process.
        uids = {uid for uid, place in places.items() if place.is_dir()}
        return {(pid, uid) for uid in uids for pid in mailboxes.pids(uid)}

    def _take(
        self, device: TrackedDevice, track: Track, mailbox: Mailbox, now_s: float
    ) -> Iterator[AllocatorReading]:
        devices = list(self._state.devices.values())
        holding = [one for one in devices if track.subject.process in one.processes]
        counters = counters_of(
            device.device,
            mailbox,
            alone=len(holding) == 1,
            alike=all(one.device.name == device.device.name for one in devices)
            and {row.number for row in mailbox.devices} == {one.device.index for one in holding},
        )
        if counters is None:
            return
        allocator = track.prepared(self._state.settings.span_s)
        reading = _reading(track, counters, now_s)
        for earlier in self._earlier.pop((reading.device_uid, reading.key), ()):
            allocator.add(earlier, earlier.at_s)
        allocator.configure(self._state.settings.config.probe, mailbox.spans)
        if allocator.add(reading, now_s):
            yield reading
        if (census := mailbox.census) is not None:
            age_s = 0.0 if census.at_s is None else max(0.0, mailbox.at_s - census.at_s)
            if allocator.take_census(census, now_s - age_s):
                track.hurry(now_s)
        self._ask(track, allocator, mailbox)

    def _ask(self, track: Track, allocator: Allocator, mailbox: Mailbox) -> None:
        """Ask a process whose alert is open, once for each state of it, one thing at a time.

        Where its owner agrees: what its functions add, and who keeps what grows in its heap.
        """
        uid = None if track.info is None else track.info.uid
        if uid is None or track.lead is not None:
            return
        config, place = self._state.settings.config, mailboxes.folder(uid)
        if allocator.request:
            kind = mailboxes.Functions
            answer = mailboxes.take(place, mailbox.pid, uid, allocator.request, kind)
            if isinstance(answer, mailboxes.Functions):
                allocator.take_functions(answer, config)
        own = uid == os.geteuid() and config.probe.inspect_on_alert
        if not (own or mailbox.inspect_on_alert):
            return
        named = track.alert is not None and track.alert.finding.holder
        if mailbox.spans and allocator.may_ask("functions", track.alert):
            verb = "functions"
        elif not named and not mailbox.counters_only and allocator.may_ask("census", track.alert):
            verb = "census"
        else:
            return
        words = {"limit_s": _ANSWER_S, "answer": verb == "functions"}
        request: str | None = None
        with suppress(OSError):  # something else is asked just now, or its place is not trusted
            request = mailboxes.ask(place, mailbox, verb, uid=uid, **words)
        allocator.asked_for(verb, request)


def counters_of(
    device: Device, mailbox: Mailbox, *, alone: bool, alike: bool = False
) -> Counters | None:
    """Return the counters of a device: by its UUID, else by its number.

    ``alone``: its process is on no other device, so that its only counters are of this one.
    ``alike``: all devices are, else CUDA numbers them by speed and the driver by place; and the
    numbers are those of the devices that the process is on, as they are not in a container.
    """
    rows = [row for row in mailbox.devices if row.allocated is not None]
    for row in rows:
        uuid = (row.uid or "").removeprefix("GPU-")
        if uuid and device.uid.endswith(uuid):
            return row
    if alone and len(rows) == 1:
        return rows[0]
    return next((row for row in rows if alike and row.number == device.index is not None), None)


def _reading(track: Track, counters: Counters, now_s: float) -> AllocatorReading:
    """Return figures that can be true: what the job writes is limited to the device's size."""
    most = int(track.headroom.total_bytes or 1 << 62)

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
