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

from gpuwatchd.collect.metal import calls, processes
from gpuwatchd.collect.metal.calls import (
    ACCELERATORS,
    ACCELERATORS_TEXT,
    PLATFORM,
    SYSCTL,
    VM_STAT,
    Mac,
)
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError, SourceError, SourceUnavailable
from gpuwatchd.core.model import Availability, Device, DeviceReading, Event, Fault, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.collect.metal.calls import Ceiling, Node, System
    from gpuwatchd.core.model import DeviceState

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
    """Every GPU of a Mac.

    Parameters
    ----------
    calls
        The system calls; None asks this system.
    """

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
        self._processes = processes.Processes(self._calls)
        self._gpus: dict[str, _Gpu] = {}
        self._machine: str | None = None
        self._asked_metal = False
        self._recommended: int | None = None
        self._ceiling: Ceiling | None = None
        self._pressure: int | None = None

    # ---- the protocol ---------------------------------------------------------------------------

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

    # ---- GPUs -----------------------------------------------------------------------------------

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
