"""The history of one device as a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.collect.logs.series_builder import last_of_each_time
from gpuwatchd.core.model import ProcessInfo, Subject
from gpuwatchd.store.curves import RAW_SPAN_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.core.model import Device, FloatArray, ProcessKey
    from gpuwatchd.store.reader import DeviceRow, ProcessRow, Reader

# The history of one device as a log: samples where they are still kept, else one-minute and then
# one-hour buckets; of a bucket the lowest and the highest value, in the order that its last value
# suggests, so that neither what was kept nor the peak is lost.

HOLD_S = 75.0
"""A process that does not change is written once a minute; its value holds for so long."""
_HOUR_S = 3600.0
"""The widest bucket."""
HISTORY = "history"
"""Format of a log that is the history of this machine."""
_TEARS = frozenset({"boot", "clock-step"})
Points = tuple["FloatArray", "FloatArray"]


def load(
    history: Reader,
    device: Device,
    since_s: float,
    until_s: float,
    *,
    passed: Callable[[float], None] | None = None,
) -> LogFile:
    """Return what is recorded of a device and of its processes; no series when nothing is."""
    oldest_s = history.oldest_s(device.uid)
    # A span of a thousand years is as long as what is recorded, and takes no longer.
    since_s = until_s if oldest_s is None else max(since_s, oldest_s - _HOUR_S)
    whole: list[Points] = []
    busy: list[DeviceRow] = []
    parts: dict[ProcessKey, list[Points]] = {}
    for first_s, last_s in spans(since_s, until_s):
        rows = history.device_rows(device.uid, first_s, last_s)
        ticks, used = _device_points(rows)
        busy += [row for row in rows if row.util_pct is not None]
        whole.append((ticks, used))
        for key, points in _by_process(history.process_rows(device.uid, first_s, last_s)):
            parts.setdefault(key, []).append(_held(points, ticks))
        if passed is not None:
            passed((last_s - since_s) / (until_s - since_s))
    tears = _tears(history, since_s)
    log = LogFile(path=device.uid, format=HISTORY, devices=[device])
    infos = {info.key: info for info in history.processes(since_s)}
    log.series = [*_series(device, None, whole, tears)]
    at_s, width_s, pct = _columns(busy, "at_s", "width_s", "util_pct")
    for series in log.series:
        # What a bucket tells is known at its end.
        series.activity["utilisation"] = last_of_each_time(at_s + width_s, pct)
    for key, chunks in parts.items():
        info = infos.get(key) or ProcessInfo(key=key, name="?")
        log.series += _series(device, info, chunks, tears)
        log.processes.append(info)
    return log


def spans(since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield spans, oldest first, short enough to be read as finely as they are kept."""
    while since_s < until_s:
        end_s = min(since_s + RAW_SPAN_S, until_s)
        yield since_s, end_s
        since_s = end_s


def _columns(rows: Sequence[DeviceRow | ProcessRow], *names: str) -> list[FloatArray]:
    return [np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in names]


def _device_points(rows: Sequence[DeviceRow]) -> Points:
    known = [row for row in rows if row.used_last_bytes is not None]
    amounts = ("used_min_bytes", "used_max_bytes", "used_last_bytes")
    return _spread(*_columns(known, "at_s", "width_s", *amounts))


def _by_process(rows: Sequence[ProcessRow]) -> Iterator[tuple[ProcessKey, Points]]:
    groups: dict[ProcessKey, list[ProcessRow]] = {}
    for row in rows:
        if row.used_last_bytes is not None:
            groups.setdefault(row.process, []).append(row)
    for key, own in groups.items():
        # The lowest value of a process's minute is not kept.
        amounts = ("used_last_bytes", "used_max_bytes", "used_last_bytes")
        yield key, _spread(*_columns(own, "at_s", "width_s", *amounts))


def _spread(
    at_s: FloatArray, width_s: FloatArray, low: FloatArray, high: FloatArray, last: FloatArray
) -> Points:
    """Return one point per sample, and per bucket its lowest and highest in their likely order."""
    wide = (width_s > 0.0) & (high > low)
    rising = high - last <= last - low
    first = np.where(wide, np.where(rising, low, high), last)
    second = np.where(rising, high, low)[wide]
    t = np.concatenate((at_s + np.where(wide, 0.25, 0.5) * width_s, (at_s + 0.75 * width_s)[wide]))
    order = np.argsort(t, kind="stable")
    return t[order], np.concatenate((first, second))[order]


def _held(points: Points, ticks: FloatArray) -> Points:
    """Return the points of a process at its device's ticks too, as far as its value holds."""
    t, x = points
    before = t.searchsorted(ticks, side="right") - 1
    known = (before >= 0) & (ticks <= t[-1])
    ticks, before = ticks[known], before[known]
    age = ticks - t[before]
    fresh = (age > 0.0) & (age <= HOLD_S)
    t, x = np.concatenate((t, ticks[fresh])), np.concatenate((x, x[before[fresh]]))
    order = np.argsort(t, kind="stable")
    return t[order], x[order]


def _tears(history: Reader, since_s: float) -> FloatArray:
    """Return the instants over which no window may reach: boots and steps of the clock."""
    tears = []
    boot = None
    for segment in history.segments(since_s):
        if segment.reason in _TEARS or (boot is not None and segment.boot_id != boot):
            tears.append(segment.at_s)
        boot = segment.boot_id
    return np.array(sorted(tears), dtype=np.float64)


def _series(
    device: Device, info: ProcessInfo | None, chunks: list[Points], tears: FloatArray
) -> list[LogSeries]:
    t, x = (np.concatenate([np.empty(0), *(points[k] for points in chunks)]) for k in (0, 1))
    # Buckets at the seam of two chunks, and a clock that was set back, come twice: the first stays.
    # What is below zero, or far above what the device has, is a damaged row.
    total = device.memory_total_bytes
    kept = np.diff(np.maximum.accumulate(t), prepend=-np.inf) > 0.0
    kept &= (x >= 0.0) & (x <= 10.0 * (total or 2.0**40))
    t, x = t[kept], x[kept]
    if not t.size:
        return []
    return [
        LogSeries(
            subject=Subject(device_uid=device.uid, process=None if info is None else info.key),
            device=device,
            process=info,
            t_s=t,
            used_bytes=x,
            limit_bytes=None,
            total_bytes=None if total is None else float(total),
            breaks=tuple(int(k) for k in np.unique(t.searchsorted(tears)) if 0 < k < t.size),
        )
    ]
