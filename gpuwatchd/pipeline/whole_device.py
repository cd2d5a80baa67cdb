"""Which subjects of a device are judged: its processes, what nobody owns, or all of it as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import alerts
from gpuwatchd.analysis import attribution
from gpuwatchd.core.codes import Ending, Reason
from gpuwatchd.pipeline import track_alerts
from gpuwatchd.pipeline.track import unjudged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.track import Track, TrackedDevice

# Who an alert is about may change while the memory grows: the device, or one who holds it.
# While its processes are known they are judged, what none of them owns, and all of it together
# without what came and went with processes: many may grow by little each, or hand memory to one
# another, so that none is plain. The whole speaks only where its parts do not explain its growth.
# While they are not known it is judged alone, even where the kernel keeps pages of processes that
# have ended: there is nothing better then. An alert of the one kind that fires takes over from one
# of the other kind: people are told once about one growth, and nothing stays open that nobody
# judges any more.

_STILL = frozenset({"stable", "unknown"})
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


def drop_whole(state: State, device: TrackedDevice, now_s: float) -> list[Alert]:
    """End what was only suspected of the whole device, once its processes are known."""
    before, device.apart = device.apart, is_owned(device, now_s)
    if device.others and device.arrivals is not None:
        for position, ring in device.arrivals.rings.items():
            device.others[position].joint = ring if device.apart else None
    if device.device.memory_kind == "coherent" and device.apart:
        return _unjudged(state, device, now_s)
    if not device.others or not ((device.apart and not before) or _is_explained(device)):
        return []
    alert = device.others[0].alert
    if alert is None or alert.state == "firing":
        return []
    ended = track_alerts.end(state, device.others[0], Ending.HOLDER_KNOWN, now_s, quietly=True)
    return [] if ended is None else [ended]


def _unjudged(state: State, device: TrackedDevice, now_s: float) -> list[Alert]:
    """Say of a device whose pages the kernel keeps why it is not judged as a whole."""
    ended = []
    for track in device.others:
        if track.finding is None or track.finding.code is not Reason.PAGES_KEPT:
            track.finding = unjudged(track.subject, KEPT, Reason.PAGES_KEPT, now_s)
            track.room.note(track.finding)
            state.tracks.looks += 1
        alert = track_alerts.end(state, track, Ending.PAGES_KEPT, now_s, quietly=True)
        if alert is not None:
            ended.append(alert)
    return ended


def take_over(state: State, changes: Iterable[Alert], now_s: float) -> list[Alert]:
    """Return the changes, with alerts that have just fired in the place of those they replace."""
    out: list[Alert] = []
    for alert in changes:
        track = state.tracks.get(alert.subject.id)
        device = state.devices.get(alert.subject.device_uid)
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
            ended = track_alerts.end(state, rival, why, now_s, quietly=True)
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
