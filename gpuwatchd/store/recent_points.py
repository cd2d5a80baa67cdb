"""The last hours of the present boot, as the daemon's window had them before it was restarted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import groupby
from typing import TYPE_CHECKING

from gpuwatchd.core.model import AllocatorReading, ProcessKey, Subject
from gpuwatchd.store import records, tables

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

Points = list[tuple[float, int]]
_MINUTE_MS = 60_000
_OF_PROCESS = """(SELECT p.pid, p.started_at_s, p.boot_id, g.uuid AS gpu_uuid, {}
  FROM {} c JOIN gpu g ON g.id = c.gpu JOIN process p ON p.id = c.process)"""
_LAST_OF_MINUTE = """process, ts_s * 1000 AS ts_ms, allocated_last_bytes AS allocated_bytes,
  reserved_last_bytes AS reserved_bytes, inactive_split_last_bytes AS inactive_split_bytes,
  NULL AS peak_bytes"""
_ALLOCATORS, _ALLOCATOR_MINUTES = (
    records.Table(
        name,
        AllocatorReading,
        rows=_OF_PROCESS.format(columns, name),
        order="process, ts_ms",
        limit_bytes=None,
    )
    for name, columns in (("process_counters", "c.*"), ("process_counters_1m", _LAST_OF_MINUTE))
)


def series(
    connection: sqlite3.Connection, *, boot_id: str, since_s: float, now_s: float
) -> Iterator[tuple[Subject, Points]]:
    """Yield (subject, [(t_s, used_bytes), ...]) of devices and their processes.

    Only what was taken in this boot, since the last time that the clock was set, and not later
    than now. A process that did not change has no row of its own in every tick; its points are
    filled in at its device's ticks. One series is in memory at a time.
    """
    for card, uid, span in _cards(connection, boot_id, since_s, now_s):
        rows = connection.execute(
            "SELECT ts_ms, used_bytes, unattributed_bytes FROM gpu_raw"
            " WHERE ts_ms BETWEEN ? AND ? AND gpu = ? ORDER BY ts_ms",
            (*span, card),
        ).fetchall()
        points = [(ts_ms / 1000, used) for ts_ms, used, _ in rows if used is not None]
        if points:
            yield Subject(device_uid=uid), points
        # Where processes share memory, what nobody owns is not known.
        points = [(row[0] / 1000, row[2]) for row in rows if row[2] is not None and row[2] >= 0]
        if points:
            yield Subject(device_uid=uid, unattributed=True), points
        ticks = [row[0] for row in rows]
        yield from _process_series(connection, boot_id, (card, uid), span, ticks)


def _cards(
    connection: sqlite3.Connection, boot_id: str, since_s: float, now_s: float
) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Yield row and UUID of each device, and the span of this boot in milliseconds."""
    begun_ms = _begun_ms(connection, boot_id)
    if begun_ms is not None:
        span = (max(begun_ms, round(since_s * 1000)), round(now_s * 1000))
        for card, uid in connection.execute("SELECT id, uuid FROM gpu ORDER BY id").fetchall():
            yield card, uid, span


def activity(
    connection: sqlite3.Connection, *, boot_id: str, since_s: float, now_s: float
) -> Iterator[tuple[str, list[tuple[float, float | None, float | None]]]]:
    """Yield (device_uid, [(t_s, util_pct, power_w), ...]) of the same time."""
    for card, uid, span in _cards(connection, boot_id, since_s, now_s):
        rows = connection.execute(
            "SELECT ts_ms / 1000.0, util_percent, power_mw / 1000.0 FROM gpu_raw"
            " WHERE ts_ms BETWEEN ? AND ? AND gpu = ? ORDER BY ts_ms",
            (*span, card),
        )
        yield uid, rows.fetchall()


def unattributed(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> Points:
    """Return what nobody owned on a device, as far back as samples are kept: (t_s, bytes)."""
    rows = connection.execute(
        "SELECT r.ts_ms, r.unattributed_bytes FROM gpu_raw r JOIN gpu g ON g.id = r.gpu"
        " WHERE g.uuid = ? AND r.ts_ms >= ? AND r.ts_ms < ? AND r.unattributed_bytes >= 0"
        " ORDER BY r.ts_ms",
        (uid, records.to_ms(since_s), records.to_ms(until_s)),
    )
    return [(ts_ms / 1000, held) for ts_ms, held in rows]


def allocators(
    connection: sqlite3.Connection, *, boot_id: str, since_s: float, now_s: float
) -> Iterator[tuple[tuple[str, ProcessKey], list[AllocatorReading]]]:
    """Yield ((device_uid, process), readings) of the same time, one device in memory at a time."""
    begun_ms = _begun_ms(connection, boot_id)
    if begun_ms is None:
        return
    span = (max(begun_ms / 1000, since_s), now_s)
    for (uid,) in connection.execute("SELECT uuid FROM gpu ORDER BY id").fetchall():
        found = of_allocators(connection, uid, *span, boot_id=boot_id)
        yield from (((uid, key), readings) for key, readings in found.items())


def of_allocators(
    connection: sqlite3.Connection,
    uid: str,
    since_s: float,
    until_s: float,
    *,
    minutes: bool = False,
    boot_id: str | None = None,
) -> dict[ProcessKey, list[AllocatorReading]]:
    """Return what the allocator of each process on a device said, oldest first (of one boot)."""
    rolled_ms = tables.rolled_s(connection, "gpu_1m") * 1000 if minutes else 0
    begin_ms, end_ms = round(since_s * 1000), round(until_s * 1000)
    where = "gpu_uuid = ? AND ts_ms >= ? AND ts_ms < ? AND boot_id = ifnull(?, boot_id)"
    late = (uid, max(begin_ms, rolled_ms), end_ms, boot_id)
    rows = _ALLOCATORS.load(connection, where, late)
    if minutes:
        values = (uid, begin_ms, min(end_ms, rolled_ms), boot_id)
        rows = [*_ALLOCATOR_MINUTES.load(connection, where, values), *rows]
    found: dict[ProcessKey, list[AllocatorReading]] = {}
    for reading in rows:
        found.setdefault(reading.key, []).append(reading)
    return found


def _begun_ms(connection: sqlite3.Connection, boot_id: str) -> int | None:
    begun_ms = None
    for started_ms, reason in connection.execute(
        "SELECT started_ts_ms, reason FROM segment WHERE boot_id = ? ORDER BY id", (boot_id,)
    ):
        if begun_ms is None or reason == "clock-step":
            begun_ms = started_ms
    return begun_ms


def _process_series(
    connection: sqlite3.Connection,
    boot_id: str,
    device: tuple[int, str],
    span: tuple[int, int],
    ticks: list[int],
) -> Iterator[tuple[Subject, Points]]:
    card, uid = device
    rows = connection.execute(
        "SELECT r.process, p.pid, p.started_at_s, p.last_ts_ms, r.ts_ms, r.used_bytes,"
        " r.host_bytes"
        " FROM process_raw r JOIN process p ON p.id = r.process AND p.boot_id = ?"
        " WHERE r.ts_ms BETWEEN ? AND ? AND r.gpu = ? ORDER BY r.process, r.ts_ms",
        (boot_id, *span, card),
    )
    for (_, pid, started_at_s, last_ms), group in groupby(rows, key=lambda row: row[:4]):
        own = list(group)
        key = ProcessKey(pid=pid, started_at_s=started_at_s)
        points = _filled([(row[4], row[5]) for row in own], ticks, last_ms)
        if points:
            yield Subject(device_uid=uid, process=key), points
        points = _changes([(row[4], row[6]) for row in own])
        if points:
            yield Subject(device_uid=uid, process=key, host=True), points


def _changes(rows: list[tuple[int, int | None]]) -> Points:
    """Return when a figure that each row repeats was looked at: it changed, or a minute passed."""
    points: Points = []
    for ts_ms, held in rows:
        at_s = ts_ms / 1000
        if held is not None and (
            not points or held != points[-1][1] or at_s - points[-1][0] >= _MINUTE_MS / 1000
        ):
            points.append((at_s, held))
    return points


def _filled(rows: list[tuple[int, int | None]], ticks: list[int], last_ms: int) -> Points:
    """Return the points of a process at its device's ticks.

    While a process lives it has a row in every clock minute, so a value holds to the next row, to
    the end of its minute or to the last sight of the process, whichever comes first.
    """
    points: Points = []
    ends = [ts_ms for ts_ms, _ in rows[1:]]
    ends.append(last_ms + 1)
    for (ts_ms, used), end_ms in zip(rows, ends, strict=True):
        if used is None:
            continue
        points.append((ts_ms / 1000, used))
        until_ms = min(end_ms, (ts_ms // _MINUTE_MS + 1) * _MINUTE_MS)
        first, end = bisect_right(ticks, ts_ms), bisect_left(ticks, until_ms)
        points.extend((tick / 1000, used) for tick in ticks[first:end])
    return points
