"""GPUs of a Mac, above all Apple's own: through ioreg, sysctl and the process table. No sudo.

Apple's GPU works in the host's memory. What its clients have allocated is judged (a leak shows
there first); what is resident of it is shown beside, for it falls whenever the machine is idle.
The room is what the ceiling and the host still allow. A discrete GPU of an older Mac tells the
use of its own memory, and nothing of its processes.

**Not verified on hardware.** Written from recordings of others; the tests read those, and texts of
the same shape.
"""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis import frameworks
from gpuwatchd.collect.metal import calls
from gpuwatchd.collect.metal.calls import (
    ACCELERATORS,
    ACCELERATORS_TEXT,
    GPU_CLIENTS,
    PLATFORM,
    SYSCTL,
    VM_STAT,
    Denied,
    GpuClient,
    ListedProcess,
    Mac,
    parse_clients,
)
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError, SourceError, SourceUnavailable
from gpuwatchd.core.model import (
    Availability,
    Device,
    DeviceReading,
    Event,
    Fault,
    ProcessKey,
    ProcessUse,
    Sample,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.collect.metal.calls import Ceiling, Node, System
    from gpuwatchd.core.model import DeviceState


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

    def holders(self, mono_s: float) -> tuple[tuple[ProcessUse, ...], str]:
        """Return who holds memory now, and what to know of the figures."""
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
        return tuple(uses), WHOLE + more

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


NOT_HERE: Final = "not for this system: it reads the GPUs of a Mac"
NONE_LISTED: Final = "macOS lists no GPU (IOAccelerator)"
NO_PROCESSES: Final = "macOS does not report who holds the memory of a discrete GPU"


@dataclass
class _Gpu:
    """One GPU, and what is carried from look to look."""

    device: Device
    node: Node | None
    recoveries: int | None = None


class MetalSource:
    """Every GPU of a Mac."""

    name = "metal"

    def __init__(
        self,
        *,
        calls: Mac | None = None,
        platform: str = sys.platform,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls or Mac()
        self._is_mac = platform == "darwin"
        self._clock = clock
        self._monotonic = monotonic
        self._processes = Processes(self._calls)
        self._gpus: dict[str, _Gpu] = {}
        self._machine: str | None = None
        self._asked_metal = False
        self._recommended: int | None = None
        self._ceiling: Ceiling | None = None
        self._pressure: int | None = None

    def probe(self) -> Availability:
        """Say whether macOS lists a GPU, and where its ceiling comes from. Never raises."""
        if not self._is_mac:
            return Availability(ok=False, reason=NOT_HERE, brief="not for this system")
        try:
            nodes = self._nodes()
            self._adopt(nodes)
        except GpuwatchdError as error:
            return Availability(ok=False, reason=error.message, hint=error.hint)
        if not nodes:
            return Availability(ok=False, reason=NONE_LISTED, brief="macOS lists no GPU")
        self._system([])
        names = ", ".join(gpu.device.name for gpu in self._gpus.values())
        return Availability(ok=True, reason=f"macOS lists {names}{self._ceiling_in_words()}")

    def devices(self) -> list[Device]:
        """Return the GPUs known now."""
        return [gpu.device for gpu in self._gpus.values()]

    def read(self) -> Sample:
        """Read every GPU once."""
        if not self._is_mac:
            raise SourceUnavailable(NOT_HERE, brief="not for this system")
        taken_at_s, mono_s = self._clock(), self._monotonic()
        faults: list[Fault] = []
        events: list[Event] = []
        silent = False
        try:
            self._adopt(self._nodes())
        except SourceError as error:
            if not self._gpus:
                raise
            for gpu in self._gpus.values():
                gpu.node = None
                faults.append(_fault(gpu, "", error.message))
            silent = True
        if not self._gpus:
            raise SourceUnavailable(NONE_LISTED, brief="macOS lists no GPU")
        system = self._system(faults)
        readings = []
        for gpu in self._gpus.values():
            if gpu.node is None:
                if not silent:
                    faults.append(_fault(gpu, "", "macOS no longer lists it"))
                readings.append(_blank(gpu, "hung" if silent else "lost"))
            else:
                readings.append(self._read(gpu, gpu.node, system, mono_s, faults))
            events += self._news(gpu, taken_at_s)
        events += self._worries(system, taken_at_s)
        return Sample(
            taken_at_s=taken_at_s,
            taken_mono_s=mono_s,
            boot_id=self._calls.boot_id(),
            readings=tuple(readings),
            faults=tuple(faults),
            events=tuple(events),
        )

    def close(self) -> None:
        """Let go of nothing: every question is asked anew."""

    def _nodes(self) -> list[Node]:
        raw = self._calls.run(ACCELERATORS)
        nodes = calls.parse(raw)
        # A list that is damaged is asked for in the other form; an empty one means that none is.
        return (
            nodes if nodes or not raw.strip() else calls.parse(self._calls.run(ACCELERATORS_TEXT))
        )

    def _adopt(self, nodes: list[Node]) -> None:
        """Bring the table of GPUs up to date; one that is not listed any more has no node."""
        for gpu in self._gpus.values():
            gpu.node = None
        counts: dict[str, int] = {}
        for position, node in enumerate(nodes):
            number = counts[node.kind] = counts.get(node.kind, 0) + 1
            # Registry ids change with every boot; the class and the machine do not.
            uid = f"{self._machine_id()}-{node.kind}" + (f"-{number}" if number > 1 else "")
            known = self._gpus.get(uid)
            if known is not None:
                known.node = node
                continue
            device = Device(
                uid=uid,
                vendor=node.vendor,
                index=position,
                name=node.model or "GPU",
                memory_total_bytes=None,
                memory_kind="unified" if node.is_apple else "dedicated",
                source="metal",
            )
            self._gpus[uid] = _Gpu(device, node)

    def _machine_id(self) -> str:
        """Return a text that is this machine's own; its hardware UUID is not shown."""
        if self._machine is None:
            try:
                uuid = calls.platform_uuid(self._calls.run(PLATFORM))
            except SourceError:
                uuid = None
            digest = hashlib.blake2b((uuid or "").encode(), digest_size=6).hexdigest()
            self._machine = f"mac-{digest}" if uuid else "mac"
        return self._machine

    def _system(self, faults: list[Fault]) -> System:
        """Return the host's memory, and renew the ceiling."""
        try:
            sysctl = calls.parse_sysctl(self._calls.run(SYSCTL).decode("utf-8", "replace"))
        except SourceError as error:
            faults.append(Fault(where="metal/sysctl", why=error.message))
            sysctl = {}
        try:
            pages = self._calls.run(VM_STAT).decode("utf-8", "replace")
        except SourceError as error:
            faults.append(Fault(where="metal/vm_stat", why=error.message))
            pages = ""
        system = calls.system_of(sysctl, pages)
        if not self._asked_metal and not system.limit_bytes:
            self._asked_metal = True
            self._recommended = self._calls.recommended_bytes()
        limit = calls.ceiling(system, self._recommended)
        self._ceiling = limit or self._ceiling
        return system

    def _ceiling_in_words(self) -> str:
        if self._ceiling is None:
            return ""
        amount = units.size(self._ceiling.total_bytes)
        how = {
            "set": "set by iogpu.wired_limit_mb",
            "Metal": "recommended by Metal",
            "estimate": "an estimate",
        }[self._ceiling.how]
        return f"; the GPU may take {amount} of memory ({how})"

    def _read(
        self, gpu: _Gpu, node: Node, system: System, mono_s: float, faults: list[Fault]
    ) -> DeviceReading:
        uid = gpu.device.uid
        if not node.is_apple:
            used, free, total = node.vram
            self._note_total(gpu, total)
            return DeviceReading(
                device_uid=uid, used_bytes=used, free_bytes=free, total_bytes=total,
                util_pct=node.busy_pct, uses_reason=NO_PROCESSES, memory_api="ioreg vram",
            )  # fmt: skip
        allocated = node.stats.get(calls.ALLOCATED)
        in_use = node.stats.get(calls.IN_USE)
        if allocated is None:
            faults.append(_fault(gpu, "memory", "ioreg reports no allocated memory"))
        total = None if self._ceiling is None else self._ceiling.total_bytes
        self._note_total(gpu, total)
        uses = None
        try:
            uses, reason = self._processes.holders(mono_s)
        except SourceError as error:
            reason = error.message
            faults.append(_fault(gpu, "processes", reason))
        return DeviceReading(
            device_uid=uid,
            used_bytes=allocated,
            free_bytes=calls.headroom(self._ceiling, allocated, in_use, system),
            total_bytes=total,
            resident_bytes=in_use,
            util_pct=node.busy_pct,
            uses=uses,
            uses_reason=reason,
            memory_api="ioreg alloc",
        )

    @staticmethod
    def _note_total(gpu: _Gpu, total: int | None) -> None:
        if total is not None and total != gpu.device.memory_total_bytes:
            gpu.device = msgspec.structs.replace(gpu.device, memory_total_bytes=total)

    def _worries(self, system: System, at_s: float) -> list[Event]:
        """Return an event when the host has become shorter of memory since the last look.

        On a Mac that is what running out looks like: programs are compressed, swapped and, in the
        end, ended.
        """
        before, self._pressure = self._pressure, system.pressure or self._pressure
        now = self._pressure or calls.NORMAL
        unified = [gpu for gpu in self._gpus.values() if gpu.device.memory_kind == "unified"]
        if now <= max(before or 0, calls.NORMAL) or not unified:
            return []
        word = "critical" if now >= calls.CRITICAL else "raised"
        swapped = "" if not system.swap_bytes else f", {units.size(system.swap_bytes)} are swapped"
        text = f"the memory pressure of the machine is {word}{swapped}"
        uid = unified[0].device.uid
        return [Event(at_s=at_s, kind="memory-pressure", device_uid=uid, text=text)]

    @staticmethod
    def _news(gpu: _Gpu, at_s: float) -> list[Event]:
        """Return an event when the driver has restarted the GPU since the last look."""
        now = None if gpu.node is None else gpu.node.stats.get(calls.RECOVERIES)
        if now is None:
            return []
        before, gpu.recoveries = gpu.recoveries, now
        if before is None or now <= before:
            return []
        text = f"the driver restarted the GPU because it did not answer ({now} times since boot)"
        return [Event(at_s=at_s, kind="gpu-hung", device_uid=gpu.device.uid, text=text)]


def _blank(gpu: _Gpu, state: DeviceState) -> DeviceReading:
    return DeviceReading(
        device_uid=gpu.device.uid,
        used_bytes=None,
        free_bytes=None,
        total_bytes=gpu.device.memory_total_bytes,
        uses_reason="the GPU could not be read",
        state=state,
    )


def _fault(gpu: _Gpu, field: str, why: str) -> Fault:
    where = f"metal/{gpu.device.uid}"
    return Fault(where=f"{where}/{field}" if field else where, why=why, device_uid=gpu.device.uid)
