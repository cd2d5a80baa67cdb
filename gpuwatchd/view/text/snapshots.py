"""Memory snapshots of PyTorch in words: lines of code, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import units
from gpuwatchd.view.queries.snapshots import GROWN_BYTES, snapshot

if TYPE_CHECKING:
    from gpuwatchd.view.answers.inspection import SnapshotChange, SnapshotSite
    from gpuwatchd.view.blocks import Page
    from gpuwatchd.view.queries.snapshots import Asked

_FEW: Final = 3
_MANY: Final = 20
_KINDS: Final = {
    "backward": "backward (no line of Python)",
    "before-recording": "before recording",
    "no-stack": "no stack was recorded",
}


def show(out: Page, asked: Asked, *, sites: bool, show_all: bool) -> None:
    """Write what a snapshot holds: devices and, with ``sites``, the lines that hold most."""
    shape = snapshot(asked)
    for device in shape.devices:
        out.line(
            f"  cuda:{device.index}: {units.size(device.reserved_bytes)} reserved,"
            f" {units.size(device.allocated_bytes)} in tensors,"
            f" {units.size(device.free_cache_bytes)} free cache,"
            f" {units.size(device.inactive_split_bytes)} split"
            f" ({units.percent(device.inactive_split_share)} of reserved)"
        )
    if not sites:
        return
    shown = shape.sites[: None if show_all else _FEW if asked.glob is None else _MANY]
    for site in shown:
        out.line("  ", _live(site, whole=out.verbose))
    if len(shown) < shape.site_count:
        out.line(f"  and {shape.site_count - len(shown):,} more: --all, --site GLOB")
    elif asked.glob is not None and not shown:
        out.line("  no line matches --site")


def notes(asked: Asked | None, change: SnapshotChange | None) -> list[str]:
    """Return the few lines that matter most."""
    if asked is None:
        return []
    if change is None:
        return [_live(site, whole=False) for site in snapshot(asked).sites[:_FEW]]
    sites = change.sites[:_FEW] if asked.path == change.after else ()
    return [_changed(site, whole=False) for site in sites]


def _live(site: SnapshotSite, *, whole: bool) -> str:
    held = f"{units.size(site.live_bytes)} live in {_blocks(site.block_count)}"
    return f"{held}, allocated at {_place(site, whole=whole)}"


def _changed(site: SnapshotSite, *, whole: bool) -> str:
    return f"{_signed(site.change_bytes or 0)} {_place(site, whole=whole)}"


def show_change(out: Page, change: SnapshotChange, *, show_all: bool) -> None:
    """Write what differs between two snapshots, the largest difference first."""
    later = f"  {units.duration(change.elapsed_s)} later" if change.elapsed_s else ""
    out.line((f"{change.before} → {change.after}", "bold"), later)
    if not change.same_device:
        out.line("  note: these snapshots are not of the same device: no growth, only a difference")
    elif change.same_process is False:
        out.line("  note: no segment in common, so not of one process: only a difference")
    large = [site for site in change.sites if abs(site.change_bytes or 0) >= GROWN_BYTES]
    shown = change.sites if show_all else large[:_MANY]
    for site in shown:
        now = f"now {units.size(site.live_bytes)} in {_blocks(site.block_count)}"
        style = "yellow" if change.grown_count and (site.change_bytes or 0) > 0 else ""
        changed = (_changed(site, whole=out.verbose), style)
        out.line("  ", changed, f"  {now} ({site.change_blocks or 0:+,})")
    if left := change.changed_count - len(shown):
        out.line(f"  and {left:,} more that changed: --all")
    if not change.changed_count:
        out.line("  no line holds more or less")
        return
    out.line(f"  in all {_signed(change.change_bytes)} in {change.change_blocks:+,} blocks")


def _signed(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{units.size(abs(size))}"


def _blocks(count: int) -> str:
    return f"{count:,} {'block' if count == 1 else 'blocks'}"


def _place(site: SnapshotSite, *, whole: bool) -> str:
    if site.file is None:
        return _KINDS.get(site.kind, site.kind)
    file = site.file if whole else site.file.replace("\\", "/").rpartition("/")[2]
    library = " (library)" if site.kind == "library" else ""
    return f"{file}:{'?' if site.line is None else site.line} {site.function or ''}{library}"
