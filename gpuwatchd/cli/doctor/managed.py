"""How the service manager sees the daemon: unit, failures, restarts, memory, linger."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.cli.doctor.answer import Check, ok, warning
from gpuwatchd.core import text
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around
    from gpuwatchd.core.model import Availability
    from gpuwatchd.core.ports import Manager

_SHOWN = (
    "LoadState,ActiveState,Result,NRestarts,FragmentPath,NeedDaemonReload,UnitFileState,"
    "MemoryMax,MemoryCurrent"
)
_MARK = "gpuwatchctl service install"
_MANY_RESTARTS = 3
_LOGS = "gpuwatchctl service logs"
_ASK_S = 5.0


def check(around: Around) -> Iterator[Check]:
    """Yield what the service manager knows of the daemon."""
    from gpuwatchd.core import registry  # noqa: PLC0415
    from gpuwatchd.service import MANAGERS  # noqa: PLC0415

    name = "launchd" if sys.platform == "darwin" else "systemd"
    try:
        manager: Manager = registry.load(MANAGERS, name)()
        availability: Availability = manager.probe()
    except (ImportError, AttributeError) as error:
        yield warning("service-broken", "service", f"{name}: {error}", "reinstall gpuwatchd")
        return
    if name == "systemd" and around.with_systemd:
        yield from _unit(_shown(around, system=True), None, system=True)
    if not availability.ok:
        yield _unmanaged(availability, alive=around.alive or around.denied)
        return
    yield ok("service", availability.reason)
    if name == "systemd":
        values = _shown(around, system=False)
        yield from _unit(values, manager, system=False)
        yield from _linger(around, values)


def _unmanaged(availability: Availability, *, alive: bool) -> Check:
    if alive:
        # Run by hand, by a container or by the machine: it runs, and that is what counts.
        return ok("service", f"{availability.reason}; the daemon runs without it")
    hint = availability.hint or "run the daemon yourself: gpuwatchd"
    return warning("service-none", "service", availability.reason, hint)


def _shown(around: Around, *, system: bool) -> dict[str, str]:
    """Return what systemctl shows of the unit; nothing where it does not answer."""
    whose = [] if system else ["--user"]
    argv = ["systemctl", *whose, "show", "gpuwatchd.service", f"--property={_SHOWN}"]
    done = around.run(argv, timeout_s=_ASK_S)
    if done.code:
        return {}
    return dict(line.split("=", 1) for line in done.output.splitlines() if "=" in line)


def _unit(values: dict[str, str], manager: Manager | None, *, system: bool) -> Iterator[Check]:
    if values.get("LoadState") != "loaded":
        return
    name = "machine's service" if system else "service"
    sudo, whose = ("sudo ", "") if system else ("", "--user ")
    again = f"{sudo}systemctl {whose}restart gpuwatchd"
    logs = "sudo journalctl -u gpuwatchd" if system else _LOGS
    result = values.get("Result", "success")
    if result == "oom-kill":
        yield warning(
            "service-memory", name, "was ended because it went beyond its memory limit",
            f"{logs}; a higher MemoryMax= in: {sudo}systemctl {whose}edit gpuwatchd",
        )  # fmt: skip
    elif values.get("ActiveState") == "failed":
        words = f"failed ({text.clean(result)})"
        yield warning("service-failed", name, words, f"{logs}, then: {again}")
    restarts = values.get("NRestarts", "")
    if restarts.isdecimal() and int(restarts) >= _MANY_RESTARTS:
        words = f"was started again {restarts} times by systemd since it was installed or booted"
        yield warning("service-restarts", name, words, logs)
    if values.get("NeedDaemonReload") == "yes":
        words = "its unit was changed, and systemd still has the old one"
        hint = f"{sudo}systemctl {whose}daemon-reload && {again}"
        yield warning("service-reload", name, words, hint)
    if values.get("ActiveState") == "active" and values.get("UnitFileState") == "disabled":
        hint = f"{sudo}systemctl {whose}enable gpuwatchd"
        yield warning("service-disabled", name, "runs, but is not started the next time", hint)
    yield from _memory(values, name, f"{sudo}systemctl {whose}edit gpuwatchd")
    if manager is not None:
        yield from _stale(values.get("FragmentPath", ""), manager)


def _memory(values: dict[str, str], name: str, edit: str) -> Iterator[Check]:
    most, now = values.get("MemoryMax", ""), values.get("MemoryCurrent", "")
    if most.isdecimal() and now.isdecimal() and int(now) > 0.9 * int(most):
        words = f"uses {100 * int(now) // int(most)} % of its memory limit"
        yield warning("service-memory", name, words, f"a higher MemoryMax= in: {edit}")


def _stale(path: str, manager: Manager) -> Iterator[Check]:
    """Yield when a unit that we wrote is not what we would write today."""
    try:
        written = Path(path).read_text(encoding="utf-8") if path else ""
        wanted = manager.render()
    except (OSError, UnicodeDecodeError, GpuwatchdError):
        return
    if _MARK not in written:
        return  # the user's own: not ours to judge
    starts, ours = (_line(unit, "ExecStart=") for unit in (written, wanted))
    if starts != ours:
        if _program(starts) == _program(ours):
            return  # a package's, which starts this very daemon by the link in /usr/bin
        yield warning(
            "service-other", "service",
            f"{path} starts the daemon of another installation", "gpuwatchctl service install",
        )  # fmt: skip
    elif _settled(written) != _settled(wanted):
        yield warning(
            "service-old", "service", f"{path} is not what this version would write",
            "gpuwatchctl service install",
        )  # fmt: skip


def _line(unit: str, start: str) -> str:
    return next((line for line in unit.splitlines() if line.startswith(start)), "")


def _program(line: str) -> str:
    """Return the file that a line of a unit starts in the end; the line where that is unclear."""
    words = line.removeprefix("ExecStart=").split('"')
    return os.path.realpath(words[1]) if len(words) == 3 else line


def _settled(unit: str) -> list[str]:
    """Return the unit without what follows from the shell that it was written in."""
    return [line for line in unit.splitlines() if not line.startswith(("Environment=", "#"))]


def _linger(around: Around, values: dict[str, str]) -> Iterator[Check]:
    """Yield from /var/lib/systemd/linger: one file per user whose services outlive the session."""
    import pwd  # noqa: PLC0415

    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    if (around.root / "var/lib/systemd/linger" / user).exists():
        yield ok("linger", f"services of {user} go on after logout")
    elif values.get("LoadState") != "loaded":
        return  # nothing of ours that could end
    elif around.environ.get("DISPLAY") or around.environ.get("WAYLAND_DISPLAY"):
        words = "the daemon ends when you log out of the desktop"
        yield ok("linger", f"{words} (loginctl enable-linger {user} keeps it)")
    else:
        hint = f"loginctl enable-linger {user}"
        yield warning("linger-missing", "linger", "the daemon ends when you log out", hint)
