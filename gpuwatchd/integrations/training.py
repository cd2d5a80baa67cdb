"""What a training and the daemon tell each other, inside the training's process.

The live state is read on the caller's thread, at most every :data:`READ_EVERY_S`; a checkpoint is
written into the history by a thread of its own, which may have to wait. Without a daemon, or for a
process on no GPU, nothing happens.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text
from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import is_leak
from gpuwatchd.store import tables
from gpuwatchd.view.queries import current_state, state_location, user_filter
from gpuwatchd.view.text import headline, verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatchd.core.model import Alert, Device, ProcessKey
    from gpuwatchd.store.live import LiveProcess

log = logging.getLogger("gpuwatchd")

READ_EVERY_S: Final = 10.0
"""Of checkpoints within this time, too, the first is reported: little work lies between them."""


class Training:
    """One training in this process; no method raises, nor needs a daemon.

    Parameters
    ----------
    show
        Takes a line for the log: an alert on this process opened, changed its severity, or is over.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._key: ProcessKey | None = None
        self._read_at_s = self._saved_at_s = float("-inf")
        self._decoded: dict[bytes, LiveProcess] = {}
        self._uses: list[tuple[Device, LiveProcess]] = []
        self._is_watched = False
        self._shown: dict[str, tuple[str, str]] = {}
        self._writer: threading.Thread | None = None

    def step(self) -> None:
        """Show what is new about this process; for the end of every step."""
        if self._pid != os.getpid():
            self._begin()  # a process that was forked has a life of its own
        if time.monotonic() - self._read_at_s < READ_EVERY_S:
            return
        self._read_at_s = time.monotonic()
        try:
            self._read()
        except Exception:  # no training ends because of what watches it
            log.debug("failed part=training", exc_info=True)

    def saved(self, what: str, at_s: float | None = None) -> None:
        """Report that work ("step 1200 of my-run") was saved at an instant, epoch seconds; now."""
        self.step()
        busy = self._writer is not None and self._writer.is_alive()
        soon = time.monotonic() - self._saved_at_s < READ_EVERY_S
        if busy or soon or not self._is_watched:
            return
        self._saved_at_s = time.monotonic()
        arguments = (self._key, time.time() if at_s is None else at_s, what)
        with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter ends
            self._writer = threading.Thread(target=_write, args=arguments, daemon=True)
            self._writer.start()

    def figures(self) -> dict[str, float]:
        """Return what is known of this process, for the charts of a run; {} without a daemon."""
        self.step()
        values: dict[str, float | None] = {"alerts": len(self._shown)} if self._is_watched else {}
        for device, process in self._uses:
            gpu, finding = f"gpu{device.number.replace(':', '_')}", process.finding
            values[f"{gpu}_used_bytes"] = process.used_bytes
            values["host_bytes"] = process.host_bytes
            if finding is not None:
                left = finding.eta if is_leak(finding) else None
                values[f"{gpu}_left_s"] = None if left is None else left.mid_s
                values[f"{gpu}_growth_bytes_per_s"] = finding.shown_rate_bytes_per_s
        return {f"gpuwatchd/{name}": value for name, value in values.items() if value is not None}

    def end(self) -> None:
        """Wait for the last checkpoint to be written down, some seconds at most."""
        writer, self._writer = self._writer, None  # with a thread a callback cannot be copied
        if writer is not None and writer.is_alive():
            writer.join(5.0)

    def _read(self) -> None:
        self._uses, self._is_watched = [], False
        state, _ = current_state.read_state(self._decoded)
        if state is None or not current_state.alive(state):
            return
        if self._key is None:
            self._key = user_filter.own_process(self._pid, "status --pid", "ask").key
        real = [item for item in state.devices if not item.device.recorded]
        self._uses = [
            (item.device, process)
            for item in real
            for process in item.processes or ()
            if tables.same_process(process.info.key, self._key)
        ]
        # Where the list of a GPU is not known, this process may be on it.
        self._is_watched = bool(self._uses) or any(item.processes is None for item in real)
        uids = {item.device.uid for item in real}
        mine = (alert for alert in state.alerts if alert.subject.device_uid in uids)
        self._show_changes(alert for alert in mine if _is_shown(alert, self._key))

    def _show_changes(self, alerts: Iterator[Alert]) -> None:
        before, self._shown = self._shown, {}
        for alert in alerts:
            severity, _ = before.pop(alert.key, ("", ""))
            if not severity and alert.held_code in {Hold.SILENCED, Hold.MUTED}:
                continue
            self._shown[alert.key] = (alert.severity, text.clean(alert.title))
            if severity != alert.severity:
                self._show(alert_line(alert))
        for _, title in before.values():
            self._show(f"gpuwatchd: over: {title}")


def alert_line(alert: Alert) -> str:
    """Return an open alert in a line of a log."""
    finding = alert.finding
    facts = [finding.pattern, *verdict_text.pace(finding)] if is_leak(finding) else [finding.reason]
    words = ", ".join(text.clean(fact) for fact in facts if fact)
    who = f"{alert.severity}: {text.clean(alert.title)}"
    return f"gpuwatchd: {who}: {words} (gpuwatchctl explain {alert.code})"


def _is_shown(alert: Alert, key: ProcessKey) -> bool:
    """Say whether people are told of an alert, and most of its growth is that of a process."""
    chief = headline.chief(alert.finding)
    process = alert.subject.process if chief is None else chief.process
    return alert.state == "firing" and process is not None and tables.same_process(process, key)


def _write(key: ProcessKey, saved_at_s: float, what: str) -> None:
    """Write a checkpoint into the history of this user."""
    try:
        # For another's history root would have to change the rights of the whole training.
        if state_location.state_dir().stat().st_uid == os.geteuid():
            user_filter.write_checkpoint(key, saved_at_s, what)
    except Exception:  # as in Training.step
        log.debug("failed part=checkpoint", exc_info=True)
