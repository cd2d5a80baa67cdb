"""What happened to devices: written down once, and remembered beside what is judged."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.analysis import hardware
from gpuwatchd.pipeline.peak_notes import KIND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.core.model import Alert, Device, Event, Finding, Sample
    from gpuwatchd.pipeline.track import Track
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.store.writer import History

_SHARES = {"broke": 8, "other": 8, "ended": 4}
"""What broke has places of its own: a program that fails each minute must not push it out, nor
may many that end push out that one failed."""
MOST_PER_DEVICE = sum(_SHARES.values())


class EventLog:
    """The newest events of every device.

    Parameters
    ----------
    history
        Where events are kept; None keeps none.
    """

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._recent: dict[str, dict[str, deque[Event]]] = {}
        self._shown: dict[str, tuple[Event, ...]] = {}

    def take(self, sample: Sample) -> None:
        """Take over the events of one sample."""
        for event in sample.events:
            self._remember(event)
            if self._history is not None:
                self._history.event(event.kind, event.text, event.device_uid)

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
        self._shown[uid] = tuple(sorted(every, key=lambda event: event.at_s))

    def recent(self, uid: str) -> tuple[Event, ...]:
        """Return the newest events of a device, oldest first."""
        return self._shown.get(uid, ())

    def accompany(self, judged: Iterable[Track], tracks: Mapping[str, Track]) -> None:
        """Say again, of open alerts that have just been judged anew, what broke meanwhile."""
        for track in judged if self._shown else ():
            alert = track.alert
            if alert is not None and alert.state in {"watch", "firing"}:
                self.advised(alert, track.device, tracks)

    def advised(self, alert: Alert, device: Device, tracks: Mapping[str, Track]) -> Alert:
        """Return the alert with what broke while its memory grew, said before all other advice.

        Parameters
        ----------
        alert
            Of any subject of the device; its track takes over the answer, for its judgement too.
        device
            A MIG instance shares what breaks with its card.
        tracks
            All tracks by subject id.
        """
        finding = alert.finding
        events = self.recent(device.uid)
        if device.parent_uid is not None:
            events += self.recent(device.parent_uid)
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
