"""The daemon's lines in the journal, also for those who may not read all of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpuwatchd.core import text
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.service.runner import show
from gpuwatchd.service.systemctl import NAME, user_name
from gpuwatchd.service.unit import UNIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.service.runner import Done, Runner

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
