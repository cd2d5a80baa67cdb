"""Whether processes still live: one poll of kept pidfds, or a read of kept descriptors.

A descriptor belongs to the process and not to its number: once it is held, another process with
the same pid can never be taken for the first.
"""

from __future__ import annotations

import errno
import os
import resource
import select
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.collect.host.procfs import parse_stat, read_some
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from gpuwatchd.collect.host.procfs import Stat

MAX_WATCHED: Final = 1024
"""Most descriptors kept, and never more than a quarter of what the process may open."""
_STAT_BYTES: Final = 1024


class Held(NamedTuple):
    """A descriptor that tells when one process ends."""

    descriptor: int
    is_pidfd: bool


class Watch:
    """The descriptors that are held, and whose they are.

    Parameters
    ----------
    how
        "pidfd", "stat" (a kept descriptor of /proc/PID/stat) or "read" (nothing is kept).
    """

    def __init__(self, proc: Path, how: str) -> None:
        self._proc = proc
        self._how = how
        self._poll = select.poll() if how == "pidfd" else None
        self._pids: dict[int, int] = {}
        self._room = _descriptor_room()

    @staticmethod
    def best() -> str:
        """Return the cheapest way that works here."""
        if not hasattr(os, "pidfd_open"):
            return "stat"
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return "stat"
        return "pidfd"

    def ended(self) -> set[int]:
        """Return the pids whose pidfd says that the process has ended."""
        if self._poll is None or not self._pids:
            return set()
        return {self._pids[descriptor] for descriptor, _ in self._poll.poll(0)}

    def hold(self, pid: int) -> Held | None:
        """Open a descriptor; None where none can be had, or there are too many."""
        if self._how == "read" or len(self._pids) >= self._room:
            return None
        try:
            if self._poll is not None:
                return Held(os.pidfd_open(pid), is_pidfd=True)
            path = self._proc / str(pid) / "stat"
            return Held(os.open(path, os.O_RDONLY | os.O_CLOEXEC), is_pidfd=False)
        except OverflowError:  # a number that no process can have
            return None
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self._room = len(self._pids)
            return None

    def attend(self, pid: int, held: Held) -> None:
        """Let :meth:`ended` tell of this process from now on."""
        self._pids[held.descriptor] = pid
        if held.is_pidfd and self._poll is not None:
            self._poll.register(held.descriptor, select.POLLIN)

    def let_go(self, held: Held) -> None:
        """Close a descriptor, attended or not."""
        if self._pids.pop(held.descriptor, None) is not None and held.is_pidfd:
            assert self._poll is not None  # noqa: S101 - a pidfd is opened for a poll only
            self._poll.unregister(held.descriptor)
        os.close(held.descriptor)

    @staticmethod
    def stat(held: Held) -> Stat | None:
        """Return what a kept descriptor of /proc/PID/stat says; None when the process ended."""
        try:
            return parse_stat(os.pread(held.descriptor, _STAT_BYTES, 0))
        except OSError:  # ESRCH
            return None


def _descriptor_room() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WATCHED if soft == resource.RLIM_INFINITY else max(0, min(MAX_WATCHED, soft // 4))


# One process at one instant: does it exist, in which state, how much of a CPU has it used.

PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat."""

    name: str
    """At most 15 bytes of it."""
    state: str
    """Letter of the kernel: R, S, D, Z, ..."""
    parent_pid: int
    started_s: float
    """Seconds after the boot: with the pid, the identity of the process."""
    cpu_s: float
    """Time that it has had a CPU so far, all threads, in user and kernel mode."""


def probe(pid: int, proc: str | Path = "/proc") -> ProcessStat | None:
    """Return what the kernel says of a process now; None where it says nothing (or has no /proc).

    One read, some 10 µs.
    """
    raw = read_some(f"{proc}/{pid}/stat", _STAT_BYTES)
    stat = parse_stat(raw)
    if stat is None:
        return None
    fields = raw[raw.rfind(b")") + 1 :].split(maxsplit=14)
    try:
        ticks = int(fields[11]) + int(fields[12])
    except ValueError:
        return None
    name = clean(stat.name)
    started_s = stat.starttime / _TICKS_PER_S
    return ProcessStat(name, stat.state, stat.parent_pid, started_s, ticks / _TICKS_PER_S)


def absent(pid: int, proc: Path = PROC) -> bool:
    """Return whether there is certainly no such process, zombies included.

    Asked of the kernel by the null signal, which reaches nobody: files under /proc may be hidden.
    """
    if proc != PROC:
        return not (proc / str(pid)).exists()
    if pid <= 0:  # a group of processes, or all of them
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False  # somebody else's: it exists
    return False
