"""``inspect``: what a prepared process says from inside; and memory snapshots of PyTorch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gpuwatchd.view.answers.base import (
    Bytes,
    Count,
    FilePath,
    Instant,
    Pid,
    Seconds,
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
    """Its type, or what it is for: queue, hook dict, exception list, parameter-group list."""
    length: Count | None
    bound: Count | None
    """Most entries that it takes; null: no bound was found."""
    file: str | None
    line: Count | None
    FROM = sources(length="len")


class StackFrame(Shape):
    """A call."""

    function: str
    file: FilePath
    line: Count
    FROM = sources(function="name", file="filename")


class TensorGroup(Shape):
    """Alike tensors."""

    group: Sentence
    counts: tuple[Count, ...]
    """At each census."""
    size_bytes: Bytes
    holder: HolderShape | None
    line: StackFrame | None
    """Where one of them was allocated; null where the job does not record it."""
    FROM = sources(size_bytes="bytes")


class GrowingGroup(TensorGroup):
    """Alike tensors that became more with every census."""

    bounded_at_bytes: Bytes | None
    """What it takes once its holder is full; null: no bound was found."""
    sure: Literal["named", "either", "graph", "native", "unknown"]
    advice: Sentence | None


class ThreadStack(Shape):
    """A thread."""

    name: str | None
    frames: tuple[StackFrame, ...]
    """The innermost first, at most 64."""
    FROM = sources(name="thread_name")


class OomRecord(Shape):
    """What was there when an allocation failed; what comes last may be missing."""

    at: Instant
    index: Count
    """Of the device."""
    requested_bytes: Bytes
    limit_bytes: Bytes
    """What the process may take of it."""
    free_bytes: Bytes
    devices: tuple[AllocatorCounters, ...]
    stack: tuple[ThreadStack, ...]
    """The thread that asked for memory is the first."""
    largest: tuple[TensorGroup, ...]
    FROM = sources(
        index="device",
        requested_bytes="requested",
        limit_bytes="limit",
        free_bytes="free",
        stack="threads",
        largest="groups",
    )


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
    """A process from inside; of one that was not prepared, where it is now."""

    pid: Pid
    prepared: bool
    ended: bool
    framework: str | None
    framework_version: str | None
    python: str | None
    at: Instant | None
    """When it last wrote its counters."""
    recording: bool
    """Whether its allocator records who allocates."""
    failure: str | None
    """The exception that ended it."""
    stack: tuple[ThreadStack, ...]
    """Where it is now, seen from outside; at most 64 threads, the main one first."""
    oom: OomRecord | None
    """The newest, of a job that was started with --record."""
    devices: tuple[AllocatorCounters, ...]
    censuses: Count
    growing: tuple[GrowingGroup, ...]
    functions: FunctionsData | None
    """Null without --functions."""
    error: str | None
    """Why its heap was not read; null where it was."""


Inspect = of_verb("inspect", "Inspect", InspectionData, "``inspect``.")


# Memory snapshots of PyTorch in ``analyze``: which lines hold what is live, and what changed.


class SnapshotDevice(Shape):
    """What the allocator held of a device."""

    index: Count
    reserved_bytes: Bytes
    """Taken from the device, in tensors or free."""
    allocated_bytes: Bytes
    """In tensors."""
    inactive_split_bytes: Bytes
    """Free, in blocks beside tensors: fragmentation. None is counted in expandable segments."""
    free_cache_bytes: Bytes
    """Free, in whole segments."""
    inactive_split_share: Share | None
    """Of what is reserved."""


class SnapshotSite(Shape):
    """A line, and what is live of what it allocated: the first line of the user on the stack."""

    kind: Literal["line", "library", "backward", "before-recording", "no-stack"]
    """library: no line of the user is on the stack; backward: nor any other of Python;
    before-recording: no event is known; no-stack: stacks were not recorded."""
    file: FilePath | None
    line: Count | None
    function: str | None
    live_bytes: Bytes
    block_count: Count
    change_bytes: int | None
    """Since the older of two snapshots that are compared; null where none are."""
    change_blocks: int | None


class SnapshotShape(Shape):
    """A memory snapshot."""

    newest_at: Instant | None
    """Of the last event in its history."""
    devices: tuple[SnapshotDevice, ...]
    sites: tuple[SnapshotSite, ...]
    """Of those that were asked for at most 1,000: most live bytes first."""
    site_count: Count
    live_bytes: Bytes
    """Of those that were asked for."""
    block_count: Count


class SnapshotChange(Shape):
    """What changed between two memory snapshots."""

    before: FilePath
    after: FilePath
    order: Literal["time", "given"]
    """What says which one is older: the times in their histories, or the command line."""
    elapsed_s: Seconds | None
    same_process: bool | None
    """They have segments in common; null where one has no segment."""
    same_device: bool
    change_bytes: int
    """Of the sites that were asked for."""
    change_blocks: int
    grown_count: Count
    """Sites that hold at least 1 MiB more; 0 of two processes."""
    changed_count: Count
    sites: tuple[SnapshotSite, ...]
    """As in the newer one, of those that changed at most 1,000: largest change first."""
