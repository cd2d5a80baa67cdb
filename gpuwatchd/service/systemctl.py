"""One unit asked of and told to systemd, of the user or of the machine."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.core import text
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.service import account
from gpuwatchd.service.runner import show
from gpuwatchd.service.unit import UNIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.service.runner import Done, Runner

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
    """``systemctl`` of one scope.

    Parameters
    ----------
    run
        Runs a command.
    system
        The machine's manager instead of the user's.
    path
        Where programs are looked for, as in ``PATH``; by default our own.
    """

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

    @property
    def verb(self) -> str:
        """Our own verb as a person types it, to be followed by its name."""
        if not self.system:
            return "gpuwatchctl service"
        return f"sudo {account.ourselves(self._path)} service"

    def own(self, name: str) -> str:
        """Return our own verb of this scope as a person types it."""
        return f"{self.verb} {name}{' --system' if self.system else ''}"

    def ask(self, *words: str, timeout_s: float = 30.0) -> Done:
        """Run it and return how it ended."""
        return self._run(["systemctl", *self._scope, *words], timeout_s=timeout_s)

    def must(self, *words: str, timeout_s: float = 30.0, hint: str = "") -> Done:
        """Run it.

        Raises
        ------
        ServiceError
            When it fails, with its last words.
        """
        done = self.ask(*words, timeout_s=timeout_s)
        if done.code:
            command = " ".join((self.shown.removeprefix("sudo "), *words))
            raise ServiceError(NAME, command, done.last_line, hint=hint or self.login_hint)
        return done

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
_PRIORITIES = {"debug": "7", "info": "6", "warning": "4", "error": "3"}


def _selection(*, system: bool) -> list[str]:
    # Not --user: that reads one's own journal file only, which there is none of unless the
    # journal is kept on disk.
    return [f"--unit={UNIT}" if system else f"--user-unit={UNIT}", "--no-pager"]


def last_lines(run: Runner, *, system: bool) -> tuple[str, ...]:
    """Return the last lines, without time and name; none where they may not be read."""
    argv = ["journalctl", *_selection(system=system), "--quiet", "--output=cat"]
    done = run([*argv, f"--lines={LAST_LINES}"])
    if done.code or _refused(done):
        return ()
    return tuple(text.clean(line) for line in done.output.splitlines()[-LAST_LINES:])


def show_lines(
    run: Runner,
    environ: Mapping[str, str],
    *,
    system: bool,
    lines: int,
    follow: bool,
    since_at_s: float | None,
    level: str,
) -> int:
    """Show the lines on our own terminal; return the viewer's exit code.

    Parameters
    ----------
    lines
        How many, the last ones.
    since_at_s
        None before this instant (epoch seconds); None: all.
    level
        "debug", "info", "warning" or "error": nothing less important.

    Raises
    ------
    ServiceError
        When the journal may not be read, or there is none.
    """
    argv = ["journalctl", *_selection(system=system)]
    probe = run([*argv, "--lines=1"])
    if _refused(probe) or (probe.code and probe.output):
        raise _unreadable(probe, system=system)
    # Quiet: that lines of others are not shown is no news here.
    argv += ["--quiet", f"--lines={lines}"]
    if since_at_s is not None:
        argv.append(f"--since=@{since_at_s:.0f}")
    if level != "debug":
        argv.append(f"--priority={_PRIORITIES[level]}")
    return show([*argv, "--follow"] if follow else argv, environ)


def _refused(done: Done) -> bool:
    # Some of the journal may be readable all the same; what there is of ours is then shown.
    hidden = "insufficient permissions" in done.output or "not seeing messages" in done.output
    nothing = "-- No entries --" in done.output
    return hidden and (nothing or done.code != 0)


def _unreadable(done: Done, *, system: bool) -> ServiceError:
    if not _refused(done):
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
