"""From tracks to the live state file: what ``status`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.store.live import LiveDevice, LiveProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.model import Device, DeviceReading, Finding, ProcessInfo, ProcessKey
    from gpuwatchd.pipeline.tracks import Track
    from gpuwatchd.store.ring import Ring

SPARK_POINTS = 32
_TIERS = {"none": 0, "watch": 1, "alert": 2}


def worst(findings: Iterable[Finding | None]) -> Finding | None:
    """Return the finding that a device is shown with: highest tier, then confidence."""
    known = [f for f in findings if f is not None]
    return max(
        known,
        key=lambda f: (_TIERS[f.tier], f.confidence, f.pattern != "unknown"),
        default=None,
    )


def live_device(
    device: Device,
    reading: DeviceReading | None,
    *,
    tracks: Mapping[ProcessKey, Track],
    others: Iterable[Track],
    ring: Ring | None,
    infos: Mapping[ProcessKey, ProcessInfo],
    faults: tuple[str, ...],
) -> LiveDevice:
    """Return one device of the live state.

    Parameters
    ----------
    tracks
        The device's process tracks by key.
    others
        Its device and unattributed tracks.
    ring
        Its device ring, for the sparkline.
    """
    processes: tuple[LiveProcess, ...] | None = None
    unattributed: int | None = None
    if reading is not None and reading.uses is not None:
        processes = tuple(
            LiveProcess(
                info=infos[use.key],
                used_bytes=use.used_bytes,
                kind=use.kind,
                finding=track.shown() if (track := tracks.get(use.key)) else None,
            )
            for use in reading.uses
        )
        if reading.used_bytes is not None and all(u.used_bytes is not None for u in reading.uses):
            unattributed = reading.used_bytes - sum(u.used_bytes or 0 for u in reading.uses)
    shown = [track.shown() for track in (*tracks.values(), *others)]
    span = (ring.last[0] - ring.first_s) if ring is not None and ring.last else 0.0
    step = max(span / SPARK_POINTS, ring.cell_s if ring is not None else 1.0)
    return LiveDevice(
        device=device,
        reading=None if reading is None else _without_uses(reading),
        unattributed_bytes=unattributed,
        finding=worst(shown),
        processes=processes,
        recent_bytes=ring.recent(SPARK_POINTS, step) if ring is not None else (),
        recent_step_s=step,
        samples=ring.count if ring is not None else 0,
        faults=faults,
    )


def _without_uses(reading: DeviceReading) -> DeviceReading:
    if reading.uses is None:
        return reading
    return type(reading)(
        device_uid=reading.device_uid,
        used_bytes=reading.used_bytes,
        free_bytes=reading.free_bytes,
        total_bytes=reading.total_bytes,
        reserved_bytes=reading.reserved_bytes,
        util_pct=reading.util_pct,
        memory_util_pct=reading.memory_util_pct,
        temp_c=reading.temp_c,
        power_w=reading.power_w,
        clock_mhz=reading.clock_mhz,
        uses=(),
        state=reading.state,
    )
