"""From samples to tracks: who is there, what they hold, who has gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import attribution, frameworks
from gpuwatchd.collect.host.procfs import headroom
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import Fault, ProcessInfo, ProcessKey, Sample, Subject
from gpuwatchd.core.model.alerts import UNOWNED, Title, device_title, host_title, process_title
from gpuwatchd.pipeline import track_evaluation
from gpuwatchd.pipeline.device_rings import Arrivals, RecentActivity
from gpuwatchd.pipeline.prepared_processes import PreparedProcesses
from gpuwatchd.pipeline.process_names import ProcessNames
from gpuwatchd.pipeline.track import EndedProcess, Headroom, Track, TrackedDevice, end_reason
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from gpuwatchd.collect.host import Host, procfs
    from gpuwatchd.core.model import Alert, Device, DeviceReading
    from gpuwatchd.pipeline.state import State

# The memory that GPU processes hold on the host, as subjects of their own. A process that leaks
# there is killed by the kernel while its GPU looks well. Resident anonymous memory and swap are
# looked at every few ticks, and judged as everything else is.

EVERY_TICKS = 6
UNCHANGED_S = 60.0
"""A figure that stays the same is noted again after this time."""


class HostMemory:
    """Feeds what processes hold on the host."""

    def __init__(self, state: State, look: Callable[[], procfs.Headroom | None] = headroom) -> None:
        self.headroom = Headroom()
        self._state = state
        self._look = look
        self._ticks: dict[str, int] = {}
        self._missing: dict[str, set[ProcessKey]] = {}

    def feed(self, source: str, now_s: float) -> list[Alert]:
        """Take in what the processes of a source's devices hold; in most ticks do nothing."""
        tick = self._ticks[source] = self._ticks.get(source, -1) + 1
        if tick % EVERY_TICKS:
            return []
        ranked = sorted(self._state.devices_of(source), key=lambda device: device.device.uid)
        listed = [
            device
            for device in ranked
            if device.uses is not None and device.uses_s == device.taken_s
        ]
        # One that is on several devices stays with the one where it was seen first, even while the
        # list of that one cannot be read.
        homes = {key: device for device in ranked for key in device.host_tracks}
        noted: set[ProcessKey] = set()
        for device in listed:
            device.host_read_s = device.taken_s
            for use in device.uses or ():
                held, key = use.host_bytes, use.key
                if held is None or key in noted:
                    continue
                if not noted:
                    self._measure(now_s)
                noted.add(key)
                home = homes.setdefault(key, device)
                home.host_read_s = home.taken_s
                self._note(home, key, held, now_s)
        present = {use.key for tracked_device in listed for use in tracked_device.uses or ()}
        return [
            alert
            for tracked_device in listed
            for alert in self._end_gone(tracked_device, present, now_s)
        ]

    def _measure(self, now_s: float) -> None:
        total_bytes, free_bytes = self._look() or (None, None)
        self.headroom.take(now_s, total_bytes, free_bytes)

    def _note(self, device: TrackedDevice, key: ProcessKey, held: int, now_s: float) -> None:
        info = self._state.infos.get(key)
        track = device.host_tracks.get(key)
        if info is None or info.framework in frameworks.GRAPHICS:
            # What draws grows with the windows that people open.
            return
        if track is None:
            subject = Subject(device_uid=device.device.uid, process=key, host=True)
            track = begin(self._state, device, subject, host_title(info), self.headroom)
            device.host_tracks[key] = track
        if track.info is not info:
            self._state.tracks.ranks.place(track, info)
        last = track.window.last
        if last is None or last[1] != held or now_s - last[0] >= UNCHANGED_S:
            _ring(track).add(now_s, held)

    def _end_gone(
        self, device: TrackedDevice, present: set[ProcessKey], now_s: float
    ) -> list[Alert]:
        """Retire the tracks of processes that two lists in a row did not name."""
        uid = device.device.uid
        here = {use.key for use in device.uses or ()}
        missing = {key for key in device.host_tracks if key not in here}
        before = self._missing.get(uid, set())
        self._missing[uid] = missing
        changed: list[Alert] = []
        for key in missing & before:
            track = device.host_tracks.pop(key)
            left = key in present
            why = Ending.LEFT_DEVICE if left else end_reason(track)
            changed += self._state.retire([track], why, now_s, quietly=left)
        return changed


FORGET_DEVICE_S = 86_400.0
"""An alert whose device or process has not been seen for this long is over."""
PENDING_S = 60.0
"""For so long the evidence of an earlier run waits for a subject that has no alert yet."""
_SPARE_INFOS = 256


class SampleIntake:
    """Feeds samples into the tracks."""

    def __init__(self, state: State, host: Host | None) -> None:
        self._state = state
        self.process_names = ProcessNames(state.infos, host)
        self.host_memory = HostMemory(state)
        self.prepared = PreparedProcesses(state)
        self._begun_s: float | None = None

    def reloaded(self) -> None:
        """Keep points for as long as the settings say; what was dropped does not come back."""
        span_s = self._state.settings.span_s
        for track in self._state.tracks.values():
            inside = () if track.allocator is None else track.allocator.rings
            for ring in (_ring(track), *inside):
                ring.span_s = span_s
        for device in self._state.devices.values():
            if device.arrivals is not None:
                for own in device.arrivals.rings.values():
                    own.span_s = span_s

    def move(self, source: str, by_s: float) -> list[Alert]:
        """Move a source's past in time after a step of the wall clock; return its open alerts."""
        alerts: list[Alert] = []
        self._begun_s = None
        for device in self._state.devices_of(source):
            device.taken_s += by_s
            device.uses_s += by_s
            device.headroom.move(by_s)
            for track in device.tracks():
                track.move(by_s)
                _ring(track).shift(by_s)
                if track.alert is not None and track.alert.state != "pending":
                    alerts.append(track.alert)
            if device.arrivals is not None:
                device.arrivals.move(by_s)
        return alerts

    def take(
        self, source: str, sample: Sample, devices: Sequence[Device], now_s: float
    ) -> list[Alert]:
        """Feed one sample; return alerts that ended because their process is gone."""
        by_uid = {device.uid: device for device in devices}
        faults: dict[str, list[Fault]] = {}
        for fault in sample.faults:
            if fault.device_uid is not None:
                faults.setdefault(fault.device_uid, []).append(fault)
        parents = {device.parent_uid for device in devices if device.parent_uid}
        self._begun_s = now_s if self._begun_s is None else self._begun_s
        processes = self.process_names.identify(sample)
        changed: list[Alert] = []
        for raw in sample.readings:
            device = by_uid.get(raw.device_uid)
            if device is None:
                continue
            # The parent of MIG instances is for display; its instances are judged.
            boot_id = None if device.uid in parents else sample.boot_id
            reading = self.process_names.resolve(raw, processes)
            changed += self._track_device(device, reading, source, now_s, boot_id)
            self._state.devices[device.uid].faults = tuple(faults.get(device.uid, ()))
        for uid, tracked_device in list(self._state.devices.items()):
            if uid not in by_uid and tracked_device.source == source:
                del self._state.devices[uid]
                tracks = tracked_device.tracks()
                changed += self._state.retire(tracks, Ending.DEVICE_GONE, now_s)
        if self._state.restored.alerts and now_s - self._begun_s >= FORGET_DEVICE_S:
            changed += self._state.restored.expired(
                self._state.devices, self._state.settings.rules, now_s
            )
        if self._state.restored.pending and now_s - self._begun_s >= PENDING_S:
            self._state.restored.pending.clear()
        changed += self.host_memory.feed(source, now_s)
        if self._state.tracks.passed_on:
            # First: who goes on with an alert may have ended in the same tick.
            changed[:0] = self._state.tracks.take_passed_on()
        self._forget_infos()
        gone = Fault(where="", why="not reported now")
        self.mark_unread(source, gone, but={r.device_uid for r in sample.readings})
        return changed

    def _track_device(
        self,
        device: Device,
        reading: DeviceReading,
        source: str,
        now_s: float,
        boot_id: str | None,
    ) -> list[Alert]:
        """Take in one reading; ``boot_id`` is None for the parent of MIG instances."""
        changed: list[Alert] = []
        tracked_device = self._update_device(device, reading, source, now_s)
        same = reading.uses is not None and reading.uses is tracked_device.uses
        tracked_device.still = same and reading.used_bytes == tracked_device.headroom.used_bytes
        if boot_id is None:
            changed += self._state.retire(tracked_device.own_tracks, Ending.INSTANCES_JUDGED, now_s)
            tracked_device.own_tracks.clear()
            tracked_device.arrivals = None
        elif not tracked_device.own_tracks:
            self._watch_whole(tracked_device)
        tracked_device.taken_s = now_s
        self._update_ledger(tracked_device, reading, boot_id, same=same)
        self._update_headroom(tracked_device, reading, now_s)
        moved = self._feed(tracked_device, reading, now_s, same=same)
        if (
            not same
            or tracked_device.listed is None
            or tracked_device.names_updates != self.process_names.updates
            or self._state.restored.alerts
        ):
            changed += self._end_gone(tracked_device, reading, now_s)
        if reading.uses is None and boot_id is not None:
            changed += self._end_unlisted(tracked_device, now_s)
        known = tracked_device.headroom.attributed_at_s == now_s and reading.uses_reason is None
        alone = tracked_device.arrivals is None or not tracked_device.arrivals.rings
        kept = not moved or (alone and device.memory_kind != "coherent")
        if kept and known and tracked_device.judged_by_process:
            return changed  # It is judged by its processes as before.
        return changed + track_evaluation.drop_whole(self._state, tracked_device, now_s)

    def _end_unlisted(self, device: TrackedDevice, now_s: float) -> list[Alert]:
        """End alerts of processes that no list has named for a day."""
        ended = [
            self._state.end(track, Ending.NOT_SEEN, now_s)
            for track in (*device.processes.values(), *device.own_tracks[1:])
            if track.alert is not None
            and (last := _ring(track).last) is not None
            and now_s - last[0] >= FORGET_DEVICE_S
        ]
        return [alert for alert in ended if alert is not None]

    def mark_unread(self, source: str, why: Fault, *, but: Container[str] = ()) -> None:
        """Drop the last readings of a source's devices, all ``but`` some (UUIDs), and say why.

        What was judged stays, and so do the windows: no data is not good news.
        """
        for uid, device in self._state.devices.items():
            if device.source == source and uid not in but:
                device.reading, device.ledger, device.faults = None, None, (why,)

    def _forget_infos(self) -> None:
        present = sum(len(device.processes) for device in self._state.devices.values())
        if len(self._state.infos) > _SPARE_INFOS + present:
            here = {key for device in self._state.devices.values() for key in device.processes}
            for device in self._state.devices.values():
                here.update(use.key for use in device.uses or ())
            self.process_names.forget_all_but(here)

    def _update_device(
        self, device: Device, reading: DeviceReading, source: str, now_s: float
    ) -> TrackedDevice:
        tracked_device = self._state.devices.get(device.uid)
        if tracked_device is None:
            headroom = Headroom(
                attributed_at_s=self._state.restored.attributed_at_s.pop(device.uid, None),
                activity=self._state.restored.activity.pop(device.uid, None) or RecentActivity(),
            )
            tracked_device = TrackedDevice(device=device, reading=reading, headroom=headroom)
            tracked_device.judged_by_process = headroom.owners_known(now_s)
            self._state.devices[device.uid] = tracked_device
            self._watch_whole(tracked_device)
        tracked_device.device, tracked_device.reading = device, reading
        tracked_device.source = source
        return tracked_device

    def _watch_whole(self, device: TrackedDevice) -> None:
        uid, title = device.device.uid, device_title(device.device)
        unowned = device_title(device.device, UNOWNED)
        device.own_tracks += [
            begin(self._state, device, Subject(device_uid=uid), title),
            begin(self._state, device, Subject(device_uid=uid, unattributed=True), unowned),
        ]
        device.arrivals = Arrivals()
        device.arrivals.restore(_ring(device.own_tracks[0]), self._state.restored.parts(uid))

    def _update_ledger(
        self, device: TrackedDevice, reading: DeviceReading, boot_id: str | None, *, same: bool
    ) -> None:
        """Say who has the memory of a device; the parent of MIG instances has no ledger."""
        before = device.ledger
        if boot_id is None:
            device.ledger = None
            return
        baseline = device.baseline
        if baseline is None:
            baseline = self._state.idle_levels.setdefault(device.device.uid, attribution.Baseline())
            device.baseline = baseline
        if (
            not same
            or before is None
            or before.free_bytes is None
            or before.free_bytes != reading.free_bytes
            or before.total_bytes != reading.total_bytes
            or before.reserved_bytes != reading.reserved_bytes
            or before.baseline_bytes != baseline.least_bytes
        ):
            kind = device.device.memory_kind
            device.ledger = attribution.build_ledger(
                reading, kind, baseline_bytes=baseline.least_bytes
            )
        if device.ledger is not None and baseline.learn(device.ledger, boot_id):
            self._state.idle_levels.changed[device.device.uid] = baseline
        if device.own_tracks and device.own_tracks[-1].baseline_bytes != baseline.least_bytes:
            device.own_tracks[-1].baseline_bytes = baseline.least_bytes

    @staticmethod
    def _update_headroom(device: TrackedDevice, reading: DeviceReading, now_s: float) -> None:
        headroom, ledger = device.headroom, device.ledger
        if reading.state != "ok" and (reading.used_bytes, reading.free_bytes) == (None, None):
            return  # Nothing was read: what was judged stays, and so does its headroom.
        total_bytes = reading.total_bytes or device.device.memory_total_bytes
        figures = reading.free_bytes, reading.used_bytes, reading.util_pct
        headroom.take(now_s, total_bytes, *figures)
        if isinstance(headroom.activity, RecentActivity):
            headroom.activity.add(now_s, reading.util_pct, reading.power_w)
        uses = reading.uses
        if uses is not None:
            device.uses, device.uses_s = uses, now_s
            known = ledger is not None and ledger.state == "whole"
            # A list that lacks some (their files may not be read) explains the whole of nothing.
            complete = reading.uses_reason is None
            if known or (complete and all(use.used_bytes is not None for use in uses)):
                headroom.attributed_at_s = now_s

    def _feed(
        self, device: TrackedDevice, reading: DeviceReading, now_s: float, *, same: bool
    ) -> bool:
        """Give the tracks of a device their figures; return whether any may have changed."""
        used, ledger = reading.used_bytes, device.ledger
        if used is None and ledger is not None and device.device.memory_kind == "unified":
            # The device's own figure is missing where memory is shared: its processes stand in.
            used = ledger.owned_bytes if ledger.state == "whole" else None
        # Where processes hold more than is used, they share memory: what nobody owns is then not
        # known, which is not nothing.
        whole = ledger is not None and ledger.state == "whole"
        rest = ledger.unattributed_bytes if ledger is not None and whole else None
        beside = (used, rest, len(device.own_tracks))
        if same and beside == device.fed:
            device.feeder.feed(now_s)
            return False
        values: list[tuple[Ring, float]] = [
            (_ring(self._process_track(device, use.key)), use.used_bytes)
            for use in reading.uses or ()
            if use.used_bytes is not None
        ]
        values += [
            (_ring(track), held)
            for track, held in zip(device.own_tracks, (used, rest), strict=False)
            if held is not None
        ]
        if device.arrivals is not None and used is not None:
            free = None if ledger is None else ledger.unattributed_bytes
            brought = device.arrivals.total(reading.uses, free, now_s, self._state.infos)
            if brought or device.arrivals.rings:
                rings = [_ring(track) for track in device.own_tracks]
                values += device.arrivals.values(rings, (used, rest))
        device.feeder.feed(now_s, values)
        # After a list that could not be read the very same list is news.
        device.fed = None if reading.uses is None else beside
        return True

    def _process_track(self, device: TrackedDevice, key: ProcessKey) -> Track:
        track = device.processes.get(key)
        if track is not None:
            return track
        info = self._state.infos.get(key) or ProcessInfo(key=key, name="")
        subject = Subject(device_uid=device.device.uid, process=key)
        track = begin(self._state, device, subject, process_title(device.device, info))
        device.processes[key], device.listed = track, None
        return track

    def _end_gone(self, device: TrackedDevice, reading: DeviceReading, now_s: float) -> list[Alert]:
        if reading.uses is None or reading.state != "ok":
            return []
        listed = [use.key for use in reading.uses]
        news, restored = self.process_names.updates, self._state.restored
        if listed == device.listed and device.names_updates == news and not restored.alerts:
            return []  # As in most ticks: the same processes, and nothing new about them.
        present = set(listed)
        changed: list[Alert] = []
        missing = {key for key in device.processes if key not in present}
        # One list without it may be a slip of the driver; two in a row are believed.
        for key in missing & device.missing:
            track = device.processes.pop(key)
            label = info.label if (info := self._state.infos.get(key)) is not None else ""
            self._state.tracks.ended.append(
                EndedProcess(track=track, program=track.program, label=label)
            )
            changed += self._state.retire([track], end_reason(track), now_s)
            device.fed = None
        device.missing = missing & device.processes.keys()
        for key, track in device.processes.items():
            # A framework is known only after its libraries have been loaded.
            info = self._state.infos[key]
            self._state.tracks.ranks.place(track, info)
            track.framework = info.framework
            if info.program != track.program:
                track.program, self._state.tracks.renamed = info.program, True
        uid, rules = device.device.uid, self._state.settings.rules
        left = restored.left(uid, present)
        for subject, ring in restored.gone(uid, left):
            gone = Track(
                subject=subject,
                device=device.device,
                window=ring,
                evidence=ring,
                headroom=device.headroom,
                title=Title(),
            )
            self._state.tracks.ended.append(EndedProcess(track=gone, unobserved=True))
        # Nobody is missing any more, or it must be looked at once more.
        again = device.missing or restored.missing[uid]
        device.listed, device.names_updates = None if again else listed, news
        return changed + restored.orphaned(uid, left, rules, now_s)


def begin(
    state: State,
    device: TrackedDevice,
    subject: Subject,
    title: Title,
    headroom: Headroom | None = None,
) -> Track:
    """Begin to watch a subject of a device, with what an earlier run left of it."""
    ring = state.restored.ring(subject)
    ring = Ring(state.settings.span_s) if ring is None else ring
    track = Track(
        subject=subject,
        device=device.device,
        window=ring,
        evidence=ring,
        headroom=device.headroom if headroom is None else headroom,
        title=title,
    )
    track.alert = state.restored.alert(subject)
    if track.alert is not None and not track.alert.clears:
        track.headroom.note(track.alert.finding)  # its neighbours are judged before it
    state.tracks[subject.id] = track
    state.tracks.created += 1
    return track


def _ring(track: Track) -> Ring:
    assert isinstance(track.window, Ring)  # noqa: S101 - live tracks have rings
    return track.window
