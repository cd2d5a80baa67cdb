"""The allocator's own figures, and what bounds growth, beside the curve of a process."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.analysis.frameworks import advice
from gpuwatchd.core.codes import AllocatorVerdict, Reason
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import AllocatorSeries, Finding, Holder, Series, Subject

GIB = float(1 << 30)
T = np.arange(0.0, 7200.0, 5.0)
GROWS, FLAT = T * 1.5e6, T * 0.0
SETTINGS = DetectionSection()
FIGURES = ("t_s", "allocated_bytes", "reserved_bytes", "peak_bytes")


def _series(used: Any, **allocator: Any) -> Series:
    figures = {"peak_bytes": allocator["allocated_bytes"], **allocator} if allocator else {}
    return Series(
        subject=Subject(device_uid="G"),
        t_s=T,
        used_bytes=used,
        limit_bytes=24 * GIB,
        total_bytes=24 * GIB,
        framework="PyTorch",
        allocator=AllocatorSeries(t_s=T, **figures) if figures else None,
    )


def _holder(**fields: Any) -> Holder:
    fields = {"held_bytes": 3.5e9, "rate_bytes_per_s": 1.5e6, "at_s": float(T[-10]), **fields}
    return Holder(name="losses in train()", kind="list", length=426, **fields)


def _judge(series: Series, holder: Holder | None = None) -> Finding:
    return verdict.judge(msgspec.structs.replace(series, holder=holder), SETTINGS)


@pytest.mark.parametrize(
    ("used", "allocated", "reserved", "split", "tier", "expected"),
    [
        (4e9 + GROWS, 3e9 + GROWS, 3.5e9 + GROWS, 0.1, "alert", AllocatorVerdict.TENSORS),
        (20e9 + FLAT, 3e9 + GROWS, 19e9 + FLAT, 0.0, "alert", AllocatorVerdict.TENSORS),
        (20e9 + FLAT, 3e9 + FLAT, 19e9 + FLAT, 0.0, "none", AllocatorVerdict.FLAT),
        (4e9 + GROWS, 3e9 + FLAT, 3.5e9 + GROWS, 0.5, "alert", AllocatorVerdict.FRAGMENTATION),
        (4e9 + GROWS, 3e9 + FLAT, 3.5e9 + GROWS, 0.1, "none", AllocatorVerdict.FREE_CACHE),
        (4e9 + GROWS, 3e9 + FLAT, 3.5e9 + FLAT, 0.5, "alert", AllocatorVerdict.OUTSIDE),
    ],
    ids=["tensors", "pool", "flat", "fragmentation", "cache", "outside"],
)
@pytest.mark.requirement("B5", "B6", "M18")
def test_the_allocator_says_what_of_a_process_grows(
    used: Any, allocated: Any, reserved: Any, split: float, tier: str, expected: AllocatorVerdict
) -> None:
    pieces = split * reserved[-1]
    figures = {"allocated_bytes": allocated, "reserved_bytes": reserved}
    found = _judge(_series(used, **figures, inactive_split_bytes=pieces))
    assert found.allocator
    assert (found.allocator.verdict, found.tier) == (expected, tier)


def test_two_points_say_nothing_of_growth() -> None:
    series = _series(20e9 + FLAT, allocated_bytes=3e9 + GROWS, reserved_bytes=19e9 + FLAT)
    assert series.allocator
    short = [getattr(series.allocator, name)[:3] for name in FIGURES]
    few = msgspec.structs.replace(series.allocator, **dict(zip(FIGURES, short, strict=True)))
    found = _judge(msgspec.structs.replace(series, allocator=few))
    assert found.allocator
    assert found.allocator.verdict is AllocatorVerdict.NONE


def test_cache_that_was_needed_at_once_is_no_free_cache() -> None:
    grows = {"reserved_bytes": 3.5e9 + GROWS, "peak_bytes": 3e9 + GROWS}
    found = _judge(_series(4e9 + GROWS, allocated_bytes=3e9 + FLAT, **grows))
    assert found.allocator
    assert (found.allocator.verdict, found.tier) == (AllocatorVerdict.TENSORS, "alert")


def test_growth_inside_a_pool_has_the_time_left_of_the_pool() -> None:
    inside = {"allocated_bytes": 3e9 + GROWS, "reserved_bytes": 19e9 + FLAT, "limit_bytes": 19e9}
    found = _judge(_series(20e9 + FLAT, **inside))
    assert found.eta
    assert found.eta.mid_s == pytest.approx((19e9 - 3e9 - GROWS[-1]) / 1.5e6, rel=0.1)


def test_growth_that_fills_its_bound_before_the_limit_is_no_finding() -> None:
    found = _judge(_series(4e9 + GROWS), _holder(bounded_at_bytes=8e9))
    assert (found.tier, found.code, found.eta) == ("none", Reason.BOUNDED, None)
    assert found.levels_off_bytes == pytest.approx(4e9 + GROWS[-10] + 4.5e9, rel=0.01)


@pytest.mark.parametrize(
    "holder",
    [
        _holder(bounded_at_bytes=60e9),  # beyond the limit
        _holder(bounded_at_bytes=8e9, rate_bytes_per_s=1e5),  # something else grows
        _holder(bounded_at_bytes=3.6e9, held_bytes=3.5e9, at_s=1000.0),  # passed meanwhile
        _holder(),
    ],
    ids=["beyond", "else", "passed", "unbounded"],
)
def test_a_bound_that_does_not_hold_silences_nothing(holder: Holder) -> None:
    found = _judge(_series(4e9 + GROWS), holder)
    assert found.tier == "alert"
    assert bool(found.holder) is (holder.rate_bytes_per_s == 1.5e6)


def test_what_was_found_while_something_else_grew_is_not_named() -> None:
    late = np.maximum(T - T[len(T) // 2], 0.0) * 3e6
    earlier = _holder(bounded_at_bytes=20e9, rate_bytes_per_s=3e6, at_s=float(T[10]))
    found = _judge(_series(4e9 + late), earlier)
    assert (found.tier, bool(found.holder)) == ("alert", False)
    assert _judge(_series(4e9 + late), msgspec.structs.replace(earlier, at_s=T[-10])).holder


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, ""),
        ({"graph": True}, ""),
        ({"bounded_at_bytes": 8 * GIB}, "8.0 GiB"),
        ({"bounded_at_bytes": 60 * GIB}, ""),
    ],
    ids=["list", "graph", "bounded", "beyond"],
)
@pytest.mark.requirement("W10")
def test_what_to_change_comes_first(fields: dict[str, Any], bound: str) -> None:
    found = _judge(_series(4e9 + GROWS), _holder(**fields))
    assert found.advice[0] == advice.of_holder("list", bound, graph=bool(fields.get("graph")))
    assert len(found.advice) <= advice.MOST


def test_growth_without_a_bound_is_an_alert_before_the_curve_says_so() -> None:
    def tier(points: int, holder: Holder | None) -> str:
        series = _series(4e9 + T * 2.0)
        young = msgspec.structs.replace(series, t_s=T[:points], used_bytes=(4e9 + T * 3e6)[:points])
        return _judge(young, holder).tier

    holder = _holder(at_s=float(T[58]), held_bytes=5e8, rate_bytes_per_s=3e6)
    graph = msgspec.structs.replace(holder, graph=True)
    assert [tier(60, found) for found in (None, holder, graph)] == ["watch", "watch", "alert"]
    assert [tier(160, found) for found in (None, holder)] == ["watch", "alert"]


@pytest.mark.requirement("M17")
def test_pieces_in_a_full_card_are_no_free_cache() -> None:
    grows = {"allocated_bytes": 10e9 + FLAT, "reserved_bytes": 10.5e9 + GROWS}
    found = _judge(_series(11e9 + GROWS, **grows, inactive_split_bytes=0.55 * GROWS[-1]))
    assert found.allocator
    assert (found.allocator.verdict, found.tier) == (AllocatorVerdict.FRAGMENTATION, "alert")
