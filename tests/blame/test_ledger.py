"""Who has the memory: the sums hold, nothing is clamped, and the unknown stays unknown."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.analysis import attribution
from gpuwatchd.analysis.attribution.ledger import LEAST_BYTES, NEW_BOOT_BYTES
from gpuwatchd.core.model import DeviceReading, Ledger, ProcessKey, ProcessUse
from tests.making import GIB, MIB, finding

SIZES = st.integers(0, 96 * GIB)


def reading(
    held: list[int | None] | None, *, used: int | None = 10 * GIB, reserved: int | None = 1 * GIB
) -> DeviceReading:
    total = 80 * GIB
    return DeviceReading(
        device_uid="G",
        used_bytes=used,
        free_bytes=None if used is None else total - used - (reserved or 0),
        total_bytes=total,
        reserved_bytes=reserved,
        uses=None
        if held is None
        else tuple(
            ProcessUse(key=ProcessKey(pid=pid, started_at_s=1.0), used_bytes=one)
            for pid, one in enumerate(held)
        ),
    )


@given(st.lists(SIZES, max_size=6), SIZES, st.none() | st.integers(0, GIB))
def test_the_sum_holds_whatever_is_read(held: list[int], used: int, reserved: int | None) -> None:
    drawn = attribution.build_ledger(reading(list(held), used=used, reserved=reserved))
    assert drawn.owned_bytes == sum(held)
    assert drawn.total_bytes is not None
    assert drawn.free_bytes is not None
    assert drawn.unattributed_bytes is not None
    assert drawn.total_bytes == (
        drawn.free_bytes + (drawn.reserved_bytes or 0) + sum(held) + drawn.unattributed_bytes
    )
    assert (drawn.state == "overlap") == (drawn.unattributed_bytes < 0)


@pytest.mark.parametrize(
    ("held", "state", "rest"),
    [
        ([4 * GIB, 5 * GIB], "whole", GIB),
        ([4 * GIB, None], "partial", 6 * GIB),
        ([8 * GIB, 8 * GIB], "overlap", -6 * GIB),
        ([8 * GIB, 8 * GIB, None], "overlap", -6 * GIB),
        ([], "whole", 10 * GIB),
        (None, "none", None),
    ],
)
def test_what_can_be_said(held: list[int | None] | None, state: str, rest: int | None) -> None:
    drawn = attribution.build_ledger(reading(held), baseline_bytes=7)
    assert (drawn.state, drawn.unattributed_bytes, drawn.baseline_bytes) == (state, rest, 7)


def test_a_process_in_two_lists_counts_once() -> None:
    twice = reading([3 * GIB])
    same = ProcessUse(key=ProcessKey(pid=0, started_at_s=None), used_bytes=4 * GIB, kind="G")
    assert twice.uses is not None
    drawn = attribution.build_ledger(msgspec.structs.replace(twice, uses=(*twice.uses, same)))
    assert drawn.owned_bytes == 4 * GIB


@pytest.mark.parametrize("kind", ["unified", "coherent"])
def test_where_free_memory_is_not_the_devices_only_processes_count(kind: str) -> None:
    drawn = attribution.build_ledger(reading([3 * GIB]), kind)  # type: ignore[arg-type]
    assert drawn == Ledger(state="whole", total_bytes=80 * GIB, owned_bytes=3 * GIB)
    assert attribution.build_ledger(reading([3 * GIB, None]), kind).state == "partial"  # type: ignore[arg-type]


def test_what_is_used_is_unknown() -> None:
    drawn = attribution.build_ledger(reading([GIB], used=None))
    assert (drawn.state, drawn.owned_bytes, drawn.unattributed_bytes) == ("none", GIB, None)


def idle(rest: int, held: int = 0) -> Ledger:
    return attribution.build_ledger(reading([held], used=rest + held))


def test_the_baseline_is_the_lowest_of_a_boot_and_not_of_a_single_look() -> None:
    known = attribution.Baseline()
    assert not known.learn(idle(300 * MIB), "a")
    assert not known.learn(idle(500 * MIB), "a")
    assert known.learn(idle(400 * MIB), "a")
    assert known.least_bytes == 500 * MIB
    for _ in range(30):
        assert not known.learn(idle(9 * GIB), "a")
    assert known.least_bytes == 500 * MIB
    for _ in range(3):
        known.learn(idle(200 * MIB), "a")
    assert known.least_bytes == 200 * MIB


def test_a_busy_device_teaches_nothing() -> None:
    known = attribution.Baseline()
    busy = [
        idle(MIB, held=20 * GIB),
        attribution.build_ledger(reading(None)),
        attribution.build_ledger(reading([None])),
    ]
    for ledger in (idle(400 * MIB), busy[0], idle(400 * MIB), busy[1], idle(400 * MIB), busy[2]):
        assert not known.learn(ledger, "a")
    assert known.least_bytes is None


@pytest.mark.parametrize(
    ("then", "expected"),
    [(600 * MIB, 600 * MIB), (200 * MIB, 200 * MIB), (400 * MIB + NEW_BOOT_BYTES + 1, 400 * MIB)],
)
def test_a_new_boot_may_begin_a_little_higher_but_not_with_what_the_dead_left(
    then: int, expected: int
) -> None:
    known = attribution.Baseline(least_bytes=400 * MIB, boot_id="a")
    for _ in range(6):
        known.learn(idle(then), "b")
    assert (known.least_bytes, known.boot_id) == (expected, "b")


def test_growth_that_only_comes_back_to_the_baseline_is_none() -> None:
    grown = finding(reason="grows")
    quiet = attribution.above_baseline(grown, GIB + LEAST_BYTES, GIB)
    assert (quiet.tier, quiet.severity) == ("none", "info")
    assert "without an owner while the device is idle" in quiet.reason
    loud = attribution.above_baseline(grown, 3 * GIB, GIB)
    assert loud.tier == "alert"
    assert loud.reason.startswith("grows; 2.0 GiB more than the 1.0 GiB")
    assert attribution.above_baseline(grown, 3 * GIB, None) == grown
