"""Who the processes of this container are.

The pids that drivers name belong to the host, so that inside a container nobody is named. Here they
come from the container's own /proc: they are local, and this source says itself who they are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.drm.sysfs import read_text, word
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_INITIAL: Final = "pid:[4026531836]"
"""What /proc/self/ns/pid is on a host: the number is part of the kernel's interface."""
_ARGV_BYTES: Final = 16 * 1024
_STAT_BYTES: Final = 1 << 20
"""The line before the boot time counts every interrupt of every processor."""


def is_contained(proc: Path) -> bool:
    """Say whether this process has a pid namespace of its own."""
    try:
        return str((proc / "self/ns/pid").readlink()) != _INITIAL
    except OSError:
        return False


class Names:
    """Identities, each read once per life of a process.

    Parameters
    ----------
    proc
        Where /proc is.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[tuple[int, int], ProcessInfo] = {}
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._booted_at_s: int | None = None

    def of(self, pids: Iterable[int]) -> dict[int, ProcessInfo]:
        """Return pid -> who it is; a process that has just ended is left out."""
        if self._booted_at_s is None:
            self._booted_at_s = _boot_time(_whole(f"{self._proc}/stat", _STAT_BYTES))
        processes: dict[int, ProcessInfo] = {}
        kept: dict[tuple[int, int], ProcessInfo] = {}
        for pid in pids:
            name, _, rest = word(f"{self._proc}/{pid}/stat").rpartition(")")
            fields = rest.split()
            if len(fields) < 20 or not fields[19].isdecimal():
                continue
            identity = (pid, int(fields[19]))
            info = self._known.get(identity) or self._read(identity, name.partition("(")[2], fields)
            processes[pid] = kept[identity] = info
        self._known = kept
        return processes

    def _read(self, identity: tuple[int, int], name: str, fields: list[str]) -> ProcessInfo:
        pid, ticks = identity
        raw = _whole(f"{self._proc}/{pid}/cmdline", _ARGV_BYTES)
        argv = raw.rstrip("\0").split("\0") if raw else []
        framework, sure = frameworks.recognise(argv, (), name)
        booted_s = self._booted_at_s
        started_at_s = None if booted_s is None else booted_s + ticks / self._ticks_per_s
        return ProcessInfo(
            key=ProcessKey(pid=pid, started_at_s=started_at_s),
            name=clean(name) or f"pid {pid}",
            argv=mask_argv(argv),
            parent_pid=int(fields[1]) if fields[1].isdecimal() else None,
            state=clean(fields[0], limit=1),
            framework=framework,
            framework_sure=sure,
            role=frameworks.role(argv, name),
        )


def _whole(path: str, limit_bytes: int) -> str:
    try:
        return read_text(path, limit_bytes)
    except OSError:
        return ""


def _boot_time(stat: str) -> int | None:
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key == "btime" and value.isdecimal():
            return int(value)
    return None
