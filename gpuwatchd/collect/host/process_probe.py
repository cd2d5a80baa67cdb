"""One process at one instant: does it exist, in which state, how much of a CPU has it used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from gpuwatchd.collect.host.files import parse_stat
from gpuwatchd.core.text import clean

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
    try:
        descriptor = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        raw = os.read(descriptor, 1024)
    except OSError:  # it has ended since
        return None
    finally:
        os.close(descriptor)
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
