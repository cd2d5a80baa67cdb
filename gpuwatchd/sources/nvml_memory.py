"""How much memory a card has and uses: its own, the host's, or a NUMA node's.

Nothing here imports pynvml.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.sources.nvml_card import ABSENT_CODES, FUNCTION_NOT_FOUND, OK, UNKNOWN_ERROR
from gpuwatchd.sources.nvml_system import Memory, host_memory, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.model import ProcessUse
    from gpuwatchd.sources.nvml_calls import Calls, Desk
    from gpuwatchd.sources.nvml_card import Card

_SHARED: Final = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra|Jetson)\b")
"""Names of chips whose GPU has no memory of its own, whatever the driver answers."""
_SUPERCHIP: Final = re.compile(r"\bG[HB][23]00\b")
"""Names of chips whose GPU memory the kernel may manage as a NUMA node."""
_ATS: Final = 2
_BELIEVE_AFTER: Final = 2
"""Looks in a row that must contradict the driver's figures before they are dropped for good."""
_NOTICED_BYTES: Final = 64 * 2**20

NOT_CREDIBLE: Final = "the driver's figures contradict its process list"


class MemoryReader:
    """Reads memory, by the same call for the whole life of a series.

    Parameters
    ----------
    calls
        The library.
    proc
        Where /proc is.
    """

    def __init__(self, calls: Calls, proc: Path) -> None:
        self._calls = calls
        self._proc = proc

    def read(self, card: Card, desk: Desk) -> tuple[int, Memory | None]:
        """Return NVML's code and the memory; (0, None) where the processes must tell it."""
        api = card.memory_api
        if api is None:
            return self._choose(card, desk)
        return (OK, None) if api == "unified" else self._by(desk, api)

    def _choose(self, card: Card, desk: Desk) -> tuple[int, Memory | None]:
        """Decide once: version 2, else version 1, else this card shares the host's memory.

        Mixing the two versions in one series would look like a step of the driver's reserve. Only
        "not supported", a total of zero and the chip's name mean shared memory: a lost or
        forbidden card does not.
        """
        own = card.is_parent or card.device.parent_uid is not None
        if not own and _SHARED.search(card.device.name):
            self._share(card)
            return OK, None
        for api in ("v2", "v1"):
            code, memory = self._by(desk, api)
            if code in ABSENT_CODES:
                continue
            if code != OK:
                return code, None
            if memory is None:
                break
            card.memory_api = api
            if self._is_coherent(card, desk):
                card.device = msgspec.structs.replace(card.device, memory_kind="coherent")
            return OK, memory
        if not own:
            self._share(card)
        return OK, None

    @staticmethod
    def _share(card: Card) -> None:
        card.memory_api = "unified"
        card.device = msgspec.structs.replace(card.device, memory_kind="unified")

    def _by(self, desk: Desk, api: str) -> tuple[int, Memory | None]:
        """Return what one version says; no memory for a total of zero."""
        reserved: int | None
        if api == "v2":
            code, reserved = self._calls.memory2(desk), desk.memory2.reserved
            total, free = desk.memory2.total, desk.memory2.free
        else:
            code, reserved = self._calls.memory1(desk), None
            total, free = desk.memory1.total, desk.memory1.free
        if code != OK or total == 0:
            return code, None
        if free > total:
            return UNKNOWN_ERROR, None  # no figure of it is worth anything
        # Whether version 2's "used" holds the reserve differs between drivers: count it ourselves.
        # Where "free" holds it too the difference starts below zero: counting another way just
        # there would end in a step of the reserve's size.
        used = max(0, total - free - (reserved or 0))
        return OK, Memory(used, free, total, reserved)

    def _is_coherent(self, card: Card, desk: Desk) -> bool:
        """Say whether the kernel manages this card's memory (Grace Hopper and its kind).

        NVML names a NUMA node only for such a card; the driver's file says it to older libraries.
        Not verified on hardware.
        """
        code, node = self._calls.numa(desk)
        if code == OK:
            return node >= 0
        status = read_text(
            self._proc / "driver/nvidia/gpus" / (card.device.pci_bus or "-") / "numa_status"
        )
        if status:
            return re.search(r"(?mi)^Status:\s*online", status) is not None
        if code != FUNCTION_NOT_FOUND or not _SUPERCHIP.search(card.device.name):
            return False
        code, mode = self._calls.addressing(desk)
        return code != OK or mode == _ATS

    def shared(self, card: Card, uses: tuple[ProcessUse, ...] | None) -> Memory:
        """Return the memory of a card that shares the host's."""
        if uses is None and "C" in card.refused:
            card.state = "unsupported"
        return host_memory(self._proc, uses)

    def doubt(self, card: Card, desk: Desk, memory: Memory) -> bool:
        """Say whether the driver's figures cannot be true beside its process list.

        Some chips that share the host's memory report that nothing of it is in use, or a total
        smaller than what one process holds. Seen twice in a row, the card is taken for one of them.
        """
        too_much = desk.largest_bytes > (memory.total_bytes or 0)
        if not too_much and (memory.used_bytes or desk.largest_bytes < _NOTICED_BYTES):
            desk.suspicion = 0
            return False
        whole = not card.is_parent and card.device.parent_uid is None
        if whole and (not too_much or self._all_exist(desk)):
            desk.suspicion += 1
            if desk.suspicion >= _BELIEVE_AFTER:
                self._share(card)
        return True

    def _all_exist(self, desk: Desk) -> bool:
        """Say whether every listed process is one of this machine: the list is no nonsense."""
        return all((self._proc / str(pid)).exists() for pid in desk.by_pid)
