"""Of how much of a period anything is known, and who held how much of a device for how long.

Answered from roll-ups and added up in SQL: of a month of eight devices some dozen rows come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpuwatchd.model import ProcessKey

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

MINUTE_S: Final = 60
HOUR_S: Final = 3600
MISSING_S: Final = 180.0
"""Less than this between two samples is no gap."""
_GIB: Final = 1024**3

Stretch = tuple[float, float]
"""Begin and end, epoch seconds."""

# The first row, and every row with a gap before it.
_EDGES = """SELECT ts_s, before FROM
  (SELECT ts_s, lag(ts_s) OVER (ORDER BY ts_s) AS before FROM ({rows}))
WHERE before IS NULL OR ts_s - before > :missing + {width} ORDER BY ts_s"""
_LAST = "SELECT max(ts_s) FROM ({rows})"
_ROLLED = """SELECT ts_s FROM {table} WHERE gpu = :card AND n > 0
  AND ts_s > :since_s - {width} AND ts_s < :until_s"""
_RAW = """SELECT DISTINCT ts_ms / 60000 * 60 AS ts_s FROM gpu_raw WHERE gpu = :card
  AND used_bytes IS NOT NULL AND ts_ms >= :since_s * 1000 AND ts_ms < :until_s * 1000"""


class Tenure(NamedTuple):
    """What one process had of one device."""

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
    found = connection.execute("SELECT id FROM gpu WHERE uuid = ?", (uid,)).fetchone()
    if found is None or until_s <= since_s:
        return []
    card = found[0]
    oldest = connection.execute("SELECT min(ts_s) FROM gpu_1m WHERE gpu = ?", (card,)).fetchone()[0]
    rolled = _until(connection, "gpu_1m")
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
        span = {"card": card, "since_s": begin_s, "until_s": end_s, "missing": MISSING_S}
        for one in _stretches(connection, rows, width_s, span):
            clipped = max(one[0], begin_s), min(one[1], end_s)
            if whole and clipped[0] - whole[-1][1] <= MISSING_S:
                whole[-1] = whole[-1][0], clipped[1]
            else:
                whole.append(clipped)
    return whole


def _stretches(
    connection: sqlite3.Connection, rows: str, width_s: int, span: dict[str, Any]
) -> Iterator[Stretch]:
    edges = connection.execute(_EDGES.format(rows=rows, width=width_s), span).fetchall()
    if not edges:
        return
    (last,) = connection.execute(_LAST.format(rows=rows), span).fetchone()
    ends = [before + width_s for _, before in edges[1:]] + [last + width_s]
    for (begin, _), end in zip(edges, ends, strict=True):
        yield float(begin), float(end)


def _until(connection: sqlite3.Connection, table: str) -> int:
    """Return the instant up to which a roll-up is complete."""
    found = connection.execute(
        "SELECT value FROM meta WHERE key = ?", (f"{table}.until",)
    ).fetchone()
    return 0 if found is None else int(found[0])


# ---- who ----------------------------------------------------------------------------------------

_MINUTES = """SELECT process, ts_s, used_max_bytes AS held, 60.0 AS width_s, used_max_bytes AS peak
FROM process_1m WHERE gpu = :card AND ts_s >= :since_s AND ts_s < min(:until_s, :rolled_s)
UNION ALL
SELECT process, ts_ms / 60000 * 60, max(used_bytes), 60.0, max(used_bytes) FROM process_raw
WHERE gpu = :card AND ts_ms >= max(:since_s, :rolled_s) * 1000 AND ts_ms < :until_s * 1000
GROUP BY process, ts_ms / 60000"""
# In each bucket the time of the device is shared by what each process held; alone it has all.
_SHARED = """SELECT process, ts_s, held, width_s, peak,
  CASE WHEN count(*) OVER bucket = 1 THEN 1.0
    WHEN count(held) OVER bucket < count(*) OVER bucket THEN NULL
    WHEN sum(held) OVER bucket > 0 THEN held * 1.0 / sum(held) OVER bucket
    ELSE 1.0 / count(*) OVER bucket END AS share
FROM ({rows}) WINDOW bucket AS (PARTITION BY ts_s)"""
_HOLDERS = """SELECT p.pid, p.started_at_s, sum(s.held * s.width_s), count(s.held),
  sum(s.share * s.width_s), count(s.share) = count(*), sum(s.width_s), max(s.peak),
  min(s.ts_s), max(s.ts_s + s.width_s)
FROM ({shared}) s JOIN process p ON p.id = s.process GROUP BY s.process"""


def holders(
    connection: sqlite3.Connection, uid: str, since_s: float, until_s: float
) -> list[Tenure]:
    """Return what each process had of a device in a span, in any order."""
    found = connection.execute("SELECT id FROM gpu WHERE uuid = ?", (uid,)).fetchone()
    if found is None or until_s <= since_s:
        return []
    values = {
        "card": found[0],
        "since_s": int(since_s // MINUTE_S * MINUTE_S),
        "until_s": int(until_s),
        "rolled_s": _until(connection, "gpu_1m"),
    }
    query = _HOLDERS.format(shared=_SHARED.format(rows=_MINUTES))
    return [
        Tenure(
            process=ProcessKey(pid=pid, started_at_s=started),
            gib_hours=held / _GIB / 3600.0 if known else None,
            gpu_hours=shared / 3600.0 if whole and shared is not None else None,
            whole_hours=width_s / 3600.0,
            peak_bytes=peak,
            first_at_s=float(first),
            last_at_s=float(last),
        )
        for pid, started, held, known, shared, whole, width_s, peak, first, last in (
            connection.execute(query, values)
        )
    ]
