"""pid -> ProcessInfo: read once per life of a process, and cached.

A process is (pid, start time). Between two looks only its liveness is checked: one poll of kept
pidfds for all of them, or a read of a kept descriptor. On macOS psutil answers instead of /proc.
"""

from __future__ import annotations

import errno
import heapq
import math
import os
import pwd
import resource
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd import frameworks
from gpuwatchd.host import program
from gpuwatchd.host.files import (
    Stat,
    cgroup_names,
    exists,
    full_name,
    inside_container,
    libraries_in,
    parse_stat,
    read_bytes,
    read_some,
)
from gpuwatchd.model import ProcessInfo, ProcessKey
from gpuwatchd.text import clean, mask_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAPS_AGAIN_S: Final = 30.0
"""Libraries load late: a process is looked at once more after this time."""
FORGET_S: Final = 120.0
"""A process nobody asked about for so long gives its descriptor back."""
MAX_GONE: Final = 1024
MAX_WATCHED: Final = 1024
"""Most descriptors kept, and never more than a quarter of what the process may open."""
MAX_THREADS: Final = 64
_ARGV_BYTES: Final = 16 * 1024
_MAPS_BYTES: Final = 4 * 1024 * 1024


class _Known:
    """One process that was identified, and how its liveness is watched."""

    __slots__ = (
        "asked_mono_s",
        "fd",
        "info",
        "is_pidfd",
        "maps_due_mono_s",
        "maps_reads",
        "starttime",
    )

    def __init__(self, info: ProcessInfo, starttime: int, mono_s: float) -> None:
        self.info = info
        self.starttime = starttime
        self.fd: int | None = None
        self.is_pidfd = False
        self.asked_mono_s = mono_s
        self.maps_due_mono_s = mono_s
        self.maps_reads = 0


class Host:
    """The processes of this machine.

    Parameters
    ----------
    proc_root
        Where /proc is. With anything but "/proc" no kernel descriptor is used: each look reads.
    watch
        "pidfd", "stat" (a kept descriptor of /proc/PID/stat) or "read" (open and read each time);
        None takes the cheapest that works here.
    use_psutil
        Ask psutil instead of /proc; None does so where there is no /proc.
    maps_per_look
        At most so many memory maps are read in one call of ``look``: one costs up to 1 ms. A
        program that looks only once wants all of them.
    contained
        Whether this process is in a pid namespace of its own, where the driver's pids mean other
        processes; None finds out.
    monotonic
        Monotonic clock, seconds.
    """

    def __init__(
        self,
        proc_root: str | Path = "/proc",
        *,
        watch: str | None = None,
        use_psutil: bool | None = None,
        maps_per_look: int = 1,
        contained: bool | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = Path(proc_root)
        self._real = str(proc_root) == "/proc"
        if use_psutil is None:
            use_psutil = self._real and not sys.platform.startswith("linux")
        self._has_proc = not use_psutil
        self._maps_per_look = maps_per_look
        self._monotonic = monotonic
        self._known: dict[int, _Known] = {}
        self._gone: dict[int, ProcessInfo] = {}
        self._users: dict[int, str] = {}
        self._watch = watch or self._best_watch()
        self._poll = select.poll() if self._watch == "pidfd" else None
        self._watched: dict[int, int] = {}
        self._room = _descriptor_room()
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._booted_at_s = self._read_boot_time() if self._has_proc else None
        self.boot_id = self._read_boot_id()
        """Changes with every boot; "" where the system does not say."""
        if contained is None:
            contained = self._has_proc and inside_container(self._proc, self._proc.parent)
        self.is_contained = contained
        """True when the driver's pids are those of another pid namespace."""

    # ---- what others use ------------------------------------------------------------------------

    def look(self, pids: Iterable[int]) -> dict[int, ProcessInfo]:
        """Return who these processes are; a pid that does not exist is left out.

        Cheap for known live processes. A reused pid is a new process. Memory maps are read one
        per call (``maps_per_look``), so a framework may become known some calls later.
        """
        mono_s = self._monotonic()
        ended = self._ended()
        found: dict[int, ProcessInfo] = {}
        for pid in pids:
            known = self._known.get(pid)
            if known is None or pid in ended or not self._same(pid, known):
                known = self._meet(pid, mono_s)
                if known is None:
                    continue
            known.asked_mono_s = mono_s
            found[pid] = known.info
        if self._has_proc and not self.is_contained:
            self._look_closer(found, mono_s)
        for pid in ended - found.keys():
            self._bury(pid)  # nobody asks any more, and its descriptor would stay open
        if len(self._known) > len(found):
            self._forget(mono_s)
        return found

    def gone(self, pid: int) -> ProcessInfo | None:
        """Return the last known identity of a pid whose process has ended, or None."""
        return self._gone.get(pid)

    def own_rss_bytes(self) -> int | None:
        """Return the resident memory of this process, bytes; None when it cannot be read."""
        if not self._has_proc:
            from gpuwatchd.host import by_psutil  # noqa: PLC0415 - only where there is no /proc

            return by_psutil.rss_bytes()
        fields = read_bytes(self._proc / "self/statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None

    def close(self) -> None:
        """Give every descriptor back. May be called twice."""
        for known in self._known.values():
            self._unwatch(known)
        self._known.clear()

    # ---- liveness -------------------------------------------------------------------------------

    def _best_watch(self) -> str:
        if not self._real or not self._has_proc:
            return "read"
        if not hasattr(os, "pidfd_open"):
            return "stat"
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return "stat"
        return "pidfd"

    def _ended(self) -> set[int]:
        """Return the pids whose kept pidfd says that the process has ended."""
        if self._poll is None or not self._watched:
            return set()
        return {self._watched[fd] for fd, _ in self._poll.poll(0)}

    def _same(self, pid: int, known: _Known) -> bool:
        """Say whether the process met before still lives (as far as no pidfd says so)."""
        if self.is_contained or known.is_pidfd:
            return True
        if not self._has_proc:
            from gpuwatchd.host import by_psutil  # noqa: PLC0415 - only where there is no /proc

            return by_psutil.started_at_s(pid) == known.info.key.started_at_s
        if known.fd is None:
            stat = self._stat(pid)
        else:
            try:
                stat = parse_stat(os.pread(known.fd, 1024, 0))
            except OSError:  # ESRCH: the descriptor belongs to the process, not to its number
                return False
        return (
            stat is not None
            and stat.starttime == known.starttime
            and (stat.state == "Z") == (known.info.state == "Z")
        )

    def _keep_watch(self, pid: int) -> tuple[int | None, bool]:
        """Open a descriptor that tells when this process ends: (descriptor, is a pidfd)."""
        if self._watch == "read" or len(self._watched) >= self._room:
            return None, False
        try:
            if self._poll is not None:
                return os.pidfd_open(pid), True
            return os.open(self._proc / str(pid) / "stat", os.O_RDONLY | os.O_CLOEXEC), False
        except OverflowError:  # a number that no process can have
            return None, False
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self._room = len(self._watched)
            return None, False

    def _unwatch(self, known: _Known) -> None:
        if known.fd is None:
            return
        self._watched.pop(known.fd, None)
        if known.is_pidfd and self._poll is not None:
            self._poll.unregister(known.fd)
        os.close(known.fd)
        known.fd, known.is_pidfd = None, False

    def _bury(self, pid: int) -> None:
        known = self._known.pop(pid, None)
        if known is None:
            return
        self._unwatch(known)
        self._gone.pop(pid, None)
        self._gone[pid] = known.info
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _forget(self, mono_s: float) -> None:
        """Let go of what nobody has asked about for a while."""
        for pid, known in list(self._known.items()):
            if mono_s - known.asked_mono_s > FORGET_S:
                self._bury(pid)

    # ---- identity -------------------------------------------------------------------------------

    def _meet(self, pid: int, mono_s: float) -> _Known | None:
        """Identify the process that has this pid now; None when there is none."""
        before = self._known.get(pid)
        self._bury(pid)
        if self.is_contained:
            # The number belongs to another namespace: here it is nobody, or somebody else.
            return self._note(pid, _nameless(pid, "outside this container"), 0, mono_s)
        if not self._has_proc:
            from gpuwatchd.host import by_psutil  # noqa: PLC0415 - only where there is no /proc

            info = by_psutil.identify(pid)
            return self._note(pid, info, 0, mono_s) if info else None
        # First the descriptor, then the facts: whatever is read belongs to what is watched.
        fd, is_pidfd = self._keep_watch(pid)
        stat = self._stat(pid)
        if fd is not None and (stat is None or stat.state == "Z"):
            os.close(fd)  # a zombie's pidfd is ready for ever: its state is read instead
            fd = None
        if stat is None:
            hidden = self._real and exists(pid)
            info = _nameless(pid, "hidden by system policy")
            return self._note(pid, info, 0, mono_s) if hidden else None
        if before is not None and before.starttime == stat.starttime:
            # Ended but not yet reaped: its files are empty, so what was known stays.
            info = msgspec.structs.replace(before.info, state=stat.state)
        else:
            info = self._identify(pid, stat, closer=False)
        known = self._note(pid, info, stat.starttime, mono_s)
        if fd is not None:
            self._attend(pid, known, fd, is_pidfd=is_pidfd)
        return known

    def _attend(self, pid: int, known: _Known, fd: int, *, is_pidfd: bool) -> None:
        known.fd, known.is_pidfd = fd, is_pidfd
        self._watched[fd] = pid
        if is_pidfd and self._poll is not None:
            self._poll.register(fd, select.POLLIN)

    def _note(self, pid: int, info: ProcessInfo, starttime: int, mono_s: float) -> _Known:
        known = _Known(info, starttime, mono_s)
        if info.key.started_at_s is None or info.state == "Z":
            known.maps_due_mono_s = math.inf
        self._known[pid] = known
        self._gone.pop(pid, None)
        return known

    def _stat(self, pid: int) -> Stat | None:
        return parse_stat(read_bytes(self._proc / str(pid) / "stat"))

    def _identify(self, pid: int, stat: Stat, *, closer: bool) -> ProcessInfo:
        """Build the record of a process; ``closer`` reads its memory map too."""
        folder = self._proc / str(pid)
        raw = read_some(folder / "cmdline", _ARGV_BYTES).rstrip(b"\0")
        argv = [word.decode("utf-8", "surrogateescape") for word in raw.split(b"\0")] if raw else []
        container, job = cgroup_names(read_bytes(folder / "cgroup"))
        maps = read_some(folder / "maps", _MAPS_BYTES) if closer else b""
        threads = self._threads(pid) if closer and not maps else ()
        libraries = libraries_in(maps)
        title = stat.name.decode("utf-8", "replace")
        framework, sure = frameworks.recognise(argv, libraries, title, threads)
        booted_s, age_s = self._booted_at_s, stat.starttime / self._ticks_per_s
        started_at_s = None if booted_s is None else booted_s + age_s
        info = ProcessInfo(
            key=ProcessKey(pid=pid, started_at_s=started_at_s),
            name=clean(full_name(stat.name, argv)),
            user=self._user(folder),
            argv=mask_argv(argv),
            parent_pid=stat.parent_pid,
            state=stat.state,
            container=container,
            job=job,
            framework=framework,
            framework_sure=sure,
        )
        return program.keyed(info, str(folder), argv, libraries)

    def _look_closer(self, found: dict[int, ProcessInfo], mono_s: float) -> None:
        """Read the memory maps of those that have waited longest, and who they are by now."""
        due = [
            (self._known[pid].maps_due_mono_s, pid)
            for pid in found
            if self._known[pid].maps_due_mono_s <= mono_s
        ]
        for _, pid in heapq.nsmallest(self._maps_per_look, due):
            known = self._known[pid]
            known.maps_reads += 1
            again = known.maps_reads == 1
            known.maps_due_mono_s = mono_s + MAPS_AGAIN_S if again else math.inf
            stat = self._stat(pid)
            if stat is not None and stat.starttime == known.starttime and stat.state != "Z":
                known.info = found[pid] = self._identify(pid, stat, closer=True)

    def _threads(self, pid: int) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(self._proc / str(pid) / "task") as tasks:
                for task, _ in zip(tasks, range(MAX_THREADS), strict=False):
                    names.append(read_bytes(Path(task.path, "comm")).decode("utf-8", "replace"))
        except OSError:
            return names
        return names

    def _user(self, folder: Path) -> str | None:
        for line in read_bytes(folder / "status").splitlines():
            if line.startswith(b"Uid:"):
                uid = line.split()[1:2]
                return self._user_name(int(uid[0])) if uid and uid[0].isdigit() else None
        return None

    def _user_name(self, uid: int) -> str:
        name = self._users.get(uid)
        if name is None:
            try:
                name = clean(pwd.getpwuid(uid).pw_name)
            except KeyError:
                name = str(uid)
            self._users[uid] = name
        return name

    def _read_boot_time(self) -> float | None:
        for line in read_bytes(self._proc / "stat").splitlines():
            if line.startswith(b"btime "):
                return float(line.split()[1])
        return None

    def _read_boot_id(self) -> str:
        if self._has_proc:
            return clean(read_bytes(self._proc / "sys/kernel/random/boot_id").strip())
        from gpuwatchd.host import by_psutil  # noqa: PLC0415 - only where there is no /proc

        return by_psutil.boot_id()


def _nameless(pid: int, why: str) -> ProcessInfo:
    """Return the record of a process that has a number and nothing else."""
    return ProcessInfo(key=ProcessKey(pid=pid, started_at_s=None), name=f"pid {pid} ({why})")


def _descriptor_room() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_WATCHED if soft == resource.RLIM_INFINITY else max(0, min(MAX_WATCHED, soft // 4))
