"""pid -> ProcessInfo: read once per life of a process, and cached.

A process is (pid, start time). Between two looks only its liveness is checked
(:class:`~gpuwatchd.collect.host.procfs.Watch`). On macOS psutil answers instead of /proc.
"""

from __future__ import annotations

import heapq
import math
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.collect.host.process_identity import Gone, Registry, nameless, still
from gpuwatchd.collect.host.procfs import (
    NoDescriptor,
    Watch,
    absent,
    anonymous_bytes,
    boot_time,
    exists,
    inside_container,
    read_bytes,
)
from gpuwatchd.core import decoding
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.collect.host.procfs import Held
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
        self._real = str(proc_root) == "/proc"
        if watch is None:
            linux = sys.platform.startswith("linux")
            watch = "read" if not self._real else Watch.best() if linux else "psutil"
        self._has_proc = watch != "psutil"
        self._maps_per_look = maps_per_look
        self._monotonic = monotonic
        self._known: dict[int, ProcessRecord] = {}
        self._gone = Gone()
        self._memory_turn: list[int] = []
        self._steady = SteadyAnswer()
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
        if pids is steady.pids and not ended and mono_s < steady.until_mono_s:
            steady.asked_mono_s = mono_s
            return steady.processes
        self._unsettle()
        processes: dict[int, ProcessInfo] = {}
        for pid in pids:
            record = self._known.get(pid)
            if record is None or pid in ended or not self._same(pid, record):
                record = self._meet(pid, mono_s)
                if record is None:
                    continue
            record.asked_mono_s = mono_s
            processes[pid] = record.info
        if self._has_proc and not self.is_contained:
            self._look_closer(processes, mono_s)
        for pid in ended - processes.keys():
            self._bury(pid)  # nobody asks any more, and its descriptor would stay open
        if len(self._known) > len(processes):
            self._forget(mono_s)
        # While there is anybody else, it is to be forgotten in time.
        if isinstance(pids, frozenset) and len(pids) == len(processes) == len(self._known):
            self._settle(pids, processes, mono_s)
        return processes

    def _settle(
        self, pids: frozenset[int], processes: dict[int, ProcessInfo], mono_s: float
    ) -> None:
        """Remember an answer that stays true until the kernel or the clock says otherwise."""
        if not self.is_contained:
            mine = [self._known[pid] for pid in processes]
            if not all(record.held is not None and record.held.is_pidfd for record in mine):
                return
            until_mono_s = min((k.maps_due_mono_s for k in mine), default=math.inf)
        else:
            until_mono_s = math.inf
        self._steady = SteadyAnswer(pids, processes, until_mono_s, mono_s)

    def _unsettle(self) -> None:
        """Look closely the next time; until now all of them were asked about."""
        steady, self._steady = self._steady, SteadyAnswer()
        for pid in steady.processes:
            if (record := self._known.get(pid)) is not None:
                record.asked_mono_s = max(record.asked_mono_s, steady.asked_mono_s)

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
            stat = self._registry.stat_if_any(pid)
            if stat is None or stat.starttime != record.starttime:
                continue
            values[pid] = stat.state
            before = record.info
            stuck = {stat.state, before.state} & _STUCK and stat.state != before.state
            if stuck or stat.parent_pid != before.parent_pid:
                record.info = self._registry.moved(before, stat)
                self._unsettle()
        return values

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
        self._unsettle()
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
            stat = self._registry.stat(pid) if record.held is None else Watch.stat(record.held)
        except NoDescriptor:
            return not absent(pid, self._proc)
        if stat is None:
            return record.starttime == _HIDDEN and exists(pid)
        ends = (stat.state == "Z") != (record.info.state == "Z")
        return stat.starttime == record.starttime and not ends

    def _meet(self, pid: int, mono_s: float) -> ProcessRecord | None:
        """Identify the process that has this pid now; None when there is none."""
        before = self._known.get(pid)
        self._bury(pid)
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
            stat = self._registry.stat(pid)
        except NoDescriptor:
            self._watch.let_go(held)
            unseen = ProcessRecord(nameless(pid, "no file descriptor left"), _HIDDEN, mono_s)
            return None if absent(pid, self._proc) else self._note(unseen)
        if stat is None and not (self._real and exists(pid)):
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
            info, memory_bytes = self._registry.read(pid, stat, closer=False)
        if held is not None:
            self._watch.attend(pid, held)
        starttime = _HIDDEN if stat is None else stat.starttime
        return self._note(ProcessRecord(info, starttime, mono_s, held, memory_bytes))

    def _note(self, record: ProcessRecord) -> ProcessRecord:
        pid = record.info.key.pid
        self._known[pid] = record
        self._gone.pop(pid, None)  # somebody has the number again
        return record

    def _bury(self, pid: int) -> None:
        record = self._known.pop(pid, None)
        if record is not None:
            self._watch.let_go(record.held)
            self._gone.note(record.info)

    def _forget(self, mono_s: float) -> None:
        """Let go of what nobody has asked about for a while."""
        for pid, record in list(self._known.items()):
            if mono_s - record.asked_mono_s > FORGET_S:
                self._bury(pid)

    def _look_closer(self, processes: dict[int, ProcessInfo], mono_s: float) -> None:
        """Read the memory maps of those that have waited longest, and who they are by now."""
        due = [
            (self._known[pid].maps_due_mono_s, pid)
            for pid in processes
            if self._known[pid].maps_due_mono_s <= mono_s
        ]
        for _, pid in heapq.nsmallest(self._maps_per_look, due):
            record = self._known[pid]
            record.maps_are_read(mono_s)
            stat = self._registry.stat_if_any(pid)
            if stat is not None and stat.starttime == record.starttime and stat.state != "Z":
                sight = self._registry.read(pid, stat, closer=True)
                record.info = processes[pid] = still(record.info, sight.info)
                record.anonymous_bytes = sight.anonymous_bytes

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
    asked_mono_s: float
    held: Held | None = None
    anonymous_bytes: int | None = None
    maps_reads: int = 0

    def __post_init__(self) -> None:
        has_maps = self.info.key.started_at_s is not None and self.info.state != "Z"
        self.maps_due_mono_s = self.asked_mono_s if has_maps else math.inf

    def maps_are_read(self, mono_s: float) -> None:
        """Plan the second and last reading of the memory map when the first is made."""
        self.maps_reads += 1
        self.maps_due_mono_s = mono_s + MAPS_AGAIN_S if self.maps_reads == 1 else math.inf


@dataclass(slots=True)
class SteadyAnswer:
    """An answer of :meth:`Host.processes` that stays true until the kernel or the clock says not.

    Without ``pids`` there is none.
    """

    pids: frozenset[int] | None = None
    processes: dict[int, ProcessInfo] = field(default_factory=dict)
    until_mono_s: float = -math.inf
    asked_mono_s: float = -math.inf
    """When it was given last."""


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
