"""Lines of the log for GPUs that come, go and change their state."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from gpuwatchd.core.state_log import StateLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatchd.core.model import Device, Fault
    from gpuwatchd.pipeline.device_state import TrackedDevice

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

    Parameters
    ----------
    mono
        Monotonic clock, seconds.
    """

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._states = StateLog(mono)
        self._here: dict[str, tuple[str, Device]] = {}
        """UUID -> source and device, until it is logged that it has gone."""

    def update(self, source: str, devices: Mapping[str, TrackedDevice]) -> None:
        """Log what has changed of the GPUs of a source that has just answered.

        Parameters
        ----------
        source
            Its label.
        devices
            UUID -> device as last seen, of all sources.
        """
        for uid, tracked_device in devices.items():
            if tracked_device.source == source:
                self._here[uid] = (source, tracked_device.device)
                reading = tracked_device.reading
                state = UNREAD if reading is None else reading.state
                self._note(source, tracked_device.device, state, tracked_device.faults)
        for uid, (of, device) in list(self._here.items()):
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
