"""Reading the history while the daemon writes it: for the control program and its reports.

A reader opens the file read-only, asks and closes: one that stays makes the writer's log grow.
Nothing here needs more than the standard library's sqlite3, so that a cold start stays quick.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuwatchd.core.model import ProcessKey, Value
from gpuwatchd.store import checked_connection, curves, occupancy, profiles, records, schema
from gpuwatchd.store import tables as small
from gpuwatchd.store.curves import HOUR_S, MINUTE_S, MINUTE_SPAN_S, MOMENT_S, RAW_SPAN_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path
    from typing import Self

    from gpuwatchd.analysis.cost import MemoryBucket
    from gpuwatchd.core.model import Alert, Decision, Delivery, Device, ProcessInfo, Silence
    from gpuwatchd.store.profiles import Run
    from gpuwatchd.store.tables import Action, ActionEvent, Checkpoint, UserLabel

# The questions that the reader asks, as SQL.

COLUMNS = (
    "n, used_min_bytes, used_mean_bytes, used_max_bytes, used_last_bytes, util_mean_percent,"
    " temp_max_c, energy_mj"
)
RAW = """SELECT ts_ms AS at_ms, used_bytes IS NOT NULL AS n, used_bytes AS used_min_bytes,
  used_bytes AS used_mean_bytes, used_bytes AS used_max_bytes, used_bytes AS used_last_bytes,
  util_percent AS util_mean_percent, temp_c AS temp_max_c, NULL AS energy_mj
FROM gpu_raw WHERE ts_ms >= max(:since_ms, {from_ms}) AND ts_ms < :until_ms AND gpu = :card"""
BUCKETS = f"""SELECT ts_s * 1000 AS at_ms, {COLUMNS}
FROM {{table}} WHERE gpu = :card AND ts_s >= max(:since_ms / 1000, {{from_s}})
  AND ts_s < min((:until_ms + 999) / 1000, {{to_s}})"""  # noqa: S608 - our own table names and whole numbers
PROCESS_RAW = """SELECT r.ts_ms, p.pid, p.started_at_s, r.used_bytes, r.used_bytes,
  r.host_bytes
FROM process_raw r JOIN process p ON p.id = r.process
WHERE r.ts_ms >= :since_ms AND r.ts_ms < :until_ms AND r.gpu = :card ORDER BY p.id, r.ts_ms"""
# CROSS JOIN fixes the order: processes of that time first, then the range of each.
# Minutes that are to be rolled up again (a clock was set back) are as their samples are.
PROCESS_MINUTES = f"""WITH late AS ({occupancy.PROCESS_MINUTES})
SELECT at_ms, pid, started_at_s, used_max_bytes, used_last_bytes, host_last_bytes
FROM (SELECT p.id, m.ts_s * 1000 AS at_ms, p.pid, p.started_at_s, m.used_max_bytes,
    m.used_last_bytes, m.host_last_bytes
  FROM process p CROSS JOIN ({schema.PROCESS_MINUTES}) m
  WHERE p.last_ts_ms >= :since_ms AND p.first_ts_ms < :until_ms
    AND m.process = p.id AND m.gpu = :card
    AND {occupancy.within("(:since_ms / 60000 * 60)", "((:until_ms + 999) / 1000)")}
    AND (m.ts_s * 1000 < :from_ms OR NOT EXISTS (SELECT 1 FROM late l
      WHERE l.process = m.process AND l.gpu = m.gpu AND l.ts_s = m.ts_s))
  UNION ALL
  SELECT p.id, m.ts_s * 1000, p.pid, p.started_at_s, m.used_max_bytes, m.used_last_bytes,
    m.host_last_bytes
  FROM late m JOIN process p ON p.id = m.process
  WHERE m.gpu = :card AND m.ts_s >= :since_ms / 60000 * 60)
ORDER BY id, at_ms"""  # noqa: S608 - our own text


def joined(source: str, bucket_ms: int) -> str:
    """Return a query that joins the rows of ``source`` (of shape RAW) into buckets."""
    start = f"at_ms / {bucket_ms} * {bucket_ms}"
    return f"""SELECT {start} AS at_ms, sum(n) AS n, min(used_min_bytes) AS used_min_bytes,
  CAST(round(sum(used_mean_bytes * 1.0 * n) / sum(n)) AS INTEGER) AS used_mean_bytes,
  max(used_max_bytes) AS used_max_bytes, max(last_bytes) AS used_last_bytes,
  CAST(round(avg(util_mean_percent)) AS INTEGER) AS util_mean_percent,
  max(temp_max_c) AS temp_max_c, sum(energy_mj) AS energy_mj
FROM (SELECT *, first_value(used_last_bytes) OVER (PARTITION BY {start}
        ORDER BY used_last_bytes IS NULL, at_ms DESC) AS last_bytes FROM ({source}))
GROUP BY {start}"""  # noqa: S608 - our own text and whole numbers


_T = TypeVar("_T")


class DeviceRow(Value, frozen=True, kw_only=True):
    """A device over one bucket of time; every value is None where it was not known."""

    at_s: float
    """Start of the bucket."""
    width_s: float
    """0 for a single sample."""
    n: int
    """Samples with a known memory; less than usual where there are gaps."""
    used_min_bytes: int | None
    used_mean_bytes: int | None
    used_max_bytes: int | None
    used_last_bytes: int | None
    util_pct: float | None
    temp_max_c: float | None
    energy_j: float | None
    """Energy of the bucket; None for a single sample."""


class ProcessRow(Value, frozen=True, kw_only=True):
    """A process on a device over one bucket of time (or one sample, ``width_s`` 0)."""

    at_s: float
    width_s: float
    process: ProcessKey
    used_max_bytes: int | None
    used_last_bytes: int | None
    host_last_bytes: int | None = None
    """Anonymous memory and swap on the host."""


class Event(Value, frozen=True, kw_only=True):
    """Something that happened."""

    at_s: float
    kind: str
    device_uid: str | None
    detail: str


class Segment(Value, frozen=True, kw_only=True):
    """Where time went on differently: rows on its two sides do not belong together."""

    at_s: float
    boot_id: str
    reason: str
    wall_step_s: float | None
    gap_s: float | None


_EVENTS: Final = records.Table(
    "event",
    Event,
    rows="(SELECT id, ts_ms, kind, gpu_uuid, ifnull(detail, '') AS detail FROM event)",
    order="ts_ms, id",
)
_SEGMENTS: Final = records.Table(
    "segment", Segment, rows="(SELECT *, started_ts_ms AS ts_ms FROM segment)"
)


class Reader:
    """An open history. Use :meth:`open`, as a context manager or with :meth:`close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_query = ""
        """The last question as SQL, with its values."""
        self._open()

    @classmethod
    def open(cls, directory: Path) -> Reader:
        """Open the history of a state directory.

        Raises
        ------
        StoreError
            There is none, or it may not be read, is damaged, locked or of a later version.
        """
        path = checked_connection.find(directory)
        try:
            return cls(path)
        except sqlite3.Error as error:
            raise checked_connection.translated(path, error) from error

    def _open(self) -> None:
        self._connection, self._state = checked_connection.open_reading(self._path)
        self._connection.set_trace_callback(partial(setattr, self, "last_query"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Let go of the file; what its damage made of the answers is blamed on it.

        Raises
        ------
        StoreDamaged
            What was done with the answers failed, and the file is damaged.
        """
        with closing(self):
            if isinstance(error, schema.SUSPECT):
                checked_connection.blame(self._path, error, self._connection)

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        self._connection.close()

    def devices(self) -> list[Device]:
        """Return every device ever seen."""
        return self.ask(records.load_devices)

    def processes(self, since_s: float = 0.0) -> list[ProcessInfo]:
        """Return every process seen since then and still remembered, oldest first."""
        return self.ask(records.load_processes, "last_ts_ms >= ?", (_ms(since_s),))

    def device_rows(
        self, uid: str, since_s: float, until_s: float, bucket_s: float | None = None
    ) -> list[DeviceRow]:
        """Return a device's memory over time, oldest first; the end of the span is exclusive.

        Up to 6 h come from raw samples, up to 14 days from one-minute and the rest from one-hour
        buckets (or from what is left of an age); what is not rolled up yet is completed from the
        finer table. They are joined into buckets of ``bucket_s``, unless the table's own are wider.
        """
        card = self.ask(records.device_row, uid)
        if card is None or until_s <= since_s:
            return []
        width_s = self.ask(_width, card, since_s, until_s)
        source = self.ask(_SOURCES[width_s])
        bucket_s = max(bucket_s or 0, width_s)
        if bucket_s > width_s:
            source = joined(source, round(bucket_s * 1000))
        # The bucket that the span begins in belongs to it.
        first_ms = _ms(since_s) - (_ms(since_s) % (width_s * 1000) if width_s else 0)
        return self._each(
            partial(_device_row, bucket_s),
            f"SELECT at_ms, {COLUMNS} FROM ({source}) ORDER BY at_ms",  # noqa: S608
            {"card": card, "since_ms": first_ms, "until_ms": _ms(until_s)},
        )

    def process_rows(self, uid: str, since_s: float, until_s: float) -> list[ProcessRow]:
        """Return the memory of every process of a device over time, by process, oldest first.

        Spans of up to 6 h come from raw rows (a process that does not change has one a minute),
        longer ones from one-minute buckets.
        """
        card = self.ask(records.device_row, uid)
        if card is None or until_s <= since_s:
            return []
        span = (_ms(since_s), _ms(until_s))
        raw = until_s - since_s <= RAW_SPAN_S + MOMENT_S and self.ask(_raw_reaches, span[0])
        values = {"card": card, "since_ms": span[0], "until_ms": span[1]}
        if not raw:
            from_ms = self.ask(small.rolled_s, "gpu_1m") * 1000
            values |= {"from_ms": from_ms, "to_ms": span[1]}
        return self._each(
            partial(_process_row, 0.0 if raw else 60.0),
            PROCESS_RAW if raw else PROCESS_MINUTES,
            values,
        )

    def oldest_s(self, uid: str) -> float | None:
        """Return when a device's record may begin at the earliest; None when there is none."""
        card = self.ask(records.device_row, uid)
        if card is None:
            return None
        levels = (self.ask(curves.oldest_s, curves.DEVICE, {"card": card}, at) for at in range(3))
        return min((oldest_s for oldest_s in levels if oldest_s is not None), default=None)

    def alerts(self, since_s: float | None = None, *, open_only: bool = False) -> list[Alert]:
        """Return alerts, oldest first: those that were open at or after ``since_s``."""
        where = "resolved_ts_ms IS NULL" if open_only else "TRUE"
        values: tuple[int, ...] = ()
        if since_s is not None:
            where += " AND (resolved_ts_ms IS NULL OR resolved_ts_ms >= ?)"
            values = (_ms(since_s),)
        return self.ask(records.load_alerts, where, values)[0]

    def deliveries(self, alert_key: str) -> list[Delivery]:
        """Return the deliveries of an alert key, oldest first; also those it shared."""
        return self.ask(records.load_deliveries, records.ABOUT_ALERT, (alert_key, alert_key))[0]

    def decisions(self, alert_key: str | None = None, since_s: float = 0.0) -> list[Decision]:
        """Return what policy decided of an alert key (None: of all) since then, oldest first."""
        return self.ask(small.load_decisions, alert_key, since_s)

    def silences(self, *, all_of_them: bool = False) -> list[Silence]:
        """Return silences, oldest first; also those that were taken back or have ended, if asked.

        Of the others, too, the time may be over.
        """
        return self.ask(small.SILENCES.load, "TRUE" if all_of_them else small.STANDING)

    def runs(self, key: str | None = None) -> list[Run]:
        """Return what is known of earlier runs of a program (None: of all), oldest first."""
        where, values = ("TRUE", ()) if key is None else ("key = ?", (key,))
        return self.ask(profiles.load_runs, where, values)

    def user_labels(self, *, all_of_them: bool = False) -> list[UserLabel]:
        """Return what the user said of alerts, oldest first; also what was taken back, if asked."""
        return self.ask(small.LABELS.load, "TRUE" if all_of_them else small.NOT_UNDONE)

    def checkpoints(self) -> list[Checkpoint]:
        """Return when jobs saved their work, oldest first."""
        return self.ask(small.CHECKPOINTS.load)

    def holds(self, now_s: float) -> dict[ProcessKey, float]:
        """Return the processes on which no automatic step is taken, and until when."""
        return self.ask(small.load_holds, now_s)

    def action_events(self, since_s: float = 0.0) -> list[ActionEvent]:
        """Return what was asked of jobs, and when they saved, since then, oldest first."""
        return self.ask(small.load_action_events, since_s)

    def actions(
        self, since_s: float, until_s: float, keys: Collection[ProcessKey] | None = None
    ) -> list[Action]:
        """Return what was done in a span to processes (None: to any), or proposed, oldest first."""
        span = (_ms(since_s), _ms(until_s))
        return [
            action
            for action in self.ask(small.load_actions, "ts_ms BETWEEN ? AND ?", span)
            if keys is None
            or (
                action.process is not None
                and any(small.same_process(action.process, key) for key in keys)
            )
        ]

    def occupancy(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        """Return who held what on a device, minute by minute, in any order."""
        return self.ask(occupancy.load, uid, since_s, until_s)

    def occupancy_by_hour(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        """Return the same with whole hours as one: their minutes are shared already."""
        return self.ask(occupancy.by_hour, uid, since_s, until_s)

    def power_w(self, uid: str, since_s: float, until_s: float) -> float | None:
        """Return the mean power of a device over a span; None where it was not measured."""
        return self.ask(occupancy.power_w, uid, since_s, until_s)

    def events(self, since_s: float = 0.0) -> list[Event]:
        """Return what happened since then, oldest first."""
        return self.ask(_EVENTS.load, "ts_ms >= ?", (_ms(since_s),))

    def segments(self, since_s: float = 0.0) -> list[Segment]:
        """Return where time went on differently (start, boot, clock-step, ...), oldest first."""
        return self.ask(_SEGMENTS.load, "ts_ms >= ?", (_ms(since_s),))

    def ask(self, work: Callable[..., _T], *args: object) -> _T:
        """Return what a question that stands elsewhere makes of the open file, and of ``args``.

        Raises
        ------
        StoreError
            The file cannot be read, or it is damaged.
        """
        try:
            try:
                answer = work(self._connection, *args)
            except schema.SUSPECT:
                if not self._has_moved():
                    raise
            else:
                if not self._has_moved():
                    return answer
            self._connection.close()
            self._open()
            return work(self._connection, *args)
        except schema.SUSPECT as error:
            checked_connection.blame(self._path, error, self._connection)
            if not isinstance(error, sqlite3.Error):
                raise
            raise checked_connection.translated(self._path, error) from error

    def _has_moved(self) -> bool:
        return self._state is not None and checked_connection.file_state(self._path) != self._state

    def _each(
        self,
        make: Callable[[tuple[Any, ...]], _T],
        query: str,
        values: dict[str, Any] | tuple[Any, ...],
    ) -> list[_T]:
        return self.ask(lambda it: [make(row) for row in it.execute(query, values)])


def _raw_reaches(connection: sqlite3.Connection, since_ms: int) -> bool:
    """Say whether raw rows of processes go back that far, or nothing goes back further."""
    (oldest_ms,) = connection.execute("SELECT min(ts_ms) FROM process_raw").fetchone()
    if oldest_ms is None or oldest_ms <= since_ms:
        return oldest_ms is not None
    (first_ms,) = connection.execute("SELECT min(first_ts_ms) FROM process").fetchone()
    return first_ms is None or first_ms >= oldest_ms - HOUR_S * 1000


def _width(connection: sqlite3.Connection, card: int, since_s: float, until_s: float) -> int:
    """Return the bucket width of the table that serves a span: 0 is raw.

    The span decides; where the finer table has forgotten that time, the next one serves.
    """
    span_s = until_s - since_s - MOMENT_S
    level = 0 if span_s <= RAW_SPAN_S else 1 if span_s <= MINUTE_SPAN_S else 2
    begin_s = _ms(since_s) / 1000
    level = curves.served_by(connection, curves.DEVICE, {"card": card}, begin_s, level)
    return (0, MINUTE_S, HOUR_S)[level]


def _minutes(connection: sqlite3.Connection, from_s: int = 0) -> str:
    split_s = max(small.rolled_s(connection, "gpu_1m"), from_s)
    late = occupancy.DEVICE_MINUTES.format(
        from_ms=f"max(:since_ms, {split_s * 1000})", to_ms=":until_ms"
    )
    closed = BUCKETS.format(table=f"({schema.DEVICE_MINUTES})", from_s=from_s, to_s=split_s)
    return f"""{closed} UNION ALL SELECT ts_s * 1000, {COLUMNS} FROM ({late})
WHERE gpu = :card"""  # noqa: S608 - our own text


def _hours(connection: sqlite3.Connection) -> str:
    split_s = small.rolled_s(connection, "gpu_1h")
    late = joined(_minutes(connection, split_s), HOUR_S * 1000)
    closed = BUCKETS.format(table="gpu_1h", from_s=0, to_s=split_s)
    return f"{closed} UNION ALL SELECT * FROM ({late})"  # noqa: S608 - our own text


_SOURCES: Final[dict[int, Callable[[sqlite3.Connection], str]]] = {
    0: lambda _: RAW.format(from_ms=0),
    MINUTE_S: _minutes,
    HOUR_S: _hours,
}
"""Query of the rows of each bucket width; 0: samples."""


def _device_row(width_s: float, row: tuple[Any, ...]) -> DeviceRow:
    return DeviceRow(
        at_s=row[0] / 1000,
        width_s=float(width_s),
        n=row[1],
        used_min_bytes=row[2],
        used_mean_bytes=row[3],
        used_max_bytes=row[4],
        used_last_bytes=row[5],
        util_pct=row[6],
        temp_max_c=row[7],
        energy_j=None if row[8] is None else row[8] / 1000,
    )


def _process_row(width_s: float, row: tuple[Any, ...]) -> ProcessRow:
    at_ms, pid, started_at_s, most, last, host = row
    return ProcessRow(
        at_s=at_ms / 1000,
        width_s=width_s,
        process=ProcessKey(pid=pid, started_at_s=started_at_s),
        used_max_bytes=most,
        used_last_bytes=last,
        host_last_bytes=host,
    )


def _ms(at_s: float) -> int:
    return round(at_s * 1000)
