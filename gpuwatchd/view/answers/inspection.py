"""``inspect``: what a prepared process says from inside."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.view.answers.base import (
    Bytes,
    Count,
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


class GrowingGroup(Shape):
    """Alike tensors that became more with every census."""

    group: Sentence
    counts: tuple[Count, ...]
    """At each census."""
    bounded_at_bytes: Bytes | None
    """What it takes once its holder is full; null: no bound was found."""
    holder: HolderShape | None
    sure: Literal["named", "either", "graph", "native", "unknown"]
    advice: Sentence | None


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
    error: str | None
    """Why its heap was not read; null where it was."""


Inspect = of_verb("inspect", "Inspect", InspectionData, "``inspect``.")
