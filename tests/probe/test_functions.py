"""What is made of the calls of functions."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis import functions
from gpuwatchd.core.config import DetectionSection, ProbeSection
from gpuwatchd.core.model import FunctionCalls

MIB = float(1 << 20)
STEP = np.arange(200.0)


def calls(name: str, held: Any, own: Any = None, **more: Any) -> FunctionCalls:
    """Return calls that are 30 s apart; what a function adds is all that is added."""
    held = np.asarray(held, dtype=float) * MIB
    own = held - held[0] if own is None else np.asarray(own, dtype=float) * MIB
    points = zip(STEP * 30.0, held, held, own, strict=True)
    facts = {"total_memory_growth": int(own[-1]), "positive_growth_ratio": 0.0} | more
    return FunctionCalls(name=name, call_count=200, points=tuple(points), **facts)


def judged(*given: FunctionCalls, **settings: Any) -> functions.Judgement:
    return functions.judge(given, ProbeSection(**settings), DetectionSection())


def kinds(judgement: functions.Judgement) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.functions) for one in (*judgement.findings, *judgement.insights)]


@pytest.mark.requirement("M1")
def test_the_leak_is_charged_to_whom_it_is() -> None:
    leak = 4000 + 8 * STEP
    judgement = judged(
        calls("log_loss", leak, positive_growth_ratio=1.0), calls("train_step", leak + 1, 0 * STEP)
    )
    assert [one.verdict for one in judgement.functions] == ["leak", "elsewhere"]
    assert judgement.functions[0].above_leak_ratio is True
    assert kinds(judgement) == [("memory_leak", ("log_loss",)), ("temporal_growth", ("log_loss",))]
    (finding,), (insight,) = judgement.findings, judgement.insights
    assert (finding.weight, insight.weight) == ("critical", "high")
    assert insight.facts["rate_bytes_per_s"] == pytest.approx(8 * MIB / 30)
    assert insight.facts["r"] == pytest.approx(1.0)
    assert insight.confidence > 0.99
    assert (judgement.score, judgement.grade) == (65, "D")


def test_growth_that_no_function_adds_is_said() -> None:
    judgement = judged(calls("step", 4000 + 8 * STEP, 0 * STEP))
    assert kinds(judgement) == [("growth_elsewhere", ("step",))]
    assert (judgement.score, judgement.grade) == (92, "A")


@pytest.mark.parametrize(
    "held",
    [
        4000 + 0 * STEP,
        4000 + 400 * (1 - np.exp(-STEP / 8)),  # a warm-up
        4000 + 300 * ((STEP % 10) / 10),  # a sawtooth
        4000 + np.random.default_rng(1).normal(0, 5, 200),
    ],
)
@pytest.mark.requirement("M2", "M5")
def test_what_is_no_leak_is_called_none(held: Any) -> None:
    # The old rules would: it grew in most calls, and by more than 100 MB in all.
    judgement = judged(calls("step", held, 50 * STEP, positive_growth_ratio=0.9, grown_bytes=0))
    assert judgement.functions[0].verdict == "none"
    assert all(kind != "memory_leak" for kind, _ in kinds(judgement))


@pytest.mark.parametrize(("by_mib", "count"), [(0.5, 0), (150.0, 0), (900.0, 4)])
def test_a_spike_is_well_above_what_is_usual(by_mib: float, count: int) -> None:
    judgement = judged(calls("step", 4000 + by_mib * (STEP % 50 == 49)))
    assert [one.facts["count"] for one in judgement.findings] == [count] * bool(count)


@pytest.mark.requirement("M29")
def test_repeated_allocations_allocate() -> None:
    flat = 4000 + 0 * STEP
    assert kinds(judged(calls("a", flat, positive_growth_ratio=0.0, grown_bytes=0))) == []
    again = calls("a", flat, positive_growth_ratio=1.0, grown_bytes=1 << 30)
    assert kinds(judged(again)) == [("repeated_allocations", ("a",))]
    leak = calls("b", 4000 + 8 * STEP, positive_growth_ratio=1.0)
    weights = [one.weight for one in judged(again, leak).findings]
    assert weights == ["critical", "info"], "the worst first"


@pytest.mark.requirement("M17", "M26")
def test_free_cache_is_no_fragmentation() -> None:
    cache = calls("a", 400 + 0 * STEP, reserved_bytes=1000 << 20, inactive_split_bytes=10 << 20)
    judgement = judged(cache)
    assert [(one.kind, one.weight) for one in judgement.findings] == [
        ("inefficient_allocation", "info")
    ]
    split = calls("b", 600 + 0 * STEP, reserved_bytes=1000 << 20, inactive_split_bytes=350 << 20)
    assert kinds(judged(split)) == [("fragmentation", ("b",))]
    assert kinds(judged(split, fragmentation_ratio=0.4)) == []


@pytest.mark.requirement("M24", "M25", "M27", "M33")
def test_settings_move_what_is_said() -> None:
    often = calls("a", 4000 + 8 * STEP, positive_growth_ratio=0.15)
    few = msgspec.structs.replace(often, call_count=49)
    assert [judged(one).functions[0].above_leak_ratio for one in (often, few)] == [True, None]
    assert judged(often, memory_leak_ratio=0.2).functions[0].above_leak_ratio is False
    assert judged(few, min_calls_for_analysis=3).functions[0].above_leak_ratio is True
    cache = calls("a", 400 + 0 * STEP, reserved_bytes=1000 << 20, inactive_split_bytes=10 << 20)
    assert kinds(judged(cache, inefficient_allocation_ratio=0.3)) == []


def test_without_figures_nothing_is_said() -> None:
    judgement = judged(FunctionCalls(name="cpu", call_count=9))
    assert judgement.functions[0].verdict == "unknown"
    assert (judgement.score, judgement.grade, kinds(judgement)) == (None, None, [])
    odd = ((5.0, 1.0, 1.0, 0.0), (5.0, 2.0, 2.0, 0.0), (1.0, 2.0, 2.0, 0.0)) * 9
    assert judged(FunctionCalls(name="odd", call_count=9, points=odd)).grade == "A"
