"""Buttons that people press on notices: which there are, and what is done then.

A press comes in a thread of its channel's. It waits until the next tick, which knows the alerts of
this moment; what may take longer than a microsecond is done in a thread of its own. The answer is
said on the desktop, since that is where somebody waits for one.
"""

from __future__ import annotations

import logging
import os
import pwd
import queue
import shlex
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import UNSET

from gpuwatchd.act import terminal
from gpuwatchd.act.checkpoint import Checkpoint as Asking
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import ActionError, GpuwatchdError
from gpuwatchd.core.model import Button, Message
from gpuwatchd.core.registry import load
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.messages.sentences import sentence
from gpuwatchd.store import legacy_text, tables
from gpuwatchd.store.tables import Action

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, ButtonName, ProcessInfo, ProcessKey, Proposal, Silence
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.store.profiles import ProfileStore
    from gpuwatchd.store.tables import Phase

    TakeStep = Callable[[Alert, Proposal | None, str, Callable[[str, str], None]], None]
    """Takes the step that was shown on an alert, by the word of whom; and says what came of it."""

# What is said to somebody who has pressed a button, where it was pressed.


_CLOSE_S: Final = 0.2
"""What a desktop that answers has to let go."""


class ActionReply:
    """Says what came of a press.

    By default as a pop-up, over a connection that is kept: some servers take down what a program
    has shown when it disconnects.
    """

    def __init__(self, say: Callable[[Message], object] | None) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._close: Callable[[], None] | None = None

    def send(self, message: Message) -> None:
        """Show an answer; a desktop that has gone away meanwhile is no reason to fail."""
        with self._lock:
            if self._say is None:
                notifier = load(NOTIFIERS, "desktop")(timeout=10.0, buttons=False)
                self._say, self._close = notifier.send, notifier.close
            say = self._say
        try:
            say(message)
        except GpuwatchdError as error:
            log.warning("an answer could not be shown: %s", error.message)

    def close(self, wait_s: float = _CLOSE_S) -> None:
        """Let go of the desktop; one that hangs is left behind: the end waits for nobody."""
        with self._lock:
            close, self._close = self._close, None
        if close is not None:
            thread = threading.Thread(target=_guarded, args=(close,), name="pressed", daemon=True)
            thread.start()
            thread.join(wait_s)


def _guarded(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:
        # On the way out; there is nobody left to tell.
        log.debug("the desktop connection cannot be closed", exc_info=True)


def reply(message: Message, head: str, text: str, command: str = "") -> Message:
    """Return an answer: what was done stands above, whom it is about below."""
    incident = message.thread or message.id
    lead = legacy_text.severity(message) if message.lead is UNSET else message.lead
    about = message.subject[len(lead) :]
    return Message(
        id=f"answer-{incident}",
        notice="test",
        severity="info",
        subject=head,
        body=f"{about}\n{text}",
        command=command,
        alert_key=message.alert_key,
    )


log = logging.getLogger("gpuwatchd")

SNOOZE_S: Final = 3600.0
TWICE_S: Final = 2.0
"""A second press of the same button within this is the same one: a double click."""
CONFIRM_S: Final = 1800.0
"""For so long after a job was asked to save a new checkpoint is taken for its answer."""
_CLOCKS_S: Final = 1.0
"""A file system tells times more coarsely than a clock."""
_WAITING: Final = 32
_TOLD: Final = 4
"""Ranks of which an answer tells one by one."""
_AT_ONCE: Final = 4
"""Presses that are being carried out; one more is refused."""


class _Ended(NamedTuple):
    """What became of something that was done in a thread of its own."""

    process: ProcessKey | None
    phase: Phase
    result: str
    asked_at_s: float
    message: Message


def show_command(alert: Alert) -> list[str]:
    """Return what the button "Show" runs."""
    if alert.state == "resolved":
        return ["gpuwatchctl", "alerts", "show", alert.key]
    return ["gpuwatchctl", "explain", alert.key]


def buttons_for(
    alert: Alert,
    config: Config,
    info: ProcessInfo | None = None,
    *,
    booted_at_s: float | None = None,
) -> tuple[Button, ...]:
    """Return the buttons of a notice about an alert; some file reads."""
    process = alert.subject.process
    # To be typed by people: a pid is shorter than a key, and means the same while it runs.
    name = alert.code if process is None or alert.state == "resolved" else str(process.pid)
    texts = show_command(msgspec.structs.replace(alert, key=name))
    show = Button(name="show", label="Show", command=shlex.join(texts))
    if alert.state == "resolved":
        return (show,)
    snoozed = shlex.join(["gpuwatchctl", "snooze", name, "1h"])
    snooze = Button(name="snooze", label="Snooze 1 h", command=snoozed)
    foreign = info is not None and (info.foreign or info.uid not in {None, os.getuid()})
    if process is None or foreign or not _ask(config, booted_at_s).offered(process):
        return (snooze, show)
    ask = Button(
        name="checkpoint",
        label="Ask to checkpoint",
        command=f"gpuwatchctl ask-checkpoint {process.pid} --yes",
    )
    return (snooze, show, ask)


def _ask(config: Config, booted_at_s: float | None) -> Asking:
    act = config.act
    return Asking(
        checkpoint=act.checkpoint, signal=act.signal, argv=act.argv, booted_at_s=booted_at_s
    )


class ActionHandler:
    """Carries out what was pressed."""

    def __init__(
        self,
        state: State,
        *,
        shelf: ProfileStore | None = None,
        booted_at_s: float | None = None,
        say: Callable[[Message], object] | None = None,
    ) -> None:
        self._state = state
        self.file: Path | None = None
        """The only file that settings are read from, where there is one: absolute."""
        self._waiting: queue.Queue[tuple[ButtonName, Message]] = queue.Queue(maxsize=_WAITING)
        self._shelf = shelf
        self._booted_at_s = booted_at_s
        self._replies = ActionReply(say)
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._running: list[threading.Thread] = []
        self._windows: list[subprocess.Popen[bytes]] = []
        self._flooded = False
        self._recent: dict[tuple[str, str], float] = {}
        self.busy = False
        """Whether anything was pressed, or is under way: else there is no step to take."""
        self._unconfirmed: dict[ProcessKey, tuple[float, Message]] = {}
        """Who was asked to save, and is not known to have: when, and by which notice."""

    def put(self, name: ButtonName, message: Message) -> None:
        """Take a press, for the next tick. Any thread may call it; of very many some are lost."""
        try:
            self._waiting.put_nowait((name, message))
            self.busy = True
        except queue.Full:
            # Once for each flood, which may be of thousands in a second.
            if not self._flooded:
                log.warning("too many buttons were pressed at once; some were ignored")
            self._flooded = True

    def step(self, take_step: TakeStep, now_s: float) -> None:
        """Do what was pressed since the last tick; ``take_step`` takes one on a process."""
        self.busy = False  # First: what is pressed from now on must not be lost.
        if not self._waiting.empty():
            known = {alert.key: alert for alert in self._state.open_alerts()}
            # As many as there can be, not until there are none: a flood may never end.
            for _ in range(self._waiting.qsize()):
                self._begin(*self._waiting.get(), known, take_step, now_s)
            self._flooded = False
        while not self._ended.empty():
            done = self._ended.get()
            self._write(done.process, done.phase, done.result, now_s)
            if done.process is not None and done.phase == "done":
                self._unconfirmed[done.process] = done.asked_at_s, done.message
        for process, (asked_at_s, message) in [*self._unconfirmed.items()]:
            self._confirm(process, asked_at_s, message, now_s)
        if self._running:
            self._running = [thread for thread in self._running if thread.is_alive()]
        for window in [*self._windows]:  # to which other threads add
            if window.poll() is not None:
                self._windows.remove(window)
        if self._running or self._windows or self._unconfirmed or not self._ended.empty():
            self.busy = True

    def close(self, wait_s: float = 0.5) -> None:
        """Let go of the desktop; what still runs is left to end by itself."""
        end_s = time.monotonic() + wait_s
        for thread in self._running:
            thread.join(max(0.0, end_s - time.monotonic()))
        self._replies.close()

    def _begin(
        self,
        name: ButtonName,
        message: Message,
        alerts: dict[str, Alert],
        take_step: TakeStep,
        now_s: float,
    ) -> None:
        mono_s = time.monotonic()
        self._recent = {at: s for at, s in self._recent.items() if mono_s - s < TWICE_S}
        if self._recent.setdefault((name, message.id), mono_s) != mono_s:
            return
        log.info("pressed button=%s alert=%s", name, message.alert_key)
        alert = alerts.get(message.alert_key)
        if alert is not None:
            first = messages.message_id(alert, "firing", 1)
            if first not in {message.id, message.thread}:
                alert = None  # The notice was about an earlier life of it.
        if name == "show":
            self._show(alert, message)
        elif alert is None:
            done = {"snooze": "Not snoozed", "act": "Not done"}.get(name, "Not asked")
            self._answer(message, done, "It is resolved already.")
        elif name == "act":
            take_step(
                alert,
                message.proposal,
                _user(),
                lambda head, value: self._replies.send(reply(message, head, value)),
            )
        elif name == "snooze":
            self._snooze(alert, message, alerts, now_s)
        else:
            others = [alerts[key] for key in message.also if key in alerts]
            self._checkpoint([alert, *others], message, now_s)

    def _snooze(
        self, alert: Alert, message: Message, alerts: dict[str, Alert], now_s: float
    ) -> None:
        """Silence the alert, and those that the same notice was about."""
        others = [alerts[key] for key in message.also if key in alerts]
        kept: list[Silence] = []
        for one in (alert, *others):
            made = tables.silence_of(
                one, now_s=now_s, for_s=SNOOZE_S, who=_user(), why="the button on its pop-up"
            )
            kept.append(self._state.silences.add(made, now_s))
        head = f"Snoozed until {units.clock(kept[0].until_at_s, now_s=now_s)}"
        value = "You will still be notified when it becomes critical."
        if alert.severity == "critical":
            value = "You will not be notified of it until then."
        row = kept[0].row
        self._answer(message, head, value, "" if row is None else f"gpuwatchctl snooze clear {row}")

    def _show(self, alert: Alert | None, message: Message) -> None:
        key = message.alert_key
        command = show_command(alert) if alert else ["gpuwatchctl", "alerts", "show", key]
        if not key:
            command = ["gpuwatchctl", "alerts"]
        chosen = self._state.settings.config.notify.desktop.terminal
        # What it shows is to follow our settings, wherever they are read from.
        given = [] if self.file is None else ["--config", str(self.file)]

        def work() -> None:
            try:
                self._windows.append(terminal.show([command[0], *given, *command[1:]], chosen))
            except GpuwatchdError as error:
                value = f"{sentence(error.message)} Type this in a terminal:"
                head = "No window could be opened"
                self._replies.send(reply(message, head, value, shlex.join(command)))

        self._start(work, message)

    def _checkpoint(self, alerts: list[Alert], message: Message, now_s: float) -> None:
        """Ask each process that a notice was about: one rank alone can save nothing."""
        ask = _ask(self._state.settings.config, self._booted_at_s)
        asked = {alert.subject.process: alert.finding for alert in alerts}
        for process in asked:
            self._write(process, "asked", "by the button on its pop-up", now_s)

        def work() -> None:
            endeds: list[_Ended] = []
            for process, finding in asked.items():
                phase: Phase = "done"
                try:
                    result = ask.run(finding, dry_run=False)
                except ActionError as error:
                    result, phase = error.message, "refused"
                log.info("checkpoint %s: %s", phase, result)
                endeds.append(_Ended(process, phase, result, now_s, message))
                self._ended.put(endeds[-1])
            head = "Asked to save"
            if all(ended.phase != "done" for ended in endeds):
                head = "Not asked to save"
            value = "\n".join(sentence(ended.result) for ended in endeds[:_TOLD])
            self._replies.send(reply(message, head, value))

        if not self._start(work, message):
            for process in asked:
                self._write(process, "refused", "too much is being done already", now_s)

    def _confirm(
        self, process: ProcessKey, asked_at_s: float, message: Message, now_s: float
    ) -> None:
        """Say that a job has saved, once a checkpoint is seen that is newer than the wish."""
        newest = self._state.checkpoints.newest(process)
        if newest is not None and newest.saved_at_s >= asked_at_s - _CLOCKS_S:
            del self._unconfirmed[process]
            by = newest.detail or ("a new file" if newest.said_by == "file" else "as reported")
            self._write(process, "done", f"has saved: {by}", now_s, saved=True)
            self._answer(message, "It has saved", by)
        elif not 0 <= now_s - asked_at_s < CONFIRM_S:
            del self._unconfirmed[process]

    def _answer(self, message: Message, head: str, value: str, command: str = "") -> None:
        self._start(lambda: self._replies.send(reply(message, head, value, command)), message)

    def _start(self, work: Callable[[], None], message: Message) -> bool:
        """Do something in a thread of its own; False when too much is being done already."""
        if len(self._running) >= _AT_ONCE:
            log.warning("a button was pressed while too much is being done alert=%s",
                        message.alert_key)  # fmt: skip
            return False

        def guarded() -> None:
            try:
                work()
            except Exception:
                # A thread of its own: nobody else would hear of it.
                log.exception("failed part=button alert=%s", message.alert_key)

        thread = threading.Thread(target=guarded, name="pressed", daemon=True)
        thread.start()
        self._running.append(thread)
        return True

    def _write(
        self,
        process: ProcessKey | None,
        phase: Phase,
        result: str,
        now_s: float,
        *,
        saved: bool = False,
    ) -> None:
        if self._shelf is None:
            return
        row = Action(
            at_s=now_s,
            verb="checkpoint",
            process=process,
            phase=phase,
            result=text.clean(result),
            who=_user(),
            saved=saved,
        )
        self._shelf.write_now(tables.write_action, row)


def _user() -> str:
    try:
        return text.clean(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return str(os.getuid())
