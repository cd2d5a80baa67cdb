"""Who held what on a device, minute by minute: what its hours are shared by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gpuwatchd.analysis.cost import Hour, MemoryBucket
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import meta, process_hours

if TYPE_CHECKING:
    import sqlite3

WIDTH_S: Final = 60.0
"""Length of a bucket. Every process has a row in every minute that it was seen in."""

# CROSS JOIN fixes the order: processes of that time first, then the range of each.
_QUERY = """SELECT m.ts_s, p.pid, p.started_at_s, m.used_max_bytes
FROM process p CROSS JOIN process_1m m
WHERE p.last_ts_ms >= :since_s * 1000 AND p.first_ts_ms < :until_s * 1000
  AND m.process = p.id AND m.gpu = :card
  AND m.ts_s >= :since_s AND m.ts_s < min(:until_s, :rolled_s) AND m.ts_s / 60 % :every = 0
UNION ALL
SELECT r.ts_ms / 60000 * 60, p.pid, p.started_at_s, max(r.used_bytes)
FROM process_raw r JOIN process p ON p.id = r.process
WHERE r.ts_ms >= max(:since_s, :rolled_s) * 1000 AND r.ts_ms < :until_s * 1000 AND r.gpu = :card
GROUP BY 1, p.id"""


def load(
    connection: sqlite3.Connection,
    uid: str,
    since_s: float,
    until_s: float,
    *,
    most_minutes: int | None = None,
) -> list[MemoryBucket]:
    """Return who held what on a device in each minute that overlaps a span, in any order.

    Parameters
    ----------
    most_minutes
        Of a longer span every second minute (or third, ...) stands for those up to the next: for
        the daemon, whose thread must not read for long. None reads all.
    """
    card = connection.execute("SELECT id FROM gpu WHERE uuid = ?", (uid,)).fetchone()
    if card is None or until_s <= since_s:
        return []
    rolled_s = meta.whole(connection, "gpu_1m.until")
    oldest = connection.execute(
        "SELECT min(first_ts_ms) / 1000.0 FROM process WHERE last_ts_ms >= ?", (since_s * 1000,)
    ).fetchone()
    since_s = max(since_s, oldest[0] or 0.0)
    every = 1
    if most_minutes is not None:
        every = max(1, math.ceil((until_s - since_s) / WIDTH_S / most_minutes))
    values = {
        "card": card[0],
        "since_s": int(since_s // (WIDTH_S * every) * WIDTH_S * every),
        "until_s": math.ceil(until_s),
        "rolled_s": rolled_s,
        "every": every,
    }
    return [
        MemoryBucket(
            float(at_s),
            ProcessKey(pid=pid, started_at_s=started),
            held,
            min(WIDTH_S * every, rolled_s - at_s) if at_s < rolled_s else WIDTH_S,
        )
        for at_s, pid, started, held in connection.execute(_QUERY, values)
    ]


_HOURS = """SELECT h.ts_s, p.pid, p.started_at_s, h.top_mean_bytes, h.first_ts_s, h.last_ts_s,
  h.minutes, h.taken_s
FROM process_1h h CROSS JOIN process p ON p.id = h.process
WHERE h.gpu = (SELECT id FROM gpu WHERE uuid = :uid) AND h.ts_s >= :since_s AND h.ts_s < :until_s"""


def by_hour(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> list[MemoryBucket]:
    """Return the same as :func:`load` in fewer rows: whole hours as one, minutes at both ends.

    What falls to each process is the sum over its minutes to within rounding.
    """
    begin_s = math.ceil(since_s / process_hours.HOUR_S) * process_hours.HOUR_S
    end_s = (
        min(int(until_s), process_hours.until(connection))
        // process_hours.HOUR_S
        * process_hours.HOUR_S
    )
    if end_s <= begin_s:
        return load(connection, uid, since_s, until_s)
    cursor = connection.execute(_HOURS, {"uid": uid, "since_s": begin_s, "until_s": end_s})
    hours = [
        MemoryBucket(
            float(at_s),
            ProcessKey(pid=pid, started_at_s=started),
            held,
            float(process_hours.HOUR_S),
            Hour(float(first), last + WIDTH_S, minutes * WIDTH_S, taken_s),
        )
        for at_s, pid, started, held, first, last, minutes, taken_s in cursor
    ]
    early = load(connection, uid, since_s, begin_s)
    return [*early, *hours, *load(connection, uid, end_s, until_s)]


def power_w(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> float | None:
    """Return the mean power of a device as far as it was measured and rolled up; None without."""
    found = connection.execute(
        "SELECT sum(energy_mj) / 1000.0, count(energy_mj) * 60.0 FROM gpu_1m"
        " WHERE gpu = (SELECT id FROM gpu WHERE uuid = ?) AND ts_s >= ? AND ts_s < ?",
        (uid, int(since_s), int(until_s)),
    ).fetchone()
    return found[0] / found[1] if found and found[0] is not None and found[1] else None
