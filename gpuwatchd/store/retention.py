"""Roll-ups, retention and the size bound: chores that are safe to skip and to repeat.

Each call does a bounded piece of work, some milliseconds, since it runs on the sampling thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gpuwatchd.store import profiles, schema, tables
from gpuwatchd.store.occupancy import DEVICE_MINUTES, PROCESS_MINUTES, within

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from gpuwatchd.core.config import StoreSection

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86_400
SETTLE_S = 600.0
"""A clock that has run evenly for this long is believed. Deleting by age waits for that: a machine
that starts in 1970 (or 2099) until its time is set must not lose its history."""
_BUDGET_S = 0.03
"""After this a chore leaves the rest for the next call; each does at least one step."""
_ROLL_ROWS = 1000
"""Fewer rows of processes than that wait, for as many minutes: each series has pages of its own,
which are written whole for one row or for fifteen."""
_STEP_MS = 10 * MINUTE_S * 1000
"""Raw rows of a step: some 5 ms."""
_HIGH_SHARE = 0.90
_LOW_SHARE = 0.85
_VACUUM_BYTES = 2**20
_SPARE_SHARE: Final = 0.1
"""Free pages, as a share of the used ones, that are left to the rows to come: to give each back and
to ask for it again would move and write several pages."""
_PROCESSES_PER_CALL = 500
_LARGE_TABLES = (
    "process_counters",
    "process_raw",
    "gpu_raw",
    "process_counters_1m",
    "process_1m",
    "gpu_1m",
    "process_1h",
)

_ROLL_DEVICES = f"""
INSERT OR REPLACE INTO gpu_1m(gpu, ts_s, n, used_min_bytes, used_mean_bytes, used_max_bytes,
  used_last_bytes, util_mean_percent, temp_max_c, energy_mj)
SELECT gpu, ts_s, n, nullif(used_min_bytes, used_last_bytes),
  nullif(used_mean_bytes, used_last_bytes), nullif(used_max_bytes, used_last_bytes),
  used_last_bytes, util_mean_percent, temp_max_c, energy_mj
FROM ({DEVICE_MINUTES.format(from_ms=":from_ms", to_ms=":to_ms")})"""  # noqa: S608 - our own text
# What the minutes of a row have in common, with ``host_last_bytes``: no row passes an hour.
_SAME = "process, gpu, ts_s / 3600, n, used_min_bytes, used_max_bytes, used_last_bytes"
_INTO_PROCESS_MINUTES = """
INSERT OR REPLACE INTO process_1m(process, gpu, ts_s, n, used_min_bytes, used_max_bytes,
  used_last_bytes, host_last_bytes, minutes)"""
_ROLL_PROCESSES = f"""{_INTO_PROCESS_MINUTES}
SELECT process, gpu, min(ts_s), n, nullif(used_min_bytes, used_last_bytes),
  nullif(used_max_bytes, used_last_bytes), used_last_bytes, host_last_bytes, count(*)
FROM (SELECT *, ts_s / 60 - row_number()
        OVER (PARTITION BY {_SAME}, host_last_bytes ORDER BY ts_s) AS run FROM ({PROCESS_MINUTES}))
GROUP BY {_SAME}, host_last_bytes, run"""  # noqa: S608 - our own text
# Minutes that are made again: rows that reach into them become one for each minute, and go where a
# sample makes a new one. What has no samples any more stays.
_PART_PROCESSES = f"""{_INTO_PROCESS_MINUTES}
SELECT m.process, m.gpu, m.ts_s, m.n, m.used_min_bytes, m.used_max_bytes, m.used_last_bytes,
  m.host_last_bytes, 1
FROM (SELECT DISTINCT process, gpu FROM process_raw WHERE ts_ms >= :from_ms AND ts_ms < :to_ms) r
CROSS JOIN ({schema.PROCESS_MINUTES}) m WHERE m.process = r.process AND m.gpu = r.gpu
  AND m.row_ts_s < :to_ms / 1000 AND m.row_ts_s > :from_ms / 1000 - {schema.MOST_MINUTES * MINUTE_S}
  AND m.row_ts_s + m.row_minutes * 60 > :from_ms / 1000"""  # noqa: S608 - our own text
_DROP_PROCESSES = """DELETE FROM process_1m WHERE (process, gpu, ts_s) IN
  (SELECT process, gpu, ts_ms / 60000 * 60 FROM process_raw
   WHERE ts_ms >= :from_ms AND ts_ms < :to_ms)"""
_ROLL_COUNTERS = """
INSERT OR REPLACE INTO process_counters_1m(process, gpu, ts_s, allocated_last_bytes,
  allocated_max_bytes, reserved_last_bytes, inactive_split_last_bytes)
SELECT process, gpu, ts_ms / 60000 * 60, allocated_bytes, highest_bytes, reserved_bytes,
  inactive_split_bytes
FROM (SELECT *, max(allocated_bytes) OVER minute AS highest_bytes,
        max(ts_ms) OVER minute AS last_ms
      FROM process_counters WHERE ts_ms >= ? AND ts_ms < ?
      WINDOW minute AS (PARTITION BY process, gpu, ts_ms / 60000))
WHERE ts_ms = last_ms
"""
_ROLL_HOURS = f"""
INSERT OR REPLACE INTO gpu_1h(gpu, ts_s, n, used_min_bytes, used_mean_bytes, used_max_bytes,
  used_last_bytes, util_mean_percent, temp_max_c, energy_mj)
SELECT gpu, ts_s / 3600 * 3600, sum(n), min(used_min_bytes),
  CAST(round(sum(used_mean_bytes * 1.0 * n) / sum(n)) AS INTEGER), max(used_max_bytes),
  max(last_bytes), CAST(round(avg(util_mean_percent)) AS INTEGER), max(temp_max_c), sum(energy_mj)
FROM (SELECT *, first_value(used_last_bytes) OVER (PARTITION BY gpu, ts_s / 3600
        ORDER BY used_last_bytes IS NULL, ts_s DESC) AS last_bytes
      FROM ({schema.DEVICE_MINUTES}) WHERE gpu = ? AND ts_s >= ? AND ts_s < ?)
GROUP BY gpu, ts_s / 3600
"""  # noqa: S608 - our own text
_CARD: Final = "process_1h.card"
"""In ``meta``: the last device of which the hour after ``process_1h.until`` is done; 0: none."""

# ``taken_s`` is what `gpuwatchd.analysis.cost.sharing` makes of the same minutes: the device's time
# is shared by what each one holds, one that is alone has all of it. CROSS JOIN fixes the order:
# processes of that time first, then the range of each.
_ROLL_PROCESS_HOURS: Final = f"""
INSERT INTO process_1h(gpu, ts_s, process, first_ts_s, last_ts_s, minutes, n, used_min_bytes,
  used_mean_bytes, used_max_bytes, used_last_bytes, top_mean_bytes, host_last_bytes, taken_s)
SELECT :card, :hour_s, process, min(ts_s), max(ts_s), count(*), sum(n),
  min(used_min_bytes), CAST(round(avg(used_last_bytes)) AS INTEGER), max(used_max_bytes),
  max(CASE WHEN ts_s = newest_s THEN used_last_bytes END),
  CASE WHEN count(used_max_bytes) = count(*) THEN avg(used_max_bytes) END,
  max(CASE WHEN ts_s = newest_s THEN host_last_bytes END),
  CASE WHEN count(share) = count(*) THEN sum(share) * 60.0 END
FROM (SELECT *, max(CASE WHEN used_last_bytes IS NOT NULL THEN ts_s END)
      OVER (PARTITION BY process) AS newest_s,
    CASE WHEN count(*) OVER together = 1 THEN 1.0
      WHEN count(used_max_bytes) OVER together < count(*) OVER together THEN NULL
      WHEN total(used_max_bytes) OVER together > 0
        THEN used_max_bytes * 1.0 / total(used_max_bytes) OVER together
      ELSE 1.0 / count(*) OVER together END AS share
  FROM (SELECT m.* FROM process p CROSS JOIN ({schema.PROCESS_MINUTES}) m
    WHERE p.last_ts_ms >= :hour_s * 1000 AND p.first_ts_ms < (:hour_s + 3600) * 1000
      AND m.process = p.id AND m.gpu = :card AND {within(":hour_s", "(:hour_s + 3600)")})
  WINDOW together AS (PARTITION BY ts_s))
GROUP BY process
"""  # noqa: S608 - our own text
_OVER = """(SELECT id FROM alert WHERE resolved_ts_ms < :before_ms AND id NOT IN
  (SELECT alert FROM delivery WHERE state = 'pending' AND alert IS NOT NULL))"""
_EXPIRE_RECORDS: Final = f"""DELETE FROM delivery WHERE alert IN {_OVER};
DELETE FROM delivery WHERE alert IS NULL AND state <> 'pending' AND created_ts_ms < :before_ms;
DELETE FROM alert WHERE id IN {_OVER};
DELETE FROM told WHERE delivery NOT IN (SELECT id FROM delivery);
DELETE FROM profile WHERE ended_ts_ms < :before_ms
  OR feedback IN (SELECT id FROM feedback WHERE undone_ts_ms IS NOT NULL);
DELETE FROM profile WHERE key NOT IN
  (SELECT key FROM profile GROUP BY key ORDER BY max(ended_ts_ms) DESC LIMIT :most_programs);
DELETE FROM feedback WHERE given_ts_ms < :before_ms
  AND id NOT IN (SELECT feedback FROM profile WHERE feedback IS NOT NULL);
DELETE FROM checkpoint WHERE saved_ts_ms < :before_ms;
DELETE FROM event WHERE ts_ms < :before_ms;
DELETE FROM action WHERE ts_ms < :before_ms;
DELETE FROM silence WHERE until_ts_ms < :before_ms;
DELETE FROM decision WHERE ts_ms < :before_ms;
DELETE FROM segment WHERE started_ts_ms < :before_ms AND id < (SELECT max(id) FROM segment)"""  # noqa: S608
"""What is too old of the small tables, in order: what refers to a row goes before it."""


def reopen_buckets(connection: sqlite3.Connection, oldest_ms: int) -> None:
    """Have closed buckets made again from ``oldest_ms`` on: late rows, a clock set back.

    Works inside the caller's transaction.
    """
    if oldest_ms >= tables.rolled_s(connection, "gpu_1m") * 1000:
        return  # hours are complete up to there at most
    for table, width_s in (("gpu_1m", MINUTE_S), ("gpu_1h", HOUR_S), ("process_1h", HOUR_S)):
        start_s = oldest_ms // 1000 // width_s * width_s
        until_s = tables.rolled_s(connection, table)
        if start_s < until_s:
            tables.save_meta(connection, f"{table}.until", start_s)
        if table == "process_1h" and start_s <= until_s and tables.whole(connection, _CARD):
            tables.save_meta(connection, _CARD, 0)


class Retention:
    """The chores of one open history."""

    def __init__(self, settings: StoreSection, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self.max_bytes = settings.max_db_mib * 2**20
        """The largest that the file may be."""
        self._steady: tuple[float, float, float] | None = None

    def run(self, connection: sqlite3.Connection, now_s: float, waiting_ms: int | None) -> None:
        """Do a piece of every chore; ``waiting_ms`` is the earliest instant not yet written."""
        settled = self._settled(now_s)
        open_s = now_s if waiting_ms is None else min(now_s, waiting_ms / 1000)
        self._repeat(connection, lambda: _roll_minutes(connection, open_s))
        _transaction(connection, lambda: _roll_hours(connection))
        self._repeat(connection, lambda: roll_process_hours(connection))
        if settled:
            self._repeat(connection, lambda: self._expire_raw(connection, now_s))
            _transaction(connection, lambda: self._expire_minutes(connection, now_s))
            before_ms = int((now_s - self._settings.events) * 1000)
            with schema.transaction(connection):
                expire_records(connection, before_ms)
                _expire_processes(connection, now_s, self._settings)
        self._squeeze(connection)
        _shrink(connection, least=_SPARE_SHARE * _used_pages(connection))

    def expire(self, connection: sqlite3.Connection, now_s: float) -> None:
        """Only delete what is too old: for a disk that is nearly full."""
        if self._settled(now_s):
            self._repeat(connection, lambda: self._expire_raw(connection, now_s))
        _shrink(connection)

    def _repeat(self, connection: sqlite3.Connection, work: Callable[[], int]) -> None:
        """Do steps of a chore, each a transaction, until nothing is left or time is up."""
        begun_s = self._monotonic()
        while _transaction(connection, work) and self._monotonic() - begun_s < _BUDGET_S:
            pass

    def _settled(self, now_s: float) -> bool:
        mono_s = self._monotonic()
        if self._steady is not None:
            since_s, last_now_s, last_mono_s = self._steady
            if abs((now_s - last_now_s) - (mono_s - last_mono_s)) < 60:
                self._steady = (since_s, now_s, mono_s)
                return mono_s - since_s >= SETTLE_S
        self._steady = (mono_s, now_s, mono_s)
        return False

    def _expire_raw(self, connection: sqlite3.Connection, now_s: float) -> int:
        rolled_s = tables.rolled_s(connection, "gpu_1m")
        gone = 0
        for table, keep_s in (
            ("gpu_raw", self._settings.raw),
            ("process_raw", self._settings.process_raw),
            ("process_counters", self._settings.process_raw),
        ):
            # Whole steps: pages become free, instead of being written again with fewer rows; and a
            # roll-up that is made again finds all of its rows or none. Nothing goes before it is
            # rolled up.
            before_ms = int(min(now_s - keep_s, rolled_s) * 1000) // _STEP_MS * _STEP_MS
            gone += _delete_oldest(connection, table, before_ms)
            connection.execute(
                f"DELETE FROM {table} WHERE ts_ms > ?",  # noqa: S608 - our own table names
                (int(now_s + DAY_S) * 1000,),
            )
        return gone

    def _expire_minutes(self, connection: sqlite3.Connection, now_s: float) -> None:
        cards = [row for (row,) in connection.execute("SELECT id FROM gpu")]
        settings, rolled_s = self._settings, partial(tables.rolled_s, connection)
        for table, oldest_s in (
            ("gpu_1m", min(now_s - settings.minute, rolled_s("gpu_1h"))),
            ("gpu_1h", now_s - settings.hour),
            # The hours of processes are few, and kept as long as the minutes of devices.
            ("process_1h", now_s - max(settings.minute, settings.process_minute)),
        ):
            for card in cards:
                _delete_oldest(connection, table, int(oldest_s) // HOUR_S * HOUR_S, card)
        oldest_s = min(now_s - settings.process_minute, rolled_s("process_1h"))
        before_s = int(oldest_s) // HOUR_S * HOUR_S
        old = connection.execute(
            "SELECT id FROM process WHERE first_ts_ms < ? ORDER BY first_ts_ms LIMIT ?",
            (before_s * 1000, _PROCESSES_PER_CALL),
        ).fetchall()
        for table in ("process_1m", "process_counters_1m"):
            connection.executemany(
                f"DELETE FROM {table} WHERE process = ? AND gpu = ? AND ts_s < ?",  # noqa: S608
                [(process, card, before_s) for (process,) in old for card in cards],
            )

    def _squeeze(self, connection: sqlite3.Connection) -> None:
        """Near the size bound, drop the oldest raw rows, then minutes; never an alert."""
        (most,) = connection.execute("PRAGMA max_page_count").fetchone()
        if _used_pages(connection) < _HIGH_SHARE * most:
            return
        begun_s = self._monotonic()
        while self._monotonic() - begun_s < _BUDGET_S:
            gone = 0
            for table in _LARGE_TABLES:
                if not gone:
                    gone = _transaction(connection, partial(_delete_oldest, connection, table))
            if not gone or _used_pages(connection) < _LOW_SHARE * most:
                return


def _transaction(connection: sqlite3.Connection, work: Callable[[], int | None]) -> int:
    with schema.transaction(connection):
        return work() or 0


def _roll_minutes(connection: sqlite3.Connection, open_s: float) -> int:
    """Roll up some minutes and return how many they are."""
    start_s = tables.rolled_s(connection, "gpu_1m")
    (first_ms,) = connection.execute(
        "SELECT min(ts_ms) FROM (SELECT min(ts_ms) AS ts_ms FROM gpu_raw WHERE ts_ms >= ?"
        " UNION ALL SELECT min(ts_ms) FROM process_raw WHERE ts_ms >= ?)",
        (start_s * 1000, start_s * 1000),
    ).fetchone()
    if first_ms is None:
        return 0
    start_s = max(start_s, first_ms // 1000 // MINUTE_S * MINUTE_S)
    end_s = min(int(open_s) // MINUTE_S, start_s // MINUTE_S + schema.MOST_MINUTES) * MINUTE_S
    start_ms, end_ms = start_s * 1000, end_s * 1000
    if end_s - start_s < schema.MOST_MINUTES * MINUTE_S:
        (rows,) = connection.execute(
            "SELECT count(*) FROM process_raw WHERE ts_ms >= ? AND ts_ms < ?", (start_ms, end_ms)
        ).fetchone()
        if end_s <= start_s or rows < _ROLL_ROWS:
            return 0
    span = {"from_ms": start_ms, "to_ms": end_ms}
    connection.execute(_ROLL_DEVICES, span)
    if connection.execute(_PART_PROCESSES, span).rowcount:
        connection.execute(_DROP_PROCESSES, span)
    connection.execute(_ROLL_PROCESSES, span)
    connection.execute(_ROLL_COUNTERS, (start_ms, end_ms))
    tables.save_meta(connection, "gpu_1m.until", end_s)
    minutes: int = (end_s - start_s) // MINUTE_S
    return minutes


def _roll_hours(connection: sqlite3.Connection) -> None:
    start_s = tables.rolled_s(connection, "gpu_1h")
    end_s = tables.rolled_s(connection, "gpu_1m") // HOUR_S * HOUR_S
    if end_s <= start_s:
        return
    for (card,) in connection.execute("SELECT id FROM gpu").fetchall():
        connection.execute(_ROLL_HOURS, (card, start_s, end_s))
    tables.save_meta(connection, "gpu_1h.until", end_s)


def roll_process_hours(connection: sqlite3.Connection) -> int:
    """Roll up one hour of one device inside the caller's transaction; 0 when there is none."""
    hour_s, last = tables.rolled_s(connection, "process_1h"), tables.whole(connection, _CARD)
    closed_s = tables.rolled_s(connection, "gpu_1m")
    if hour_s + HOUR_S > closed_s:
        return 0  # most of the time: every process ever seen would be looked at below
    if not last:
        following = _next_hour(connection, hour_s)
        if following is None or following + HOUR_S > closed_s:
            return 0
        hour_s = following
    found = connection.execute("SELECT min(id) FROM gpu WHERE id > ?", (last,)).fetchone()[0]
    if found is None:
        tables.save_meta(connection, "process_1h.until", hour_s + HOUR_S)
        tables.save_meta(connection, _CARD, 0)
        return 1
    values = {"card": found, "hour_s": hour_s}
    connection.execute("DELETE FROM process_1h WHERE gpu = :card AND ts_s = :hour_s", values)
    connection.execute(_ROLL_PROCESS_HOURS, values)
    tables.save_meta(connection, "process_1h.until", hour_s)
    tables.save_meta(connection, _CARD, found)
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


def _delete_oldest(
    connection: sqlite3.Connection, table: str, before: int | None = None, card: int | None = None
) -> int:
    """Delete a step of the oldest rows (of a device), if any, and return how many went.

    Up to ``before``, in the table's own unit; without it they go whatever their age.
    """
    by_ms = table.endswith(("_raw", "_counters"))
    column, step = ("ts_ms", _STEP_MS) if by_ms else ("ts_s", DAY_S)
    of_card, values = ("", ()) if card is None else (" AND gpu = ?", (card,))
    (oldest,) = connection.execute(
        f"SELECT min({column}) FROM {table}{of_card.replace('AND', 'WHERE')}",  # noqa: S608
        values,
    ).fetchone()
    if oldest is None or (before is not None and oldest >= before):
        return 0
    until = (oldest // step + 1) * step
    until = until if before is None else min(until, before)
    statement = f"DELETE FROM {table} WHERE {column} < ?{of_card}"  # noqa: S608
    return connection.execute(statement, (until, *values)).rowcount


def expire_records(connection: sqlite3.Connection, before_ms: int) -> None:
    """Delete what is too old of the small tables, inside the caller's transaction."""
    values = {"before_ms": before_ms, "most_programs": profiles.KEPT_PROGRAMS}
    for statement in _EXPIRE_RECORDS.split(";\n"):
        connection.execute(statement, values)


def _expire_processes(connection: sqlite3.Connection, now_s: float, settings: StoreSection) -> None:
    """Forget who processes were, once no row of theirs is left.

    Those that lived for less than an hour go with their minutes: there may be very many.
    """
    short_s = max(settings.process_raw, settings.process_minute) + DAY_S
    long_s = max(short_s, settings.minute + DAY_S)
    gone = connection.execute(
        "SELECT id, first_ts_ms, last_ts_ms FROM process WHERE last_ts_ms < :short"
        " AND (last_ts_ms < :long OR last_ts_ms - first_ts_ms < :brief) AND id NOT IN"
        " (SELECT process FROM alert WHERE process IS NOT NULL) LIMIT :most",
        {
            "short": int((now_s - short_s) * 1000),
            "long": int((now_s - long_s) * 1000),
            "brief": HOUR_S * 1000,
            "most": _PROCESSES_PER_CALL,
        },
    ).fetchall()
    cards = [row for (row,) in connection.execute("SELECT id FROM gpu")]
    connection.executemany(
        "DELETE FROM process_1h WHERE gpu = ? AND ts_s BETWEEN ? AND ? AND process = ?",
        [
            (card, first_ms // 1000 - HOUR_S, last_ms // 1000, row)
            for row, first_ms, last_ms in gone
            if last_ms - first_ms < HOUR_S * 1000
            for card in cards
        ],
    )
    connection.executemany("DELETE FROM process WHERE id = ?", [(row,) for row, _, _ in gone])


def _shrink(connection: sqlite3.Connection, least: float = 0.0) -> None:
    """Give free pages back to the disk, where there are more than ``least``."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    if free > least:
        # execute() of this pragma frees a single page; executescript() all of them.
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_BYTES // page_bytes})")


def _used_pages(connection: sqlite3.Connection) -> int:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages) - int(free)
