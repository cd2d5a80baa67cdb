"""Roll-ups, retention and the size bound: chores that are safe to skip and to repeat.

Each call does a bounded piece of work, some milliseconds, since it runs on the sampling thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpuwatchd.store import checkpoints, meta, notification_decisions, process_hours, profiles

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
_ROLL_MINUTES = 10
"""Minutes of a step: some 10 ms for 8 devices with 64 processes."""
_STEP_MS = 10 * MINUTE_S * 1000
"""Raw rows of a step: some 5 ms."""
_HIGH_SHARE = 0.90
_LOW_SHARE = 0.85
_VACUUM_PAGES = 256
_PROCESSES_PER_CALL = 500

_ROLL_DEVICES = """
INSERT OR REPLACE INTO gpu_1m(gpu, ts_s, n, used_min_bytes, used_mean_bytes, used_max_bytes,
  used_last_bytes, util_mean_percent, temp_max_c, energy_mj)
SELECT gpu, ts_ms / 60000 * 60, count(used_bytes), min(used_bytes),
  CAST(round(avg(used_bytes)) AS INTEGER), max(used_bytes), max(last_bytes),
  CAST(round(avg(util_percent)) AS INTEGER), max(temp_c),
  CAST(sum(power_mw * CASE WHEN pause_ms <= 60000 THEN pause_ms END) / 1000 AS INTEGER)
FROM (SELECT gpu, ts_ms, used_bytes, util_percent, temp_c, power_mw,
        ts_ms - lag(ts_ms) OVER (PARTITION BY gpu ORDER BY ts_ms) AS pause_ms,
        first_value(used_bytes) OVER (PARTITION BY gpu, ts_ms / 60000
          ORDER BY used_bytes IS NULL, ts_ms DESC) AS last_bytes
      FROM gpu_raw WHERE ts_ms >= ? - 60000 AND ts_ms < ?)
WHERE ts_ms >= ? GROUP BY gpu, ts_ms / 60000
"""
_ROLL_PROCESSES = """
INSERT OR REPLACE INTO process_1m(process, gpu, ts_s, n, used_min_bytes, used_max_bytes,
  used_last_bytes, host_last_bytes)
SELECT process, gpu, ts_ms / 60000 * 60, count(used_bytes), min(used_bytes), max(used_bytes),
  max(last_bytes), max(last_host_bytes)
FROM (SELECT process, gpu, ts_ms, used_bytes,
        first_value(used_bytes) OVER (PARTITION BY process, gpu, ts_ms / 60000
          ORDER BY used_bytes IS NULL, ts_ms DESC) AS last_bytes,
        first_value(host_bytes) OVER (PARTITION BY process, gpu, ts_ms / 60000
          ORDER BY host_bytes IS NULL, ts_ms DESC) AS last_host_bytes
      FROM process_raw WHERE ts_ms >= ? AND ts_ms < ?)
GROUP BY process, gpu, ts_ms / 60000
"""
_ROLL_HOURS = """
INSERT OR REPLACE INTO gpu_1h(gpu, ts_s, n, used_min_bytes, used_mean_bytes, used_max_bytes,
  used_last_bytes, util_mean_percent, temp_max_c, energy_mj)
SELECT gpu, ts_s / 3600 * 3600, sum(n), min(used_min_bytes),
  CAST(round(sum(used_mean_bytes * 1.0 * n) / sum(n)) AS INTEGER), max(used_max_bytes),
  max(last_bytes), CAST(round(avg(util_mean_percent)) AS INTEGER), max(temp_max_c), sum(energy_mj)
FROM (SELECT *, first_value(used_last_bytes) OVER (PARTITION BY gpu, ts_s / 3600
        ORDER BY used_last_bytes IS NULL, ts_s DESC) AS last_bytes
      FROM gpu_1m WHERE gpu = ? AND ts_s >= ? AND ts_s < ?)
GROUP BY gpu, ts_s / 3600
"""


def reopen_buckets(connection: sqlite3.Connection, oldest_ms: int) -> None:
    """Have closed buckets made again from ``oldest_ms`` on: late rows, a clock set back.

    Works inside the caller's transaction.
    """
    for table, width_s in (("gpu_1m", MINUTE_S), ("gpu_1h", HOUR_S)):
        start_s = oldest_ms // 1000 // width_s * width_s
        if start_s < meta.whole(connection, f"{table}.until"):
            meta.save_whole(connection, f"{table}.until", start_s)
    process_hours.reopen(connection, oldest_ms)


class Upkeep:
    """The chores of one open history.

    Parameters
    ----------
    settings
        Retention of each table and the size bound.
    monotonic
        A clock in seconds that is never set.
    """

    def __init__(self, settings: StoreSection, monotonic: Callable[[], float]) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._steady: tuple[float, float, float] | None = None

    def run(self, connection: sqlite3.Connection, now_s: float, waiting_ms: int | None) -> None:
        """Do a piece of every chore; ``waiting_ms`` is the earliest instant not yet written."""
        settled = self._settled(now_s)
        open_s = now_s if waiting_ms is None else min(now_s, waiting_ms / 1000)
        self._repeat(connection, lambda: _roll_minutes(connection, open_s))
        _transaction(connection, lambda: _roll_hours(connection))
        self._repeat(connection, lambda: process_hours.roll(connection))
        if settled:
            self._repeat(connection, lambda: self._expire_raw(connection, now_s))
            _transaction(connection, lambda: self._expire_minutes(connection, now_s))
            _transaction(connection, lambda: self._expire_records(connection, now_s))
        self._squeeze(connection)
        # execute() of this pragma frees a single page; executescript() all of them.
        connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    def expire(self, connection: sqlite3.Connection, now_s: float) -> None:
        """Only delete what is too old: for a disk that is nearly full."""
        if self._settled(now_s):
            self._repeat(connection, lambda: self._expire_raw(connection, now_s))
        connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

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
        rolled_s = meta.whole(connection, "gpu_1m.until")
        gone = 0
        for table, keep_s in (
            ("gpu_raw", self._settings.raw),
            ("process_raw", self._settings.process_raw),
        ):
            # Whole minutes: a roll-up that is made again finds all of its rows or none. And
            # nothing goes before it is rolled up.
            before_ms = int(min(now_s - keep_s, rolled_s)) // MINUTE_S * MINUTE_S * 1000
            gone += _delete_oldest(connection, table, before_ms)
            connection.execute(
                f"DELETE FROM {table} WHERE ts_ms > ?",  # noqa: S608 - our own table names
                (int(now_s + DAY_S) * 1000,),
            )
        return gone

    def _expire_minutes(self, connection: sqlite3.Connection, now_s: float) -> None:
        cards = [row for (row,) in connection.execute("SELECT id FROM gpu")]
        rolled_s = meta.whole(connection, "gpu_1h.until")
        for table, oldest_s in (
            ("gpu_1m", min(now_s - self._settings.minute, rolled_s)),
            ("gpu_1h", now_s - self._settings.hour),
        ):
            before_s = int(oldest_s) // HOUR_S * HOUR_S
            for card in cards:
                _delete_buckets(connection, table, card, before_s)
        # The hours of processes are few, and kept as long as the minutes of devices.
        keep_s = max(self._settings.minute, self._settings.process_minute)
        for card in cards:
            _delete_buckets(connection, "process_1h", card, int(now_s - keep_s) // HOUR_S * HOUR_S)
        oldest_s = min(now_s - self._settings.process_minute, process_hours.until(connection))
        before_s = int(oldest_s) // HOUR_S * HOUR_S
        old = connection.execute(
            "SELECT id FROM process WHERE first_ts_ms < ? ORDER BY first_ts_ms LIMIT ?",
            (before_s * 1000, _PROCESSES_PER_CALL),
        ).fetchall()
        connection.executemany(
            "DELETE FROM process_1m WHERE process = ? AND gpu = ? AND ts_s < ?",
            [(process, card, before_s) for (process,) in old for card in cards],
        )

    def _expire_records(self, connection: sqlite3.Connection, now_s: float) -> None:
        before_ms = int((now_s - self._settings.events) * 1000)
        over = (
            "SELECT id FROM alert WHERE resolved_ts_ms < ? AND id NOT IN"
            " (SELECT alert FROM delivery WHERE state = 'pending' AND alert IS NOT NULL)"
        )
        connection.execute(f"DELETE FROM delivery WHERE alert IN ({over})", (before_ms,))  # noqa: S608
        connection.execute(
            "DELETE FROM delivery WHERE alert IS NULL AND state <> 'pending' AND created_ts_ms < ?",
            (before_ms,),
        )
        connection.execute(f"DELETE FROM alert WHERE id IN ({over})", (before_ms,))  # noqa: S608
        connection.execute("DELETE FROM told WHERE delivery NOT IN (SELECT id FROM delivery)")
        profiles.expire(connection, before_ms)
        checkpoints.expire(connection, before_ms)
        connection.execute("DELETE FROM event WHERE ts_ms < ?", (before_ms,))
        connection.execute("DELETE FROM action WHERE ts_ms < ?", (before_ms,))
        connection.execute("DELETE FROM silence WHERE until_ts_ms < ?", (before_ms,))
        notification_decisions.expire(connection, before_ms)
        connection.execute(
            "DELETE FROM segment WHERE started_ts_ms < ? AND id < (SELECT max(id) FROM segment)",
            (before_ms,),
        )
        _expire_processes(connection, now_s, self._settings)

    def _squeeze(self, connection: sqlite3.Connection) -> None:
        """Near the size bound, drop the oldest raw rows, then minutes; never an alert."""
        (most,) = connection.execute("PRAGMA max_page_count").fetchone()
        if _used_pages(connection) < _HIGH_SHARE * most:
            return
        begun_s = self._monotonic()
        while self._monotonic() - begun_s < _BUDGET_S:
            gone = 0
            for table in ("process_raw", "gpu_raw"):
                if not gone:
                    work = partial(_delete_oldest, connection, table, None)
                    gone = _transaction(connection, work)
            if not gone:
                gone = _transaction(connection, lambda: _delete_oldest_day(connection))
            if not gone or _used_pages(connection) < _LOW_SHARE * most:
                return


def _transaction(connection: sqlite3.Connection, work: Callable[[], int | None]) -> int:
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = work()
        connection.execute("COMMIT")
    finally:
        # SQLite has already rolled back after some errors; ROLLBACK would then be one more.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return done or 0


def _roll_minutes(connection: sqlite3.Connection, open_s: float) -> int:
    """Roll up some minutes and return how many they are."""
    start_s = meta.whole(connection, "gpu_1m.until")
    (first_ms,) = connection.execute(
        "SELECT min(ts_ms) FROM (SELECT min(ts_ms) AS ts_ms FROM gpu_raw WHERE ts_ms >= ?"
        " UNION ALL SELECT min(ts_ms) FROM process_raw WHERE ts_ms >= ?)",
        (start_s * 1000, start_s * 1000),
    ).fetchone()
    if first_ms is None:
        return 0
    start_s = max(start_s, first_ms // 1000 // MINUTE_S * MINUTE_S)
    end_s = min(int(open_s) // MINUTE_S, start_s // MINUTE_S + _ROLL_MINUTES) * MINUTE_S
    if end_s <= start_s:
        return 0
    start_ms, end_ms = start_s * 1000, end_s * 1000
    connection.execute(_ROLL_DEVICES, (start_ms, end_ms, start_ms))
    connection.execute(_ROLL_PROCESSES, (start_ms, end_ms))
    meta.save_whole(connection, "gpu_1m.until", end_s)
    minutes: int = (end_s - start_s) // MINUTE_S
    return minutes


def _roll_hours(connection: sqlite3.Connection) -> None:
    start_s = meta.whole(connection, "gpu_1h.until")
    end_s = meta.whole(connection, "gpu_1m.until") // HOUR_S * HOUR_S
    if end_s <= start_s:
        return
    for (card,) in connection.execute("SELECT id FROM gpu").fetchall():
        connection.execute(_ROLL_HOURS, (card, start_s, end_s))
    meta.save_whole(connection, "gpu_1h.until", end_s)


def _delete_oldest(connection: sqlite3.Connection, table: str, before_ms: int | None) -> int:
    """Delete the oldest raw rows, some minutes of them; return how many rows went."""
    (oldest_ms,) = connection.execute(f"SELECT min(ts_ms) FROM {table}").fetchone()  # noqa: S608
    if oldest_ms is None or (before_ms is not None and oldest_ms >= before_ms):
        return 0
    until_ms = (oldest_ms // _STEP_MS + 1) * _STEP_MS
    until_ms = until_ms if before_ms is None else min(until_ms, before_ms)
    statement = f"DELETE FROM {table} WHERE ts_ms < ?"  # noqa: S608
    return connection.execute(statement, (until_ms,)).rowcount


def _delete_buckets(connection: sqlite3.Connection, table: str, card: int, before_s: int) -> int:
    """Delete a device's oldest day of ``table`` that ends before ``before_s``."""
    (oldest_s,) = connection.execute(
        f"SELECT min(ts_s) FROM {table} WHERE gpu = ?",  # noqa: S608
        (card,),
    ).fetchone()
    if oldest_s is None or oldest_s >= before_s:
        return 0
    return connection.execute(
        f"DELETE FROM {table} WHERE gpu = ? AND ts_s < ?",  # noqa: S608
        (card, min(before_s, (oldest_s // DAY_S + 1) * DAY_S)),
    ).rowcount


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
    process_hours.forget(
        connection, cards, [one for one in gone if one[2] - one[1] < HOUR_S * 1000]
    )
    connection.executemany("DELETE FROM process WHERE id = ?", [(row,) for row, _, _ in gone])


def _delete_oldest_day(connection: sqlite3.Connection) -> int:
    """Delete the oldest day of minutes of every process or device, last of hours of processes."""
    gone = 0
    for table in ("process_1m", "gpu_1m", "process_1h"):
        (oldest_s,) = connection.execute(f"SELECT min(ts_s) FROM {table}").fetchone()  # noqa: S608
        if oldest_s is not None and not gone:
            statement = f"DELETE FROM {table} WHERE ts_s < ?"  # noqa: S608
            gone = connection.execute(statement, ((oldest_s // DAY_S + 1) * DAY_S,)).rowcount
    return gone


def _used_pages(connection: sqlite3.Connection) -> int:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(pages) - int(free)
