"""What the NVML source is made of: one unit, its process lists, and the files beside the library.

Nothing here imports pynvml: the library and its error class are handed in.
"""

from __future__ import annotations

import ctypes
import re
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gpuwatchd.model import Device, DeviceReading, DeviceState, Fault, ProcessKey, ProcessUse

if TYPE_CHECKING:
    from pathlib import Path

OK, NOT_SUPPORTED, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 0, 3, 7, 13

GLOBAL_CODES: Final = frozenset({1, 9, 18})
"""UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH: NVML itself has to start again."""
GONE_CODES: Final = (15, 16)
"""GPU_IS_LOST, RESET_REQUIRED: this card's handle must not be used again."""
ABSENT_CODES: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25})
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH: asking again is of no use."""

_STATES: Final[dict[int, DeviceState]] = {
    3: "unsupported",
    4: "no-permission",
    10: "hung",
    16: "reset-required",
}

UNKNOWN_MEMORY: Final = 0xFFFF_FFFF_FFFF_FFFF
MAX_PIDS: Final = 4_194_304
LIST_TRIES: Final = 4
"""One read and three more with a doubled buffer, when the list grew meanwhile."""

_ENTRY: Final = struct.Struct("@IQII")
_ENTRY_V1: Final = struct.Struct("@IQ")
_KINDS: Final = (
    ("C", "nvmlDeviceGetComputeRunningProcesses"),
    ("G", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("M", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
_VERSIONS: Final = ("_v3", "_v2", "")
_VERSION: Final = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


def state_of(code: int) -> DeviceState:
    """Return what an NVML code says about a card.

    Examples
    --------
    >>> state_of(4), state_of(15), state_of(16)
    ('no-permission', 'lost', 'reset-required')
    """
    return _STATES.get(code, "lost")


class Memory(NamedTuple):
    """Bytes of one device; ``used`` without the reserve where that is known."""

    used_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None
    reserved_bytes: int | None


class Unit:
    """One card or MIG instance: its handle and what was learnt about it."""

    __slots__ = (
        "buffer",
        "carried",
        "device",
        "handle",
        "is_parent",
        "is_placeholder",
        "memory_api",
        "refused",
        "room",
        "state",
        "uid",
        "versions",
    )

    def __init__(self, uid: str, device: Device) -> None:
        self.uid = uid
        self.device = device
        self.handle: Any = None
        self.state: DeviceState = "ok"
        self.is_parent = False
        self.is_placeholder = False
        self.memory_api: str | None = None
        self.refused: set[str] = set()
        self.carried: dict[str, tuple[float, float | None]] = {}
        self.versions: dict[str, int] = {}
        self.room = 0
        self.buffer: Any = None
        self.grow(32)

    def grow(self, entries: int) -> None:
        """Make room for so many processes."""
        self.room = entries
        self.buffer = ctypes.create_string_buffer(entries * _ENTRY.size)

    def forget_refusals(self) -> None:
        """Ask for everything again, as a driver that starts anew may answer differently."""
        self.refused.clear()
        self.versions.clear()

    def learn_total(self, total_bytes: int) -> None:
        """Note the size of the memory in the device's description."""
        self.device = msgspec.structs.replace(self.device, memory_total_bytes=total_bytes)

    def fault(self, why: str, field: str = "") -> Fault:
        """Return a fault of this unit, or of one field of it."""
        where = f"nvml/{self.device.index}" + (f"/{field}" if field else "")
        return Fault(where=where, why=why, device_uid=self.uid)

    def blank(self) -> DeviceReading:
        """Return the reading of a unit that did not answer."""
        return DeviceReading(
            device_uid=self.uid,
            used_bytes=None,
            free_bytes=None,
            total_bytes=self.device.memory_total_bytes,
            uses=None,
            uses_reason=f"the GPU is {self.state}",
            state=self.state if self.state != "ok" else "lost",
        )


class ProcessLists:
    """The compute, graphics and MPS lists of a card, merged: each pid once.

    The lists are read straight into a kept buffer, one call instead of two, through the library
    that nvidia-ml-py has loaded; nvidia-ml-py itself cannot fall back to the older structures.
    """

    def __init__(self, library: Any, error: type[Exception], proc: Path) -> None:
        self._library = library
        self._error = error
        # Driver 535 widened the third structure for a while; the second has not changed since.
        widened = hasattr(library, "nvmlDeviceGetConfComputeMemSizeInfo") and not hasattr(
            library, "nvmlDeviceGetRunningProcessDetailList"
        )
        self._newest = 1 if widened else 0
        self._max_pid = int(read_text(proc / "sys/kernel/pid_max") or MAX_PIDS)
        self._keys: dict[int, ProcessKey] = {}

    def read(
        self, unit: Unit, total_bytes: int | None
    ) -> tuple[tuple[ProcessUse, ...] | None, str | None]:
        """Return (uses, None), or (None, why they are unknown).

        Raises
        ------
        Exception
            NVML's error when the card or NVML itself is gone.
        """
        held: dict[int, tuple[int | None, str]] = {}
        for kind, function in _KINDS:
            if kind in unit.refused:
                if kind == "C":
                    return None, "the driver does not list processes"
                continue
            code, entries = self._list(unit, kind, function)
            if code != OK:
                reason = self._refusal(unit, kind, code)
                if reason is not None:
                    return None, reason
                continue
            for pid, memory_bytes in entries:
                if not 0 < pid <= self._max_pid:
                    return None, f"the driver's process list is not credible (pid {pid})"
                known = None if memory_bytes == UNKNOWN_MEMORY else memory_bytes
                if known is not None and total_bytes is not None and known > total_bytes:
                    return None, "the driver's process list is not credible (more than the GPU has)"
                before = held.get(pid)
                held[pid] = (known, kind) if before is None else _joined(before, known, kind)
        return tuple(
            ProcessUse(key=self._key(pid), used_bytes=used, kind=kind)
            for pid, (used, kind) in held.items()
        ), None

    def _key(self, pid: int) -> ProcessKey:
        key = self._keys.get(pid)
        if key is None:
            if len(self._keys) >= 4096:
                self._keys.clear()
            key = self._keys[pid] = ProcessKey(pid=pid, started_at_s=None)
        return key

    def _refusal(self, unit: Unit, kind: str, code: int) -> str | None:
        """Return why the lists are unknown; None when this kind merely does not exist here."""
        if code in GLOBAL_CODES or code in GONE_CODES:
            raise self._error(code)
        if code in ABSENT_CODES:
            unit.refused.add(kind)
            return "the driver does not list processes" if kind == "C" else None
        if code == INSUFFICIENT_SIZE:
            return "the process list kept growing while it was read"
        return f"the driver refused the process list: {self._error(code)} (code {code})"

    def _list(self, unit: Unit, kind: str, function: str) -> tuple[int, list[tuple[int, int]]]:
        """Return (NVML code, [(pid, bytes)]), with the newest structure the driver knows."""
        code = FUNCTION_NOT_FOUND
        for version in range(unit.versions.get(kind, self._newest), len(_VERSIONS)):
            call = getattr(self._library, function + _VERSIONS[version], None)
            if call is None:
                continue
            code, count = self._call(unit, call)
            if code == FUNCTION_NOT_FOUND:
                continue
            unit.versions[kind] = version
            if code != OK or not count:
                return code, []
            entry = _ENTRY_V1 if _VERSIONS[version] == "" else _ENTRY
            raw = memoryview(unit.buffer)[: count * entry.size]
            return OK, [(fields[0], fields[1]) for fields in entry.iter_unpack(raw)]
        return code, []

    @staticmethod
    def _call(unit: Unit, call: Any) -> tuple[int, int]:
        """Read one list into the unit's buffer; a list that grew gets a larger one."""
        code = INSUFFICIENT_SIZE
        count = ctypes.c_uint(0)
        for _ in range(LIST_TRIES):
            count.value = unit.room
            code = call(unit.handle, ctypes.byref(count), unit.buffer)
            if code != INSUFFICIENT_SIZE:
                break
            unit.grow(min(65536, max(unit.room * 2, count.value)))
        return code, min(count.value, unit.room)


def _joined(before: tuple[int | None, str], known: int | None, kind: str) -> tuple[int | None, str]:
    """Return one entry for a pid that is in several lists: its memory counts once."""
    memory, kinds = before
    if known is not None:
        memory = known if memory is None else max(memory, known)
    return memory, kinds if kind in kinds.split("+") else f"{kinds}+{kind}"


def host_memory(proc: Path, uses: tuple[ProcessUse, ...] | None) -> Memory:
    """Return the memory of a card that shares the host's: what its processes hold.

    The host's own "used" would count everything else that runs there. ``free`` is what the host
    could still give, ``total`` is the host's memory.
    """
    used: int | None = 0
    for use in uses or ():
        used = None if used is None or use.used_bytes is None else used + use.used_bytes
    lines = dict(
        line.split(":", 1) for line in read_text(proc / "meminfo").splitlines() if ":" in line
    )
    return Memory(
        None if uses is None else used,
        _kilobytes(lines.get("MemAvailable")),
        _kilobytes(lines.get("MemTotal")),
        None,
    )


def _kilobytes(text: str | None) -> int | None:
    digits = (text or "").split()[:1]
    return int(digits[0]) * 1024 if digits and digits[0].isdecimal() else None


def read_text(path: Path) -> str:
    """Return a small file's text without surrounding blanks; "" when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def kernel_module_version(proc: Path, sys: Path) -> str | None:
    """Return the version of the loaded kernel module, from the files that it publishes."""
    text = read_text(proc / "driver/nvidia/version") or read_text(sys / "module/nvidia/version")
    found = _VERSION.search(text)
    return found.group() if found else None


def library_replaced(proc: Path) -> bool:
    """Say whether the library that this process has mapped is no longer the file on the disk."""
    maps = read_text(proc / "self/maps")
    return any("libnvidia-ml" in line and "(deleted)" in line for line in maps.splitlines())


def pci_address(bus: str | bytes) -> str | None:
    """Return a PCI address as sysfs writes it.

    Examples
    --------
    >>> pci_address("00000000:0A:00.0")
    '0000:0a:00.0'
    """
    text = bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus
    domain, mark, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}" if mark else None
