"""What a training and the daemon of this machine tell each other, inside the training's process.

The live state file is read on the caller's thread, at most every :data:`READ_EVERY_S`; a checkpoint
is written into the history by a thread of its own, which may have to wait for the disk. Without a
daemon, or for a process on no GPU, nothing happens.
"""

from __future__ import annotations

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
SAVED_EVERY_S: Final = 10.0
"""A checkpoint so soon after the last one that was reported is not: little work lies between."""
END_S: Final = 5.0
"""For how long the end of a training waits until its last checkpoint is written down."""
_QUIET: Final = frozenset({Hold.SILENCED, Hold.MUTED})
"""The user has said that he does not want to hear of it."""


class Training:
    """One training in this process. None of its methods raises, or needs a daemon.

    Parameters
    ----------
    show
        Takes a line for the training's log: an alert on this process that is new, has another
        severity, or is over.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._pid = 0
        self._forget()

    def __reduce__(self) -> tuple[object, ...]:
        """Leave all but ``show`` behind: ranks that are spawned get a copy of a callback."""
        return Training, (self._show,)

    def _forget(self) -> None:
        self._key: ProcessKey | None = None
        self._read_at_s = self._saved_at_s = float("-inf")
        self._decoded: dict[bytes, LiveProcess] = {}
        self._uses: list[tuple[Device, LiveProcess]] = []
        self._is_watched = False
        self._shown: dict[str, tuple[str, str]] = {}
        self._writer: threading.Thread | None = None

    def step(self) -> None:
        """Show what is new about this process; to be called after every step."""
        if time.monotonic() - self._read_at_s < READ_EVERY_S and os.getpid() == self._pid:
            return
        try:
            self._read()
        except Exception:  # a training must not end because of what watches it
            log.debug("failed part=training", exc_info=True)

    def saved(self, what: str, at_s: float | None = None) -> None:
        """Report that work has been saved: what a crash would lose counts from there.

        Parameters
        ----------
        what
            Which work: "step 1200 of my-run".
        at_s
            When, epoch seconds; None for now.
        """
        self.step()
        now_s = time.monotonic()
        busy = self._writer is not None and self._writer.is_alive()
        if not self._is_watched or busy or now_s - self._saved_at_s < SAVED_EVERY_S:
            return
        self._saved_at_s = now_s
        arguments = (self._key, time.time() if at_s is None else at_s, what)
        try:
            self._writer = threading.Thread(
                target=_write, args=arguments, name="gpuwatchd checkpoint", daemon=True
            )
            self._writer.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            log.debug("failed part=checkpoint", exc_info=True)

    def figures(self) -> dict[str, float]:
        """Return what is known of this process now, for the charts of a run; {} without a daemon.

        Per GPU ("gpu0_") its memory, growth, time left and whether an alert is open, and its memory
        on the host; what is unknown is left out.
        """
        self.step()
        try:
            pairs = dict(self._figures()).items()
            return {f"gpuwatchd/{name}": value for name, value in pairs if value is not None}
        except Exception:  # as in step
            log.debug("failed part=figures", exc_info=True)
            return {}

    def end(self) -> None:
        """Wait for the last checkpoint to be written down, some seconds at most."""
        if self._writer is not None and self._pid == os.getpid():
            self._writer.join(END_S)

    def _figures(self) -> Iterator[tuple[str, float | None]]:
        for device, process in self._uses:
            gpu, finding = f"gpu{device.number.replace(':', '_')}", process.finding
            yield f"{gpu}_used_bytes", process.used_bytes
            yield "host_bytes", process.host_bytes
            if finding is not None:
                yield f"{gpu}_growth_bytes_per_s", finding.shown_rate_bytes_per_s
                leaks = finding.eta is not None and is_leak(finding)
                yield f"{gpu}_left_s", finding.eta.mid_s if finding.eta and leaks else None
        if self._is_watched:
            yield "alerts", len(self._shown)

    def _read(self) -> None:
        if self._pid != os.getpid():  # a process that was forked has a life of its own
            self._pid = os.getpid()
            self._forget()
        self._read_at_s = time.monotonic()
        self._uses, self._is_watched = [], False
        state, _ = current_state.read_state(self._decoded)
        if state is None or not current_state.alive(state):
            return
        real = [item for item in state.devices if not item.device.recorded]
        if self._key is None:
            self._key = user_filter.own_process(self._pid, "checkpointed", "ask for it").key
        self._uses = [
            (item.device, process)
            for item in real
            for process in item.processes or ()
            if tables.same_process(process.info.key, self._key)
        ]
        # Where the list of a GPU is not known, this process may be on it.
        self._is_watched = bool(self._uses) or any(item.processes is None for item in real)
        uids = {item.device.uid for item in real}
        self._show_changes(
            alert
            for alert in state.alerts
            if alert.state == "firing"
            and alert.subject.device_uid in uids
            and _is_of(alert, self._key)
        )

    def _show_changes(self, alerts: Iterator[Alert]) -> None:
        before, self._shown = self._shown, {}
        for alert in alerts:
            known = before.pop(alert.key, None)
            if known is None and alert.held_code in _QUIET:
                continue
            self._shown[alert.key] = (alert.severity, text.clean(alert.title))
            if known is None or known[0] != alert.severity:
                self._show(alert_line(alert))
        for _, title in before.values():
            self._show(f"gpuwatchd: over: {title}")


def alert_line(alert: Alert) -> str:
    """Return an open alert in a line of a log."""
    finding = alert.finding
    facts = [finding.pattern, *verdict_text.pace(finding)] if is_leak(finding) else [finding.reason]
    words = ", ".join(text.clean(fact) for fact in facts if fact)
    title = text.clean(alert.title)
    return f"gpuwatchd: {alert.severity}: {title}: {words} (gpuwatchctl explain {alert.code})"


def _is_of(alert: Alert, key: ProcessKey) -> bool:
    """Say whether an alert is about a process, or lays most of a GPU's growth at its door."""
    chief = headline.chief(alert.finding)
    process = alert.subject.process if chief is None else chief.process
    return process is not None and tables.same_process(process, key)


def _write(key: ProcessKey, saved_at_s: float, what: str) -> None:
    """Write a checkpoint into the history of this user."""
    try:
        # For another's history root would have to change the rights of the whole training.
        if os.stat(state_location.state_dir()).st_uid == os.geteuid():  # noqa: PTH116 - as there
            user_filter.write_checkpoint(key, saved_at_s, what)
    except Exception:  # as in Training.step
        log.debug("failed part=checkpoint", exc_info=True)
