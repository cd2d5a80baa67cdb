"""Memory over time for pictures: few points of any span, and where nothing was recorded.

A span is answered by the coarsest table that still gives a point its own bucket: samples up to
:data:`RAW_SPAN_S`, one-minute rows up to :data:`MINUTE_SPAN_S`, else one-hour rows. They are joined
in SQL, with the lowest and highest of each point, so that a peak is never lost.
"""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import records, schema, tables
from gpuwatchd.store.occupancy import within

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from gpuwatchd.core.model import ProcessInfo

# The questions as SQL: rows of every level in one shape, and how to join them.
# A row is (first_ms, last_ms, n, low, mean, high): of a sample both instants are the same. n is
# what it weighs: samples of a device, minutes of a process.


class Tables(NamedTuple):
    """The rows of one kind of subject."""

    raw: str
    late: str
    """Samples since ``from_s``, of what is not rolled up yet."""
    minute: str
    hour: str
    hourly: str
    """Table whose roll-up says up to when ``hour`` is complete."""
    oldest: tuple[str, str, str]
    """When samples, minutes and hours begin."""


_SAMPLE = """ts_ms AS first_ms, ts_ms AS last_ms, used_bytes IS NOT NULL AS n,
  used_bytes AS low, used_bytes AS mean, used_bytes AS high"""
_RANGE = "ts_ms >= max(:since_ms, {from_s} * 1000) AND ts_ms < :until_ms"
_BUCKET = "ts_s >= max(:since_ms / 1000, {from_s}) AND ts_s < min((:until_ms + 999) / 1000, {to_s})"
_DEVICE_BUCKET = """ts_s * 1000 AS first_ms, (ts_s + {width}) * 1000 AS last_ms, n,
  used_min_bytes AS low, used_mean_bytes AS mean, used_max_bytes AS high"""


def _device(table: str, width: int) -> str:
    columns = _DEVICE_BUCKET.replace("{width}", str(width))
    return f"SELECT {columns} FROM {table} WHERE gpu = :card AND {_BUCKET}"  # noqa: S608


_DEVICE_RAW = f"SELECT {_SAMPLE} FROM gpu_raw WHERE {_RANGE} AND gpu = :card"  # noqa: S608
DEVICE: Final = Tables(
    raw=_DEVICE_RAW.format(from_s=0),
    late=_DEVICE_RAW,
    minute=_device(f"({schema.DEVICE_MINUTES})", 60),
    hour=_device("gpu_1h", 3600),
    hourly="gpu_1h",
    oldest=(
        "SELECT min(ts_ms) / 1000.0 FROM gpu_raw",
        "SELECT min(ts_s) FROM gpu_1m WHERE gpu = :card",
        "SELECT min(ts_s) FROM gpu_1h WHERE gpu = :card",
    ),
)

_PROCESS_RAW = f"""SELECT {_SAMPLE} FROM process_raw
WHERE {_RANGE} AND process = :process AND gpu = :card"""  # noqa: S608
# A process has more samples while it changes: each minute counts the same.
_WITHIN = within("max(:since_ms / 1000, {from_s})", "min((:until_ms + 999) / 1000, {to_s})")
_PROCESS_MINUTE = f"""SELECT ts_s * 1000 AS first_ms, (ts_s + 60) * 1000 AS last_ms, 1 AS n,
  used_min_bytes AS low, used_last_bytes AS mean, used_max_bytes AS high
FROM ({schema.PROCESS_MINUTES}) m WHERE process = :process AND gpu = :card AND {_WITHIN}"""  # noqa: S608
_PROCESS_HOUR = f"""SELECT first_ts_s * 1000 AS first_ms, (last_ts_s + 60) * 1000 AS last_ms,
  minutes AS n, used_min_bytes AS low, used_mean_bytes AS mean, used_max_bytes AS high
FROM process_1h WHERE gpu = :card AND process = :process AND {_BUCKET}"""  # noqa: S608
PROCESS: Final = Tables(
    raw=_PROCESS_RAW.format(from_s=0),
    late=_PROCESS_RAW,
    minute=_PROCESS_MINUTE,
    hour=_PROCESS_HOUR,
    hourly="process_1h",
    oldest=(
        "SELECT min(ts_ms) / 1000.0 FROM process_raw",
        "SELECT min(ts_s) FROM process_1m WHERE process = :process AND gpu = :card",
        "SELECT min(ts_s) FROM process_1h WHERE gpu = :card",
    ),
)

JOINED: Final = """SELECT min(first_ms), max(last_ms), count(*), min(n), min(low),
  sum(mean * 1.0 * n) / sum(CASE WHEN mean IS NOT NULL THEN n END), max(high)
FROM ({rows}) GROUP BY first_ms / :width_ms ORDER BY 1"""
INSTANTS: Final = "SELECT first_ms, last_ms FROM ({rows}) ORDER BY 1"
PRESENT: Final = f"""SELECT p.pid, p.started_at_s, p.first_ts_ms, p.last_ts_ms, max(h.peak)
FROM (SELECT process, max(used_max_bytes) AS peak FROM process_1h
    WHERE gpu = :card AND ts_s >= :since_ms / 1000 - 3599 AND ts_s < :until_ms / 1000
    GROUP BY process
  UNION ALL
  SELECT m.process, max(m.used_max_bytes) FROM process p CROSS JOIN ({schema.PROCESS_MINUTES}) m
    WHERE p.last_ts_ms >= max(:since_ms, :hours_s * 1000) AND p.first_ts_ms < :until_ms
      AND m.process = p.id AND m.gpu = :card
      AND {within("max(:since_ms / 1000, :hours_s)", "(:until_ms / 1000)")}
    GROUP BY m.process
  UNION ALL
  SELECT process, max(used_bytes) FROM process_raw WHERE gpu = :card
    AND ts_ms >= max(:since_ms, :minutes_s * 1000) AND ts_ms < :until_ms GROUP BY process) h
JOIN process p ON p.id = h.process GROUP BY p.id"""  # noqa: S608 - our own text
"""By the hour; since ``hours_s`` from minutes, since ``minutes_s`` from samples."""


HOUR_S: Final = 3600
MINUTE_S: Final = 60
RAW_SPAN_S: Final = 6 * 3600.0
MINUTE_SPAN_S: Final = 14 * 86400.0
RAW_PROCESS_SPAN_S: Final = 2 * 3600.0
"""Samples of processes are found by time alone: of a longer span all processes would be read."""
MOMENT_S: Final = 2.0
"""What "6h ago until now" may be longer, so that the newest sample is in it."""
_NICE_S: Final = (
    1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400,
    21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000,
)  # fmt: skip
"""Widths of a point, seconds."""
GAP_S: Final = 60.0
"""A pause between samples up to this long is never a gap; above it, one of more than three usual
pauses is: as detection has it."""
PROCESS_GAP_S: Final = 150.0
"""A process that does not change is written once a minute only."""
ROLLED_GAP_S: Final = 120.0
"""Of minute by minute rows, a minute that is missing is none yet."""
_THINNER: Final = 0.96
"""A bucket with less than this share of the usual samples has a gap inside."""
_NEAR: Final = 3
_MOST_LOOKS: Final = 60
"""Points that are looked into for gaps inside; a record with more of them is all gaps."""

Level = Literal["raw", "minute", "hour"]
LEVELS: Final[tuple[Level, Level, Level]] = ("raw", "minute", "hour")
Span = tuple[float, float]


class Point(NamedTuple):
    """What is known of one bucket of time."""

    first_s: float
    """First instant of which something is known in it, epoch seconds."""
    last_s: float
    """Last one: a sample, or the end of a row."""
    rows: int
    n: int
    """Fewest samples of one of its rows; of a process, fewest minutes."""
    low_bytes: int | None
    mean_bytes: float | None
    high_bytes: int | None


class RecordedCurve(NamedTuple):
    """A curve as the history has it."""

    level: Level
    width_s: float
    """Of a point; 0: each is one sample."""
    points: list[Point]
    """Oldest first; those of which no memory is known are left out."""
    holes: list[Span]
    """Between two points, or inside one: begin and end, oldest first."""
    limit_s: float = 0.0
    """The longest pause that is no hole."""


class Presence(NamedTuple):
    """A process that was on a device."""

    process: ProcessKey
    first_s: float
    last_s: float
    peak_bytes: int | None


NOTHING: Final = RecordedCurve("raw", 0.0, [], [])


def of_device(connection: sqlite3.Connection, uid: str, span: Span, points: int) -> RecordedCurve:
    """Return the memory of a device in at most ``points`` points, whatever the span."""
    card = records.device_row(connection, uid)
    if card is None or span[1] <= span[0]:
        return NOTHING
    source = _Source(connection, DEVICE, {"card": card}, GAP_S)
    return source.curve(span, points, RAW_SPAN_S)


def of_process(
    connection: sqlite3.Connection, uid: str, key: ProcessKey, span: Span, points: int
) -> RecordedCurve:
    """Return the memory of a process on a device in at most ``points`` points."""
    card = records.device_row(connection, uid)
    known = rows_of(connection, key)
    if card is None or not known or span[1] <= span[0]:
        return NOTHING
    values = {"card": card, "process": known[-1]}
    source = _Source(connection, PROCESS, values, PROCESS_GAP_S)
    return source.curve(span, points, RAW_PROCESS_SPAN_S)


def rows_of(connection: sqlite3.Connection, key: ProcessKey) -> list[int]:
    """Return the rows of a process, the newest last; one whose start is unknown may have many."""
    cursor = connection.execute(
        "SELECT id FROM process WHERE pid = ? AND started_at_s IS ? ORDER BY last_ts_ms, id",
        (key.pid, key.started_at_s),
    )
    return [row for (row,) in cursor]


def lived(connection: sqlite3.Connection, key: ProcessKey) -> Span | None:
    """Return from when to when a process was seen; None where it is not known."""
    known = rows_of(connection, key)
    if not known:
        return None
    first_ms, last_ms = connection.execute(
        "SELECT first_ts_ms, last_ts_ms FROM process WHERE id = ?", (known[-1],)
    ).fetchone()
    return first_ms / 1000, last_ms / 1000


def present(connection: sqlite3.Connection, uid: str, span: Span) -> list[Presence]:
    """Return who was on a device in a span, with what each one held at most."""
    card = records.device_row(connection, uid)
    if card is None:
        return []
    values = {
        "card": card,
        "hours_s": tables.rolled_s(connection, "process_1h"),
        "minutes_s": tables.rolled_s(connection, "gpu_1m"),
        "since_ms": round(span[0] * 1000),
        "until_ms": round(span[1] * 1000),
    }
    return [
        Presence(ProcessKey(pid=pid, started_at_s=started), first / 1000, last / 1000, peak)
        for pid, started, first, last, peak in connection.execute(PRESENT, values)
    ]


def who(connection: sqlite3.Connection, keys: set[ProcessKey]) -> dict[ProcessKey, ProcessInfo]:
    """Return who some processes are: of thousands only these are read."""
    marks = ",".join("?" * len(keys))
    pids = tuple([key.pid for key in keys])
    infos = records.load_processes(connection, f"pid IN ({marks})", pids)
    return {info.key: info for info in infos if info.key in keys}


def oldest_s(
    connection: sqlite3.Connection, subject: Tables, values: dict[str, Any], level: int
) -> float | None:
    """Return when the rows of a level begin: 0 samples, 1 minutes, 2 hours; None without any."""
    (begin_s,) = connection.execute(subject.oldest[level], values).fetchone()
    return None if begin_s is None else float(begin_s)


def served_by(
    connection: sqlite3.Connection,
    subject: Tables,
    values: dict[str, Any],
    since_s: float,
    level: int,
) -> int:
    """Return the level that serves a span: what one has forgotten, the next one knows."""
    while level < 2:
        here_s, next_s = (oldest_s(connection, subject, values, at) for at in (level, level + 1))
        if here_s is not None and here_s <= since_s:
            break
        if next_s is None or (here_s is not None and next_s > here_s - HOUR_S):
            break
        level += 1
    return level


class _Source:
    """Where the rows of one subject are, level by level."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        tables: Tables,
        values: dict[str, Any],
        gap_s: float,
    ) -> None:
        self._connection = connection
        self._tables = tables
        self._values = values
        self._gap_s = gap_s

    def curve(self, span: Span, points: int, raw_span_s: float) -> RecordedCurve:
        need_s = (span[1] - span[0]) / max(points - 1, 1)
        level = self._level(span, need_s, raw_span_s)
        least_s = {"raw": 0.0, "minute": float(MINUTE_S), "hour": float(HOUR_S)}[level]
        width_s = float(next((s for s in _NICE_S if s >= max(need_s, least_s)), _NICE_S[-1]))
        width_s = max(width_s, need_s)
        found = self._points(level, span, width_s)
        limit_s = self._limit_s(level, found)
        holes = [
            (point.last_s, later.first_s)
            for point, later in pairwise(found)
            if later.first_s - point.last_s > limit_s
        ]
        holes += self._inside(level, found, limit_s)
        known = [point for point in found if point.mean_bytes is not None]
        single = level == "raw" and all(point.rows == 1 for point in found)
        return RecordedCurve(level, 0.0 if single else width_s, known, sorted(holes), limit_s)

    def _level(self, span: Span, need_s: float, raw_span_s: float) -> Level:
        """Return the table that serves a span; what it has forgotten, the next one knows."""
        length_s = span[1] - span[0] - MOMENT_S
        level = 0 if length_s <= raw_span_s and need_s < MINUTE_S else 1
        if length_s > MINUTE_SPAN_S:
            level = 2
        level = served_by(self._connection, self._tables, self._values, span[0], level)
        return LEVELS[level]

    def _rows(self, level: Level) -> str:
        """Return the query of the rows that serve a level, finest where not rolled up yet."""
        queries = self._tables
        if level == "raw":
            return queries.raw
        minute_s = tables.rolled_s(self._connection, "gpu_1m")
        late = queries.late.format(from_s=minute_s)
        if level == "minute":
            return f"{queries.minute.format(from_s=0, to_s=minute_s)} UNION ALL {late}"
        hour_s = tables.rolled_s(self._connection, queries.hourly)
        late = f"{queries.minute.format(from_s=hour_s, to_s=minute_s)} UNION ALL {late}"
        return f"{queries.hour.format(from_s=0, to_s=hour_s)} UNION ALL {late}"

    def _points(self, level: Level, span: Span, width_s: float) -> list[Point]:
        values = self._span(level, span) | {"width_ms": round(width_s * 1000)}
        query = JOINED.format(rows=self._rows(level))
        return [
            Point(first / 1000, last / 1000, rows, n, low, mean, high)
            for first, last, rows, n, low, mean, high in self._connection.execute(query, values)
        ]

    def _span(self, level: Level, span: Span) -> dict[str, Any]:
        width_ms = {"raw": 1, "minute": MINUTE_S * 1000, "hour": HOUR_S * 1000}[level]
        since_ms, until_ms = round(span[0] * 1000), round(span[1] * 1000)
        # The row that the span begins in belongs to it.
        return self._values | {
            "since_ms": since_ms - since_ms % width_ms,
            "until_ms": until_ms,
        }

    def _limit_s(self, level: Level, points: Sequence[Point]) -> float:
        if level != "raw":
            return ROLLED_GAP_S
        pauses = sorted(
            (point.last_s - point.first_s) / (point.rows - 1) for point in points if point.rows > 1
        ) or sorted(later.first_s - point.last_s for point, later in pairwise(points))
        usual_s = pauses[len(pauses) * 19 // 20] if pauses else 0.0
        return max(self._gap_s, 3.0 * usual_s)

    def _inside(self, level: Level, points: Sequence[Point], limit_s: float) -> list[Span]:
        """Return what is missing inside points: those with fewer rows than usual."""
        usual = max((point.n for point in points), default=0)
        finer: Level = "raw" if level == "raw" else "minute"
        query = INSTANTS.format(rows=self._rows(finer))
        holes: list[Span] = []
        thin = [
            # Most of all what its neighbours have more of: the interval may have been changed.
            (one.n / max(1, *(near.n for near in points[max(0, at - _NEAR) : at + _NEAR + 1])), one)
            for at, one in enumerate(points)
            if _is_thin(level, one, usual, limit_s)
        ]
        thin.sort(key=itemgetter(0))
        for _, one in thin[:_MOST_LOOKS]:
            values = self._span(finer, (one.first_s, one.last_s + 0.001))
            inner = [
                (first_ms / 1000, last_ms / 1000)
                for first_ms, last_ms in self._connection.execute(query, values)
            ]
            if not inner:
                continue  # the minutes of that time are forgotten
            ends = [(one.first_s, one.first_s), *inner, (one.last_s, one.last_s)]
            holes += [(a[1], b[0]) for a, b in pairwise(ends) if b[0] - a[1] > limit_s]
        return holes


def _is_thin(level: Level, point: Point, usual: int, limit_s: float) -> bool:
    """Say whether a point has so few rows, or samples, that there is a gap inside."""
    length_s = point.last_s - point.first_s
    if level == "hour":
        return point.n < _THINNER * usual
    if level == "minute":
        return length_s / MINUTE_S - point.rows >= 2
    return point.rows > 1 and length_s > limit_s and point.rows * limit_s / 3 < _THINNER * length_s
