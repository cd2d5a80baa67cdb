"""What happened to devices: written down once, and remembered beside what is judged."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.model import Event, Sample
    from gpuwatchd.store.writer import History

MOST_PER_DEVICE = 16


class Happenings:
    """The newest events of every device.

    Parameters
    ----------
    history
        Where events are kept; None keeps none.
    """

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._recent: dict[str, deque[Event]] = {}

    def take(self, sample: Sample) -> None:
        """Take over the events of one sample."""
        for event in sample.events:
            if event.device_uid is not None:
                kept = self._recent.setdefault(event.device_uid, deque(maxlen=MOST_PER_DEVICE))
                kept.append(event)
            if self._history is not None:
                self._history.event(event.kind, event.text, event.device_uid)

    def recent(self, uid: str) -> tuple[Event, ...]:
        """Return the newest events of a device, oldest first."""
        return tuple(self._recent.get(uid, ()))
