"""From tracks to the live state file: what ``status`` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.store.live import LiveDevice, LiveProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.model import Device, DeviceReading, Finding, ProcessInfo, ProcessKey
    from gpuwatchd.pipeline.tracks import Track
    from gpuwatchd.store.ring import Ring

SPARK_POINTS = 32
_TIERS = {"none": 0, "watch": 1, "alert": 2}


class Spark(msgspec.Struct, frozen=True):
    """The recent past of one device, for a sparkline."""

    values: tuple[int | None, ...] = ()
    step_s: float = 0.0
    samples: int = 0


def spark_of(ring: Ring) -> Spark:
    """Return up to ``SPARK_POINTS`` values over all that the ring knows."""
    span_s = ring.last[0] - ring.first_s if ring.last is not None else 0.0
    step_s = max(span_s / SPARK_POINTS, ring.cell_s)
    return Spark(ring.recent(SPARK_POINTS, step_s), step_s, ring.count)


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
    spark: Spark,
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
    spark
        Its recent past, from :func:`spark_of`.
    """
    processes: tuple[LiveProcess, ...] | None = None
    unattributed: int | None = None
    shown = {key: track.shown() for key, track in tracks.items()}
    if reading is not None and reading.uses is not None:
        processes = tuple(
            LiveProcess(
                info=infos[use.key],
                used_bytes=use.used_bytes,
                kind=use.kind,
                finding=shown[use.key] if (track := tracks.get(use.key)) else None,
                history=track.memo.shown if track is not None and track.memo.key else None,
            )
            for use in reading.uses
        )
        if reading.used_bytes is not None and all(u.used_bytes is not None for u in reading.uses):
            unattributed = reading.used_bytes - sum(u.used_bytes or 0 for u in reading.uses)
    return LiveDevice(
        device=device,
        reading=None if reading is None else _without_uses(reading),
        unattributed_bytes=unattributed,
        finding=worst([*shown.values(), *(track.shown() for track in others)]),
        processes=processes,
        recent_bytes=spark.values,
        recent_step_s=spark.step_s,
        samples=spark.samples,
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
