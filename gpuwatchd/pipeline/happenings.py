"""What happened to devices: written down once, and remembered beside what is judged."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd import hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.model import Alert, Device, Event, Sample
    from gpuwatchd.pipeline.track import Track
    from gpuwatchd.store.writer import History

MOST_PER_DEVICE = 16
"""Half of them for what broke: a program that fails each minute must not push it out."""


class Happenings:
    """The newest events of every device.

    Parameters
    ----------
    history
        Where events are kept; None keeps none.
    """

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._recent: dict[tuple[str, bool], deque[Event]] = {}
        self._shown: dict[str, tuple[Event, ...]] = {}

    def take(self, sample: Sample) -> None:
        """Take over the events of one sample."""
        for event in sample.events:
            uid = event.device_uid
            if uid is not None:
                broken = event.hardware is True
                kept = self._recent.get((uid, broken))
                if kept is None:
                    kept = self._recent[uid, broken] = deque(maxlen=MOST_PER_DEVICE // 2)
                kept.append(event)
                self._shown[uid] = tuple(
                    sorted(
                        (*self._recent.get((uid, True), ()), *self._recent.get((uid, False), ())),
                        key=lambda event: event.at_s,
                    )
                )
            if self._history is not None:
                self._history.event(event.kind, event.text, uid)

    def recent(self, uid: str) -> tuple[Event, ...]:
        """Return the newest events of a device, oldest first."""
        return self._shown.get(uid, ())

    def advised(self, alert: Alert, device: Device, tracks: Mapping[str, Track]) -> Alert:
        """Return the alert with what broke while its memory grew, said before all other advice.

        Parameters
        ----------
        alert
            Of any subject of the device; its track takes over the answer.
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
        lines = hardware.advice(
            events, onset_at_s=finding.onset_at_s, judged_at_s=finding.judged_at_s
        )
        fresh = tuple(line for line in lines if line not in finding.advice)
        if not fresh:
            return alert
        told = msgspec.structs.replace(
            alert, finding=msgspec.structs.replace(finding, advice=(*fresh, *finding.advice))
        )
        track = tracks.get(alert.subject.id)
        if track is not None and track.alert is not None and track.alert.key == alert.key:
            track.alert = told
        return told
