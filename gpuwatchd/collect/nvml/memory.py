"""How much memory a card has and uses: its own, the host's, or a NUMA node's.

Whether a card has memory of its own is a property of its chip. Figures that cannot be true are a
fault for as long as they last; they never decide what kind of memory a card has.

Nothing here imports pynvml.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.collect.nvml.calls import ABSENT_CODES, FUNCTION_NOT_FOUND, OK
from gpuwatchd.collect.nvml.driver_files import Memory, host_memory, kilobytes, read_text
from gpuwatchd.core import units

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.collect.nvml.calls import Calls, Card, HandleBuffers, Memory1, Memory2
    from gpuwatchd.core.model import ProcessUse

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
_SUPERCHIP: Final = re.compile(r"\bG[HB][23]00\b")
"""Names of chips whose GPU memory the kernel may manage as a NUMA node."""
_ATS: Final = 2
_NOTICED_BYTES: Final = 64 * 2**20
MOST_BYTES: Final = 8 * 2**40
"""A larger total is not believed: the largest card has less than half a TiB."""

LOOKS: Final = 12
"""So many looks in a row, a minute as a rule, a driver has to lack the memory of a chip in no list
before it counts as the host's: one such answer may be a glitch."""

NOT_CREDIBLE: Final = "the driver's figures contradict its process list"
ZEROS: Final = "the driver answers zeros: how much memory the GPU has is unknown"
CONTRADICTION: Final = "the driver's used and free memory contradict each other"


class Figures(NamedTuple):
    """What one look at the memory came to."""

    code: int = OK
    """NVML's."""
    memory: Memory | None = None
    """None where it is unknown, or where the processes must tell it (unified memory)."""
    fault: str | None = None
    """What is wrong with figures that NVML gave without an error."""


def credible(
    total: int, free: int, used: int, reserved: int | None, *, ahead_bytes: int = 0
) -> Figures:
    """Return what may be believed of the driver's figures, in bytes.

    Drivers differ in whether "used" holds the reserve, and whether "free" does. Either is right as
    long as "used" lies between what "free" leaves with and without the reserve. Then the figure is
    counted from "free" the same way every time: counting another way in between would look like a
    step of the reserve's size.

    Where the two contradict each other beyond that, the driver's "used" counts, unless it is an
    extreme (nothing, everything or more than there is); then "free" does, unless it is one. Where
    both are, how much is used is unknown. It counts less ``ahead_bytes``, by which it was above the
    figure from "free" as long as they agreed: that, too, would look like a step of the reserve.
    """
    if total == 0:
        return Figures(fault=ZEROS)
    if total > MOST_BYTES:
        return Figures(fault=f"the driver's total of {units.size(total)} is not believed")
    if reserved is not None and reserved > total:
        reserved = None
    kept = reserved or 0
    by_free = max(0, total - free - kept)
    if free <= total and by_free - _NOTICED_BYTES <= used <= total - free + _NOTICED_BYTES:
        return Figures(memory=Memory(by_free, free, total, reserved))
    if 0 < used < total:
        held = max(0, used - ahead_bytes)
        by_used = Memory(held, max(0, total - kept - held), total, reserved)
        return Figures(memory=by_used, fault=CONTRADICTION)
    if 0 < free < total:
        return Figures(memory=Memory(by_free, free, total, reserved), fault=CONTRADICTION)
    return Figures(fault=CONTRADICTION)


class MemoryReader:
    """Reads memory, by the same call for the whole life of a series."""

    def __init__(self, calls: Calls, proc: Path, sys: Path) -> None:
        self._calls = calls
        self._proc = proc
        self._sys = sys

    def read(self, card: Card, desk: HandleBuffers) -> Figures:
        """Return one look at the memory."""
        api = card.memory_api
        if api is None:
            return self._choose(card, desk)
        if api != "unified":
            return self._by(desk, api)
        return self._again(card, desk) if card.unanswered else Figures()

    def _choose(self, card: Card, desk: HandleBuffers) -> Figures:
        """Decide once: version 2, else version 1, else this card shares the host's memory.

        Mixing the two versions in one series would look like a step of the driver's reserve. Only
        the chip means shared memory; where it is not one of those known, that neither version
        exists does, at many looks in a row. A lost or forbidden card, or zeros, do not.
        """
        whole = not card.is_parent and card.device.parent_uid is None
        has_own = self._has_own(card, desk) if whole else None
        if has_own is False:
            self._share(card)
            return Figures()
        figures = Figures()
        for api in ("v2", "v1"):
            figures = self._by(desk, api)
            if figures.code in ABSENT_CODES:
                continue
            if figures.memory is not None:
                card.memory_api, card.unanswered = api, 0
                if self._is_coherent(card, desk, figures.memory.total_bytes or 0):
                    card.device = msgspec.structs.replace(card.device, memory_kind="coherent")
            return figures
        if not whole:
            return Figures()
        if has_own or desk.capability is None:
            return figures  # a failure, or not known yet
        card.unanswered += 1
        if card.unanswered < LOOKS:
            return figures
        self._share(card)
        return Figures()

    def _again(self, card: Card, desk: HandleBuffers) -> Figures:
        """Ask once more for the memory of a chip in no list, and take back that it has none."""
        for api in ("v2", "v1"):
            figures = self._by(desk, api)
            if figures.memory is not None:
                card.memory_api, card.unanswered = api, 0
                card.device = msgspec.structs.replace(card.device, memory_kind="dedicated")
                return figures
        return Figures()

    def _has_own(self, card: Card, desk: HandleBuffers) -> bool | None:
        """Say whether the chip has memory of its own; None where it is none of those known."""
        if _SHARED.search(card.device.name):
            return False
        if desk.capability is None:
            code, capability = self._calls.capability(desk)
            if code == OK or code in ABSENT_CODES:
                desk.capability = capability if code == OK else (0, 0)
        if desk.capability in _SHARED_CAPABILITIES:
            return False
        return True if desk.capability in _OWN_CAPABILITIES else None

    @staticmethod
    def _share(card: Card) -> None:
        card.memory_api = "unified"
        card.device = msgspec.structs.replace(card.device, memory_kind="unified")

    def _by(self, desk: HandleBuffers, api: str) -> Figures:
        """Return what one version says."""
        found: Memory1 | Memory2
        reserved: int | None
        if api == "v2":
            code, found, reserved = self._calls.memory2(desk), desk.memory2, desk.memory2.reserved
        else:
            code, found, reserved = self._calls.memory1(desk), desk.memory1, None
        if code != OK:
            return Figures(code)
        figures = credible(
            found.total, found.free, found.used, reserved, ahead_bytes=desk.ahead_bytes
        )
        if figures.memory is not None and figures.fault is None:
            desk.ahead_bytes = max(0, found.used - (figures.memory.used_bytes or 0))
        return figures

    def _is_coherent(self, card: Card, desk: HandleBuffers, total_bytes: int) -> bool:
        """Say whether the kernel manages this card's memory (Grace Hopper and its kind).

        The driver's file says it to older libraries. Not verified on hardware.
        """
        code, node = self._calls.numa(desk)
        if code == OK:
            return node >= 0 and self._is_memory_of(card, node, total_bytes)
        status = read_text(
            self._proc / "driver/nvidia/gpus" / (card.device.pci_bus or "-") / "numa_status"
        )
        if status:
            return re.search(r"(?mi)^Status:\s*online", status) is not None
        if code != FUNCTION_NOT_FOUND or not _SUPERCHIP.search(card.device.name):
            return False
        code, mode = self._calls.addressing(desk)
        return code != OK or mode == _ATS

    def _is_memory_of(self, card: Card, node: int, total_bytes: int) -> bool:
        """Say whether a NUMA node is a card's memory, and not merely the CPUs next to it.

        A node is a GPU's where no CPU is in it and it is about as large as the card; other memory
        without CPUs (CXL) has another size. Where the kernel shows no nodes, or a part of the
        memory only, the chip's name decides.
        """
        folder = self._sys / f"devices/system/node/node{node}"
        if read_text(folder / "cpulist"):
            return False
        size_bytes = kilobytes(read_text(folder / "meminfo").partition("MemTotal:")[2]) or 0
        about = abs(size_bytes - total_bytes) <= total_bytes / 4
        return about or _SUPERCHIP.search(card.device.name) is not None

    def shared(self, card: Card, uses: tuple[ProcessUse, ...] | None) -> Memory:
        """Return the memory of a card that shares the host's."""
        if uses is None and "C" in card.unlisted:
            card.state = "unsupported"
        return host_memory(self._proc, uses)

    @staticmethod
    def doubt(card: Card, desk: HandleBuffers, memory: Memory) -> bool:
        """Say whether the driver's figures cannot be true beside its process list.

        Seen are drivers that report that nothing is in use, or a total smaller than what one
        process holds. It says nothing of the kind of memory: that is the chip's.
        """
        if desk.largest_bytes > (memory.total_bytes or 0):
            return True
        # Where "free" holds the reserve, little in use comes out as none: the driver's own figure
        # then still covers the process.
        answer = desk.memory2 if card.memory_api == "v2" else desk.memory1
        least_bytes = max(_NOTICED_BYTES, answer.used + 1)
        return memory.used_bytes == 0 and desk.largest_bytes >= least_bytes
