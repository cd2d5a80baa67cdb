"""Reading the history while the daemon writes it: for the control program and its reports.

A reader opens the file read-only, asks and closes: one that stays makes the writer's log grow.
Nothing here needs more than the standard library's sqlite3, so that a cold start stays quick.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpuwatchd.core.model import ProcessKey, Value
from gpuwatchd.store import actions as deeds
from gpuwatchd.store import (
    checkpoints,
    client_connection,
    integrity,
    meta,
    profiles,
    read_only,
    records,
    silences,
)
from gpuwatchd.store import labels as words
from gpuwatchd.store import notification_decisions as decided
from gpuwatchd.store import occupancy as occupied

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from gpuwatchd.analysis.cost import MemoryBucket
    from gpuwatchd.core.model import Alert, Decision, Delivery, Device, ProcessInfo, Silence
    from gpuwatchd.store.checkpoints import Checkpoint
    from gpuwatchd.store.labels import UserLabel
    from gpuwatchd.store.profiles import Run

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
PROCESS_MINUTES = """SELECT m.ts_s * 1000, p.pid, p.started_at_s, m.used_max_bytes,
  m.used_last_bytes, m.host_last_bytes
FROM process p CROSS JOIN process_1m m
WHERE p.last_ts_ms >= :since_ms AND p.first_ts_ms < :until_ms
  AND m.process = p.id AND m.gpu = :card
  AND m.ts_s >= :since_ms / 60000 * 60 AND m.ts_s * 1000 < :until_ms
ORDER BY p.id, m.ts_s"""


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
_MINUTE_S = 60
_HOUR_S = 3600
RAW_SPAN_S = 6 * 3600.0
"""Longest span that is read from raw rows."""
MINUTE_SPAN_S = 14 * 86400.0
"""Longest span that is read from one-minute rows."""
_MOMENT_S = 2.0
"""What "6h ago until now" may be longer, so that the newest sample is in it."""


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


class Reader:
    """An open history. Use :meth:`open`, as a context manager or with :meth:`close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_query = ""
        """The last question as SQL, with its values."""
        self._file = read_only.Opened(path, self._trace)

    @classmethod
    def open(cls, directory: Path) -> Reader:
        """Open the history of a state directory.

        Raises
        ------
        StoreError
            There is none, or it may not be read.
        StoreNewer
            A later version wrote it.
        StoreDamaged
            It is not a usable history.
        StoreBusy
            Another program holds it locked.
        """
        path = client_connection.find(directory)
        try:
            return cls(path)
        except sqlite3.Error as error:
            raise client_connection.translated(path, error) from error

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._file.connection

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
            if isinstance(error, integrity.SUSPECT):
                client_connection.blame(self._path, error, self._connection)

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        self._connection.close()

    def devices(self) -> list[Device]:
        """Return every device ever seen."""
        return self._guarded(lambda: records.load_devices(self._connection))

    def processes(self, since_s: float = 0.0) -> list[ProcessInfo]:
        """Return every process seen since then and still remembered, oldest first."""
        return self._each(
            records.process_info,
            f"SELECT {records.PROCESS_COLUMNS} FROM process p WHERE p.last_ts_ms >= ?"  # noqa: S608
            " ORDER BY p.first_ts_ms, p.id",
            (_ms(since_s),),
        )

    def device_rows(
        self, uid: str, since_s: float, until_s: float, bucket_s: float | None = None
    ) -> list[DeviceRow]:
        """Return a device's memory over time, oldest first.

        Up to 6 h come from raw samples, up to 14 days from one-minute and the rest from one-hour
        buckets (or from what is left of an age); what is not rolled up yet is completed from the
        finer table.

        Parameters
        ----------
        since_s, until_s
            Span, epoch seconds; its end is exclusive.
        bucket_s
            Join samples or buckets into buckets of this many seconds; a finer one than the table
            that serves the span has no effect.
        """
        card = self._card(uid)
        if card is None or until_s <= since_s:
            return []
        width_s = self._guarded(lambda: self._width(card, since_s, until_s))
        source = (
            RAW.format(from_ms=0)
            if width_s == 0
            else self._minutes()
            if width_s == _MINUTE_S
            else self._hours()
        )
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
        card = self._card(uid)
        if card is None or until_s <= since_s:
            return []
        span = (_ms(since_s), _ms(until_s))
        raw = until_s - since_s <= RAW_SPAN_S + _MOMENT_S and self._guarded(
            lambda: self._raw_reaches(span[0])
        )
        return self._each(
            partial(_process_row, 0.0 if raw else 60.0),
            PROCESS_RAW if raw else PROCESS_MINUTES,
            {"card": card, "since_ms": span[0], "until_ms": span[1]},
        )

    def oldest_s(self, uid: str) -> float | None:
        """Return when a device's record may begin at the earliest; None when there is none."""
        card = self._card(uid)
        if card is None:
            return None
        every = self._guarded(lambda: [self._oldest_ms(card, level) for level in range(3)])
        known = [oldest_ms for oldest_ms in every if oldest_ms is not None]
        return min(known) / 1000 if known else None

    def alerts(self, since_s: float | None = None, *, open_only: bool = False) -> list[Alert]:
        """Return alerts, oldest first: those that were open at or after ``since_s``."""
        where = "resolved_ts_ms IS NULL" if open_only else "TRUE"
        values: tuple[int, ...] = ()
        if since_s is not None:
            where += " AND (resolved_ts_ms IS NULL OR resolved_ts_ms >= ?)"
            values = (_ms(since_s),)
        return self._guarded(lambda: records.load_alerts(self._connection, where, values)[0])

    def deliveries(self, alert_key: str) -> list[Delivery]:
        """Return the deliveries of an alert key, oldest first; also those it shared."""
        where, values = records.about_alert(alert_key)
        return self._guarded(lambda: records.load_deliveries(self._connection, where, values)[0])

    def decisions(self, alert_key: str | None = None, since_s: float = 0.0) -> list[Decision]:
        """Return what policy decided of an alert key (None: of all) since then, oldest first."""
        return self._guarded(lambda: decided.load(self._connection, alert_key, since_s))

    def silences(self, *, all_of_them: bool = False) -> list[Silence]:
        """Return silences, oldest first; also those that were taken back or have ended, if asked.

        Of the others, too, the time may be over.
        """
        where = "TRUE" if all_of_them else silences.STANDING
        return self._guarded(lambda: silences.load(self._connection, where))

    def runs(self, key: str | None = None) -> list[Run]:
        """Return what is known of earlier runs of a program (None: of all), oldest first."""
        where, values = ("TRUE", ()) if key is None else ("r.key = ?", (key,))
        return self._guarded(lambda: profiles.load_runs(self._connection, where, values))

    def user_labels(self, *, all_of_them: bool = False) -> list[UserLabel]:
        """Return what the user said of alerts, oldest first; also what was taken back, if asked."""
        where = "TRUE" if all_of_them else "undone_ts_ms IS NULL"
        return self._guarded(lambda: words.load_words(self._connection, where))

    def checkpoints(self) -> list[Checkpoint]:
        """Return when jobs saved their work, oldest first."""
        return self._guarded(lambda: checkpoints.load(self._connection))

    def action_events(self, since_s: float = 0.0) -> list[deeds.ActionEvent]:
        """Return what was asked of jobs, and when they saved, since then, oldest first."""
        return self._guarded(lambda: deeds.load_events(self._connection, since_s))

    def occupancy(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        """Return who held what on a device, minute by minute, in any order."""
        return self._guarded(lambda: occupied.load(self._connection, uid, since_s, until_s))

    def power_w(self, uid: str, since_s: float, until_s: float) -> float | None:
        """Return the mean power of a device over a span; None where it was not measured."""
        return self._guarded(lambda: occupied.power_w(self._connection, uid, since_s, until_s))

    def events(self, since_s: float = 0.0) -> list[Event]:
        """Return what happened since then, oldest first."""
        return self._each(
            lambda row: Event(
                at_s=row[0] / 1000, kind=row[1], device_uid=row[2], detail=row[3] or ""
            ),
            "SELECT ts_ms, kind, gpu_uuid, detail FROM event WHERE ts_ms >= ? ORDER BY ts_ms, id",
            (_ms(since_s),),
        )

    def segments(self, since_s: float = 0.0) -> list[Segment]:
        """Return where time went on differently (start, boot, clock-step, ...), oldest first."""
        return self._each(
            lambda row: Segment(
                at_s=row[0] / 1000, boot_id=row[1], reason=row[2], wall_step_s=row[3], gap_s=row[4]
            ),
            "SELECT started_ts_ms, boot_id, reason, wall_step_s, gap_s FROM segment"
            " WHERE started_ts_ms >= ? ORDER BY id",
            (_ms(since_s),),
        )

    def ask(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Return what a question that stands elsewhere makes of the open file."""
        return self._guarded(lambda: work(self._connection))

    # ---- inside

    def _trace(self, statement: str) -> None:
        self.last_query = statement

    def _guarded(self, work: Callable[[], _T]) -> _T:
        try:
            return self._file.answer(work)
        except integrity.SUSPECT as error:
            client_connection.blame(self._path, error, self._connection)
            if not isinstance(error, sqlite3.Error):
                raise
            raise client_connection.translated(self._path, error) from error

    def _ask(self, query: str, values: dict[str, Any] | tuple[Any, ...]) -> list[Any]:
        return self._guarded(lambda: self._connection.execute(query, values).fetchall())

    def _each(
        self,
        make: Callable[[tuple[Any, ...]], _T],
        query: str,
        values: dict[str, Any] | tuple[Any, ...],
    ) -> list[_T]:
        return self._guarded(lambda: [make(row) for row in self._connection.execute(query, values)])

    def _card(self, uid: str) -> int | None:
        found = self._ask("SELECT id FROM gpu WHERE uuid = ?", (uid,))
        return found[0][0] if found else None

    def _raw_reaches(self, since_ms: int) -> bool:
        """Say whether raw rows of processes go back that far, or nothing goes back further."""
        ((oldest_ms,),) = self._ask("SELECT min(ts_ms) FROM process_raw", ())
        if oldest_ms is None or oldest_ms <= since_ms:
            return oldest_ms is not None
        ((first_ms,),) = self._ask("SELECT min(first_ts_ms) FROM process", ())
        return first_ms is None or first_ms >= oldest_ms - _HOUR_S * 1000

    def _width(self, card: int, since_s: float, until_s: float) -> int:
        """Return the bucket width of the table that serves a span: 0 is raw.

        The span decides; where the finer table has forgotten that time, the next one serves.
        """
        span_s = until_s - since_s - _MOMENT_S
        levels = (0, _MINUTE_S, _HOUR_S)
        level = 0 if span_s <= RAW_SPAN_S else 1 if span_s <= MINUTE_SPAN_S else 2
        while level < 2:
            here_ms, next_ms = self._oldest_ms(card, level), self._oldest_ms(card, level + 1)
            if here_ms is not None and here_ms <= _ms(since_s):
                break
            if next_ms is None or (here_ms is not None and next_ms > here_ms - _HOUR_S * 1000):
                break
            level += 1
        return levels[level]

    def _oldest_ms(self, card: int, level: int) -> int | None:
        query = (
            "SELECT min(ts_ms) FROM gpu_raw",
            "SELECT min(ts_s) * 1000 FROM gpu_1m WHERE gpu = :card",
            "SELECT min(ts_s) * 1000 FROM gpu_1h WHERE gpu = :card",
        )[level]
        ((oldest_ms,),) = self._ask(query, {"card": card})
        return None if oldest_ms is None else int(oldest_ms)

    def _minutes(self) -> str:
        split_s = self._rolled_s("gpu_1m")
        late = joined(RAW.format(from_ms=split_s * 1000), _MINUTE_S * 1000)
        closed = BUCKETS.format(table="gpu_1m", from_s=0, to_s=split_s)
        return f"{closed} UNION ALL SELECT * FROM ({late})"  # noqa: S608 - our own text

    def _hours(self) -> str:
        # The last minutes are missing: a long span never reads raw rows.
        split_s, end_s = self._rolled_s("gpu_1h"), self._rolled_s("gpu_1m")
        minutes = BUCKETS.format(table="gpu_1m", from_s=split_s, to_s=end_s)
        late = joined(minutes, _HOUR_S * 1000)
        closed = BUCKETS.format(table="gpu_1h", from_s=0, to_s=split_s)
        return f"{closed} UNION ALL SELECT * FROM ({late})"  # noqa: S608 - our own text

    def _rolled_s(self, table: str) -> int:
        """Return the instant up to which a roll-up is complete."""
        return self._guarded(lambda: meta.whole(self._connection, f"{table}.until"))


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
