"""NVIDIA GPUs, through NVML: the only file that imports pynvml.

NVML is initialised once and held for life: initialising it wakes cards and, repeated for hours,
hangs. A card is its UUID; index and handle are not identity. Whatever one query, one process list
or one card refuses is a fault of that part alone: the rest of the sample is complete.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pynvml

from gpuwatchd.errors import SourceUnavailable
from gpuwatchd.model import Availability, Device, DeviceReading, Fault, Sample
from gpuwatchd.sources.nvml_parts import (
    ABSENT_CODES,
    GLOBAL_CODES,
    GONE_CODES,
    Memory,
    ProcessLists,
    Unit,
    host_memory,
    kernel_module_version,
    library_replaced,
    pci_address,
    read_text,
    state_of,
)
from gpuwatchd.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.model import ProcessUse

NVMLError: type[Exception] = pynvml.NVMLError
NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 4, 9, 10, 12, 18

ABSENT_WAIT_S = (5.0, 300.0)
"""First and longest pause between tries on a machine where no GPU was ever seen."""
LOST_WAIT_S = (1.0, 60.0)
"""The same once a GPU has answered and went away."""


def _code(error: BaseException) -> int:
    return int(getattr(error, "value", 999))


class NvmlSource:
    """Every NVIDIA GPU and MIG instance of this machine.

    Parameters
    ----------
    slow_every
        Temperature, power and clock are asked for every so many reads.
    fresh_s
        A carried value older than this is unknown.
    rescan_s
        Time between two looks for new cards and MIG instances.
    proc_root, sys_root
        Where /proc and /sys are.
    clock, monotonic
        Wall clock and monotonic clock, seconds.
    """

    name = "nvml"

    def __init__(
        self,
        *,
        slow_every: int = 3,
        fresh_s: float = 30.0,
        rescan_s: float = 60.0,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slow_every = max(1, slow_every)
        self._fresh_s = fresh_s
        self._rescan_s = rescan_s
        self._proc = Path(proc_root)
        self._sys = Path(sys_root)
        self._clock = clock
        self._monotonic = monotonic
        self._boot_id = read_text(self._proc / "sys/kernel/random/boot_id")
        self._units: dict[str, Unit] = {}
        self._lists: ProcessLists | None = None
        self._open = False
        self._tick = 0
        self._retry_at_mono_s = 0.0
        self._reinit_at_mono_s: float | None = None
        self._rescan_at_mono_s = 0.0
        self._wait_s = 0.0
        self._why = Availability(ok=False, reason="NVML has not been asked yet")
        self._module_version: str | None = None
        self.needs_restart = False
        """True when the library file was replaced under us: only a new process can load the new
        one."""

    # ---- the protocol ---------------------------------------------------------------------------

    def probe(self) -> Availability:
        """Say whether there is an NVIDIA GPU here and, if not, what is missing. Never raises."""
        if not self._open:
            self._start(self._monotonic())
        return self._why

    def devices(self) -> list[Device]:
        """Return the cards and MIG instances known now, cards first by index."""
        return [unit.device for unit in self._units.values()]

    def read(self) -> Sample:
        """Read every card once.

        Raises
        ------
        SourceUnavailable
            When no GPU was ever seen here; asked again later by itself.
        """
        taken_at_s, mono_s = self._clock(), self._monotonic()
        faults: list[Fault] = []
        self._prepare(mono_s, faults)
        readings = [self._read_or_blank(unit, mono_s, faults) for unit in self._units.values()]
        self._after(mono_s)
        self._tick += 1
        return Sample(
            taken_at_s=taken_at_s,
            taken_mono_s=mono_s,
            boot_id=self._boot_id,
            readings=tuple(readings),
            faults=tuple(faults),
        )

    def close(self) -> None:
        """Let go of the driver."""
        self._shutdown()

    def release(self, duration_s: float) -> None:
        """Let go of the driver for a while, so that a GPU can be reset or a module unloaded."""
        self._shutdown()
        self._why = Availability(ok=False, reason="the driver was let go on request")
        self._retry_at_mono_s = self._monotonic() + duration_s

    # ---- NVML's life ----------------------------------------------------------------------------

    def _prepare(self, mono_s: float, faults: list[Fault]) -> None:
        due = self._reinit_at_mono_s
        if self._open and due is not None and mono_s >= due:
            self._shutdown()
            self._retry_at_mono_s = mono_s
        if not self._open and mono_s >= self._retry_at_mono_s:
            self._start(mono_s)
        elif self._open and mono_s >= self._rescan_at_mono_s:
            self._rescan(mono_s)
        if self._open:
            return
        if not self._units:
            raise SourceUnavailable(self._why.reason, hint=self._why.hint)
        faults.append(Fault(where="nvml", why=self._why.reason))

    def _start(self, mono_s: float) -> None:
        """Initialise NVML and find the cards; on failure note why and when to try again."""
        try:
            pynvml.nvmlInit()
        except NVMLError as error:
            self._why = self._explain(_code(error))
            self._pause(mono_s)
            return
        self._open = True
        self._lists = ProcessLists(pynvml.nvmlLib, NVMLError, self._proc)
        self._module_version = kernel_module_version(self._proc, self._sys)
        for unit in self._units.values():
            unit.forget_refusals()
        try:
            self._scan()
        except NVMLError as error:
            self._lose_all(mono_s, _code(error))
            return
        self._rescan_at_mono_s = mono_s + self._rescan_s
        if self._units:
            self._why = Availability(ok=True, reason=f"NVML sees {len(self._units)} device(s)")
            return
        self._shutdown()
        self._why = Availability(
            ok=False,
            reason="the NVIDIA driver is loaded but lists no GPU",
            hint="check nvidia-smi, and that this user or container may open /dev/nvidia*",
        )
        self._pause(mono_s)

    def _rescan(self, mono_s: float) -> None:
        self._rescan_at_mono_s = mono_s + self._rescan_s
        if kernel_module_version(self._proc, self._sys) != self._module_version:
            # The module was exchanged: keeping the old handles can only hurt.
            self._shutdown()
            self._start(mono_s)
            return
        try:
            self._scan()
        except NVMLError as error:
            self._lose_all(mono_s, _code(error))

    def _shutdown(self) -> None:
        if not self._open:
            return
        self._open = False
        self._reinit_at_mono_s = None
        for unit in self._units.values():
            unit.handle = None
        # A library that calls itself uninitialised is as good as shut down.
        with contextlib.suppress(NVMLError):
            pynvml.nvmlShutdown()

    def _pause(self, mono_s: float) -> None:
        first, longest = LOST_WAIT_S if self._units else ABSENT_WAIT_S
        self._wait_s = min(longest, max(first, self._wait_s * 2))
        self._retry_at_mono_s = mono_s + self._wait_s

    def _lose_all(self, mono_s: float, code: int) -> None:
        """NVML itself is gone: drop every handle and come back later."""
        self._why = self._explain(code)
        self._shutdown()
        self._pause(mono_s)
        for unit in self._units.values():
            unit.state = "lost"

    def _after(self, mono_s: float) -> None:
        """Plan a fresh start when a card was lost; forget the pauses when all is well."""
        if not self._open:
            return
        if not any(unit.state == "lost" for unit in self._units.values()):
            self._wait_s = 0.0
            self._reinit_at_mono_s = None
        elif self._reinit_at_mono_s is None:
            self._pause(mono_s)
            self._reinit_at_mono_s = self._retry_at_mono_s

    def _explain(self, code: int) -> Availability:
        """Return one sentence and one hint for what NVML refused to start with."""
        if code == LIBRARY_NOT_FOUND:
            reason = "libnvidia-ml.so.1 was not found: no NVIDIA driver is installed here"
            hint = "install the NVIDIA driver; in a container, start it with --gpus all"
        elif code == DRIVER_NOT_LOADED:
            reason = "the NVIDIA driver is installed but not loaded"
            hint = "sudo modprobe nvidia, or reboot after an installation"
        elif code == VERSION_MISMATCH:
            self.needs_restart = library_replaced(self._proc)
            library = self._library_version() or "of unknown version"
            module = kernel_module_version(self._proc, self._sys) or "of unknown version"
            reason = f"NVIDIA library {library} does not fit the loaded kernel module {module}"
            hint = "restart gpuwatchd" if self.needs_restart else "reboot, or reload the module"
        else:
            reason = f"NVML did not answer: {self._text(code)}"
            hint = "nvidia-smi says more; in a container, restart the container"
        return Availability(ok=False, reason=reason, hint=hint)

    @staticmethod
    def _text(code: int) -> str:
        return f"{clean(str(pynvml.NVMLError(code)))} (code {code})"

    @staticmethod
    def _library_version() -> str | None:
        try:
            version = clean(pynvml.nvmlSystemGetNVMLVersion())
        except NVMLError:
            return None
        # "12.550.54.15" is CUDA's major version, then the driver's.
        return version.partition(".")[2] if version.count(".") >= 2 else version

    # ---- finding cards --------------------------------------------------------------------------

    def _scan(self) -> None:
        """Bring the table of units up to date. Raises NVMLError when NVML itself is gone."""
        found: dict[str, Unit] = {}
        blocked: list[tuple[int, int]] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uid = clean(pynvml.nvmlDeviceGetUUID(handle))
            except NVMLError as error:
                if _code(error) in GLOBAL_CODES:
                    raise
                blocked.append((index, _code(error)))
                continue
            card = self._adopt(handle, uid, index)
            found[uid] = card
            self._scan_slices(card, found)
        self._keep_missing(found, blocked)
        self._units = found

    def _adopt(self, handle: Any, uid: str, index: int, parent: Unit | None = None) -> Unit:
        unit = self._units.get(uid)
        if unit is None:
            unit = Unit(uid, self._describe(handle, uid, index, parent))
        elif unit.device.index != index:
            unit.device = msgspec.structs.replace(unit.device, index=index)
        unit.handle = handle
        unit.state = "ok"
        return unit

    @staticmethod
    def _describe(handle: Any, uid: str, index: int, parent: Unit | None) -> Device:
        name, bus = "NVIDIA GPU", None
        with contextlib.suppress(NVMLError):
            name = clean(pynvml.nvmlDeviceGetName(handle))
        with contextlib.suppress(NVMLError):
            bus = pci_address(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        return Device(
            uid=uid,
            vendor="nvidia",
            index=index,
            name=name,
            memory_total_bytes=None,
            parent_uid=parent.uid if parent else None,
            source="nvml",
            pci_bus=parent.device.pci_bus if parent else bus,
        )

    def _scan_slices(self, card: Unit, found: dict[str, Unit]) -> None:
        card.is_parent = False
        try:
            if not pynvml.nvmlDeviceGetMigMode(card.handle)[0]:
                return
            card.is_parent = True
            most = pynvml.nvmlDeviceGetMaxMigDeviceCount(card.handle)
        except NVMLError:
            return
        for position in range(most):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, position)
                uid = clean(pynvml.nvmlDeviceGetUUID(handle))
            except NVMLError:
                continue  # an empty slot answers NOT_FOUND
            found[uid] = self._adopt(handle, uid, position, card)

    def _keep_missing(self, found: dict[str, Unit], blocked: list[tuple[int, int]]) -> None:
        """Keep what answered before, and show what has never answered."""
        states = dict(blocked)
        for uid, unit in self._units.items():
            if uid in found or unit.is_placeholder:
                continue
            if unit.device.parent_uid in found:
                continue  # the administrator removed this instance
            index = unit.device.index
            code = states.pop(index, GONE_CODES[0]) if index is not None else GONE_CODES[0]
            with contextlib.suppress(NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(uid)
                found[uid] = self._adopt(handle, uid, index or 0)
                continue
            unit.handle, unit.state = None, state_of(code)
            found[uid] = unit
        for index, code in states.items():
            found.update(self._placeholder(index, code))

    @staticmethod
    def _placeholder(index: int, code: int) -> dict[str, Unit]:
        uid = f"nvml-index-{index}"
        unit = Unit(
            uid,
            Device(
                uid=uid,
                vendor="nvidia",
                index=index,
                name=f"NVIDIA GPU {index} (not accessible)",
                memory_total_bytes=None,
                source="nvml",
            ),
        )
        unit.is_placeholder, unit.state = True, state_of(code)
        return {uid: unit}

    # ---- reading one card -----------------------------------------------------------------------

    def _read_or_blank(self, unit: Unit, mono_s: float, faults: list[Fault]) -> DeviceReading:
        """Return the reading of one unit, or an empty one that says why. Never raises."""
        if not self._open or unit.handle is None:
            if self._open:
                faults.append(unit.fault(f"the GPU does not answer ({unit.state})"))
            return unit.blank()
        unit.state = "ok"
        try:
            return self._read_unit(unit, mono_s, faults)
        except NVMLError as error:
            code = _code(error)
            if code in GLOBAL_CODES:
                self._lose_all(mono_s, code)
                faults.append(Fault(where="nvml", why=self._why.reason))
            else:
                # Calls on the handle of a lost card may crash: it is found again by its UUID.
                unit.handle, unit.state = None, state_of(code)
                faults.append(unit.fault(self._text(code)))
            return unit.blank()

    def _read_unit(self, unit: Unit, mono_s: float, faults: list[Fault]) -> DeviceReading:
        memory = self._memory(unit, faults)
        uses: tuple[ProcessUse, ...] | None = None
        reason: str | None = "memory is read per MIG instance"
        if not unit.is_parent:
            total = memory.total_bytes if memory and unit.memory_api != "unified" else None
            uses, reason = self._process_lists().read(unit, total)
            if reason is not None and uses is None:
                faults.append(unit.fault(reason, "processes"))
        if unit.memory_api == "unified":
            memory = host_memory(self._proc, uses)
            if uses is None:
                unit.state = "unsupported"
        rates = self._ask(unit, "util", pynvml.nvmlDeviceGetUtilizationRates, faults)
        total = memory.total_bytes if memory else None
        if total is not None and unit.device.memory_total_bytes != total:
            unit.learn_total(total)
        temperature = self._slow(unit, "temp", _temperature, mono_s, faults)
        power = self._slow(unit, "power", pynvml.nvmlDeviceGetPowerUsage, mono_s, faults)
        clock = self._slow(unit, "clock", _clock, mono_s, faults)
        return DeviceReading(
            device_uid=unit.uid,
            used_bytes=memory.used_bytes if memory else None,
            free_bytes=memory.free_bytes if memory else None,
            total_bytes=total,
            reserved_bytes=memory.reserved_bytes if memory else None,
            util_pct=float(rates.gpu) if rates else None,
            memory_util_pct=float(rates.memory) if rates else None,
            temp_c=temperature,
            power_w=power / 1000 if power is not None else None,
            clock_mhz=clock,
            uses=uses,
            uses_reason=reason if uses is None else None,
            state=unit.state,
        )

    def _process_lists(self) -> ProcessLists:
        if self._lists is None:
            self._lists = ProcessLists(pynvml.nvmlLib, pynvml.NVMLError, self._proc)
        return self._lists

    def _ask(
        self, unit: Unit, field: str, call: Callable[[Any], Any], faults: list[Fault]
    ) -> Any | None:
        """Return one gauge; None when refused, and no second question when it does not exist."""
        if field in unit.refused:
            return None
        try:
            return call(unit.handle)
        except NVMLError as error:
            code = _code(error)
            if code in GLOBAL_CODES or code in GONE_CODES:
                raise
            if code in ABSENT_CODES:
                unit.refused.add(field)
            else:
                faults.append(unit.fault(self._text(code), field))
            return None

    def _slow(
        self,
        unit: Unit,
        field: str,
        call: Callable[[Any], Any],
        mono_s: float,
        faults: list[Fault],
    ) -> float | None:
        """Return a gauge that changes slowly: asked for now and then, carried while fresh."""
        asked_at_s, value = unit.carried.get(field, (float("-inf"), None))
        turn = (self._tick + (unit.device.index or 0)) % self._slow_every == 0
        if not turn and mono_s - asked_at_s <= self._fresh_s:
            return value
        answer = self._ask(unit, field, call, faults)
        value = float(answer) if answer is not None else None
        unit.carried[field] = (mono_s, value)
        return value

    # ---- memory ---------------------------------------------------------------------------------

    def _memory(self, unit: Unit, faults: list[Fault]) -> Memory | None:
        """Return the unit's memory, always by the same call for one device."""
        try:
            if unit.memory_api is None:
                return self._choose_memory(unit)
            return self._memory_by(unit, unit.memory_api)
        except NVMLError as error:
            code = _code(error)
            if code in GLOBAL_CODES or code in GONE_CODES:
                raise
            if code in {NO_PERMISSION, TIMEOUT}:
                unit.state = state_of(code)
            faults.append(unit.fault(self._text(code), "memory"))
            return None

    def _choose_memory(self, unit: Unit) -> Memory | None:
        """Decide once: version 2, else version 1, else this card shares the host's memory.

        Mixing the two versions in one series would look like a step of the driver's reserve. Only
        "not supported" and a total of zero mean shared memory: a lost or forbidden card does not.
        """
        memory = None
        for api in ("v2", "v1"):
            try:
                memory = self._memory_by(unit, api)
            except NVMLError as error:
                if _code(error) not in ABSENT_CODES:
                    raise
                continue
            if memory is not None:
                unit.memory_api = api
            break
        if memory is None and not unit.is_parent and unit.device.parent_uid is None:
            unit.memory_api = "unified"
            unit.device = msgspec.structs.replace(unit.device, memory_kind="unified")
        return memory

    @staticmethod
    def _memory_by(unit: Unit, api: str) -> Memory | None:
        """Return what one version says; None for a total of zero."""
        if api == "unified":
            return None
        if api == "v1":
            raw = pynvml.nvmlDeviceGetMemoryInfo(unit.handle)
            reserved = None
        else:
            raw = pynvml.nvmlDeviceGetMemoryInfo(unit.handle, pynvml.nvmlMemory_v2)
            reserved = raw.reserved
        total, free = raw.total, raw.free
        if total == 0:
            return None
        # Whether version 2's "used" holds the reserve differs between drivers: count it ourselves.
        used = total - free - (reserved or 0)
        return Memory(used if used >= 0 else total - free, free, total, reserved)


def _temperature(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _clock(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
