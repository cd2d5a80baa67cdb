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

from gpuwatchd.act import ACTIONS, terminal
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import ActionError, GpuwatchdError
from gpuwatchd.core.model import Button
from gpuwatchd.core.registry import load
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.action_replies import ActionReply, reply, sentence
from gpuwatchd.store import actions, silences
from gpuwatchd.store.actions import Action

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gpuwatchd.act.checkpoint import Checkpoint as Asking
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, ButtonName, Message, ProcessInfo, ProcessKey, Silence
    from gpuwatchd.pipeline.active_silences import ActiveSilences
    from gpuwatchd.store.actions import Phase
    from gpuwatchd.store.checkpoints import Checkpoint
    from gpuwatchd.store.profiles import ProfileStore

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
_OPEN: Final = frozenset({"watch", "firing"})


class ButtonPress(NamedTuple):
    """One press of a button."""

    name: ButtonName
    message: Message


class _Ended(NamedTuple):
    """What became of something that was done in a thread of its own."""

    process: ProcessKey | None
    phase: Phase
    result: str
    asked_at_s: float
    message: Message


class _Asked(NamedTuple):
    """A job that was asked to save, and of which it is not known whether it has."""

    at_s: float
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
    """Return the buttons of a notice about an alert; some file reads.

    Parameters
    ----------
    alert
        What the notice is about.
    config
        Says whether, and how, a job may be asked to save.
    info
        Who the process is; None where there is none, or nobody knows.
    booted_at_s
        When the system was booted, as processes' start times were reckoned.
    """
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
    made: Asking = load(ACTIONS, "checkpoint")(
        checkpoint=act.checkpoint, signal=act.signal, argv=act.argv, booted_at_s=booted_at_s
    )
    return made


class ActionHandler:
    """Carries out what was pressed.

    Parameters
    ----------
    config
        All settings.
    silencing
        Keeps silences.
    shelf
        Where actions are written down; None keeps nothing.
    booted_at_s
        When the system was booted, as processes' start times were reckoned.
    saved
        Gives the newest checkpoint of a process, None without one: what confirms that it has saved.
    say
        Shows an answer; None shows it as a pop-up.
    mono
        A clock in seconds that is never set.
    """

    def __init__(
        self,
        config: Config,
        *,
        silencing: ActiveSilences,
        shelf: ProfileStore | None = None,
        booted_at_s: float | None = None,
        saved: Callable[[ProcessKey], Checkpoint | None] = lambda _: None,
        say: Callable[[Message], object] | None = None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.file: Path | None = None
        """The only file that settings are read from, where there is one: absolute."""
        self._waiting: queue.Queue[ButtonPress] = queue.Queue(maxsize=_WAITING)
        self._silencing = silencing
        self._shelf = shelf
        self._booted_at_s = booted_at_s
        self._speaker = ActionReply(say)
        self._mono = mono
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._running: list[threading.Thread] = []
        self._windows: list[subprocess.Popen[bytes]] = []
        self._flooded = False
        self._recent: dict[tuple[str, str], float] = {}
        self._saved = saved
        self._unconfirmed: dict[ProcessKey, _Asked] = {}

    def put(self, name: ButtonName, message: Message) -> None:
        """Take a press, for the next tick. Any thread may call it; of very many some are lost."""
        try:
            self._waiting.put_nowait(ButtonPress(name, message))
        except queue.Full:
            # Once for each flood, which may be of thousands in a second.
            if not self._flooded:
                log.warning("too many buttons were pressed at once; some are lost")
            self._flooded = True

    def step(self, alerts: Callable[[], Iterable[Alert]], now_s: float) -> None:
        """Do what was pressed since the last tick.

        Parameters
        ----------
        alerts
            Gives the alerts that are open now; called only when something was pressed.
        now_s
            Epoch seconds.
        """
        if not self._waiting.empty():
            known = {alert.key: alert for alert in alerts() if alert.state in _OPEN}
            # As many as there can be, not until there are none: a flood may never end.
            for _ in range(self._waiting.qsize()):
                self._begin(self._waiting.get(), known, now_s)
            self._flooded = False
        while not self._ended.empty():
            done = self._ended.get()
            self._write(done.process, done.phase, done.result, now_s)
            if done.process is not None and done.phase == "done":
                self._unconfirmed[done.process] = _Asked(done.asked_at_s, done.message)
        for process, asked in [*self._unconfirmed.items()]:
            self._confirm(process, asked, now_s)
        if self._running:
            self._running = [thread for thread in self._running if thread.is_alive()]
        for window in [*self._windows]:  # to which other threads add
            if window.poll() is not None:
                self._windows.remove(window)

    def close(self, wait_s: float = 0.5) -> None:
        """Let go of the desktop; what still runs is left to end by itself."""
        end_s = self._mono() + wait_s
        for thread in self._running:
            thread.join(max(0.0, end_s - self._mono()))
        self._speaker.close()

    def _begin(self, press: ButtonPress, alerts: dict[str, Alert], now_s: float) -> None:
        mono_s = self._mono()
        self._recent = {at: s for at, s in self._recent.items() if mono_s - s < TWICE_S}
        if self._recent.setdefault((press.name, press.message.id), mono_s) != mono_s:
            return
        log.info("pressed button=%s alert=%s", press.name, press.message.alert_key)
        alert = alerts.get(press.message.alert_key)
        if alert is not None and not _same(alert, press.message):
            alert = None
        if press.name == "show":
            self._show(alert, press.message)
        elif alert is None:
            done = "Nothing was snoozed" if press.name == "snooze" else "Nobody was asked"
            self._answer(press.message, done, "It is over already.")
        elif press.name == "snooze":
            self._snooze(alert, press.message, alerts, now_s)
        else:
            others = [alerts[key] for key in press.message.also if key in alerts]
            self._checkpoint([alert, *others], press.message, now_s)

    def _snooze(
        self, alert: Alert, message: Message, alerts: dict[str, Alert], now_s: float
    ) -> None:
        """Silence the alert, and those that the same notice was about."""
        others = [alerts[key] for key in message.also if key in alerts]
        kept: list[Silence] = []
        for one in (alert, *others):
            made = silences.of_alert(
                one, now_s=now_s, for_s=SNOOZE_S, who=_user(), why="the button on its pop-up"
            )
            kept.append(self._silencing.add(made, now_s))
        head = f"Snoozed until {units.clock(kept[0].until_at_s, now_s=now_s)}"
        value = "You are told all the same when it becomes critical."
        if alert.severity == "critical":
            value = "You are not told of it until then."
        row = kept[0].row
        self._answer(message, head, value, "" if row is None else f"gpuwatchctl snooze clear {row}")

    def _show(self, alert: Alert | None, message: Message) -> None:
        key = message.alert_key
        command = show_command(alert) if alert else ["gpuwatchctl", "alerts", "show", key]
        if not key:
            command = ["gpuwatchctl", "alerts"]
        chosen = self.config.notify.desktop.terminal
        # What it shows is to follow our settings, wherever they are read from.
        given = [] if self.file is None else ["--config", str(self.file)]

        def work() -> None:
            try:
                self._windows.append(terminal.show([command[0], *given, *command[1:]], chosen))
            except GpuwatchdError as error:
                value = f"{sentence(error.message)} Type this in a terminal:"
                head = "No window could be opened"
                self._speaker.send(reply(message, head, value, shlex.join(command)))

        self._start(work, message)

    def _checkpoint(self, alerts: list[Alert], message: Message, now_s: float) -> None:
        """Ask each process that a notice was about: one rank alone can save nothing."""
        ask = _ask(self.config, self._booted_at_s)
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
            self._speaker.send(reply(message, head, value))

        if not self._start(work, message):
            for process in asked:
                self._write(process, "refused", "too much is being done already", now_s)

    def _confirm(self, process: ProcessKey, asked: _Asked, now_s: float) -> None:
        """Say that a job has saved, once a checkpoint is seen that is newer than the wish."""
        newest = self._saved(process)
        if newest is not None and newest.saved_at_s >= asked.at_s - _CLOCKS_S:
            del self._unconfirmed[process]
            by = "as was said" if newest.said_by != "file" else newest.detail or "a new file"
            self._write(process, "done", f"has saved: {by}", now_s, saved=True)
            self._answer(asked.message, "It has saved", by)
        elif not 0 <= now_s - asked.at_s < CONFIRM_S:
            del self._unconfirmed[process]

    def _answer(self, message: Message, head: str, value: str, command: str = "") -> None:
        self._start(lambda: self._speaker.send(reply(message, head, value, command)), message)

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
        self._shelf.write_now(lambda connection: actions.insert(connection, row))


def _same(alert: Alert, message: Message) -> bool:
    """Say whether a notice was about this life of the alert, not about an earlier one."""
    first = messages.message_id(alert, "firing", 1)
    return first in {message.id, message.thread}


def _user() -> str:
    try:
        return text.clean(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return str(os.getuid())
