"""The figures of memory by themselves: no library, only what one would answer."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.collect.nvml.calls import OK, Calls, Card, CardCalls
from gpuwatchd.collect.nvml.driver_files import KernelFiles, Memory
from gpuwatchd.collect.nvml.memory import CONTRADICTION, MemoryReader, credible
from gpuwatchd.core.model import Device
from tests.conftest import present

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024**2


class Library(SimpleNamespace):
    """Answers version 2 of the memory query, and nothing else."""

    total, reserved, free, used = 1000 * MIB, 300 * MIB, 700 * MIB, 0

    def nvmlDeviceGetMemoryInfo_v2(self, _: object, to: Any) -> int:  # noqa: N802 - NVML's
        memory = to._obj
        memory.total, memory.reserved, memory.free = self.total, self.reserved, self.free
        memory.used = self.used
        return OK


def reader_of(library: Library, folder: Path) -> MemoryReader:
    device = Device(uid="u", vendor="nvidia", index=0, name="A100", memory_total_bytes=None)
    card = Card("u", device)
    card.handle = ctypes.c_void_p(1)
    calls = Calls(SimpleNamespace(nvmlLib=library, NVMLError=OSError))
    return MemoryReader(CardCalls(calls, card), KernelFiles(folder, folder))


def test_a_driver_that_counts_its_reserve_as_free_makes_no_step(tmp_path: Path) -> None:
    library = Library()
    reader = reader_of(library, tmp_path)
    seen = []
    for held_mib in range(0, 601, 50):
        library.free, library.used = (1000 - held_mib) * MIB, held_mib * MIB
        code, memory, fault = reader.read()
        assert (code, fault) == (OK, None)
        assert memory is not None
        seen.append(present(memory.used_bytes) // MIB)
    assert min(seen) == 0
    assert all(0 <= after - before <= 50 for before, after in pairwise(seen))
    assert seen[-1] == 300


def test_more_free_than_there_is_is_a_failure_and_no_figure(tmp_path: Path) -> None:
    reader = reader_of(Library(free=1001 * MIB), tmp_path)
    assert reader.read() == (OK, None, CONTRADICTION)


@pytest.mark.parametrize(
    ("free", "used"),
    [
        (600, 100),  # the reserve is in neither figure
        (600, 400),  # in "used"
        (900, 100),  # in "free"
        (600, 240),  # a part of it in "used"
        (600, 50),  # something was allocated between the two
    ],
)
def test_a_driver_may_count_its_reserve_as_it_likes(free: int, used: int) -> None:
    found = credible(1000 * MIB, free * MIB, used * MIB, 300 * MIB)
    assert found.fault is None
    assert found.memory == Memory(max(0, 700 - free) * MIB, free * MIB, 1000 * MIB, 300 * MIB)


@pytest.mark.parametrize(("free", "used"), [(600, 100), (600, 400), (900, 100)])
def test_a_contradiction_makes_no_step_of_the_reserves_size(
    tmp_path: Path, free: int, used: int
) -> None:
    library = Library(free=free * MIB, used=used * MIB)
    reader = reader_of(library, tmp_path)
    before = present(reader.read().memory)
    library.free = 0
    during = reader.read()
    assert during.fault == CONTRADICTION
    assert present(during.memory).used_bytes == before.used_bytes


def test_a_reserve_larger_than_the_card_hides_nothing() -> None:
    found = credible(80 * 1024 * MIB, 71 * 1024 * MIB, 9 * 1024 * MIB, 900 * 1024 * MIB)
    assert (present(found.memory).used_bytes, found.fault) == (9 * 1024 * MIB, None)


def test_a_process_smaller_than_the_reserve_is_no_contradiction(tmp_path: Path) -> None:
    """A driver that counts its reserve as free: what is in use comes out as nothing."""
    reader = reader_of(Library(free=800 * MIB, used=200 * MIB), tmp_path)
    memory = present(reader.read().memory)
    assert memory.used_bytes == 0
    assert not reader.doubt(memory, 200 * MIB)
    assert reader.doubt(memory, 201 * MIB)
