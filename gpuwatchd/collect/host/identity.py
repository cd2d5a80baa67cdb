"""Reading who one process is, from its files under /proc."""

from __future__ import annotations

import os
import pwd
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.host import cgroup, program, ranks
from gpuwatchd.collect.host.files import (
    NoDescriptor,
    full_name,
    libraries_in,
    parse_stat,
    parse_status,
    read_bytes,
    read_some,
    read_stat,
    words_of,
)
from gpuwatchd.collect.host.program import ancestors
from gpuwatchd.core.codes import NameKind
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv, mask_title

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gpuwatchd.collect.host.files import Stat
    from gpuwatchd.collect.host.program import Ancestor

MAX_THREADS: Final = 64
_ARGV_BYTES: Final = 16 * 1024
_NEAR: Final = 3
"""A program that renames itself often has a parent that did."""
_ENVIRON_BYTES: Final = 256 * 1024
_MAPS_BYTES: Final = 4 * 1024 * 1024


class Reading(NamedTuple):
    """What one reading of a process's files gave."""

    info: ProcessInfo
    anonymous_bytes: int | None
    """Memory of its own on the host, swapped or not."""


class Registry:
    """Reads who processes are; keeps nothing of them but names of users.

    Parameters
    ----------
    proc
        Where /proc is.
    booted_at_s
        When the system was booted, epoch seconds; None where that is unknown.
    """

    def __init__(self, proc: Path, booted_at_s: float | None) -> None:
        self.booted_at_s = booted_at_s
        self._proc = proc
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._users = Users()

    def stat(self, pid: int) -> Stat | None:
        """Return what /proc/PID/stat says; None when there is no such process.

        Raises
        ------
        NoDescriptor
            When there is no descriptor to spare to look with.
        """
        return parse_stat(read_stat(f"{self._proc}/{pid}/stat"))

    def stat_if_any(self, pid: int) -> Stat | None:
        """Return the same; None also where there is no descriptor to spare."""
        try:
            return self.stat(pid)
        except NoDescriptor:
            return None

    def read(self, pid: int, stat: Stat, *, closer: bool) -> Reading:
        """Build the record of a process; ``closer`` reads its memory map too."""
        folder = f"{self._proc}/{pid}"
        argv = words_of(read_some(f"{folder}/cmdline", _ARGV_BYTES))
        status = parse_status(read_bytes(f"{folder}/status"))
        place = cgroup.parse(read_bytes(f"{folder}/cgroup"))
        maps = read_some(f"{folder}/maps", _MAPS_BYTES) if closer else b""
        threads = self._threads(folder) if closer and not maps else ()
        libraries = libraries_in(maps)
        title = stat.name.decode("utf-8", "replace")
        family = ancestors(self._proc, pid, stat)
        own = ranks.facts(self._environ(pid))
        parent = self._inherited(family) if own is None else None
        member = ranks.membership(own, parent, family, place, argv[0] if argv else title)
        framework, sure = frameworks.recognise(argv, libraries, title, threads)
        info = ProcessInfo(
            key=ProcessKey(pid=pid, started_at_s=self._started_at_s(stat)),
            name=mask_title(full_name(stat.name, argv)),
            user=None if status.uid is None else self._users.name(status.uid),
            uid=status.uid,
            argv=mask_argv(argv),
            parent_pid=stat.parent_pid,
            state=stat.state,
            container=place.container,
            pod=place.pod,
            job=place.job,
            unit=place.unit,
            group=member.group,
            rank=member.rank,
            world=member.world,
            parents=tuple(ancestor.label for ancestor in family),
            framework=framework,
            framework_sure=sure,
            frameworks=frameworks.loaded(libraries),
            role=frameworks.role(argv, title),
        )
        process = program.keyed(info, folder, argv, libraries)
        return Reading(process, status.anonymous_bytes)

    def moved(self, info: ProcessInfo, stat: Stat) -> ProcessInfo:
        """Return a process in its present state, with its present parents."""
        parents = info.parents
        if stat.parent_pid != info.parent_pid:
            parents = tuple(each.label for each in ancestors(self._proc, info.key.pid, stat))
        return msgspec.structs.replace(
            info, state=stat.state, parent_pid=stat.parent_pid, parents=parents
        )

    def _inherited(self, family: Sequence[Ancestor]) -> dict[str, str] | None:
        """Return the facts of the nearest ancestor that has not lost its environment."""
        near = (ranks.facts(self._environ(ancestor.pid)) for ancestor in family[:_NEAR])
        return next((values for values in near if values is not None), None)

    def _environ(self, pid: int) -> bytes:
        """Return a process's environment, for :func:`ranks.facts` only: it may hold secrets."""
        return read_some(f"{self._proc}/{pid}/environ", _ENVIRON_BYTES)

    def _started_at_s(self, stat: Stat) -> float | None:
        if self.booted_at_s is None:
            return None
        return self.booted_at_s + stat.starttime / self._ticks_per_s

    @staticmethod
    def _threads(folder: str) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(f"{folder}/task") as tasks:
                for task, _ in zip(tasks, range(MAX_THREADS), strict=False):
                    names.append(read_bytes(f"{task.path}/comm").decode("utf-8", "replace"))
        except OSError:
            return names
        return names


def still(before: ProcessInfo, now: ProcessInfo) -> ProcessInfo:
    """Return who a process is now, with the job that it was a rank of: its agent may have died."""
    if before.group is None or now.group is not None:
        return now
    return msgspec.structs.replace(now, group=before.group, rank=before.rank, world=before.world)


def nameless(pid: int, why: str, *, foreign: bool = False) -> ProcessInfo:
    """Return the record of a process that has a number and nothing else."""
    key = ProcessKey(pid=pid, started_at_s=None)
    name = f"pid {pid} ({why})"
    return ProcessInfo(key=key, name=name, name_kind=NameKind.STAND_IN, foreign=foreign)


# Names of users; a directory service (LDAP) that does not answer keeps nobody waiting.

PATIENCE_S: Final = 0.3
"""So long a name is waited for, once per user; until it comes the number stands for it."""


class Users:
    """User id -> name, each asked for once, in a thread of its own."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._asked: set[int] = set()

    def name(self, uid: int) -> str:
        """Return a user's name; the number where there is none, or none has come yet."""
        text = self._names.get(uid)
        if text is None and uid not in self._asked:
            self._asked.add(uid)
            asks = threading.Thread(target=self._ask, args=(uid,), name="user", daemon=True)
            asks.start()
            asks.join(PATIENCE_S)
            text = self._names.get(uid)
        return str(uid) if text is None else text

    def _ask(self, uid: int) -> None:
        try:
            self._names[uid] = clean(pwd.getpwuid(uid).pw_name)
        except (KeyError, OSError):
            self._names[uid] = str(uid)


MAX_GONE: Final = 1024
WAS: Final = "gone, was "
"""Begins the name that one is shown with whom only this place still knew."""
_NAMELESS: Final = frozenset({"", "?"})


class Gone:
    """The last known identity of up to :data:`MAX_GONE` pids whose process has ended."""

    def __init__(self) -> None:
        self._who: dict[int, ProcessInfo] = {}

    def of(self, pid: int) -> ProcessInfo | None:
        """Return who had a pid, or None."""
        return self._who.get(pid)

    def note(self, info: ProcessInfo) -> None:
        """Remember a process that has ended; the oldest is forgotten when there are too many."""
        pid = info.key.pid
        self._who.pop(pid, None)
        self._who[pid] = info
        if len(self._who) > MAX_GONE:
            del self._who[next(iter(self._who))]

    def forget(self, pid: int) -> None:
        """Take note that somebody has the pid again."""
        self._who.pop(pid, None)

    def recall(self, infos: Iterable[ProcessInfo]) -> None:
        """Take over whom an earlier run of the daemon knew; whoever lives is forgotten later."""
        for info in infos:
            if info.name_kind is NameKind.GONE:
                info = msgspec.structs.replace(  # noqa: PLW2901
                    info, name=info.was, name_kind=NameKind.OWN, was=""
                )
            if info.name not in _NAMELESS and not info.foreign:
                self.note(info)
