"""How a serving engine was started: the command lines of a process and its ancestors.

Read when a process that serves is first seen, and not kept: a command line may hold secrets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis.frameworks.engine_addresses import VARIABLES, Launch
from gpuwatchd.collect.host.procfs import boot_time, parse_stat, read_bytes, read_some

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessKey

MOST_ANCESTORS: Final = 6
_LAUNCH_BYTES: Final = 128 * 1024
_SAME_S: Final = 1.5
"""Start times that differ by less are of one process: some count from a rounded boot."""


def launches(
    key: ProcessKey, booted_at_s: float | None = None, proc_root: str | Path = "/proc"
) -> tuple[Launch, ...]:
    """Return how a process and its ancestors were started, nearest first.

    Empty when the process has ended, or its number belongs to another one by now: a process of a
    log or of a simulation is never taken for one that runs here.

    Parameters
    ----------
    booted_at_s
        From when its start time counts; None takes what the kernel says now.
    proc_root
        Where /proc is; without one psutil answers.
    """
    proc = Path(proc_root)
    if key.started_at_s is None or key.pid <= 0:
        return ()
    if not (proc / "stat").exists():
        return _by_psutil(key)
    booted_s = boot_time(proc) if booted_at_s is None else booted_at_s
    if booted_s is None:
        return ()
    found: list[Launch] = []
    pid = key.pid
    while pid > 1 and len(found) <= MOST_ANCESTORS:
        folder = proc / str(pid)
        stat = parse_stat(read_bytes(folder / "stat"))
        if stat is None:
            break
        if not found:
            started_s = booted_s + stat.starttime / os.sysconf("SC_CLK_TCK")
            if abs(started_s - key.started_at_s) > _SAME_S:
                return ()
        raw = read_some(folder / "cmdline", _LAUNCH_BYTES).rstrip(b"\0")
        argv = tuple(word.decode("utf-8", "replace") for word in raw.split(b"\0")) if raw else ()
        found.append(Launch(pid, argv, _variables(read_some(folder / "environ", _LAUNCH_BYTES))))
        pid = stat.parent_pid
    return tuple(found)


def _variables(environ: bytes) -> tuple[tuple[str, str], ...]:
    """Return the few variables that say where an engine listens, and nothing else."""
    pairs = []
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode("ascii", "replace") in VARIABLES:
            pairs.append((name.decode("ascii"), value.decode("utf-8", "replace")))
    return tuple(pairs)


def _by_psutil(key: ProcessKey) -> tuple[Launch, ...]:
    """Return the same where there is no /proc; not verified on macOS hardware."""
    import psutil  # noqa: PLC0415 - only where there is no /proc

    found: list[Launch] = []
    try:
        process = psutil.Process(key.pid)
        if abs(process.create_time() - (key.started_at_s or 0.0)) > _SAME_S:
            return ()
        family = (process, *process.parents()[:MOST_ANCESTORS])
        found.extend(Launch(one.pid, tuple(one.cmdline())) for one in family if one.pid > 1)
    except (psutil.Error, OSError):
        return tuple(found)  # as far as it may be read
    return tuple(found)
