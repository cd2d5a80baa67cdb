"""From samples to tracks: who is there, what they hold, who has gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import policy
from gpuwatchd.model import Alert, ProcessInfo, ProcessKey, ProcessUse, Sample, Subject
from gpuwatchd.pipeline import handover
from gpuwatchd.pipeline.titles import device_title, process_title
from gpuwatchd.pipeline.tracks import Room, Track, Watcher
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from gpuwatchd.host import Host
    from gpuwatchd.model import Device, DeviceReading

Past = tuple[str, ProcessKey | None, Sequence[tuple[float, float]]]

FORGET_DEVICE_S = 86_400.0
"""An alert of an earlier run whose device has not appeared for this long is over."""
_SPARE_INFOS = 256
_MOST_LEAVERS = 256


class Seen(msgspec.Struct, kw_only=True):
    """One device as last seen."""

    device: Device
    reading: DeviceReading | None
    room: Room
    processes: dict[ProcessKey, Track]
    others: list[Track]
    """The device's own track, then that of its unattributed memory."""
    taken_s: float = 0.0
    missing: set[ProcessKey] = msgspec.field(default_factory=set)
    """Processes that the last list did not name any more."""
    listed: list[ProcessKey] | None = None
    """Processes that the last list named."""
    news: int = -1
    """What was known of processes then."""
    faults: tuple[str, ...] = ()
    source: str = ""


class Leaver(msgspec.Struct, kw_only=True):
    """A process that has ended, on one device."""

    track: Track
    program: str | None = None
    label: str = ""
    unseen: bool = False
    """It ended while nobody watched: the history knows what it was."""


class Intake:
    """Feeds samples into the watcher's tracks.

    Parameters
    ----------
    watcher
        Whose tracks are fed.
    host
        Looks up pids that a source names without knowing them; None where sources know.
    """

    def __init__(self, watcher: Watcher, host: Host | None) -> None:
        self.watcher = watcher
        self.devices: dict[str, Seen] = {}
        self.infos: dict[ProcessKey, ProcessInfo] = {}
        self.leavers: deque[Leaver] = deque(maxlen=_MOST_LEAVERS)
        """Who has ended and has not been learned from."""
        self.created = 0
        """Tracks ever made."""
        self.renamed = False
        """Whether what a process runs has become known since."""
        self._host = host
        self._news = 0
        """How often something about a process has become known."""
        self._begun_s: float | None = None
        self._past: dict[tuple[str, ProcessKey | None], Ring] = {}
        self._adopted: dict[str, Alert] = {}
        self._span_s = watcher.config.detection.analysis_window_hours * 3600.0

    def refill(self, past: Iterable[Past]) -> None:
        """Remember points of an earlier run, for the tracks that will appear."""
        for uid, key, points in past:
            # Packed at once: as tuples the points of a busy machine would take 30 MiB.
            ring = self._past[uid, key] = Ring(self._span_s)
            for t_s, value in points:
                ring.add(t_s, value)

    def adopt(self, alert: Alert) -> None:
        """Remember an open alert of an earlier run, for the track that will appear."""
        self._adopted[alert.subject.id] = alert

    def look_back(self, span_s: float) -> None:
        """Keep points for so long from now on; what was dropped before does not come back."""
        self._span_s = span_s
        for track in self.watcher.tracks.values():
            _ring(track).span_s = span_s

    def move(self, source: str, by_s: float) -> list[Alert]:
        """Move a source's past in time after a step of the wall clock; return its open alerts."""
        alerts: list[Alert] = []
        self._begun_s = None
        for seen in self._of(source):
            seen.taken_s += by_s
            if seen.room.attributed_at_s is not None:
                seen.room.attributed_at_s += by_s
            for track in (*seen.processes.values(), *seen.others):
                track.move(by_s)
                _ring(track).shift(by_s)
                if track.alert is not None and track.alert.state != "pending":
                    alerts.append(track.alert)
        return alerts

    def _of(self, source: str) -> list[Seen]:
        return [seen for seen in self.devices.values() if seen.source == source]

    def tracks(self, source: str) -> list[Track]:
        """Return every track of a source's devices."""
        return [
            track for seen in self._of(source) for track in (*seen.processes.values(), *seen.others)
        ]

    def take(
        self, source: str, sample: Sample, devices: Sequence[Device], now_s: float
    ) -> list[Alert]:
        """Feed one sample; return alerts that ended because their process is gone."""
        self._news += len(sample.processes)
        for info in sample.processes:
            self.infos[info.key] = info
        by_uid = {device.uid: device for device in devices}
        faults: dict[str, list[str]] = {}
        for fault in sample.faults:
            if fault.device_uid is not None:
                faults.setdefault(fault.device_uid, []).append(f"{fault.where}: {fault.why}")
        parents = {device.parent_uid for device in devices if device.parent_uid}
        self._begun_s = now_s if self._begun_s is None else self._begun_s
        known = self._lookup(sample)
        changed: list[Alert] = []
        for raw in sample.readings:
            device = by_uid.get(raw.device_uid)
            if device is None:
                continue
            reading = self._resolve(raw, known)
            seen = self._seen(device, reading, source)
            if device.uid in parents:
                # The parent of MIG instances is for display; its instances are judged.
                changed += self._retire(seen.others, "its MIG instances are judged", now_s)
            elif not seen.others:
                self._watch_whole(seen)
            seen.taken_s = now_s
            seen.faults = tuple(faults.get(device.uid, ()))
            self._room(seen, reading, now_s)
            self._feed(seen, reading, now_s)
            changed += self._farewell(seen, reading, now_s)
            changed += handover.drop_whole(self.watcher, seen, now_s)
        for seen in self._of(source):
            if seen.device.uid not in by_uid:
                changed += self._remove(seen, now_s)
        changed += self._expired(now_s)
        self._forget_infos()
        self.silent(source, "not reported now", but={r.device_uid for r in sample.readings})
        return changed

    def silent(self, source: str, why: str, *, but: Container[str] = ()) -> None:
        """Forget the last readings of a source's devices, all ``but`` some: they are unknown now.

        What was judged stays, and so do the windows: no data is not good news.
        """
        for uid, seen in self.devices.items():
            if seen.source == source and uid not in but:
                seen.reading, seen.faults = None, (why,)

    def due(self, source: str, now_s: float) -> list[Track]:
        """Return the tracks of a source's devices that are due for a judgement now."""
        due, fast_s = self.watcher.due, policy.FAST_S
        return [
            track
            for seen in self._of(source)
            for track in handover.judgeable(seen, now_s)
            # The same as in due, which would be called for every process: most are not.
            if (now_s >= track.due_s - track.pause_s + fast_s or now_s >= track.due_s)
            and due(track, now_s)
        ]

    def _retire(self, tracks: list[Track], why: str, now_s: float) -> list[Alert]:
        """Judge these tracks no more, and empty their list."""
        ended = []
        for track in tracks:
            alert = self.watcher.end(track, why, now_s)
            self.watcher.forget(track)
            if alert is not None:
                ended.append(alert)
        tracks.clear()
        return ended

    def _remove(self, seen: Seen, now_s: float) -> list[Alert]:
        del self.devices[seen.device.uid]
        return self._retire([*seen.processes.values(), *seen.others], "its device is gone", now_s)

    def _expired(self, now_s: float) -> list[Alert]:
        """End alerts of an earlier run whose device does not come back."""
        if not self._adopted or now_s - (self._begun_s or now_s) < FORGET_DEVICE_S:
            return []
        lost = [a for a in self._adopted.values() if a.subject.device_uid not in self.devices]
        return self._disown(lost, "its device has not been seen for a day", now_s)

    def _forget_infos(self) -> None:
        """Forget who processes were that are on no device any more."""
        if len(self.infos) <= _SPARE_INFOS + sum(len(s.processes) for s in self.devices.values()):
            return
        here = {key for seen in self.devices.values() for key in seen.processes}
        for seen in self.devices.values():
            if seen.reading is not None:
                here.update(use.key for use in seen.reading.uses or ())
        self.infos = {key: info for key, info in self.infos.items() if key in here}

    def _lookup(self, sample: Sample) -> dict[int, ProcessInfo]:
        if self._host is None:
            return {}
        pids = {
            use.key.pid
            for reading in sample.readings
            for use in reading.uses or ()
            if use.key.started_at_s is None
        }
        return self._host.look(pids) if pids else {}

    def _resolve(self, reading: DeviceReading, known: dict[int, ProcessInfo]) -> DeviceReading:
        if not reading.uses or (not known and self._host is None):
            for use in reading.uses or ():
                self.infos.setdefault(use.key, ProcessInfo(key=use.key, name=""))
            return reading
        uses = tuple(self._named(use, known) for use in reading.uses)
        return msgspec.structs.replace(reading, uses=uses)

    def _named(self, use: ProcessUse, known: dict[int, ProcessInfo]) -> ProcessUse:
        info = known.get(use.key.pid)
        if info is None:
            if use.key not in self.infos:
                gone = self._host.gone(use.key.pid) if self._host is not None else None
                name = f"gone, was {gone.name}" if gone is not None else "gone"
                self.infos[use.key] = ProcessInfo(
                    key=use.key, name=name, user=gone.user if gone is not None else None
                )
            return use
        if self.infos.get(info.key) is not info:
            self.infos[info.key] = info
            self._news += 1
        if info.key == use.key:
            return use
        return ProcessUse(key=info.key, used_bytes=use.used_bytes, kind=use.kind)

    def _seen(self, device: Device, reading: DeviceReading, source: str) -> Seen:
        seen = self.devices.get(device.uid)
        if seen is None:
            room = Room()
            seen = Seen(
                device=device, reading=reading, room=room, processes={}, others=[], source=source
            )
            self.devices[device.uid] = seen
            self._watch_whole(seen)
        seen.device, seen.reading, seen.source = device, reading, source
        return seen

    def _watch_whole(self, seen: Seen) -> None:
        uid, title = seen.device.uid, device_title(seen.device)
        unowned = f"{title}: memory that no listed process owns"
        seen.others += [
            self._track(seen, Subject(device_uid=uid), title),
            self._track(seen, Subject(device_uid=uid, unattributed=True), unowned),
        ]

    def _track(self, seen: Seen, subject: Subject, title: str) -> Track:
        known = None
        if not subject.unattributed:
            known = self._past.pop((subject.device_uid, subject.process), None)
        ring = known if known is not None else Ring(self._span_s)
        track = Track(subject=subject, device=seen.device, window=ring, room=seen.room, title=title)
        track.alert = self._adopted.pop(subject.id, None)
        self.watcher.tracks[subject.id] = track
        self.created += 1
        return track

    @staticmethod
    def _room(seen: Seen, reading: DeviceReading, now_s: float) -> None:
        room = seen.room
        room.total_bytes = reading.total_bytes or seen.device.memory_total_bytes
        room.free_bytes = reading.free_bytes
        room.used_bytes = reading.used_bytes
        room.util_pct = reading.util_pct
        if reading.uses is not None and all(u.used_bytes is not None for u in reading.uses):
            room.attributed_at_s = now_s

    def _feed(self, seen: Seen, reading: DeviceReading, now_s: float) -> None:
        used = reading.used_bytes
        if used is not None and seen.others:
            _ring(seen.others[0]).add(now_s, used)
        if reading.uses is None:
            return
        owned = 0
        for use in reading.uses:
            if use.used_bytes is None:
                continue
            owned += use.used_bytes
            track = seen.processes.get(use.key)
            if track is None:
                track = self._process_track(seen, use.key)
            _ring(track).add(now_s, use.used_bytes)
        complete = seen.room.attributed_at_s == now_s
        if used is not None and complete and len(seen.others) > 1:
            # Shared memory can make the sum exceed the total: there is then nothing unowned.
            _ring(seen.others[1]).add(now_s, max(0, used - owned))

    def _process_track(self, seen: Seen, key: ProcessKey) -> Track:
        info = self.infos.get(key) or ProcessInfo(key=key, name="")
        subject = Subject(device_uid=seen.device.uid, process=key)
        track = self._track(seen, subject, process_title(seen.device, info))
        seen.processes[key], seen.listed = track, None
        return track

    def _farewell(self, seen: Seen, reading: DeviceReading, now_s: float) -> list[Alert]:
        if reading.uses is None or reading.state != "ok":
            return []
        listed = [use.key for use in reading.uses]
        if listed == seen.listed and seen.news == self._news and not self._adopted:
            return []  # As in most ticks: the same processes, and nothing new about them.
        present = set(listed)
        changed: list[Alert] = []
        missing = {key for key in seen.processes if key not in present}
        # One list without it may be a slip of the driver; two in a row are believed.
        for key in missing & seen.missing:
            track = seen.processes.pop(key)
            label = info.label if (info := self.infos.get(key)) is not None else ""
            self.leavers.append(Leaver(track=track, program=track.program, label=label))
            changed += self._retire([track], "its process has ended", now_s)
        seen.missing = missing & seen.processes.keys()
        for key, track in seen.processes.items():
            # A framework is known only after its libraries have been loaded.
            info = self.infos[key]
            track.framework = info.framework
            if info.program != track.program:
                track.program, self.renamed = info.program, True
        self._forget_past(seen.device.uid)
        # Nobody is missing any more, or it must be looked at once more.
        seen.listed, seen.news = None if seen.missing else listed, self._news
        return changed + self._orphaned(seen.device.uid, present, now_s)

    def _orphaned(self, uid: str, present: set[ProcessKey], now_s: float) -> list[Alert]:
        gone = [
            alert
            for alert in self._adopted.values()
            if alert.subject.device_uid == uid
            and alert.subject.process is not None
            and alert.subject.process not in present
        ]
        return self._disown(gone, "its process ended while nobody watched", now_s)

    def _disown(self, alerts: Iterable[Alert], why: str, now_s: float) -> list[Alert]:
        changed: list[Alert] = []
        for alert in alerts:
            del self._adopted[alert.subject.id]
            outcome = policy.ended(alert, why, self.watcher.rules, now_s=now_s)
            if outcome.alert is not None:
                changed.append(outcome.alert)
        return changed

    def _forget_past(self, uid: str) -> None:
        """Let go of the points of processes that ended while nobody watched."""
        seen = self.devices[uid]
        for past in [past for past in self._past if past[0] == uid and past[1] is not None]:
            ring = self._past.pop(past)
            subject = Subject(device_uid=uid, process=past[1])
            gone = Track(subject=subject, device=seen.device, window=ring, room=seen.room, title="")
            self.leavers.append(Leaver(track=gone, unseen=True))

    def unplaced(self) -> Iterable[Alert]:
        """Return open alerts of an earlier run whose subject has not appeared yet."""
        return self._adopted.values()


def _ring(track: Track) -> Ring:
    assert isinstance(track.window, Ring)  # noqa: S101 - live tracks have rings
    return track.window
