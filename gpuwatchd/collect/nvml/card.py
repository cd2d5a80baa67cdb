"""One card or MIG instance: its handle, and what was learnt about it.

Nothing here imports pynvml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.core.model import Device, DeviceReading, DeviceState, Fault

if TYPE_CHECKING:
    from gpuwatchd.collect.nvml.calls import Desk
    from gpuwatchd.core.state_log import StateLog

OK, NOT_SUPPORTED, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 0, 3, 7, 13
GPU_IS_LOST: Final = 15
UNKNOWN_ERROR: Final = 999

GLOBAL_CODES: Final = frozenset({1, 9, 18})
"""UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH: NVML itself has to start again."""
GONE_CODES: Final = frozenset({GPU_IS_LOST, 16})
"""GPU_IS_LOST, RESET_REQUIRED: this card's handle must not be used again."""
ABSENT_CODES: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, 25})
"""NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH: asking again is of no use."""

EMPTY_SLOT_CODES: Final = frozenset({2, 6})
"""INVALID_ARGUMENT, NOT_FOUND: there is no MIG instance at this place."""

PROCESS_ENTRY_BYTES: Final = 24
"""Size of the largest structure that a process list consists of."""

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
    "released": "the GPU was let go",
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


class Card:
    """One card or MIG instance: its handle and what was learnt about it."""

    __slots__ = (
        "carried",
        "code",
        "desk",
        "device",
        "fault_log",
        "faulty",
        "handle",
        "is_parent",
        "is_placeholder",
        "memory_api",
        "refused",
        "said",
        "state",
        "uid",
        "unanswered",
        "unlisted",
        "versions",
    )

    def __init__(self, uid: str, device: Device) -> None:
        self.uid = uid
        self.device = device
        self.handle: Any = None
        self.state: DeviceState = "ok"
        self.code: int | None = None
        """NVML's code of what ended the last read."""
        self.said = ""
        """The driver's words for it."""
        self.is_parent = False
        self.is_placeholder = False
        self.memory_api: str | None = None
        self.refused: set[str] = set()
        self.carried: dict[str, tuple[float, float | None]] = {}
        self.versions: dict[str, int] = {}
        self.unanswered = 0
        """Looks in a row at which the driver did not know the memory of a chip in no list."""
        self.unlisted: dict[str, tuple[float, float]] = {}
        """Process lists that do not exist here, by kind: when (monotonic) to ask again, seconds of
        the pause before."""
        self.faulty: dict[str, float] = {}
        """When (monotonic) a fault was met last, by where it is; without those that are over."""
        self.fault_log: StateLog | None = None
        self.desk: Desk | None = None
        """What the reader keeps of its handle."""

    def forget_refusals(self) -> None:
        """Ask for everything again, as a driver that starts anew may answer differently."""
        self.refused.clear()
        self.versions.clear()
        self.unlisted.clear()
        self.desk = None

    def learn_total(self, total_bytes: int) -> None:
        """Note the size of the memory in the device's description."""
        self.device = msgspec.structs.replace(self.device, memory_total_bytes=total_bytes)

    def fault(self, why: str, field: str = "") -> Fault:
        """Return a fault of this card, or of one field of it."""
        where = f"nvml/{self.device.index}" + (f"/{field}" if field else "")
        return Fault(where=where, why=why, device_uid=self.uid)

    def blank(self, state: DeviceState = "lost", why: str | None = None) -> DeviceReading:
        """Return the reading of a card that did not answer.

        Parameters
        ----------
        state
            That of a card which is well by itself.
        why
            What keeps it from being read, where that is more than its state says.
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

    Parameters
    ----------
    place
        Its index, or its PCI address where that is all we know.
    state
        Why it could not be asked.
    """
    known = isinstance(place, int)
    device = Device(
        uid=f"nvml-index-{place}" if known else f"nvml-{place}",
        vendor="nvidia",
        index=place if isinstance(place, int) else None,
        name=f"NVIDIA GPU {place} (not accessible)" if known else f"NVIDIA GPU {place}",
        memory_total_bytes=None,
        source="nvml",
        pci_bus=None if isinstance(place, int) else place,
    )
    card = Card(device.uid, device)
    card.is_placeholder, card.state = True, state
    return card
