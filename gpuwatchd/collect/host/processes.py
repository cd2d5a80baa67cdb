"""pid -> ProcessInfo: read once per life of a process, and cached.

A process is (pid, start time). Between two looks only its liveness is checked
(:class:`Watch`). On macOS psutil answers instead of /proc.
"""

from __future__ import annotations

import errno
import heapq
import math
import os
import resource
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.collect.host.process_identity import Gone, Registry, nameless, still
from gpuwatchd.collect.host.procfs import (
    PROC,
    STAT_BYTES,
    NoDescriptor,
    absent,
    anonymous_bytes,
    boot_time,
    exists,
    inside_container,
    parse_stat,
    read_bytes,
    stat_of,
)
from gpuwatchd.core import decoding
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.collect.host.procfs import Stat
    from gpuwatchd.core.model import ProcessInfo

MAPS_AGAIN_S: Final = 30.0
"""Libraries load late: a process is looked at once more after this time."""
FORGET_S: Final = 120.0
"""A process nobody asked about for so long gives its descriptor back."""
MEMORY_EVERY: Final = 6
"""A process's memory on the host is read at every so-manieth call."""
MEMORY_READS: Final = 4
"""And of no more processes than this in one call: a reading costs some 15 µs."""
_STUCK: Final = frozenset({"Z", "D"})
"""States that say something about a process that holds memory: ended, waiting in the driver."""
_HIDDEN: Final = -1
"""Stands for the start time of a process that exists, but whose files may not be read."""


class Host:
    """The processes of this machine.

    Parameters
    ----------
    proc_root
        Where /proc is. With anything but "/proc" no kernel descriptor is used: each look reads.
    watch
        "pidfd", "stat" (a kept descriptor of /proc/PID/stat), "read" (open and read each time) or
        "psutil" (nothing is asked of /proc); None takes the cheapest that works here.
    maps_per_look
        At most so many memory maps are read in one call of ``look``: one costs up to 1 ms. A
        program that looks only once wants all of them.
    contained
        Whether this process is in a pid namespace of its own, where the driver's pids mean other
        processes; None finds out.
    anchor
        File in which the time of boot is written down, so that a process has the same identity
        after a step of the clock and a new start; None keeps nothing.
    """

    def __init__(
        self,
        proc_root: str | Path = "/proc",
        *,
        watch: str | None = None,
        maps_per_look: int = 1,
        contained: bool | None = None,
        anchor: BootAnchor | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = Path(proc_root)
        if watch is None:
            linux = sys.platform.startswith("linux")
            watch = "read" if self._proc != PROC else Watch.best() if linux else "psutil"
        self._has_proc = watch != "psutil"
        self._maps_per_look = maps_per_look
        self._monotonic = monotonic
        self._known: dict[int, ProcessRecord] = {}
        self._gone = Gone()
        self._memory_turn: list[int] = []
        self._steady: tuple[frozenset[int], dict[int, ProcessInfo], float] | None = None
        """Whom :meth:`processes` was asked about, and its answer, which stays true until the kernel
        says otherwise, or then (monotonic)."""
        self._maps_due: list[tuple[float, int]] = []
        """(when (monotonic) the memory map is due, pid), the earliest first."""
        self._watch = Watch(self._proc, watch)
        self.boot_id = self._read_boot_id()
        """Changes with every boot; "" where the system does not say."""
        booted_at_s = boot_time(self._proc) if self._has_proc else None
        if anchor is not None and booted_at_s is not None:
            booted_at_s = anchor.settled(self.boot_id, booted_at_s)
        self._registry = Registry(self._proc, booted_at_s)
        if contained is None:
            contained = self._has_proc and inside_container(self._proc, self._proc.parent)
        self.is_contained = contained
        """True when the driver's pids are those of another pid namespace."""
        self.booted_at_s = booted_at_s
        """From when the start times of processes count, epoch seconds; None without /proc."""

    def processes(self, pids: Iterable[int]) -> dict[int, ProcessInfo]:
        """Return who these processes are; a pid that does not exist is left out.

        Cheap for known live processes. A reused pid is a new process. Memory maps are read one
        per call (``maps_per_look``), so a framework may become known some calls later.

        Asked for the same ``frozenset`` again while nothing has happened, it returns the same
        dictionary.
        """
        mono_s = self._monotonic()
        ended = self._watch.ended()
        steady = self._steady
        if steady is not None and pids is steady[0] and not ended and mono_s < steady[2]:
            processes = steady[1]
        else:
            processes = self._identify(pids, ended, mono_s)
        if self._maps_due and self._maps_due[0][0] <= mono_s:
            processes = self._read_maps(processes, mono_s)
        return processes

    def _identify(
        self, pids: Iterable[int], ended: set[int], mono_s: float
    ) -> dict[int, ProcessInfo]:
        """Look at every process that is asked about."""
        self._steady = None
        processes: dict[int, ProcessInfo] = {}
        for pid in pids:
            record = self._known.get(pid)
            if record is None or pid in ended or not self._same(pid, record):
                record = self._read_new(pid, mono_s)
                if record is None:
                    continue
            record.unasked_mono_s = math.inf
            processes[pid] = record.info
        for pid in ended - processes.keys():
            self._drop(pid)  # nobody asks any more, and its descriptor would stay open
        until_mono_s = math.inf
        if len(self._known) > len(processes):
            until_mono_s = self._forget(processes, mono_s)
        if isinstance(pids, frozenset) and len(pids) == len(processes):
            helds = () if self.is_contained else [self._known[pid].held for pid in processes]
            if all(held is not None and held.is_pidfd for held in helds):
                self._steady = pids, processes, until_mono_s
        return processes

    def memory(self, pids: Iterable[int], *, newest: bool = False) -> dict[int, int | None]:
        """Return the memory of its own that each process holds on the host, swapped or not, bytes.

        RssAnon + VmSwap of /proc/PID/status, which every user may read. Only of processes that
        :meth:`processes` has found; None where it is unknown. Read in turns
        (:data:`MEMORY_EVERY`) and kept in between, so that one call costs little.

        ``newest`` returns only those that are read now: for one who has the others, and to whom the
        last :meth:`processes` said nothing new.
        """
        there = set(pids)
        found: dict[int, int | None] = {}
        if not newest:
            found = {
                pid: None if (record := self._known.get(pid)) is None else record.anonymous_bytes
                for pid in there
            }
        if self.is_contained or not self._has_proc:
            return found
        if not self._memory_turn:
            self._memory_turn = list(there)
        for _ in range(min(MEMORY_READS, math.ceil(len(there) / MEMORY_EVERY))):
            if not self._memory_turn:
                break
            pid = self._memory_turn.pop()
            record = self._known.get(pid)
            if record is not None and pid in there and record.info.key.started_at_s is not None:
                amount = anonymous_bytes(read_bytes(f"{self._proc}/{pid}/status"))
                record.anonymous_bytes = found[pid] = amount
        return found

    def states(self, pids: Iterable[int]) -> dict[int, str]:
        """Return the state of each process now ("R", "S", "D", "Z", ...), of those that exist.

        One read per process, some 8 µs: for those in question, not for all in every tick. What
        has changed is in the next :meth:`processes` too, where it matters: it is a zombie or waits
        in the driver, or does so no more, or it has another parent.
        """
        values: dict[int, str] = {}
        for pid in pids:
            record = self._known.get(pid)
            if record is None or record.info.key.started_at_s is None or not self._has_proc:
                continue
            stat = self._stat_if_any(pid)
            if stat is None or stat.starttime != record.starttime:
                continue
            values[pid] = stat.state
            before = record.info
            stuck = {stat.state, before.state} & _STUCK and stat.state != before.state
            if stuck or stat.parent_pid != before.parent_pid:
                record.info = self._registry.moved(before, stat)
                self._steady = None
        return values

    def _stat_if_any(self, pid: int) -> Stat | None:
        """Return /proc/PID/stat; None also where there is no descriptor to spare."""
        try:
            return stat_of(pid, self._proc)
        except NoDescriptor:
            return None

    def gone(self, pid: int) -> ProcessInfo | None:
        """Return the last known identity of a pid whose process has ended, or None."""
        return self._gone.get(pid)

    def recall(self, infos: Iterable[ProcessInfo]) -> None:
        """Take over whom an earlier run knew: of those, the gone keep their names."""
        self._gone.recall(infos)

    def own_rss_bytes(self) -> int | None:
        """Return the resident memory of this process, bytes; None when it cannot be read."""
        if not self._has_proc:
            from gpuwatchd.collect.host import by_psutil  # noqa: PLC0415 - 40 ms; no /proc

            return by_psutil.rss_bytes()
        fields = read_bytes(self._proc / "self/statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None

    def close(self) -> None:
        """Give every descriptor back. May be called twice."""
        self._steady = None
        for record in self._known.values():
            self._watch.let_go(record.held)
        self._known.clear()

    def _same(self, pid: int, record: ProcessRecord) -> bool:
        """Say whether the process met before still lives (as far as no pidfd says so)."""
        if self.is_contained or (record.held is not None and record.held.is_pidfd):
            return True
        if not self._has_proc:
            from gpuwatchd.collect.host import by_psutil  # noqa: PLC0415 - 40 ms; no /proc

            return by_psutil.started_at_s(pid) == record.info.key.started_at_s
        try:
            if record.held is None:
                stat = stat_of(pid, self._proc)
            else:
                stat = parse_stat(os.pread(record.held.descriptor, STAT_BYTES, 0))
        except NoDescriptor:
            return not absent(pid, self._proc)
        except OSError:  # ESRCH: the process of a kept descriptor has ended
            return False
        if stat is None:
            return record.starttime == _HIDDEN and exists(pid)
        ends = (stat.state == "Z") != (record.info.state == "Z")
        return stat.starttime == record.starttime and not ends

    def _read_new(self, pid: int, mono_s: float) -> ProcessRecord | None:
        """Identify the process that has this pid now; None when there is none."""
        before = self._known.get(pid)
        self._drop(pid)
        if self.is_contained:
            # The number belongs to another namespace: here it is nobody, or somebody else.
            outside = nameless(pid, "outside this container", foreign=True)
            return self._note(ProcessRecord(outside, 0, mono_s))
        if not self._has_proc:
            from gpuwatchd.collect.host import by_psutil  # noqa: PLC0415 - 40 ms; no /proc

            info = by_psutil.identify(pid)
            return self._note(ProcessRecord(info, 0, mono_s)) if info else None
        # First the descriptor, then the facts: whatever is read belongs to what is watched.
        held = self._watch.hold(pid)
        try:
            stat = stat_of(pid, self._proc)
        except NoDescriptor:
            self._watch.let_go(held)
            unseen = ProcessRecord(nameless(pid, "no file descriptor left"), _HIDDEN, mono_s)
            return None if absent(pid, self._proc) else self._note(unseen)
        if stat is None and not (self._proc == PROC and exists(pid)):
            self._watch.let_go(held)
            return None
        if held is not None and stat is not None and stat.state == "Z":
            self._watch.let_go(held)  # a zombie's is ready for ever: its state is read instead
            held = None
        memory_bytes = None
        if stat is None:
            info = nameless(pid, "hidden by system policy")
        elif before is not None and before.starttime == stat.starttime:
            # Ended but not yet reaped: its files are empty, so what was known stays.
            info = msgspec.structs.replace(before.info, state=stat.state)
        else:
            info, memory_bytes = self._registry.read(pid, stat)
        if held is not None:
            self._watch.attend(pid, held)
        starttime = _HIDDEN if stat is None else stat.starttime
        return self._note(ProcessRecord(info, starttime, mono_s, held, memory_bytes))

    def _note(self, record: ProcessRecord) -> ProcessRecord:
        pid = record.info.key.pid
        self._known[pid] = record
        self._gone.pop(pid, None)  # somebody has the number again
        self._plan_maps(record)
        return record

    def _plan_maps(self, record: ProcessRecord) -> None:
        if self._has_proc and record.maps_due_mono_s < math.inf:
            heapq.heappush(self._maps_due, (record.maps_due_mono_s, record.info.key.pid))

    def _drop(self, pid: int) -> None:
        record = self._known.pop(pid, None)
        if record is not None:
            self._watch.let_go(record.held)
            self._gone.note(record.info)

    def _forget(self, present: dict[int, ProcessInfo], mono_s: float) -> float:
        """Let go of what nobody has asked about for a while; return when to look again."""
        again_mono_s = math.inf
        for pid in [pid for pid in self._known if pid not in present]:
            record = self._known[pid]
            record.unasked_mono_s = min(record.unasked_mono_s, mono_s)
            until_mono_s = record.unasked_mono_s + FORGET_S
            if mono_s >= until_mono_s:
                self._drop(pid)
            else:
                again_mono_s = min(again_mono_s, until_mono_s)
        return again_mono_s

    def _read_maps(
        self, processes: dict[int, ProcessInfo], mono_s: float
    ) -> dict[int, ProcessInfo]:
        """Read the memory maps of those that have waited longest, and who they are by now.

        Returns the same dictionary where that is nothing new.
        """
        fresh: dict[int, ProcessInfo] = {}
        left = self._maps_per_look
        while left and self._maps_due and self._maps_due[0][0] <= mono_s:
            due_mono_s, pid = heapq.heappop(self._maps_due)
            record = self._known.get(pid)
            if record is None or record.maps_due_mono_s != due_mono_s:
                continue  # it has ended since
            asked = pid in processes  # else nothing is read of it now
            left -= asked
            record.maps_are_read(mono_s, read=asked)
            self._plan_maps(record)
            stat = self._stat_if_any(pid) if asked else None
            if stat is None or stat.starttime != record.starttime or stat.state == "Z":
                continue
            files = self._registry.files(pid, closer=True)
            record.anonymous_bytes = files.status.anonymous_bytes
            who = files._replace(status=files.status._replace(anonymous_bytes=None))
            mark = hash((stat.name, stat.parent_pid, stat.state == "D", who))
            if mark == record.mark:
                continue  # all that a process is follows from these
            info = still(record.info, self._registry.read(pid, stat, files).info)
            # The name of its user may come later.
            record.mark = None if info.user == str(info.uid) else mark
            if info != record.info:
                record.info = fresh[pid] = info
        if not fresh:
            return processes
        processes = {**processes, **fresh}
        if self._steady is not None:
            self._steady = self._steady[0], processes, self._steady[2]
        return processes

    def _read_boot_id(self) -> str:
        if self._has_proc:
            return clean(read_bytes(self._proc / "sys/kernel/random/boot_id").strip())
        from gpuwatchd.collect.host import by_psutil  # noqa: PLC0415 - 40 ms; no /proc

        return by_psutil.boot_id()


@dataclass
class ProcessRecord:
    """One process that was identified, and how its liveness is watched."""

    info: ProcessInfo
    starttime: int
    met_mono_s: float
    held: Held | None = None
    anonymous_bytes: int | None = None
    maps_reads: int = 0
    mark: int | None = None
    """Of the files of its last reading; None where another one may differ all the same."""
    unasked_mono_s: float = math.inf
    """Since when nobody has asked about it."""

    def __post_init__(self) -> None:
        has_maps = self.info.key.started_at_s is not None and self.info.state != "Z"
        self.maps_due_mono_s = self.met_mono_s if has_maps else math.inf

    def maps_are_read(self, mono_s: float, *, read: bool) -> None:
        """Plan the next reading of the memory map; after the second one there is none."""
        self.maps_reads += read
        self.maps_due_mono_s = mono_s + MAPS_AGAIN_S if self.maps_reads < 2 else math.inf


# Whether processes still live: one poll of kept pidfds, or a read of kept descriptors. A descriptor
# belongs to the process and not to its number: once it is held, another process with the same pid
# can never be taken for the first.


MAX_WATCHED: Final = 1024
"""Most descriptors kept, and never more than a quarter of what the process may open."""


class Held(NamedTuple):
    """A descriptor that tells when one process ends."""

    descriptor: int
    is_pidfd: bool


class Watch:
    """The descriptors that are held, and whose they are.

    ``how``: "pidfd", "stat" (a kept descriptor of /proc/PID/stat) or "read" (nothing is kept).
    """

    def __init__(self, proc: Path, how: str) -> None:
        self._proc = proc
        self._how = how
        self._poll: select.epoll | None = None
        """While anybody is held by a pidfd. Not poll(), which looks at every process each time."""
        self._pids: dict[int, int] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = soft == resource.RLIM_INFINITY
        self._room = MAX_WATCHED if unlimited else max(0, min(MAX_WATCHED, soft // 4 - 1))

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
            if self._how == "pidfd":
                self._poll = self._poll or select.epoll()
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
            self._poll.register(held.descriptor, select.EPOLLIN)

    def let_go(self, held: Held | None) -> None:
        """Close a descriptor, attended or not; None is none."""
        if held is None:
            return
        if self._pids.pop(held.descriptor, None) is not None and held.is_pidfd:
            assert self._poll is not None  # noqa: S101 - a pidfd is opened for a poll only
            self._poll.unregister(held.descriptor)
        os.close(held.descriptor)
        if self._poll is not None and not self._pids:
            self._poll.close()
            self._poll = None


# When this boot began, told the same way for as long as it lasts.
# Linux counts the start of a process in ticks since boot, which nothing changes. What it says of
# the boot itself is the clock's time less the time since: set the clock, and every process of
# the machine seems to have started at another instant. For a daemon that is started again such a
# process would be another one, and its alert would end and open anew. So the first answer of a
# boot is written down.

WRONG_CLOCK_S: Final = 86_400.0
"""A machine without a clock of its own boots in another year: such an answer is not kept."""


class _Anchor(msgspec.Struct):
    boot_id: str
    booted_at_s: float


class BootAnchor(NamedTuple):
    """The file that holds the time of boot."""

    path: Path
    writes: bool = True
    """False only reads it: a program that looks once must tell processes as the daemon does, and
    change nothing."""

    def settled(self, boot_id: str, booted_at_s: float) -> float:
        """Return the time of boot that was told first in this boot, epoch seconds.

        A step of the clock by more than a day makes a new beginning.

        What cannot be read is written anew, and where nothing can be written the present answer is
        as good as any. Without a ``boot_id`` ("") nothing is kept.
        """
        if not boot_id:
            return booted_at_s
        try:
            anchor = decoding.decode(self.path.read_bytes(), _Anchor)
        except (OSError, msgspec.MsgspecError):
            anchor = None
        same = anchor is not None and anchor.boot_id == boot_id
        if anchor is not None and same and abs(anchor.booted_at_s - booted_at_s) <= WRONG_CLOCK_S:
            return anchor.booted_at_s
        if self.writes:
            _keep(self.path, _Anchor(boot_id, booted_at_s))
        return booted_at_s


def _keep(path: Path, anchor: _Anchor) -> None:
    beside = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            # A group that reads the history must date the start of a process as we do.
            if beside.parent.stat().st_mode & 0o077 == 0o050:
                os.fchmod(descriptor, 0o640)
            file.write(msgspec.json.encode(anchor))
        beside.replace(path)
    except OSError:
        return  # a full or read-only disk: the alert of a process may open anew, no more
