"""One unit asked of and told to systemd, of the user or of the machine."""

from __future__ import annotations

import math
import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from gpuwatchd.core import text, units
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.core.model import ServiceState
from gpuwatchd.service import account
from gpuwatchd.service.unit_files import UNIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.service.unit_files import Done, Runner

START_S = 200.0
"""Starting waits until the daemon watches: longer than the unit's own patience."""
PROBE_S = 4.0
"""A manager that has not said by then whether it is there hangs."""
NAME = "systemd"


def user_name() -> str:
    """Return who we are; the number where the account has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class Systemctl:
    """``systemctl`` of one scope; programs are looked for in ``path``, by default our own PATH."""

    def __init__(self, run: Runner, *, system: bool, path: str | None = None) -> None:
        self._run = run
        self.system = system
        self._path = path
        # Without a terminal nobody can answer, and a clear refusal is better than a question.
        self._scope = ["--no-ask-password"] if system else ["--user"]

    @property
    def shown(self) -> str:
        """The command as a person types it."""
        return "sudo systemctl" if self.system else "systemctl --user"

    def own(self, name: str) -> str:
        """Return our own verb of this scope as a person types it."""
        if self.system:
            return f"sudo {account.ourselves(self._path)} service {name} --system"
        return f"gpuwatchctl service {name}"

    def ask(self, *words: str, timeout_s: float = 30.0) -> Done:
        """Run it and return how it ended."""
        return self._run(["systemctl", *self._scope, *words], timeout_s=timeout_s)

    def must(self, *words: str) -> None:
        """Run it.

        Raises
        ------
        ServiceError
            When it fails, with its last words.
        """
        done = self.ask(*words)
        if done.code:
            command = " ".join((self.shown.removeprefix("sudo "), *words))
            raise ServiceError(NAME, command, done.last_line, hint=self.login_hint)

    def show(self, *names: str) -> dict[str, str]:
        """Return properties of the unit; instants as ``@`` and epoch seconds. {} without answer."""
        done = self.ask("show", UNIT, "--timestamp=unix", f"--property={','.join(names)}")
        return {} if done.code else _pairs(done.output)

    def environment(self, *, needed: bool) -> dict[str, str]:
        """Return the manager's own variables; it looks for units by them, not by the shell's.

        Raises
        ------
        ServiceError
            When it is needed and does not answer.
        """
        done = self.ask("show-environment")
        if done.code and needed:
            raise ServiceError(
                NAME,
                self.shown.removeprefix("sudo "),
                f"no {self._whose} manager: {done.last_line}",
                hint=self.login_hint,
            )
        return {} if done.code else _pairs(done.output)

    def unit_path(self) -> list[Path]:
        """Return where the manager looks for units, the first wins; empty without an answer."""
        done = self.ask("show", "--property=UnitPath", "--value")
        return (
            [] if done.code else [Path(value) for value in done.output.split() if value[0] == "/"]
        )

    @property
    def _whose(self) -> str:
        return "system" if self.system else "user"

    @property
    def login_hint(self) -> str:
        """What mends a manager that does not answer."""
        if self.system:
            return self.own("status") if os.geteuid() else "is systemd the init of this machine?"
        machine = "" if os.geteuid() else "; for the machine: gpuwatchctl service install --system"
        return (
            "log in as this user itself (ssh or a console, not su or sudo),"
            f" or have it run without a login: sudo loginctl enable-linger {user_name()}{machine}"
        )

    def unreachable(self) -> str:
        """Return why the manager cannot be reached; "" when it can."""
        done = self.ask("show-environment", timeout_s=PROBE_S)
        return f"no {self._whose} manager: {text.clean(done.last_line)}" if done.code else ""


def _pairs(output: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


# The daemon's lines in the journal, also for those who may not read all of it.

LAST_LINES = 8
PRIORITIES = {"debug": "7", "info": "6", "warning": "4", "error": "3"}


def selection(*, system: bool) -> list[str]:
    """Return the options that choose the unit's lines."""
    # Not --user: that reads one's own journal file only, which there is none of unless the
    # journal is kept on disk.
    return [f"--unit={UNIT}" if system else f"--user-unit={UNIT}", "--no-pager"]


def last_lines(run: Runner, *, system: bool) -> tuple[str, ...]:
    """Return the last lines, without time and name; none where they may not be read."""
    argv = ["journalctl", *selection(system=system), "--quiet", "--output=cat"]
    done = run([*argv, f"--lines={LAST_LINES}"])
    if done.code or refused(done):
        return ()
    return tuple(text.clean(line) for line in done.output.splitlines()[-LAST_LINES:])


def refused(done: Done) -> bool:
    """Say whether the journal may not be read."""
    # Some of the journal may be readable all the same; what there is of ours is then shown.
    hidden = "insufficient permissions" in done.output or "not seeing messages" in done.output
    return hidden and ("-- No entries --" in done.output or done.code != 0)


def unreadable(done: Done, *, system: bool) -> ServiceError:
    """Return why no lines can be shown."""
    if not refused(done):
        return ServiceError(NAME, "journalctl", done.last_line)
    if system:
        whole = f"sudo journalctl --unit={UNIT}"
    else:
        whole = f"sudo journalctl _SYSTEMD_USER_UNIT={UNIT} _UID={os.getuid()}"
    return ServiceError(
        NAME,
        "journalctl",
        "you may not read the journal here",
        hint=f"{whole}; for good: sudo usermod -aG systemd-journal {user_name()}",
        page="errors#journal",
    )


# What systemd says of the unit, as a :class:`~gpuwatchd.core.model.ServiceState`.

PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "Result",
    "UnitFileState", "ActiveEnterTimestamp", "InactiveEnterTimestamp", "ExecMainStatus",
    "MemoryCurrent", "MemoryMax", "WatchdogUSec", "FragmentPath", "DropInPaths", "NeedDaemonReload",
)  # fmt: skip
_State: TypeAlias = Literal["running", "starting", "stopping", "stopped", "failed", "not-installed"]
_STATES: dict[str, _State] = {
    "active": "running",
    "reloading": "running",
    "activating": "starting",
    "deactivating": "stopping",
    "inactive": "stopped",
    "failed": "failed",
}
_EXEC, _CONFIG, _CREDENTIALS, _GROUP, _USER = 203, 78, 243, 216, 217
_NEVER = 2**63
"""Sizes from here on are no limits: systemd writes 2**64 - 1 where there is none."""


def service_state(values: Mapping[str, str], ctl: Systemctl) -> ServiceState:
    """Return the state that properties tell as ``systemctl show`` writes them; {} of no answer."""
    loaded = values.get("LoadState", "not-found")
    if loaded == "not-found":
        install = (ctl.own("install"),)
        return ServiceState(state="not-installed", text="not installed", hints=install)
    state = _STATES.get(values.get("ActiveState", ""), "stopped")
    result = values.get("Result", "success")
    code = _whole(values.get("ExecMainStatus"))
    since = "ActiveEnterTimestamp" if state == "running" else "InactiveEnterTimestamp"
    service_state = ServiceState(
        state=state,
        text="",
        enabled={"enabled": True, "enabled-runtime": True, "disabled": False}.get(
            values.get("UnitFileState", "")
        ),
        since_at_s=_instant(values.get(since)),
        pid=_whole(values.get("MainPID")) or None,
        restarts=_whole(values.get("NRestarts")),
        result="" if result == "success" else text.clean(result),
        exit_code=code if result == "exit-code" else None,
        memory_bytes=_size(values.get("MemoryCurrent")),
        memory_max_bytes=_size(values.get("MemoryMax")),
        watchdog_s=_span(values.get("WatchdogUSec")),
        file=text.clean(values.get("FragmentPath", ""), limit=4096),
        beside=tuple(text.clean(value) for value in values.get("DropInPaths", "").split()),
        hints=tuple(_hints(values, state, code, ctl)),
    )
    masked = ["masked"] if loaded == "masked" else []
    value = ""
    if state in {"running", "starting"}:
        value = text.cut_words(text.clean(values.get("StatusText", ""), limit=4096), text.MAX_CHARS)
    words = ", ".join([*masked, *_words(service_state), *([value] if value else [])])
    return msgspec.structs.replace(service_state, text=words)


def _words(state: ServiceState) -> list[str]:
    parts: list[str] = [state.state]
    if state.pid is not None:
        parts.append(f"pid {state.pid}")
    if state.result:
        code = "" if state.exit_code is None else f" {state.exit_code}"
        parts.append(f"last result: {state.result}{code}")
    if state.restarts:
        parts.append(f"restarts: {state.restarts}")
    return parts


def _hints(values: Mapping[str, str], state: _State, code: int | None, ctl: Systemctl) -> list[str]:
    hints = []
    result = values.get("Result", "success")
    if values.get("LoadState") == "masked":
        return [f"{ctl.shown} unmask gpuwatchd"]
    if values.get("LoadState") in {"bad-setting", "error"}:
        return [f"systemd refuses the unit: {ctl.own('install')} writes it again"]
    if state == "failed" or (state == "starting" and result != "success"):
        hints += _why_failed(result, code, ctl)
    elif state == "stopped":
        hints.append(ctl.own("start"))
    if values.get("NeedDaemonReload") == "yes":
        hints.append(f"its unit was changed: {ctl.shown} daemon-reload && {ctl.own('restart')}")
    if values.get("UnitFileState") == "disabled" and state == "running":
        hints.append(f"it does not start by itself: {ctl.own('install')}")
    return hints


def _why_failed(result: str, code: int | None, ctl: Systemctl) -> list[str]:
    by_code = {
        _CONFIG: "its configuration is wrong: gpuwatchctl config validate",
        _EXEC: f"its program is missing: {ctl.own('install')}",
        _CREDENTIALS: f"a credential file is missing: {ctl.own('install')} --credential NAME=FILE",
        _GROUP: f"its group is missing: {ctl.own('install')}",
        _USER: f"its user is missing: {ctl.own('install')}",
    }
    if result == "exit-code" and code in by_code:
        return [by_code[code]]
    values = {
        "watchdog": "it hung: check for a GPU that does not answer (gpuwatchctl doctor)",
        "oom-kill": "it needed more than MemoryMax: see the log, and please report it",
        "start-limit-hit": f"it failed ten times within ten minutes: {ctl.own('logs')}",
        "timeout": "no GPU answered in time, or the disk is stuck: gpuwatchctl doctor",
    }
    return [values.get(result, ctl.own("logs"))]


def _whole(word: str | None) -> int | None:
    return int(word) if word and word.isascii() and word.isdigit() else None


def _instant(word: str | None) -> float | None:
    at_s = _whole(word.removeprefix("@")) if word else None
    return float(at_s) if at_s else None


def _size(word: str | None) -> int | None:
    size = _whole(word)
    return size if size is not None and size < _NEVER else None


def _span(word: str | None) -> float | None:
    """Return seconds of "1min", "1min 30s" or "infinity"; None for off."""
    try:
        seconds = units.parse_duration((word or "").replace("min", "m").replace(" ", ""))
    except ValueError:
        return None
    return seconds if seconds and math.isfinite(seconds) else None
