"""Which programs hold the memory of Apple's GPU, and how much.

macOS tells no process's share of GPU memory. What the kernel charges a process with (its
footprint) contains it, together with the rest of the program; memory-mapped model files (gguf) are
not in it. A desktop has a hundred programs with the GPU open: listed are those that a framework is
recognised in, Python programs that have it open, and whatever keeps it busy. **Not verified on
hardware**.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.metal.calls import (
    GPU_CLIENTS,
    Denied,
    GpuClient,
    ListedProcess,
    parse_clients,
)
from gpuwatchd.core.errors import SourceError
from gpuwatchd.core.model import ProcessKey, ProcessUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.collect.metal.calls import Mac

LEAST_BYTES: Final = 64 * 1024**2
"""Launchers and idle helpers hold 14 to 30 MB: less than this is not listed."""
BUSY_SHARE: Final = 0.1
"""Whoever had the GPU for this share of the time between two looks is listed from then on."""
RESCAN_S: Final = 30.0
"""Time between two looks at who has the GPU open; footprints are read every time."""
WHOLE: Final = (
    "footprints of whole programs, host memory included; programs that only draw are left out"
)
_NEVER: Final = frozenset({"WindowServer", "loginwindow", "runningboardd"})


class Holders(NamedTuple):
    """Who holds memory, and what to know of the figures."""

    uses: tuple[ProcessUse, ...]
    reason: str


class Processes:
    """The programs that work on Apple's GPU."""

    def __init__(self, system: Mac) -> None:
        self._system = system
        self._scan_at_mono_s = float("-inf")
        self._scanned_mono_s: float | None = None
        self._families: dict[int, tuple[int, ...]] = {}
        """Listed pid -> itself and the children that count to it."""
        self._times: dict[tuple[int, float], int] = {}
        """(pid, start) -> GPU time, nanoseconds."""
        self._workers: set[tuple[int, float]] = set()
        """Those that have kept the GPU busy once."""
        self._shares: dict[int, float] = {}

    def holders(self, mono_s: float) -> Holders:
        """Return who holds memory now."""
        if mono_s >= self._scan_at_mono_s:
            self._scan(mono_s)
            self._scan_at_mono_s = mono_s + RESCAN_S
        uses, bounds = [], 0
        for pid, family in self._families.items():
            held, is_bound = self._held(family)
            if held is not None and held < LEAST_BYTES:
                continue
            bounds += is_bound
            share = self._shares.get(pid)
            key = ProcessKey(pid=pid, started_at_s=None)
            busy_pct = None if share is None else 100 * share
            uses.append(ProcessUse(key=key, used_bytes=held, sm_pct=busy_pct))
        some = "1 process" if bounds == 1 else f"{bounds} processes"
        more = f"; of {some} of other users only a lower bound is known" if bounds else ""
        return Holders(tuple(uses), WHOLE + more)

    def _held(self, family: Iterable[int]) -> tuple[int | None, bool]:
        """Return (bytes of a program with its children, whether it may be more)."""
        total, known, is_bound = 0, False, False
        for pid in family:
            try:
                amount = self._system.footprint(pid)
            except Denied:
                # Resident memory lacks what was compressed or swapped, and most GPU memory.
                amount, is_bound = self._system.resident_bytes(pid), True
            if amount is not None:
                total, known = total + amount, True
        return (total if known else None), is_bound

    # ---- the slow look --------------------------------------------------------------------------

    def _scan(self, mono_s: float) -> None:
        processes = {process.pid: process for process in self._system.processes()}
        try:
            text = self._system.run(GPU_CLIENTS).decode("utf-8", "replace")
        except SourceError:
            clients: dict[int, GpuClient] = {}  # what is recognised by name is listed all the same
        else:
            # Programs that have ended stay in the registry: only those that live count.
            clients = {
                pid: gpu_client
                for pid, gpu_client in parse_clients(text).items()
                if pid in processes
            }
        self._measure(processes, clients, mono_s)
        listed = {pid for pid, process in processes.items() if self._works(process, pid in clients)}
        self._families = {pid: family(pid, processes, listed) for pid in sorted(listed)}
        self._shares = {pid: share for pid, share in self._shares.items() if pid in listed}

    def _measure(
        self,
        processes: Mapping[int, ListedProcess],
        clients: Mapping[int, GpuClient],
        mono_s: float,
    ) -> None:
        """Work out who kept the GPU busy since the last look."""
        before_s, self._scanned_mono_s = self._scanned_mono_s, mono_s
        times = {
            (pid, processes[pid].started_at_s): gpu_client.gpu_time_ns
            for pid, gpu_client in clients.items()
        }
        self._shares = {}
        if before_s is not None and mono_s > before_s:
            for identity in times.keys() & self._times.keys():
                # A client that was closed takes its time with it: then nothing is known.
                worked_ns = times[identity] - self._times[identity]
                if worked_ns >= 0:
                    share = worked_ns / ((mono_s - before_s) * 1e9)
                    self._shares[identity[0]] = min(1.0, share)
                    if share >= BUSY_SHARE:
                        self._workers.add(identity)
        self._times = times
        self._workers &= {(process.pid, process.started_at_s) for process in processes.values()}

    def _works(self, process: ListedProcess, has_gpu: bool) -> bool:  # noqa: FBT001
        if process.name in _NEVER:
            return False
        framework, _ = frameworks.recognise(process.argv, (), process.name)
        if framework is not None and framework not in frameworks.GRAPHICS:
            return True
        is_python = process.name.lower().startswith("python")
        return (has_gpu and is_python) or (process.pid, process.started_at_s) in self._workers


def family(pid: int, processes: Mapping[int, ListedProcess], listed: set[int]) -> tuple[int, ...]:
    """Return a program with its descendants, without those that are listed themselves.

    A launcher holds next to nothing: its children hold the model.

    Examples
    --------
    >>> def one(pid, parent): return ListedProcess(pid, parent, "", (), 0.0)
    >>> family(1, {1: one(1, 0), 2: one(2, 1), 3: one(3, 2), 4: one(4, 1)}, {1, 4})
    (1, 2, 3)
    """
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent_pid, []).append(process.pid)
    found, left = [], [pid]
    while left:
        at = left.pop(0)
        found.append(at)
        left += [c for c in children.get(at, ()) if c not in listed and c not in found and c != at]
    return tuple(found)
