"""The figures of memory by themselves: no library, only what one would answer."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gpuwatchd.model import Device
from gpuwatchd.sources.nvml_calls import Calls, Desk
from gpuwatchd.sources.nvml_card import OK, UNKNOWN_ERROR, Card
from gpuwatchd.sources.nvml_memory import MemoryReader

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024**2


class Library(SimpleNamespace):
    """Answers version 2 of the memory query, and nothing else."""

    total, reserved, free = 1000 * MIB, 300 * MIB, 700 * MIB

    def nvmlDeviceGetMemoryInfo_v2(self, _: object, to: Any) -> int:  # noqa: N802 - NVML's
        memory = to._obj
        memory.total, memory.reserved, memory.free = self.total, self.reserved, self.free
        return OK


def desk_and_card() -> tuple[Desk, Card]:
    device = Device(uid="u", vendor="nvidia", index=0, name="A100", memory_total_bytes=None)
    return Desk(ctypes.c_void_p(1)), Card("u", device)


def test_a_driver_that_counts_its_reserve_as_free_makes_no_step(tmp_path: Path) -> None:
    library = Library()
    reader = MemoryReader(Calls(library), tmp_path)
    desk, card = desk_and_card()
    seen = []
    for held_mib in range(0, 601, 50):
        library.free = (1000 - held_mib) * MIB
        code, memory = reader.read(card, desk)
        assert code == OK
        assert memory is not None
        assert memory.used_bytes is not None
        seen.append(memory.used_bytes // MIB)
    assert min(seen) == 0
    assert all(0 <= after - before <= 50 for before, after in pairwise(seen))
    assert seen[-1] == 300


def test_more_free_than_there_is_is_a_failure_and_no_figure(tmp_path: Path) -> None:
    reader = MemoryReader(Calls(Library(free=1001 * MIB)), tmp_path)
    desk, card = desk_and_card()
    assert reader.read(card, desk) == (UNKNOWN_ERROR, None)
