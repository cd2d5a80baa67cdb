"""What a card is, what NVML's codes mean, and entry points of the library that nvidia-ml-py loaded.

Nothing here imports pynvml: the library is handed in. Structures are made once per card and filled
anew by each call; the layouts are those of nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gpuwatchd.core.model import Device, DeviceReading, DeviceState, Fault
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import MemoryKind

OK, NOT_SUPPORTED, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 0, 3, 7, 13
NO_PERMISSION, TIMEOUT, GPU_IS_LOST = 4, 10, 15
UNKNOWN_ERROR: Final = 999

NO_ATTACH: Final = 2
"""Flag of nvmlInitWithFlags: touch only the cards that are asked for."""
GLOBAL_CODES: Final = frozenset({1, 9, 18})
"""UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH: NVML itself has to start again."""
FATAL_CODES: Final = GLOBAL_CODES | {GPU_IS_LOST, 16}
"""Those, and GPU_IS_LOST, RESET_REQUIRED: this card's handle must not be used again."""
ABSENT_CODES: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25})
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH: asking again is of no use."""

EMPTY_SLOT_CODES: Final = frozenset({2, 6})
"""INVALID_ARGUMENT, NOT_FOUND: there is no MIG instance at this place."""

_STATES: Final[dict[int, DeviceState]] = {
    3: "unsupported",
    4: "no-permission",
    10: "hung",
    16: "reset-required",
}
_WORDS: Final[dict[DeviceState, str]] = {
    "ok": "the GPU does not answer",
    "asleep": "the GPU is asleep",
    "lost": "the GPU is lost",
    "no-permission": "no permission to read the GPU",
    "unsupported": "the driver does not support reading the GPU",
    "hung": "the GPU hangs",
    "reset-required": "the GPU has to be reset",
    "released": "the GPU was released",
}


def code_of(error: BaseException) -> int:
    """Return NVML's code of an error."""
    return int(getattr(error, "value", UNKNOWN_ERROR))


def state_of(code: int) -> DeviceState:
    """Return what an NVML code says about a card.

    Examples
    --------
    >>> state_of(4), state_of(15), state_of(16)
    ('no-permission', 'lost', 'reset-required')
    """
    return _STATES.get(code, "lost")


_SHARED: Final = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra|Jetson)\b")
"""Names of chips whose GPU has no memory of its own, whatever the driver answers."""
_SHARED_CAPABILITIES: Final = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})
"""Compute capabilities of such chips: Tegra X1 and X2, Xavier, Orin, Thor (two numberings), GB10.
NVML's architecture does not tell them apart: Orin and A100 are Ampere, GB10 and B200 Blackwell."""
_OWN_CAPABILITIES: Final = frozenset(
    {
        *((3, 0), (3, 5), (3, 7), (5, 0), (5, 2), (6, 0), (6, 1), (7, 0), (7, 5)),
        *((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)),
    }
)
"""Compute capabilities of chips that always have memory of their own."""


def has_own_memory(name: str, capability: tuple[int, int] | None) -> bool | None:
    """Say whether a chip has memory of its own; None where it is none of those known."""
    if _SHARED.search(name) or capability in _SHARED_CAPABILITIES:
        return False
    return True if capability in _OWN_CAPABILITIES else None


class ErrorCounts(NamedTuple):
    """Errors of a card's memory, as last answered; None for what it does not count."""

    uncorrected: int | None = None
    """Since the driver was loaded."""
    retired: int | None = None
    """Pages or rows out of use."""
    due: int = 0
    """What has to be done about them; more is worse."""
    what: str = ""
    """Which of them are counted: "page" or "row"; "": it was not asked yet."""


class Card:
    """One card or MIG instance: its handle and what was learnt about it."""

    def __init__(self, uid: str, device: Device) -> None:
        self.uid = uid
        self.device = device
        self.handle: Any = None
        self.state: DeviceState = "ok"
        self.code: int | None = None
        """NVML's code of what ended the last read."""
        self.is_parent = False
        # Whether it stands for a card that cannot be opened: little is known of it.
        self.is_placeholder = False
        self.memory_api: str | None = None
        # Fields that this driver does not tell of this card: they are not asked for again.
        self.refused: set[str] = set()
        self.errors = ErrorCounts()
        self.versions: dict[str, int] = {}
        """The newest structure that works, by kind of process list."""
        self.unanswered = 0
        """Looks in a row at which the driver did not know the memory of a chip in no list."""
        self.unlisted: dict[str, tuple[float, float]] = {}
        """Process lists that do not exist here, by kind: when (monotonic) to ask again, seconds of
        the pause before."""
        self.reader: Any = None
        """The CardReader of its present handle."""

    def forget_refusals(self) -> None:
        """Ask for everything again, as a driver that starts anew may answer differently."""
        self.refused.clear()
        self.versions.clear()
        self.unlisted.clear()
        self.reader = None

    def learn_memory(
        self, api: str, kind: MemoryKind | None = None, *, unanswered: int = 0
    ) -> None:
        """Note by which call memory is read from now on and, where that is new, its kind."""
        self.memory_api, self.unanswered = api, unanswered
        if kind is not None:
            self.device = msgspec.structs.replace(self.device, memory_kind=kind)

    def learn_total(self, total_bytes: int) -> None:
        """Note the size of the memory in the device's description."""
        self.device = msgspec.structs.replace(self.device, memory_total_bytes=total_bytes)

    def fault(self, why: str, field: str = "") -> Fault:
        """Return a fault of this card, or of one field of it."""
        where = f"nvml/{self.device.index}" + (f"/{field}" if field else "")
        return Fault(where=where, why=why, device_uid=self.uid)

    def blank(self, state: DeviceState = "lost", why: str | None = None) -> DeviceReading:
        """Return the reading of a card that did not answer.

        ``state`` is that of a card which is well by itself; ``why`` is what keeps it from being
        read, where that is more than its state says.
        """
        return DeviceReading(
            device_uid=self.uid,
            used_bytes=None,
            free_bytes=None,
            total_bytes=self.device.memory_total_bytes,
            uses=None,
            uses_reason=self.why() if why is None else why,
            state=self.state if self.state != "ok" else state,
        )

    def why(self) -> str:
        """Say in words what keeps this card from being read."""
        return _WORDS[self.state]


UNKNOWN_INDEX: Final = 1 << 16


def order(card: Card, cards: dict[str, Card]) -> tuple[int, int, int]:
    """Return the key that sorts cards by index, each followed by its MIG instances."""
    parent = cards.get(card.device.parent_uid or "")
    index = UNKNOWN_INDEX if card.device.index is None else card.device.index
    return (parent.device.index or 0, 1, index) if parent else (index, 0, 0)


def placeholder(place: int | str, state: DeviceState) -> Card:
    """Return what stands for a card whose UUID could not be asked for.

    ``place`` is its index, or its PCI address where that is all we know.
    """
    index, bus = (place, None) if isinstance(place, int) else (None, place)
    device = Device(
        uid=f"nvml-index-{place}" if bus is None else f"nvml-{place}",
        vendor="nvidia",
        index=index,
        name=f"NVIDIA GPU {place}" + (" (not accessible)" if bus is None else ""),
        memory_total_bytes=None,
        source="nvml",
        pci_bus=bus,
    )
    card = Card(device.uid, device)
    card.is_placeholder, card.state = True, state
    return card


Answer = tuple[int, int]
"""NVML's code and the number that came with it."""

MEMORY_V2: Final = 0x0200_0028
_ADDRESSING_V1: Final = 0x0100_0008
TEMPERATURE_V1: Final = 0x0100_000C
TEMPERATURE_GPU: Final = 0
CLOCK_SM: Final = 1
_UNCORRECTED, _VOLATILE = 1, 0


class Memory2(ctypes.Structure):
    """What version 2 of the memory query fills."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Memory1(ctypes.Structure):
    """What version 1 of the memory query fills."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Rates(ctypes.Structure):
    """Utilisation of the compute units and of the memory's bus, per cent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Temperature(ctypes.Structure):
    """What the newer question for a temperature fills."""

    _fields_ = (("version", ctypes.c_uint), ("sensor", ctypes.c_int), ("value", ctypes.c_int))


class Addressing(ctypes.Structure):
    """How host and GPU share addresses: 0 not at all, 1 HMM, 2 ATS."""

    _fields_ = (("version", ctypes.c_uint), ("value", ctypes.c_uint))


def address_of(handle: Any) -> int:
    """Return the address that a handle stands for."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class Calls:
    """Entry points of the library that nvidia-ml-py loads (``api``), and what its codes mean."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self._library = api.nvmlLib
        self.error: type[Exception] = api.NVMLError

    def attach(self) -> None:
        """Use the library, which has been loaded by now."""
        self._library = self.api.nvmlLib

    def find(self, name: str) -> Callable[..., int]:
        """Return an entry point by its name; one that is lacking answers FUNCTION_NOT_FOUND."""
        found: Callable[..., int] = getattr(self._library, name, lambda *_: FUNCTION_NOT_FOUND)
        return found

    def has(self, name: str) -> bool:
        """Say whether the library has an entry point."""
        return hasattr(self._library, name)

    def text(self, code: int) -> str:
        """Return NVML's words for a code."""
        return f"{clean(str(self.error(code)))} (code {code})"

    def check(self, code: int) -> None:
        """Raise NVML's error where a code means that the card or NVML itself is gone."""
        if code in FATAL_CODES:
            raise self.error(code)


class CardCalls:
    """One card by its present handle; what is asked rarely, and the numbers that answers fill."""

    def __init__(self, calls: Calls, card: Card) -> None:
        self.calls = calls
        self.card = card
        self.handle = card.handle
        self._address = address_of(card.handle)
        # Made once: a number and a reference to it would cost 1 µs in each call.
        self.number = ctypes.c_uint()
        self.number_ref = ctypes.byref(self.number)
        self.wide = ctypes.c_ulonglong()
        self.wide_ref = ctypes.byref(self.wide)

    def are_by(self, handle: Any) -> bool:
        """Say whether a handle is the same; NVML gives the same address each time."""
        if handle is self.handle:
            return True
        if address_of(handle) != self._address:
            return False
        self.handle = handle
        return True

    def ecc(self) -> Answer:
        """Return the uncorrected memory errors since the driver was loaded."""
        ask = self.calls.find("nvmlDeviceGetTotalEccErrors")
        return ask(self.handle, _UNCORRECTED, _VOLATILE, self.wide_ref), self.wide.value

    def retired(self) -> Answer:
        """Return the pages that were retired, for either cause."""
        ask, pages = self.calls.find("nvmlDeviceGetRetiredPages"), 0
        for cause in (0, 1):
            self.number.value = 0
            code = ask(self.handle, cause, self.number_ref, None)
            if code not in {0, 7}:  # INSUFFICIENT_SIZE tells the number as well.
                return code, 0
            pages += self.number.value
        return 0, pages

    def remapped(self) -> tuple[int, int, bool, bool]:
        """Return NVML's code, remapped rows, whether a reset is due, whether remapping failed."""
        rows = [ctypes.c_uint() for _ in range(4)]
        ask = self.calls.find("nvmlDeviceGetRemappedRows")
        code = ask(self.handle, *(ctypes.byref(row) for row in rows))
        corrected, uncorrected, pending, failed = (row.value for row in rows)
        return code, corrected + uncorrected, bool(pending), bool(failed)

    def capability(self) -> tuple[int, tuple[int, int]]:
        """Return NVML's code and the chip's compute capability, as (major, minor)."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        ask = self.calls.find("nvmlDeviceGetCudaComputeCapability")
        code = ask(self.handle, ctypes.byref(major), ctypes.byref(minor))
        return code, (major.value, minor.value)

    def numa(self) -> Answer:
        """Return a NUMA node of this card: of its memory, or of the CPUs that are nearest."""
        node = ctypes.c_int(-1)
        ask = self.calls.find("nvmlDeviceGetNumaNodeId")
        return ask(self.handle, ctypes.byref(node)), node.value

    def addressing(self) -> Answer:
        """Return how addresses are shared with the host."""
        mode = Addressing(version=_ADDRESSING_V1)
        ask = self.calls.find("nvmlDeviceGetAddressingMode")
        return ask(self.handle, ctypes.byref(mode)), mode.value
