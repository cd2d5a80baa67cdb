"""``inspect``: what a prepared process says from inside."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.view.answers.base import (
    Bytes,
    Count,
    FilePath,
    Instant,
    Pid,
    Sentence,
    Shape,
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


class AllocationSite(Shape):
    """Where memory was allocated."""

    file: FilePath
    line: Count
    function: str


class TensorGroup(Shape):
    """Alike tensors."""

    group: Sentence
    counts: tuple[Count, ...]
    """At each census."""
    size_bytes: Bytes
    holder: HolderShape | None
    line: AllocationSite | None
    """Of one of them; null where the job does not record it."""
    FROM = sources(size_bytes="bytes")


class GrowingGroup(TensorGroup):
    """Alike tensors that became more with every census."""

    bounded_at_bytes: Bytes | None
    """What it takes once its holder is full; null: no bound was found."""
    sure: Literal["named", "either", "graph", "native", "unknown"]
    advice: Sentence | None


class StackFrame(Shape):
    """A call."""

    function: str
    file: FilePath
    line: Count
    FROM = sources(function="name", file="filename")


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
    error: str | None
    """Why its heap was not read; null where it was."""


Inspect = of_verb("inspect", "Inspect", InspectionData, "``inspect``.")
