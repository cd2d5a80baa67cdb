"""Who an alert is about may change while the memory grows: the device, or one who holds it.

While its processes are known they are judged, and what none of them owns; otherwise the device as
a whole, even where the kernel keeps pages of processes that have ended: there is nothing better
then. An alert of the one kind that fires takes over from one of the other kind: people are told
once about one growth, and nothing stays open that nobody judges any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import alerts
from gpuwatchd.core.codes import Ending, Reason
from gpuwatchd.pipeline.track import unjudged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.core.model import Alert
    from gpuwatchd.pipeline.device_state import TrackedDevice
    from gpuwatchd.pipeline.track import Track
    from gpuwatchd.pipeline.watcher import Watcher

KEPT = "the kernel keeps pages of processes that have ended: judged per process"
GRACE_S = 300.0
"""A device is judged as a whole only when its processes have been unknown for this long."""


def beside(device: TrackedDevice, now_s: float) -> list[Track]:
    """Return the tracks to be judged at present beside those of processes on the device."""
    tracks = list(device.hosts.values()) if device.hosts_s == device.taken_s else []
    owned, explained = is_owned(device, now_s), _is_explained(device)
    if owned and device.device.memory_kind == "coherent":
        return tracks  # Pages stay taken after a process has ended: its series is no evidence.
    for track in device.others:
        # An alert on the whole device that people were told of is followed to its end.
        told = track.alert is not None and track.alert.state == "firing"
        if owned if track.subject.unattributed else told or not (owned or explained):
            tracks.append(track)
    return tracks


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
    known = device.room.attributed_at_s
    return known is not None and now_s - known < GRACE_S


def drop_whole(watcher: Watcher, device: TrackedDevice, now_s: float) -> list[Alert]:
    """End what was only suspected of the whole device, once its processes are known."""
    if device.device.memory_kind == "coherent" and is_owned(device, now_s):
        return _unjudged(watcher, device, now_s)
    if not device.others or not (is_owned(device, now_s) or _is_explained(device)):
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
