"""``inspect``: what a prepared process says from inside."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gpuwatchd.view.answers.base import (
    Bytes,
    Count,
    Instant,
    Pid,
    Sentence,
    Shape,
    Share,
    of_verb,
    sources,
)


class AllocatorCounters(Shape):
    """What a framework's allocator says of one device; null where it has no such figure."""

    device_uid: str | None
    index: Count | None
    allocated_bytes: Bytes | None
    """In tensors."""
    reserved_bytes: Bytes | None
    """Taken from the device, in tensors or free."""
    active_bytes: Bytes | None
    inactive_split_bytes: Bytes | None
    """Free, in blocks beside tensors: fragmentation."""
    limit_bytes: Bytes | None
    peak_bytes: Bytes | None
    retries: Count | None
    ooms: Count | None
    FROM = sources(
        device_uid="uid",
        allocated_bytes="allocated",
        reserved_bytes="reserved",
        active_bytes="active",
        inactive_split_bytes="inactive_split",
        limit_bytes="limit",
        peak_bytes="peak",
    )


class HolderShape(Shape):
    """A variable that keeps what grows."""

    name: str
    kind: str
    """Its type."""
    length: Count | None
    bound: Count | None
    """Most entries that it takes; null: no bound was found."""
    file: str | None
    line: Count | None
    FROM = sources(length="len")


class GrowingGroup(Shape):
    """Alike tensors that became more with every census."""

    group: Sentence
    counts: tuple[Count, ...]
    """At each census."""
    holder: HolderShape | None
    sure: Literal["named", "graph", "native", "unknown"]
    advice: Sentence | None


class FunctionShape(Shape):
    """A function that the job marks with a span; bytes of one device, null where it uses none."""

    name: str
    call_count: Count
    total_memory_growth: int | None
    """Added by its calls, beside what spans within add."""
    average_growth_per_call: float | None
    positive_growth_ratio: Share | None
    peak_bytes: Bytes | None
    verdict: Literal["leak", "watch", "elsewhere", "none", "unknown"]
    """elsewhere: memory grows, but this function has no part in it."""
    confidence: Share | None
    above_leak_ratio: bool | None
    """Whether more of its calls add memory than memory-leak-ratio; decides nothing."""
    FROM = sources(
        name="calls.name",
        call_count="calls.call_count",
        total_memory_growth="calls.total_memory_growth",
        average_growth_per_call="calls.average_growth_per_call",
        positive_growth_ratio="calls.positive_growth_ratio",
        peak_bytes="calls.peak_bytes",
    )


class FunctionFinding(Shape):
    """What is wrong with functions."""

    kind: Literal[
        "memory_leak", "fragmentation", "spikes", "repeated_allocations", "inefficient_allocation"
    ]
    severity: Literal["critical", "warning", "info"]
    functions: tuple[str, ...]
    facts: dict[str, float | None]
    text: Sentence
    suggestion: Sentence
    FROM = sources(severity="weight")


class FunctionInsight(Shape):
    """What is worth knowing of functions."""

    kind: Literal["temporal_growth", "growth_elsewhere"]
    impact: Literal["high", "medium", "low"]
    confidence: Share
    functions: tuple[str, ...]
    facts: dict[str, float | None]
    text: Sentence
    FROM = sources(impact="weight")


class FunctionsData(Shape):
    """The functions that a job marks, worst findings first."""

    score: Annotated[int, Meta(ge=0, le=100)] | None
    """100, less 20, 10, 5 for each critical, warning and info finding, and 15, 8, 3 for each
    insight of high, medium and low impact; null where no function has figures."""
    grade: Literal["A", "B", "C", "D"] | None
    """A from 90, B from 80, C from 70."""
    findings: tuple[FunctionFinding, ...]
    insights: tuple[FunctionInsight, ...]
    functions: tuple[FunctionShape, ...]


class InspectionData(Shape):
    """A process from inside."""

    pid: Pid
    framework: str
    framework_version: str | None
    python: str
    at: Instant
    """When it last wrote its counters."""
    devices: tuple[AllocatorCounters, ...]
    censuses: Count
    growing: tuple[GrowingGroup, ...]
    functions: FunctionsData | None
    """Null without --functions."""
    error: str | None
    """Why its heap was not read; null where it was."""


Inspect = of_verb("inspect", "Inspect", InspectionData, "``inspect``.")
