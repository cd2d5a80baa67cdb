"""Ending one process of the user's own that holds memory without working with it.

The process is held by the kernel's descriptor before anything that decides is read. As long as a
signal through that descriptor arrives, everything that was read in between was of this process.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.act.managers import command_for, manager_of
from gpuwatchd.act.target import Target, read
from gpuwatchd.analysis.frameworks import GRAPHICS
from gpuwatchd.analysis.idle import DAEMONS
from gpuwatchd.core import text
from gpuwatchd.core.codes import ReapResult
from gpuwatchd.core.errors import NotAllowed, TargetChanged, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatchd.act.managers import Manager
    from gpuwatchd.core.model import HoldingKind, ProcessInfo, ProcessKey

FREED: Final[frozenset[HoldingKind]] = frozenset(
    {"idle", "hung-rank", "orphaned-runner", "no-model", "leaked-kv"}
)
"""What the end of its process frees; no signal frees the other kinds."""
_NEVER: Final = DAEMONS | {
    *("systemd", "(sd-pam)", "dbus-daemon", "dbus-broker", "login", "gpuwatchd"),
    *("sshd", "sshd-session", "sshd-auth", "mosh-server", "tmux: server", "tmux", "screen"),
    *("X", "Xorg", "Xvfb", "Xvnc", "Xtigervnc", "Xwayland", "gnome-shell", "kwin_wayland"),
    *("kwin_x11", "plasmashell", "mutter", "sway", "Hyprland", "weston", "gdm", "sddm", "lightdm"),
}
_COMM_CHARS: Final = 15
"""The kernel cuts a name after so many."""
_CUT: Final = frozenset(name[:_COMM_CHARS] for name in _NEVER)
_KERNEL_THREAD: Final = 0x0020_0000
_STUCK_AGAIN_S: Final = 0.2
"""Every disk access waits in state D for a moment."""
KILL_S: Final = 10.0
"""How long the kernel is given to take a killed process away."""
_STATUS: Final = re.compile(rb"^(Uid|TracerPid):[ \t]*(.*)$", re.MULTILINE)
_UNIFIED: Final = re.compile(rb"^(?:0:|\d+:name=systemd):(/.+)$", re.MULTILINE)
"""The control group that a manager has made, unless it is the root."""


class Subject(NamedTuple):
    """Who a process is, and as what it is listed now."""

    info: ProcessInfo
    kinds: frozenset[HoldingKind]
    """() where it is not listed as idle memory, on no device."""
    busy_on: str = ""
    """A device that it has memory on, or works on, without being listed for it."""
    launcher: tuple[int, str] | None = None
    """Pid and name of what has started it as one rank of several."""
    needs: str = ""
    """What is needed before it would be listed."""


@contextlib.contextmanager
def hold(
    key: ProcessKey,
    look: Callable[[], Subject],
    *,
    booted_at_s: float | None,
    proc: Path = Path("/proc"),
) -> Iterator[tuple[Target, tuple[signal.Signals, ...]]]:
    """Hold a process and yield it with the signals that would end it, in order.

    Parameters
    ----------
    key
        The process as it was listed.
    look
        Says who it is and as what it is listed now. Called once the kernel holds the process.

    Raises
    ------
    NotAllowed
        It is not to be ended by us: ``page`` says why.
    TargetGone, TargetChanged
        The process has ended, or the pid is another one's.
    """
    with Target(key, booted_at_s=booted_at_s, proc=proc) as target:
        target.claim()
        subject = look()
        _require(target, subject, proc)
        yield target, _signals(target)


def end(
    target: Target,
    signals: tuple[signal.Signals, ...],
    grace_s: float,
    may_kill: Callable[[], bool],
    sent: list[str],
) -> ReapResult:
    """Send the signals in order, each with its time to end; return what came of it.

    Parameters
    ----------
    may_kill
        Asked when nothing else has ended it.
    sent
        Takes the names of those that were sent, also where this is interrupted.

    Raises
    ------
    NotAllowed, TargetGone, TargetChanged
        Before the first one was sent.
    """
    for number in signals:
        if _deliver(target, number, sent) or target.wait(grace_s):
            return ReapResult.ENDED
    if wait_channel(target) is not None:
        return ReapResult.WAITS
    if not may_kill():
        return ReapResult.RUNS
    if _deliver(target, signal.SIGKILL, sent) or target.wait(KILL_S):
        return ReapResult.ENDED
    return ReapResult.RUNS if wait_channel(target) is None else ReapResult.WAITS


def wait_channel(target: Target) -> str | None:
    """Return where in the kernel a process waits (state D), "?" unknown; None: it does not."""
    for again in (True, False):
        if target.fields()[:1] != [b"D"]:
            return None
        if again:
            time.sleep(_STUCK_AGAIN_S)
    return text.clean(target.read("wchan"), limit=64) or "?"


def _deliver(target: Target, number: signal.Signals, sent: list[str]) -> bool:
    """Send a signal, and let a stopped process take it; return whether it has ended already."""
    try:
        target.send(number)
        sent.append(number.name)
        if number is not signal.SIGKILL and target.fields()[:1] == [b"T"]:
            target.send(signal.SIGCONT)
            sent.append(signal.SIGCONT.name)
    except (TargetGone, TargetChanged):  # the pid may have been given anew since
        if not sent:
            raise
        return True
    return False


def _signals(target: Target) -> tuple[signal.Signals, ...]:
    """Return what ends it with the least loss.

    SIGINT ends a Python job before its handler of SIGTERM can save, hence SIGTERM first where it
    has one. Without either handler both end it the same way.
    """
    if target.handles(signal.SIGTERM) or not target.handles(signal.SIGINT):
        return (signal.SIGTERM,)
    return (signal.SIGINT, signal.SIGTERM)


def require_no_part_of_the_system(target: Target, info: ProcessInfo, proc: Path) -> None:
    """Raise NotAllowed for what is the system's, a session's or our own, and where none is held."""
    name, by_hand = target.name, f"kill -TERM {target.key.pid}"
    status = dict(_STATUS.findall(target.read("status")))
    if len(fields := target.fields()) < 7 or len(status) < 2:
        raise TargetGone(f"{name} has ended, or its files cannot be read")
    if not target.held:
        why = "no process can be held here (pidfd): another one that has got the pid could be hit"
        raise NotAllowed(why, hint=by_hand, page="errors#no-pidfd")
    names = {info.name[:_COMM_CHARS], name.rpartition("[")[0]}
    own = {*_UNIFIED.findall(read(proc, "self", "cgroup"))}
    reasons = {
        "is a thread of the kernel": int(fields[6]) & _KERNEL_THREAD,
        "runs with another user's rights": len({*status[b"Uid"].split()}) != 1,
        "leads the session of a terminal": fields[4] != b"0" and int(fields[3]) == target.key.pid,
        "belongs to the system or to a session": names & _CUT or info.unit == "init.scope",
        "draws the screen": info.framework in GRAPHICS,
        "is traced by another process": int(status[b"TracerPid"]),
        "is in the control group of this command": own & {*_UNIFIED.findall(target.read("cgroup"))},
    }
    for why in (why for why, applies in reasons.items() if applies):
        raise NotAllowed(f"{name} {why}", hint=by_hand, page="errors#never-ended")


def require_idle(target: Target, subject: Subject) -> None:
    """Raise NotAllowed unless it is listed as memory that its end would free, and works nowhere."""
    name = target.name
    require_freed(name, subject.kinds)
    if subject.busy_on or not subject.kinds:
        why = "is not listed as idle memory"
        if subject.busy_on:
            why = f"works, or has memory in use, on {subject.busy_on}"
        hint = f"{subject.needs}; to end it all the same: kill -TERM {target.key.pid}"
        raise NotAllowed(f"{name} {why}", hint=hint, page="errors#not-idle")


def _require(target: Target, subject: Subject, proc: Path) -> None:
    """Raise NotAllowed unless the process may be ended by us."""
    require_no_part_of_the_system(target, subject.info, proc)
    require_idle(target, subject)
    name = target.name
    if command := _managed(manager_of(subject.info, proc=proc), target.key):
        why = f"{name} has a manager, which would miss it or start it again"
        raise NotAllowed(why, hint=command, page="errors#managed")
    if subject.launcher is not None:
        why = f"{name} is a rank that {subject.launcher[1]} has started: all ranks end with that"
        raise NotAllowed(why, hint=f"kill -TERM {subject.launcher[0]}", page="errors#managed")
    if (channel := wait_channel(target)) is not None:
        why = f"{name} waits in the kernel, in {channel}: no signal helps"
        raise NotAllowed(why, hint="gpuwatchctl zombies", page="errors#no-signal-frees")


def require_freed(name: str, kinds: frozenset[HoldingKind]) -> None:
    """Raise NotAllowed for what no signal frees, whether its process still exists or not."""
    if rest := kinds - FREED:
        why = f"{name} is listed as {', '.join(sorted(rest))}: no signal frees that memory"
        raise NotAllowed(why, hint="gpuwatchctl zombies --wide", page="errors#no-signal-frees")


def _managed(manager: Manager, key: ProcessKey) -> str:
    """Return how the manager of a process ends or restarts it; "" where it has none."""
    if manager.kind == "slurm":
        return f"scancel -b --signal=TERM {manager.name}"
    return "" if manager.kind == "bare" else command_for("restart", manager, key)
