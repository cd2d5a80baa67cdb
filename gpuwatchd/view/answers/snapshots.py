"""Memory snapshots of PyTorch in ``analyze``: which lines hold what is live, and what changed."""

from __future__ import annotations

from typing import Literal

from gpuwatchd.view.answers.base import Bytes, Count, FilePath, Instant, Seconds, Shape, Share


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
