"""Processes hour by hour: what each had of its device, added up once from its minutes.

A step is one hour of one device, some milliseconds, since it runs on the sampling thread. A file
of an earlier version is caught up with in the same steps, from the oldest hour on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.store import meta

if TYPE_CHECKING:
    import sqlite3

HOUR_S: Final = 3600
UNTIL: Final = "process_1h.until"
"""In ``meta``: up to when the table is complete."""
_CARD: Final = "process_1h.card"
"""In ``meta``: the last device of which the hour after that is done too; 0: none."""

# ``taken_s`` is what `gpuwatchd.analysis.cost.sharing` makes of the same minutes: the device's time
# is shared by what each one holds, one that is alone has all of it. CROSS JOIN fixes the order:
# processes of that time first, then the range of each.
_ROLL = """
INSERT INTO process_1h(gpu, ts_s, process, first_ts_s, last_ts_s, minutes, n, used_min_bytes,
  used_mean_bytes, used_max_bytes, used_last_bytes, top_mean_bytes, host_last_bytes, taken_s)
SELECT :card, :hour_s, process, min(ts_s), max(ts_s), count(*), sum(n), min(low),
  CAST(round(avg(used_last_bytes)) AS INTEGER), max(used_max_bytes),
  max(CASE WHEN ts_s = newest_s THEN used_last_bytes END),
  CASE WHEN count(used_max_bytes) = count(*) THEN avg(used_max_bytes) END,
  max(CASE WHEN ts_s = newest_s THEN host_last_bytes END),
  CASE WHEN count(share) = count(*) THEN sum(share) * 60.0 END
FROM (SELECT *, ifnull(used_min_bytes, used_last_bytes) AS low,
    max(CASE WHEN used_last_bytes IS NOT NULL THEN ts_s END)
      OVER (PARTITION BY process) AS newest_s,
    CASE WHEN count(*) OVER together = 1 THEN 1.0
      WHEN count(used_max_bytes) OVER together < count(*) OVER together THEN NULL
      WHEN sum(used_max_bytes) OVER together > 0
        THEN used_max_bytes * 1.0 / sum(used_max_bytes) OVER together
      ELSE 1.0 / count(*) OVER together END AS share
  FROM (SELECT m.* FROM process p CROSS JOIN process_1m m
    WHERE p.last_ts_ms >= :hour_s * 1000 AND p.first_ts_ms < (:hour_s + 3600) * 1000
      AND m.process = p.id AND m.gpu = :card AND m.ts_s >= :hour_s AND m.ts_s < :hour_s + 3600)
  WINDOW together AS (PARTITION BY ts_s))
GROUP BY process
"""


def until(connection: sqlite3.Connection) -> int:
    """Return the instant, in seconds, up to which the table is complete."""
    return meta.whole(connection, UNTIL)


def roll(connection: sqlite3.Connection) -> int:
    """Roll up one hour of one device inside the caller's transaction; 0 when there is none."""
    hour_s, last = until(connection), meta.whole(connection, _CARD)
    closed_s = meta.whole(connection, "gpu_1m.until")
    if hour_s + HOUR_S > closed_s:
        return 0  # most of the time: every process ever seen would be looked at below
    if not last:
        following = _next_hour(connection, hour_s)
        if following is None or following + HOUR_S > closed_s:
            return 0
        hour_s = following
    found = connection.execute("SELECT min(id) FROM gpu WHERE id > ?", (last,)).fetchone()[0]
    if found is None:
        meta.save_whole(connection, UNTIL, hour_s + HOUR_S)
        meta.save_whole(connection, _CARD, 0)
        return 1
    values = {"card": found, "hour_s": hour_s}
    connection.execute("DELETE FROM process_1h WHERE gpu = :card AND ts_s = :hour_s", values)
    connection.execute(_ROLL, values)
    meta.save_whole(connection, UNTIL, hour_s)
    meta.save_whole(connection, _CARD, found)
    return 1


def _next_hour(connection: sqlite3.Connection, hour_s: int) -> int | None:
    """Return the next hour in which a process was there; None where none was since."""
    (first_ms,) = connection.execute(
        "SELECT min(max(first_ts_ms, ?)) FROM process WHERE last_ts_ms >= ?",
        (hour_s * 1000, hour_s * 1000),
    ).fetchone()
    if first_ms is None:
        return None
    return max(hour_s, int(first_ms) // 1000 // HOUR_S * HOUR_S)


def reopen(connection: sqlite3.Connection, oldest_ms: int) -> None:
    """Have hours made again from an instant on: late rows, a clock set back."""
    hour_s = oldest_ms // 1000 // HOUR_S * HOUR_S
    done_s = until(connection)
    if hour_s < done_s or (hour_s == done_s and meta.whole(connection, _CARD)):
        meta.save_whole(connection, UNTIL, hour_s)
        meta.save_whole(connection, _CARD, 0)


def forget(
    connection: sqlite3.Connection, cards: list[int], gone: list[tuple[int, int, int]]
) -> None:
    """Delete the hours of processes: (row, first and last sight in milliseconds) of each."""
    connection.executemany(
        "DELETE FROM process_1h WHERE gpu = ? AND ts_s BETWEEN ? AND ? AND process = ?",
        [
            (card, first_ms // 1000 - HOUR_S, last_ms // 1000, row)
            for row, first_ms, last_ms in gone
            for card in cards
        ],
    )
