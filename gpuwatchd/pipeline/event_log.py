"""What happened to devices: written down once, and remembered beside what is judged."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis import hardware
from gpuwatchd.core import text, units
from gpuwatchd.core.state_log import StateLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.core.model import (
        Alert,
        Device,
        Event,
        Fault,
        Finding,
        ProcessInfo,
        ProcessKey,
        Sample,
    )
    from gpuwatchd.pipeline.track import Track, TrackedDevice
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.store.writer import History

# Lines of the log for GPUs that come, go and change their state.

log = logging.getLogger("gpuwatchd")

GONE: Final = "gone"
"""Its source does not list it any more."""
UNREAD: Final = "unread"
"""Its source lists it, answers, and says nothing of it."""
_TROUBLE: Final = frozenset({"lost", "hung", "no-permission", "reset-required", UNREAD, GONE})


class DeviceLog:
    """Compares each GPU with what was last logged of it.

    A source that does not answer at all is a problem of its own, which the daemon logs; of its GPUs
    nothing is known then, and nothing is logged.
    """

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._states = StateLog(mono)
        self._here: dict[str, tuple[str, Device, str | None]] = {}
        """UUID -> source, device and state (None: one that is not the one in the log), until it is
        logged that it has gone."""

    def update(self, source: str, devices: Mapping[str, TrackedDevice]) -> None:
        """Log what has changed of the GPUs of a source that has just answered."""
        for uid, tracked_device in devices.items():
            if tracked_device.source != source:
                continue
            reading, device = tracked_device.reading, tracked_device.device
            state = UNREAD if reading is None else reading.state
            if self._here.get(uid) != (source, device, state):
                logged = self._note(source, device, state, tracked_device.faults)
                self._here[uid] = (source, device, state if logged else None)
        for uid, (of, device, _) in list(self._here.items()):
            if of == source and uid not in devices and self._note(source, device, GONE):
                del self._here[uid]

    def _note(
        self, source: str, device: Device, state: str, faults: tuple[Fault, ...] = ()
    ) -> bool:
        """Log a state where it is new; return whether it is the one in the log now."""
        change = self._states.change(device.uid, state)
        if change is None:
            return self._states.logged(device.uid) == state
        what = f"gpu={device.label!r} uid={device.uid!r} source={source}"
        trouble = state in _TROUBLE
        why = f" why={faults[0].text!r}" if trouble and faults else ""
        if change.was in {None, GONE}:
            what = f"gpu found {what} state={state} name={device.name!r}"
        elif state == GONE:
            what = f"gpu gone {what} was={change.was}"
        else:
            what = f"gpu changed {what} state={state} was={change.was}"
        log.log(logging.WARNING if trouble else logging.INFO, "%s%s%s", what, change.fields, why)
        return True


# What a process held at most, as the driver says after its end: whose it was, and for its
# track.
# The driver knows numbers only. Its word comes with the first list that lacks the process, one look
# before the process is believed to have ended, so that its alert can end with what it says.

KIND = "process-peak"


def with_process_names(
    sample: Sample, devices: Mapping[str, TrackedDevice], infos: Mapping[ProcessKey, ProcessInfo]
) -> Sample:
    """Return a sample whose events name their process; the tracks of who ended learn their peak."""
    if not any(event.kind == KIND for event in sample.events):
        return sample
    events = tuple(
        _named(event, devices.get(event.device_uid or ""), infos) if event.kind == KIND else event
        for event in sample.events
    )
    return msgspec.structs.replace(sample, events=events)


def _named(
    event: Event, device: TrackedDevice | None, infos: Mapping[ProcessKey, ProcessInfo]
) -> Event:
    if event.pid is None or event.peak_bytes is None or device is None:
        return event
    tracks = {key: track for key, track in device.processes.items() if key.pid == event.pid}
    for track in tracks.values():
        track.most_bytes = float(event.peak_bytes)
    keys = tracks or [key for key in infos if key.pid == event.pid]
    # A number that was used again is several processes: only the last of them may be meant.
    newest = max(keys, key=lambda key: key.started_at_s or 0.0, default=None)
    info = None if newest is None else infos.get(newest)
    if info is None or not info.name or info.foreign:
        return event
    who = f"{text.clean(info.label, limit=40)}[{event.pid}]"
    who += f" of {info.user}" if info.user else ""
    return msgspec.structs.replace(event, text=units.peak_text(who, event.peak_bytes))


_SHARES = {"broke": 8, "other": 8, "ended": 4}
"""What broke has places of its own: a program that fails each minute must not push it out, nor
may many that end push out that one failed."""
MOST_PER_DEVICE = sum(_SHARES.values())


class EventLog:
    """The newest events of every device."""

    def __init__(self, history: History | None, mono: Callable[[], float] = time.monotonic) -> None:
        self._devices = DeviceLog(mono)
        self._history = history
        self._recent: dict[str, dict[str, deque[Event]]] = {}
        self.shown: dict[str, tuple[Event, ...]] = {}
        """The newest events of each device, by UUID, oldest first."""

    def take(
        self,
        source: str,
        sample: Sample,
        devices: Mapping[str, TrackedDevice],
        infos: Mapping[ProcessKey, ProcessInfo],
    ) -> None:
        """Take over the events of a source's sample, with the names of their processes.

        What has changed of its devices is logged.
        """
        for event in with_process_names(sample, devices, infos).events if sample.events else ():
            self._remember(event)
            if self._history is not None:
                self._history.event(event.kind, event.text, event.device_uid)
        self._devices.update(source, devices)

    def resume(self, before: LiveState | None) -> None:
        """Take up what an earlier run of the daemon left in its live state."""
        for device in () if before is None else before.devices:
            for event in device.events:
                self._remember(event)

    def _remember(self, event: Event) -> None:
        uid = event.device_uid
        if uid is None:
            return
        sort = "broke" if event.hardware is True else "ended" if event.kind == KIND else "other"
        recent = self._recent.setdefault(uid, {})
        if sort not in recent:
            recent[sort] = deque(maxlen=_SHARES[sort])
        recent[sort].append(event)
        every = (event for events in recent.values() for event in events)
        self.shown[uid] = tuple(sorted(every, key=lambda event: event.at_s))

    def update_advice(self, judged: Iterable[Track], tracks: Mapping[str, Track]) -> None:
        """Say again, of open alerts that have just been judged anew, what broke meanwhile."""
        for track in judged if self.shown else ():
            alert = track.alert
            if alert is not None and alert.state in {"watch", "firing"}:
                self.with_hardware_advice(alert, track.device, tracks)

    def with_hardware_advice(
        self, alert: Alert, device: Device, tracks: Mapping[str, Track]
    ) -> Alert:
        """Return the alert with what broke while its memory grew, said before all other advice.

        Its track takes over the answer, for its judgement too.
        """
        finding = alert.finding
        events = self.shown.get(device.uid, ())
        if device.parent_uid is not None:
            events += self.shown.get(device.parent_uid, ())
        if not events:
            return alert
        broken = hardware.advice(
            events, onset_at_s=finding.onset_at_s, judged_at_s=finding.judged_at_s
        )
        told = alert
        if broken is not None and broken[1] not in (finding.hardware_at_s or ()):
            told = msgspec.structs.replace(alert, finding=_with(finding, *broken))
        track = tracks.get(alert.subject.id)
        if track is not None and track.alert is not None and track.alert.key == alert.key:
            track.alert = told
            track.mark_changed()
            if broken is not None and track.finding is not None and track.finding.tier != "none":
                track.finding = _with(track.finding, *broken)
        return told


def _with(finding: Finding, line: str, at_s: float) -> Finding:
    known = finding.hardware_at_s or ()
    # An earlier version kept the line alone.
    if at_s in known or line in finding.advice:
        return finding
    return msgspec.structs.replace(
        finding,
        advice=(line, *finding.advice),
        hardware_at_s=(at_s, *known),
    )
