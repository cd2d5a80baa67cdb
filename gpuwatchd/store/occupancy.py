"""Who held what on a device, and of how much of a period anything is known.

Answered from roll-ups, and as far as possible added up in SQL.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpuwatchd.analysis.cost import Hour, MemoryBucket
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import records, schema, tables

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

WIDTH_S: Final = 60.0
"""Length of a bucket. Every process has a row in every minute that it was seen in."""


def within(since_s: str, until_s: str) -> str:
    """Return the condition of the rows ``m`` of ``PROCESS_MINUTES`` in a span; both ends are SQL.

    Without it a query would read every row of a process: what a row reaches is not in its key.
    """
    return (
        f"m.ts_s >= {since_s} AND m.ts_s < {until_s} AND m.row_ts_s < {until_s}"
        f" AND m.row_ts_s > {since_s} - {schema.MOST_MINUTES * 60}"
    )


# CROSS JOIN fixes the order: processes of that time first, then the range of each.
_QUERY = f"""SELECT m.ts_s, p.pid, p.started_at_s, m.used_max_bytes
FROM process p CROSS JOIN ({schema.PROCESS_MINUTES}) m
WHERE p.last_ts_ms >= :since_s * 1000 AND p.first_ts_ms < :until_s * 1000
  AND m.process = p.id AND m.gpu = :card
  AND {within(":since_s", "min(:until_s, :rolled_s)")} AND m.ts_s / 60 % :every = 0
UNION ALL
SELECT r.ts_ms / 60000 * 60, p.pid, p.started_at_s, max(r.used_bytes)
FROM process_raw r JOIN process p ON p.id = r.process
WHERE r.ts_ms >= max(:since_s, :rolled_s) * 1000 AND r.ts_ms < :until_s * 1000 AND r.gpu = :card
GROUP BY 1, p.id"""  # noqa: S608 - our own text


def load(
    connection: sqlite3.Connection,
    uid: str,
    since_s: float,
    until_s: float,
    *,
    most_minutes: int | None = None,
) -> list[MemoryBucket]:
    """Return who held what on a device in each minute that overlaps a span, in any order.

    Of a span of more than ``most_minutes`` every second minute (or third, ...) stands for those up
    to the next: for the daemon, whose thread must not read for long.
    """
    card = records.device_row(connection, uid)
    if card is None or until_s <= since_s:
        return []
    rolled_s = tables.rolled_s(connection, "gpu_1m")
    oldest = connection.execute(
        "SELECT min(first_ts_ms) / 1000.0 FROM process WHERE last_ts_ms >= ?", (since_s * 1000,)
    ).fetchone()
    since_s = max(since_s, oldest[0] or 0.0)
    every = max(1, math.ceil((until_s - since_s) / WIDTH_S / (most_minutes or math.inf)))
    values = {
        "card": card,
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


_BY_HOUR = """SELECT h.ts_s, p.pid, p.started_at_s, h.top_mean_bytes, h.first_ts_s, h.last_ts_s,
  h.minutes, h.taken_s
FROM process_1h h CROSS JOIN process p ON p.id = h.process
WHERE h.gpu = (SELECT id FROM gpu WHERE uuid = :uid) AND h.ts_s >= :since_s AND h.ts_s < :until_s"""


def by_hour(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> list[MemoryBucket]:
    """Return the same as :func:`load` in fewer rows: whole hours as one, minutes at both ends.

    What falls to each process is the sum over its minutes to within rounding.
    """
    begin_s = math.ceil(since_s / HOUR_S) * HOUR_S
    end_s = min(int(until_s), tables.rolled_s(connection, "process_1h")) // HOUR_S * HOUR_S
    if end_s <= begin_s:
        return load(connection, uid, since_s, until_s)
    cursor = connection.execute(_BY_HOUR, {"uid": uid, "since_s": begin_s, "until_s": end_s})
    hours = [
        MemoryBucket(
            float(at_s),
            ProcessKey(pid=pid, started_at_s=started),
            held,
            float(HOUR_S),
            Hour(float(first), last + WIDTH_S, minutes * WIDTH_S, taken_s),
        )
        for at_s, pid, started, held, first, last, minutes, taken_s in cursor
    ]
    early = load(connection, uid, since_s, begin_s)
    return [*early, *hours, *load(connection, uid, end_s, until_s)]


DEVICE_MINUTES: Final = """
SELECT gpu, ts_ms / 60000 * 60 AS ts_s, count(used_bytes) AS n, min(used_bytes) AS used_min_bytes,
  CAST(round(avg(used_bytes)) AS INTEGER) AS used_mean_bytes, max(used_bytes) AS used_max_bytes,
  max(last_bytes) AS used_last_bytes,
  CAST(round(avg(util_percent)) AS INTEGER) AS util_mean_percent, max(temp_c) AS temp_max_c,
  CAST(sum(power_mw * CASE WHEN pause_ms <= 60000 THEN pause_ms END) / 1000 AS INTEGER) AS energy_mj
FROM (SELECT gpu, ts_ms, used_bytes, util_percent, temp_c, power_mw,
        ts_ms - lag(ts_ms) OVER (PARTITION BY gpu ORDER BY ts_ms) AS pause_ms,
        first_value(used_bytes) OVER (PARTITION BY gpu, ts_ms / 60000
          ORDER BY used_bytes IS NULL, ts_ms DESC) AS last_bytes
      FROM gpu_raw WHERE ts_ms >= {from_ms} - 60000 AND ts_ms < {to_ms})
WHERE ts_ms >= {from_ms} GROUP BY gpu, ts_ms / 60000
"""
"""The minutes of devices from samples, as ``gpu_1m`` has them."""
# Of what is not rolled up yet whole minutes only: the one that runs has less energy.
_POWER = f"""SELECT sum(energy_mj) / 1000.0 / (count(energy_mj) * 60.0) FROM (
  SELECT energy_mj FROM gpu_1m
  WHERE gpu = :card AND ts_s >= :since_s AND ts_s < min(:until_s, :rolled_s)
  UNION ALL SELECT energy_mj FROM ({
    DEVICE_MINUTES.format(
        from_ms="max((:since_s + 59) / 60 * 60, :rolled_s) * 1000", to_ms=":until_s / 60 * 60000"
    )
}) WHERE gpu = :card)"""  # noqa: S608 - our own text


def power_w(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> float | None:
    """Return the mean power of a device as far as it was measured, minute by minute."""
    values = {"card": records.device_row(connection, uid), "since_s": int(since_s)}
    values |= {"until_s": int(until_s), "rolled_s": tables.rolled_s(connection, "gpu_1m")}
    found: float | None = connection.execute(_POWER, values).fetchone()[0]
    return found


# As far as samples are kept the most of each minute, before that its mean, as a whole number.
_USE = """SELECT ts_s, util_mean_percent FROM gpu_1m
WHERE gpu = :card AND ts_s >= :since_s AND ts_s < :until_s AND util_mean_percent IS NOT NULL
UNION ALL
SELECT ts_ms / 60000 * 60, max(util_percent) FROM gpu_raw
WHERE gpu = :card AND ts_ms >= :since_s * 1000 AND ts_ms < :until_s * 1000
  AND util_percent IS NOT NULL GROUP BY 1"""
_OWN_USE = """SELECT r.ts_ms / 60000 * 60, p.pid, p.started_at_s, max(r.sm_percent)
FROM process_raw r JOIN process p ON p.id = r.process
WHERE r.gpu = :card AND r.ts_ms >= :since_s * 1000 AND r.ts_ms < :until_s * 1000
  AND r.sm_percent IS NOT NULL GROUP BY 1, p.id"""


def use(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> tuple[dict[float, float], dict[tuple[float, ProcessKey], float]]:
    """Return how busy a device was in each minute, and each process on it, as far as known, %."""
    card = records.device_row(connection, uid)
    values = {"card": card, "since_s": int(since_s), "until_s": math.ceil(until_s)}
    device = {float(at_s): float(pct) for at_s, pct in connection.execute(_USE, values)}
    own = connection.execute(_OWN_USE, values)
    return device, {
        (float(at_s), ProcessKey(pid=pid, started_at_s=started)): float(pct)
        for at_s, pid, started, pct in own
    }


PROCESS_MINUTES: Final = """
SELECT process, gpu, ts_ms / 60000 * 60 AS ts_s, count(used_bytes) AS n,
  min(used_bytes) AS used_min_bytes, max(used_bytes) AS used_max_bytes,
  max(last_bytes) AS used_last_bytes, max(last_host_bytes) AS host_last_bytes
FROM (SELECT process, gpu, ts_ms, used_bytes,
        first_value(used_bytes) OVER (PARTITION BY process, gpu, ts_ms / 60000
          ORDER BY used_bytes IS NULL, ts_ms DESC) AS last_bytes,
        first_value(host_bytes) OVER (PARTITION BY process, gpu, ts_ms / 60000
          ORDER BY host_bytes IS NULL, ts_ms DESC) AS last_host_bytes
      FROM process_raw WHERE ts_ms >= :from_ms AND ts_ms < :to_ms)
GROUP BY process, gpu, ts_ms / 60000
"""
"""The minutes of processes from samples, as ``process_1m`` has them."""
# Minutes that are to be rolled up again (a clock was set back) are as their samples are.
_BY_MINUTE = """WITH late AS (SELECT ts_ms / 60000 * 60 AS ts_s, {value} AS value,
    max(CASE WHEN {sampled} IS NOT NULL THEN ts_ms END)
  FROM {samples} WHERE ts_ms >= max(:since_s / 60 * 60, :rolled_s) * 1000
    AND ts_ms < (:until_s + 60) * 1000 AND {of} GROUP BY 1)
SELECT ts_s + 60, {column} AS value FROM {minutes} AND {of} AND value IS NOT NULL
  AND (ts_s < :rolled_s OR ts_s NOT IN (SELECT ts_s FROM late))
UNION ALL
SELECT ts_s + 60, value FROM late
WHERE ts_s BETWEEN :since_s AND :until_s AND value IS NOT NULL ORDER BY 1"""
_LAST = {"column": "used_last_bytes", "value": "used_bytes", "sampled": "used_bytes"}
_MEAN_USE = {
    "column": "util_mean_percent",
    "value": "CAST(round(avg(util_percent)) AS INTEGER)",
    "sampled": "util_percent",
}
_CARD = "gpu = (SELECT id FROM gpu WHERE uuid = :uid)"


def by_minute(
    connection: sqlite3.Connection,
    uid: str,
    span: tuple[int, int],
    process: tuple[int, float | None] | None = None,
    *,
    is_use: bool = False,
) -> list[tuple[float, int]]:
    """Return what a device, or a process on it, held at the end of each minute: (end, bytes).

    ``is_use``: how busy the device was instead, mean per cent. ``span``: in what the first and the
    last minute begin. What is not rolled up yet comes from samples.
    """
    of, kind = _CARD, "gpu"
    minutes = f"({schema.DEVICE_MINUTES}) WHERE ts_s BETWEEN :since_s AND :until_s"
    values: dict[str, Any] = {"uid": uid, "since_s": span[0], "until_s": span[1]}
    if process is not None:
        kind, values["pid"], values["started_at_s"] = "process", *process
        minutes = f"({schema.PROCESS_MINUTES}) m WHERE {within(':since_s', '(:until_s + 1)')}"
        of += """ AND process = (SELECT id FROM process WHERE pid = :pid
          AND started_at_s IS :started_at_s ORDER BY last_ts_ms DESC LIMIT 1)"""
    query = _BY_MINUTE.format(
        minutes=minutes, samples=f"{kind}_raw", of=of, **(_MEAN_USE if is_use else _LAST)
    )
    values["rolled_s"] = tables.rolled_s(connection, "gpu_1m")
    return [(float(at_s), int(value)) for at_s, value in connection.execute(query, values)]


# The minute that the instant lies in is left out: it has what came after it, too.
_LEVELS = f"""SELECT g.uuid, l.used_bytes, max(l.ts_ms) FROM (
  SELECT gpu, ts_ms, used_bytes FROM process_raw
  WHERE ts_ms BETWEEN :at_ms - :recent_ms AND :at_ms AND process = :process
  UNION ALL
  SELECT gpu, ts_s * 1000, used_last_bytes FROM ({schema.PROCESS_MINUTES}) m
  WHERE process = :process AND gpu IN (SELECT id FROM gpu)
    AND {within("((:at_ms - :recent_ms) / 1000)", "(:at_ms / 1000 - 59)")}
) l JOIN gpu g ON g.id = l.gpu WHERE l.used_bytes BETWEEN 0 AND 1 << 43 GROUP BY l.gpu"""  # noqa: S608 - our own text


def levels(
    connection: sqlite3.Connection, key: ProcessKey, at_s: float, recent_s: float
) -> dict[str, int]:
    """Return what a process held on each device when it was seen last before an instant.

    What is older than ``recent_s`` then is not known to be so still: it is left out.
    """
    process = tables.seen_process(connection, (key.pid, key.started_at_s), tables.SAME_S)
    if process is None:
        return {}
    at_ms, recent_ms = round(at_s * 1000), round(recent_s * 1000)
    values = {"process": process[0], "at_ms": at_ms, "recent_ms": recent_ms}
    return {uid: held for uid, held, _ in connection.execute(_LEVELS, values)}


MINUTE_S: Final = 60
HOUR_S: Final = 3600
MISSING_S: Final = 180.0
"""Less than this between two samples is no gap."""
_GIB: Final = 1024**3

Stretch = tuple[float, float]
"""Begin and end, epoch seconds."""

_ROLLED = """SELECT ts_s FROM {table} WHERE gpu = :card AND n > 0
  AND ts_s > :since_s - {width} AND ts_s < :until_s"""
_RAW = """SELECT DISTINCT ts_ms / 60000 * 60 AS ts_s FROM gpu_raw WHERE gpu = :card
  AND used_bytes IS NOT NULL AND ts_ms >= :since_s * 1000 AND ts_ms < :until_s * 1000"""
_HOUR_BY_HOUR = (
    "SELECT count(*), min(ts_s), max(ts_s) FROM ({rows}) GROUP BY ts_s / 3600 ORDER BY 2"
)
_ONE_BY_ONE = "SELECT ts_s FROM ({rows}) WHERE ts_s BETWEEN :first_s AND :last_s ORDER BY 1"


class Coverage(NamedTuple):
    """What one process had of one device."""

    device_uid: str
    process: ProcessKey
    gib_hours: float | None
    """Memory times time; None where its memory was never known."""
    gpu_hours: float | None
    """Hours of the device that fall to it, shared by what each one held; None where unknown."""
    whole_hours: float
    """Hours for which it was there at all."""
    peak_bytes: int | None
    first_at_s: float
    last_at_s: float


def stretches(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> list[Stretch]:
    """Return when a device was read in a span, oldest first: what lies between are gaps.

    By the minute; what is older than one-minute roll-ups by the hour.
    """
    card = records.device_row(connection, uid)
    if card is None or until_s <= since_s:
        return []
    oldest = connection.execute("SELECT min(ts_s) FROM gpu_1m WHERE gpu = ?", (card,)).fetchone()[0]
    rolled = tables.rolled_s(connection, "gpu_1m")
    split_s = float(rolled if oldest is None else oldest)
    parts = [
        (
            _ROLLED.format(table="gpu_1h", width=HOUR_S),
            HOUR_S,
            since_s,
            # An hour of which the minutes are known too is not read twice.
            min(until_s, split_s // HOUR_S * HOUR_S),
        ),
        (
            _ROLLED.format(table="gpu_1m", width=MINUTE_S),
            MINUTE_S,
            max(since_s, split_s),
            min(until_s, rolled),
        ),
        (_RAW, MINUTE_S, max(since_s, rolled), until_s),
    ]
    whole: list[Stretch] = []
    for rows, width_s, begin_s, end_s in parts:
        if begin_s >= end_s:
            continue
        span = {"card": card, "since_s": begin_s, "until_s": end_s}
        for stretch in _stretches(connection, rows, width_s, span):
            clipped = max(stretch[0], begin_s), min(stretch[1], end_s)
            if whole and clipped[0] - whole[-1][1] <= MISSING_S:
                whole[-1] = whole[-1][0], clipped[1]
            else:
                whole.append(clipped)
    return whole


def _stretches(
    connection: sqlite3.Connection, rows: str, width_s: int, span: dict[str, Any]
) -> Iterator[Stretch]:
    begin: float | None = None
    before = 0.0
    for first, last in _without_gap(connection, rows, width_s, span):
        if begin is not None and first - before > MISSING_S + width_s:
            yield begin, before + width_s
            begin = None
        begin = first if begin is None else begin
        before = last
    if begin is not None:
        yield begin, before + width_s


def _without_gap(
    connection: sqlite3.Connection, rows: str, width_s: int, span: dict[str, Any]
) -> Iterator[Stretch]:
    """Yield the first and last row of each stretch that misses none, at most an hour long."""
    # Much quicker than every row, or a window in SQL: a month has 43,200 minutes.
    for count, first, last in connection.execute(_HOUR_BY_HOUR.format(rows=rows), span).fetchall():
        if last - first == (count - 1) * width_s:
            yield float(first), float(last)
            continue
        inside = span | {"first_s": first, "last_s": last}
        for (at_s,) in connection.execute(_ONE_BY_ONE.format(rows=rows), inside):
            yield float(at_s), float(at_s)


# Hours as they were rolled up; before the first and after the last whole one by the minute. Of each
# minute the time of a device is shared by what each process held; alone it has all of it. What is
# below zero or above 8 TiB is a damaged row: it is left out.
_HOURS = """SELECT h.process, h.gpu,
  ifnull(h.top_mean_bytes, h.used_mean_bytes) * h.minutes AS held, h.taken_s / 60.0 AS taken,
  h.minutes AS minutes, h.used_max_bytes AS peak, h.first_ts_s AS first, h.last_ts_s AS last
FROM gpu g CROSS JOIN process_1h h ON h.gpu = g.id AND h.ts_s >= :hours_s AND h.ts_s < :tail_s
  AND ifnull(h.used_max_bytes, 0) BETWEEN 0 AND 1 << 43"""
_MINUTES = f"""SELECT m.process, m.gpu, m.ts_s, m.used_max_bytes AS held
FROM process p CROSS JOIN ({schema.PROCESS_MINUTES}) m ON m.process = p.id
WHERE p.last_ts_ms >= {{begin}} * 1000 AND p.first_ts_ms < {{end}} * 1000
  AND {within("{begin}", "min({end}, :rolled_s)")}"""  # noqa: S608 - our own text
_LATE = """SELECT process, gpu, ts_ms / 60000 * 60, max(used_bytes) FROM process_raw
WHERE ts_ms >= max(:since_s, :rolled_s) * 1000 AND ts_ms < :until_s * 1000
GROUP BY process, gpu, ts_ms / 60000"""
_SHARED = """SELECT process, gpu, held,
  CASE WHEN count(*) OVER own = 1 THEN 1.0
    WHEN count(held) OVER own < count(*) OVER own THEN NULL
    WHEN sum(held) OVER own > 0 THEN held * 1.0 / sum(held) OVER own
    ELSE 1.0 / count(*) OVER own END AS taken, 1 AS minutes, held AS peak, ts_s AS first,
  ts_s AS last
FROM ({rows}) WHERE ifnull(held, 0) BETWEEN 0 AND 1 << 43 WINDOW own AS (PARTITION BY gpu, ts_s)"""
_HOLDERS = """SELECT g.uuid, p.pid, p.started_at_s, sum(s.held), sum(s.taken),
  count(s.taken) = count(*), sum(s.minutes), max(s.peak), min(s.first), max(s.last) + 60
FROM ({pieces}) s JOIN process p ON p.id = s.process JOIN gpu g ON g.id = s.gpu
GROUP BY s.gpu, s.process"""


def holders(connection: sqlite3.Connection, since_s: float, until_s: float) -> list[Coverage]:
    """Return what each process had of each device in a span, in any order."""
    if until_s <= since_s:
        return []
    begin_s, end_s = int(since_s // MINUTE_S * MINUTE_S), int(until_s)
    # Whole hours, as far as they are rolled up; none in a file of an earlier version.
    hours_s = -(-begin_s // HOUR_S) * HOUR_S
    tail_s = min(end_s // HOUR_S * HOUR_S, tables.rolled_s(connection, "process_1h"))
    if tail_s <= hours_s:
        hours_s = tail_s = begin_s
    values = {
        "since_s": begin_s,
        "hours_s": hours_s,
        "tail_s": tail_s,
        "until_s": end_s,
        "rolled_s": tables.rolled_s(connection, "gpu_1m"),
    }
    head = _MINUTES.format(begin=":since_s", end=":hours_s")
    tail = _MINUTES.format(begin=":tail_s", end=":until_s")
    pieces = [_SHARED.format(rows=f"{head} UNION ALL {tail} UNION ALL {_LATE}")]
    if hours_s < tail_s:
        pieces.insert(0, _HOURS)
    query = _HOLDERS.format(pieces=" UNION ALL ".join(pieces))
    return [
        Coverage(
            device_uid=uid,
            process=ProcessKey(pid=pid, started_at_s=started),
            gib_hours=None if held is None else held / _GIB / 60.0,
            gpu_hours=taken / 60.0 if complete and taken is not None else None,
            whole_hours=minutes / 60.0,
            peak_bytes=peak,
            first_at_s=float(first),
            last_at_s=float(last),
        )
        for uid, pid, started, held, taken, complete, minutes, peak, first, last in (
            connection.execute(query, values)
        )
    ]
