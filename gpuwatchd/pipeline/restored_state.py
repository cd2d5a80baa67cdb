"""What an earlier run of the daemon left: points of series, and alerts that are still open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwatchd import alerts
from gpuwatchd.analysis import attribution
from gpuwatchd.core.codes import Ending, Reason
from gpuwatchd.core.model import Subject
from gpuwatchd.pipeline.clock import moved_alert
from gpuwatchd.pipeline.track import unjudged
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from gpuwatchd.alerts import Rules
    from gpuwatchd.core.model import Alert, ProcessKey
    from gpuwatchd.pipeline.activity import RecentActivity
    from gpuwatchd.pipeline.track import Track, TrackedDevice
    from gpuwatchd.pipeline.track_evaluation import Watcher

# Who an alert is about may change while the memory grows: the device, or one who holds it.
# While its processes are known they are judged, what none of them owns, and all of it together
# without what came and went with processes: many may grow by little each, or hand memory to one
# another, so that none is plain. The whole speaks only where its parts do not explain its growth.
# While they are not known it is judged alone, even where the kernel keeps pages of processes that
# have ended: there is nothing better then. An alert of the one kind that fires takes over from one
# of the other kind: people are told once about one growth, and nothing stays open that nobody
# judges any more.

KEPT = "the kernel keeps pages of ended processes: monitored per process instead"


def beside(device: TrackedDevice, now_s: float) -> list[Track]:
    """Return the tracks to be judged at present beside those of processes on the device."""
    tracks = list(device.hosts.values()) if device.hosts_s == device.taken_s else []
    owned, explained = is_owned(device, now_s), _is_explained(device)
    if owned and device.device.memory_kind == "coherent":
        return tracks  # Pages stay taken after a process has ended: its series is no evidence.
    for track in device.others:
        # An alert on the whole device that people were told of is followed to its end.
        told = track.alert is not None and track.alert.state == "firing"
        if track.subject.unattributed:
            judged = owned
        elif owned:
            judged = told or _has_parts(device)
        else:
            judged = told or not explained
        if judged:
            tracks.append(track)
    return tracks


def _has_parts(device: TrackedDevice) -> bool:
    """Say whether the device is more than one process that is judged by itself."""
    rest = device.others[1].finding if len(device.others) > 1 else None
    return len(device.processes) > 1 or (rest is not None and rest.pattern not in _STILL)


def _is_explained(device: TrackedDevice) -> bool:
    """Say whether one of a list that lacks some is told of: the device would only be an echo."""
    reading = device.reading
    lacks = reading is not None and reading.uses is not None and reading.uses_reason is not None
    return lacks and any(
        track.alert is not None and track.alert.state == "firing"
        for track in device.processes.values()
    )


def is_owned(device: TrackedDevice, now_s: float) -> bool:
    """Say whether it is known, or was until a moment ago, who holds the device's memory."""
    return device.room.is_owned(now_s)


def drop_whole(watcher: Watcher, device: TrackedDevice, now_s: float) -> list[Alert]:
    """End what was only suspected of the whole device, once its processes are known."""
    before, device.apart = device.apart, is_owned(device, now_s)
    if device.others and device.arrivals is not None:
        for position, ring in device.arrivals.rings.items():
            device.others[position].joint = ring if device.apart else None
    if device.device.memory_kind == "coherent" and device.apart:
        return _unjudged(watcher, device, now_s)
    if not device.others or not ((device.apart and not before) or _is_explained(device)):
        return []
    alert = device.others[0].alert
    if alert is None or alert.state == "firing":
        return []
    ended = watcher.end(device.others[0], Ending.HOLDER_KNOWN, now_s, quietly=True)
    return [] if ended is None else [ended]


def _unjudged(watcher: Watcher, device: TrackedDevice, now_s: float) -> list[Alert]:
    """Say of a device whose pages the kernel keeps why it is not judged as a whole."""
    ended = []
    for track in device.others:
        if track.finding is None or track.finding.code is not Reason.PAGES_KEPT:
            track.finding = unjudged(track.subject, KEPT, Reason.PAGES_KEPT, now_s)
            track.room.note(track.finding)
            watcher.looks += 1
        alert = watcher.end(track, Ending.PAGES_KEPT, now_s, quietly=True)
        if alert is not None:
            ended.append(alert)
    return ended


def take_over(
    watcher: Watcher, devices: Mapping[str, TrackedDevice], changes: Iterable[Alert], now_s: float
) -> list[Alert]:
    """Return the changes, with alerts that have just fired in the place of those they replace."""
    out: list[Alert] = []
    for alert in changes:
        track = watcher.tracks.get(alert.subject.id)
        device = devices.get(alert.subject.device_uid)
        # What a process holds on the host is another memory: it stands for nothing of the device.
        fired = alert.state == "firing" and alert.firing_at_s == now_s and not alert.subject.host
        if fired and track is not None and track.alert is None:
            continue  # taken over in this very tick
        if not fired or track is None or track.alert is None or device is None or not device.others:
            out.append(alert)
            continue
        whole = track is device.others[0]
        if is_owned(device, now_s) and (whole or not _stands_for(device)):
            out.append(alert)  # What the parts do not explain is another growth.
            continue
        why = Ending.HOLDER_UNKNOWN if whole else Ending.HOLDER_KNOWN
        for rival in (
            [*device.processes.values(), *device.others[1:]] if whole else device.others[:1]
        ):
            before = rival.alert
            if before is None or (whole and before.state != "firing"):
                continue
            ended = watcher.end(rival, why, now_s, quietly=True)
            if ended is not None:
                out.append(ended)
            track.alert = alerts.inherited(track.alert, before)
        out.append(track.alert)
    return out


def _stands_for(device: TrackedDevice) -> bool:
    """Say whether the parts of a device that grow explain what is told of the whole."""
    told = device.others[0].alert
    share = sum(device.room.growing.values())
    rate = None if told is None else told.finding.rate_bytes_per_s
    return share >= attribution.EXPLAINED_SHARE * (rate or 0.0)


Past = tuple[Subject, Sequence[tuple[float, float]]]
EARLIER = "an earlier run"
"""Under what alerts are announced whose subject has not appeared."""
_STILL = frozenset({"stable", "unknown"})
UNSEEN_S = 600.0
"""So long they wait for it: until then nobody knows whether they are still true."""


class Unseen:
    """The alert of a subject that has not appeared, as the alert notifier wants it."""

    def __init__(self, alerts: dict[str, Alert], key: str) -> None:
        self._alerts = alerts
        self._key = key

    @property
    def alert(self) -> Alert | None:
        """The alert as it stands."""
        return self._alerts.get(self._key)

    @alert.setter
    def alert(self, alert: Alert | None) -> None:
        if alert is not None:
            self._alerts[self._key] = alert


class RestoredState:
    """Waits for the subjects that it belongs to."""

    def __init__(self) -> None:
        self.alerts: dict[str, Alert] = {}
        """Open alerts whose subject has not appeared yet, by subject id."""
        self.pending: dict[str, Alert] = {}
        """The same of alerts that were not open yet; they wait for the first minute only."""
        self._rings: dict[str, dict[Subject, Ring]] = {}
        self.attributed_at_s: dict[str, float] = {}
        """When it was last known who holds all of a device's memory, by UUID."""
        self.activity: dict[str, RecentActivity] = {}
        """What devices did lately, by UUID."""
        self.missing: dict[str, set[ProcessKey]] = {}
        """Whom the last list of a device did not name, until the next one."""

    def refill(self, past: Iterable[Past], span_s: float) -> None:
        """Remember points, for the tracks that will appear."""
        for subject, points in past:
            # Packed at once: as tuples the points of a busy machine would take 30 MiB.
            ring = self._rings.setdefault(subject.device_uid, {})[subject] = Ring(span_s)
            for t_s, value in points:
                ring.add(t_s, value)

    def extend(self, t_s: float, newest: Iterable[tuple[Subject, int | None]]) -> None:
        """Add what the live state knew later than the history did, to series of the latter."""
        for subject, held in newest:
            ring = self._rings.get(subject.device_uid, {}).get(subject)
            if ring is not None and held is not None:
                ring.add(t_s, held)

    def move(self, by_s: float) -> list[Alert]:
        """Move all of it in time: the wall clock was stepped; return the open alerts."""
        self.pending = {key: moved_alert(alert, by_s) for key, alert in self.pending.items()}
        for rings in self._rings.values():
            for ring in rings.values():
                ring.shift(by_s)
        for activity in self.activity.values():
            activity.move(by_s)
        self.alerts = {key: moved_alert(alert, by_s) for key, alert in self.alerts.items()}
        return list(self.alerts.values())

    def ring(self, subject: Subject) -> Ring | None:
        """Hand out the points of a subject."""
        return self._rings.get(subject.device_uid, {}).pop(subject, None)

    def parts(self, uid: str) -> dict[ProcessKey, Ring]:
        """Return the points of a device's processes that have not been handed out."""
        rings = self._rings.get(uid, {})
        return {one.process: ring for one, ring in rings.items() if one.process and not one.host}

    def alert(self, subject: Subject) -> Alert | None:
        """Hand out the alert of a subject."""
        pending = self.pending.pop(subject.id, None) if self.pending else None
        return self.alerts.pop(subject.id, pending) if self.alerts else pending

    def unseen(self, now_s: float) -> list[Unseen]:
        """Return the alerts of whose subject nothing has been heard for some time."""
        return [
            Unseen(self.alerts, key)
            for key, alert in self.alerts.items()
            if now_s - alert.finding.judged_at_s >= UNSEEN_S
        ]

    def left(self, uid: str, present: Container[ProcessKey]) -> set[ProcessKey]:
        """Return the processes of a device that two lists in a row did not name.

        They ended while nobody watched; one list without them may be a slip of the driver.
        """
        subjects = [*self._rings.get(uid, ()), *(alert.subject for alert in self.alerts.values())]
        missing = {
            one.process
            for one in subjects
            if one.device_uid == uid and one.process is not None and one.process not in present
        }
        left = missing & self.missing.get(uid, set())
        self.missing[uid] = missing - left
        return left

    def gone(self, uid: str, left: Container[ProcessKey]) -> Iterator[tuple[Subject, Ring]]:
        """Hand out the points of a device's processes that have left."""
        rings = self._rings.get(uid, {})
        for subject in [one for one in rings if one.process in left]:
            ring = rings.pop(subject)
            if not subject.host:
                yield subject, ring

    def orphaned(
        self, uid: str, left: Container[ProcessKey], rules: Rules, now_s: float
    ) -> list[Alert]:
        """End the alerts of a device's processes that have left."""
        gone = [
            alert
            for alert in self.alerts.values()
            if alert.subject.device_uid == uid and alert.subject.process in left
        ]
        return self._disown(gone, Ending.ENDED_UNOBSERVED, rules, now_s)

    def expired(self, devices: Container[str], rules: Rules, now_s: float) -> list[Alert]:
        """End the alerts of devices that do not come back."""
        lost = [a for a in self.alerts.values() if a.subject.device_uid not in devices]
        return self._disown(lost, Ending.NOT_SEEN, rules, now_s)

    def _disown(
        self, orphans: Iterable[Alert], why: Ending, rules: Rules, now_s: float
    ) -> list[Alert]:
        changed: list[Alert] = []
        for alert in orphans:
            del self.alerts[alert.subject.id]
            outcome = alerts.ended(alert, why, rules, now_s=now_s)
            if outcome.alert is not None:
                changed.append(outcome.alert)
        return changed
