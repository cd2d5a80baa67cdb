"""Which lines hold the live memory of a PyTorch snapshot, and how two snapshots differ."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.inspection import (
    SnapshotChange,
    SnapshotDevice,
    SnapshotShape,
    SnapshotSite,
)

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from gpuwatchd.collect.logs.snapshot_reader import DeviceMemory, Site, Snapshot
    from gpuwatchd.core.codes import SiteKind

MOST_SITES: Final = 1000
GROWN_BYTES: Final = 1 << 20


class Asked(NamedTuple):
    """A snapshot, and what of it is asked for."""

    path: str
    snapshot: Snapshot
    devices: AbstractSet[int | None]
    glob: str | None
    """Which sites; None is all."""


class _Place(NamedTuple):
    kind: SiteKind
    file: str
    line: int | None
    function: str


def snapshot(asked: Asked) -> SnapshotShape:
    """Return what a snapshot holds."""
    size, blocks = _held(asked)
    return fill(
        SnapshotShape,
        asked.snapshot,
        devices=[_device(one) for one in asked.snapshot.devices if one.index in asked.devices],
        sites=[_site(place, n, blocks[place]) for place, n in size.most_common(MOST_SITES)],
        site_count=len(size),
        live_bytes=size.total(),
        block_count=blocks.total(),
    )


def _device(memory: DeviceMemory) -> SnapshotDevice:
    reserved, split = memory.reserved_bytes, memory.inactive_split_bytes
    free = max(0, reserved - memory.allocated_bytes - split)
    share = min(1.0, split / reserved) if reserved else None
    return fill(SnapshotDevice, memory, free_cache_bytes=free, inactive_split_share=share)


def _site(place: _Place, *numbers: int | None) -> SnapshotSite:
    names = ("live_bytes", "block_count", "change_bytes", "change_blocks")
    return fill(SnapshotSite, place, **dict(zip_longest(names, numbers)))


def change(first: Asked, second: Asked) -> SnapshotChange:
    """Return what differs between two snapshots, the older one first where times are known."""
    begin_s, end_s = first.snapshot.newest_at_s, second.snapshot.newest_at_s
    elapsed_s = None if begin_s is None or end_s is None else end_s - begin_s
    before, after = (second, first) if elapsed_s and elapsed_s < 0 else (first, second)
    (old_size, old_blocks), (size, blocks) = _held(before), _held(after)
    sites = [
        _site(place, size[place], blocks[place], size[place] - old_size[place], more)
        for place in old_size.keys() | size.keys()
        if (more := blocks[place] - old_blocks[place]) or size[place] != old_size[place]
    ]
    sites.sort(key=lambda site: (-abs(site.change_bytes or 0), site.file or "", site.line or 0))
    segments = [
        {(one.index, address) for one in part.snapshot.devices for address in one.segments}
        for part in (before, after)
    ]
    devices = [{index for index, _ in places} for places in segments]
    same = bool(segments[0] & segments[1]) if all(segments) else None
    grown = [site for site in sites if (site.change_bytes or 0) >= GROWN_BYTES]
    return fill(
        SnapshotChange,
        (),
        before=before.path,
        after=after.path,
        order="time" if elapsed_s else "given",
        elapsed_s=None if elapsed_s is None else abs(elapsed_s),
        same_process=same,
        same_device=bool(devices[0] & devices[1]) or not all(devices),
        change_bytes=size.total() - old_size.total(),
        change_blocks=blocks.total() - old_blocks.total(),
        grown_count=0 if same is False else len(grown),
        changed_count=len(sites),
        sites=sites[:MOST_SITES],
    )


def _held(asked: Asked) -> tuple[Counter[_Place], Counter[_Place]]:
    """Return bytes and blocks of each place, on all devices that are asked for."""
    size: Counter[_Place] = Counter()
    blocks: Counter[_Place] = Counter()
    for site in asked.snapshot.sites:
        if site.device in asked.devices and (asked.glob is None or _fits(site, asked.glob)):
            place = _Place(site.kind, site.file, site.line, site.function)
            size[place] += site.live_bytes
            blocks[place] += site.block_count
    return size, blocks


def _fits(site: Site, glob: str) -> bool:
    if not site.file:
        return fnmatchcase(site.kind, glob)
    base = site.file.replace("\\", "/").rpartition("/")[2]
    names = [f"{file}{end}" for file in (site.file, base) for end in ("", f":{site.line}")]
    names += [site.function, f"{base}:{site.line} {site.function}"]
    return any(fnmatchcase(name, glob) for name in names)
