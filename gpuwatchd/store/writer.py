"""The one writer of the history: it takes in every tick and never stops the daemon.

Raw samples wait in memory and are written together; alerts, deliveries and events are written at
once and survive a power cut. What cannot be written (disk full, locked, read-only, damaged) stays
in memory, bounded, and is tried again; :attr:`History.problems` says so in words.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from gpuwatchd.store import database, private_files, recent_points, records, schema
from gpuwatchd.store.database import WriteProblems
from gpuwatchd.store.profiles import ProfileStore
from gpuwatchd.store.retention import Retention, reopen_buckets
from gpuwatchd.store.write_buffers import AlertBuffer, SampleBuffer, Segments

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gpuwatchd.core.config import StoreSection
    from gpuwatchd.core.model import (
        Alert,
        AllocatorReading,
        Decision,
        Delivery,
        Device,
        ProcessInfo,
        ProcessKey,
        Sample,
        Subject,
    )

log = logging.getLogger("gpuwatchd")

LAST_TRY_S: Final = 1.2
"""How long the last write waits for a lock: the daemon has 4.5 s to leave, with what its messages
and its drivers take."""
_PAUSE_S: Final = 0.05
_REOPEN_S = 60.0
_RETRY_S = 5.0
_FIRST_FLUSH_S = 4.0
"""Below the usual interval: at first every tick is written."""
_UNWRITTEN_SHARE = 0.1
"""A young daemon loses at most this share of what it saw, if it dies."""


_T = TypeVar("_T")
_CLOSED = database.Opening(None, "memory", None)
_OF_OPEN = """alert IN (SELECT id FROM alert WHERE resolved_ts_ms IS NULL)
  OR id IN (SELECT t.delivery FROM told t JOIN alert a ON a.key = t.alert_key
    WHERE a.resolved_ts_ms IS NULL AND delivery.created_ts_ms >= a.opened_ts_ms)"""

_ABOUT_IT = """(d.alert = alert.id OR (d.created_ts_ms >= alert.opened_ts_ms
      AND d.id IN (SELECT t.delivery FROM told t WHERE t.alert_key = alert.key)))"""
_UNDELIVERED = f"""resolved_ts_ms >= ?
  AND EXISTS (SELECT 1 FROM delivery d WHERE d.attempts > 0 AND {_ABOUT_IT})
  AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.state = 'sent' AND {_ABOUT_IT})"""  # noqa: S608


class Notice(NamedTuple):
    """One message that was made, by however many channels it was to leave."""

    at_s: float
    """When, epoch seconds."""
    alert_key: str
    notice: str
    message_id: str


class _FlushSchedule:
    """When samples that wait are written.

    A daemon that was just started may die again soon: until a tenth of its age is more than
    ``[store] flush``, samples wait for that tenth only, at least four seconds. So one that is
    killed again and again keeps nine tenths of what it saw, or more, and one that runs on writes as
    seldom as ever.
    """

    def __init__(self, usual_s: float, mono: Callable[[], float]) -> None:
        self._usual_s, self._mono = usual_s, mono
        self._last_s: float | None = None
        self._first_mono_s = 0.0
        """When the first tick was."""
        self._pause_s = 0.0
        """Time from the last flush to the next one."""

    def due(self, now_s: float) -> bool:
        """Say whether samples are to be written now, and settle when they will be again."""
        if self._last_s is None:
            self._last_s, self._first_mono_s = now_s, self._mono()
            self._pause_s = min(self._usual_s, _FIRST_FLUSH_S)
        # A clock that was set back must not keep samples waiting until it is there again.
        if abs(now_s - self._last_s) < self._pause_s:
            return False
        early_s = max(_FIRST_FLUSH_S, _UNWRITTEN_SHARE * (self._mono() - self._first_mono_s))
        self._pause_s = min(self._usual_s, early_s)
        return True

    def flushed(self, now_s: float) -> None:
        """Count from this write of samples."""
        self._last_s = now_s


class History:
    """The history of one state directory, for the thread that opens it with :meth:`open`."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSection,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        boot_id: str | None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._monotonic = monotonic
        self._thread = threading.get_ident()
        self._file = _CLOSED
        self._retry_mono_s = self._reopen_mono_s = -math.inf
        self._intake = SampleBuffer()
        self._alerts = AlertBuffer()
        own_boot = private_files.this_boot() if boot_id is None else boot_id
        self._segments = Segments(self._alerts, own_boot)
        self._schedule = _FlushSchedule(settings.flush, monotonic)
        self._retention = Retention(settings, monotonic)
        self._health = WriteProblems(directory, min_free_mib=settings.min_free_mib, mono=monotonic)
        self.shelf = ProfileStore(self._health.failed)

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: StoreSection,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        boot_id: str | None = None,
    ) -> History:
        """Open the history of a state directory, whatever state it is in. Never raises.

        A file that is lost or damaged is set aside and a new one begun; one that a later version
        wrote is only read; where nothing can be written, everything is kept in memory and writing
        is tried again each minute. :attr:`problems` tells. The boot is by default what Linux says,
        and unknown elsewhere.
        """
        history = cls(directory, settings, clock=clock, monotonic=monotonic, boot_id=boot_id)
        now_s = clock()
        history._open(now_s)
        if history._file.mode != "writing":
            # Rows that are given numbers in memory must not meet those in the file later.
            history._alerts.number_from(int(now_s * 1000))
        return history

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong now, one sentence each."""
        return self._health.problems

    @property
    def writing(self) -> bool:
        """Whether samples reach the disk at present."""
        return self._file.mode == "writing" and self._health.well

    def record(
        self,
        sample: Sample,
        devices: Sequence[Device],
        processes: Mapping[ProcessKey, ProcessInfo],
        unattributed: Mapping[str, int] | None = None,
    ) -> None:
        """Take in one sample, and what nobody owns of its devices. Some 50 µs, never raises."""
        self._own()
        if sample.boot_id not in self._segments.begun:
            self._segments.begin(sample)
        if self._file.mode == "newer":
            return
        self._intake.note(sample, devices, processes, unattributed)
        if self._intake.lost:
            self._health.lost(self._intake.lost)

    def record_allocator(self, readings: Sequence[AllocatorReading]) -> None:
        """Take in what allocators say of processes, after the sample of the tick. Never raises."""
        self._own()
        for reading in () if self._file.mode == "newer" else readings:
            self._intake.note_allocator(reading)

    def segment(
        self, reason: str, wall_step_s: float | None = None, gap_s: float | None = None
    ) -> None:
        """Note that time went on differently: start, clock-step, suspend, gap, driver-reset."""
        self._own()
        self._segments.add(
            reason, self._clock(), self._monotonic(), wall_step_s=wall_step_s, gap_s=gap_s
        )
        self._commit()

    def event(self, kind: str, detail: str, device_uid: str | None = None) -> None:
        """Note something that happened, at once and power-cut-safe."""
        self._own()
        self._event(kind, detail, self._clock(), device_uid)
        self._commit()

    def _event(self, kind: str, detail: str, at_s: float, device_uid: str | None = None) -> None:
        row = {"ts_ms": round(at_s * 1000), "kind": kind, "gpu_uuid": device_uid, "detail": detail}
        self._alerts.events.append(row)

    def apply(self, alerts: Sequence[Alert], deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Write how alerts and deliveries stand now, power-cut-safe; return the latter with rows.

        Never raises: what the disk refuses is kept in memory, for the next try; until then
        :meth:`open_alerts` and :meth:`pending_deliveries` see it there.
        """
        self._own()
        for alert in alerts:
            self._alerts.add_alert(alert)
        noted = [self._alerts.add_delivery(delivery) for delivery in deliveries]
        moved = self._commit() if alerts or deliveries else {}
        return [
            msgspec.structs.replace(delivery, row=moved.get(delivery.row or 0, delivery.row))
            for delivery in noted
        ]

    def decide(self, decisions: Iterable[Decision]) -> None:
        """Note what was decided; written with the alerts of the next :meth:`apply`.

        In the same transaction, then; without one at the end of the tick. Never raises.
        """
        self._own()
        self._alerts.decisions.extend(decisions)

    def open_alerts(self) -> list[Alert]:
        """Return the alerts that are not resolved, oldest first."""
        self._own()
        return sorted(self._alerts.open_alerts.values(), key=lambda alert: alert.opened_at_s)

    def opened_at_s(self, alert_key: str) -> float | None:
        """Return since when an alert is open; None when it is not."""
        alert = self._alerts.open_alerts.get(alert_key)
        return None if alert is None else alert.opened_at_s

    def pending_deliveries(self) -> list[Delivery]:
        """Return the deliveries that are not done, oldest first."""
        self._own()
        return [self._alerts.pending[row] for row in sorted(self._alerts.pending)]

    def deliveries_of_open(self) -> list[Delivery]:
        """Return every delivery about alerts that are open now, oldest first.

        Messages of an earlier opening of the same key are left out. Nothing where the file cannot
        be read: then nobody knows who was told.
        """
        if not self._alerts.open_alerts:
            return []
        return self._ask(lambda it: records.load_deliveries(it, _OF_OPEN)[0]) or []

    def recent_notices(self, since_s: float) -> list[Notice]:
        """Return the messages that were made since then (epoch seconds), oldest first.

        However many channels a message has, it is one; fallbacks and dry runs count with it.
        """
        query = (
            "SELECT min(created_ts_ms), alert_key, notice, message_id FROM delivery"
            " WHERE created_ts_ms >= ? GROUP BY message_id ORDER BY 1, message_id"
        )
        values = (round(since_s * 1000),)
        notices = self._ask(
            lambda it: [Notice(row[0] / 1000, *row[1:]) for row in it.execute(query, values)]
        )
        return notices or []

    def over_since(self, since_s: float) -> list[Alert]:
        """Return the alerts that ended since then, and those of which that is still to be told."""
        where = "resolved_ts_ms >= ? OR (resolved_ts_ms IS NOT NULL AND next_notice_ts_ms >= 0)"
        values = (round(since_s * 1000),)
        return self._ask(lambda it: records.load_alerts(it, where, values)[0]) or []

    def undelivered_since(self, since_s: float) -> list[Alert] | None:
        """Return the alerts that ended since then, were tried to be told, and reached nobody.

        None while that cannot be known: not everything is written, or the file cannot be read.
        """
        if self._alerts.has_alerts:
            return None
        values = (round(since_s * 1000),)
        return self._ask(lambda it: records.load_alerts(it, _UNDELIVERED, values)[0])

    def last_delivered(self) -> dict[str, float]:
        """Return channel -> when it last delivered, epoch seconds."""
        query = (
            "SELECT channel, max(sent_ts_ms) FROM delivery WHERE state = 'sent'"
            " AND sent_ts_ms IS NOT NULL AND dry_run = 0 GROUP BY channel"
        )
        found = self._ask(lambda it: {name: at_ms / 1000 for name, at_ms in it.execute(query)})
        return found or {}

    def _ask(self, question: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Return what a question finds; None where the file cannot be read."""
        self._own()
        if self._file.connection is None:
            return None
        try:
            return question(self._file.connection)
        except schema.SUSPECT as error:
            self._health.failed(error)
            return None

    @property
    def boot_id(self) -> str:
        """Identity of this boot; empty while it is unknown."""
        return self._segments.boot_id

    def recent_series(
        self, since_s: float, *, stepped_s: float = 0.0
    ) -> Iterator[tuple[Subject, list[tuple[float, int]]]]:
        """Yield (subject, [(t_s, used_bytes), ...]) of the present boot.

        One series at a time is in memory. Ends early where the file cannot be read on. Times are
        moved by ``stepped_s``: by so much the clock was set since the rows were written.
        """
        for subject, points in self._recent(recent_points.series, since_s - stepped_s, stepped_s):
            if stepped_s:
                points = [(t_s + stepped_s, held) for t_s, held in points]  # noqa: PLW2901
            yield subject, points

    def recent_activity(
        self, since_s: float, *, stepped_s: float = 0.0
    ) -> Iterator[tuple[str, list[tuple[float, float | None, float | None]]]]:
        """Yield (device_uid, [(t_s, util_pct, power_w), ...]), as :meth:`recent_series` does."""
        for uid, points in self._recent(recent_points.activity, since_s - stepped_s, stepped_s):
            yield uid, [(t_s + stepped_s, util, power) for t_s, util, power in points]

    def recent_allocators(
        self, since_s: float, *, stepped_s: float = 0.0
    ) -> Iterator[tuple[tuple[str, ProcessKey], list[AllocatorReading]]]:
        """Yield ((device_uid, process), readings), as :meth:`recent_series` does.

        A reading that did not change is there once a minute.
        """
        for owner, own in self._recent(recent_points.allocators, since_s - stepped_s, stepped_s):
            yield owner, [msgspec.structs.replace(it, at_s=it.at_s + stepped_s) for it in own]

    def _recent(
        self, load: Callable[..., Iterator[_T]], since_s: float, stepped_s: float
    ) -> Iterator[_T]:
        self._own()
        if self._file.connection is None or self._file.mode == "newer":
            return
        now_s, boot_id = self._clock() - stepped_s, self._segments.boot_id
        try:
            yield from load(self._file.connection, boot_id=boot_id, since_s=since_s, now_s=now_s)
        except schema.SUSPECT as error:
            self._health.failed(error)

    def flush_due(self, now_s: float) -> None:
        """Write what waits when it is due; alerts that wait sooner."""
        self._own()
        if self._schedule.due(now_s):
            self.flush(now_s)
        elif self._alerts.waiting and self._monotonic() >= self._retry_mono_s:
            self._commit()

    def flush(self, now_s: float) -> bool:
        """Write everything that waits; return whether nothing waits now."""
        self._own()
        self._schedule.flushed(now_s)
        self._notice_loss(now_s)
        self._replace_damaged(now_s)
        connection = self._writable(now_s)
        if connection is not None:
            self._commit()
            if not self._alerts.waiting and self._has_space(connection, now_s):
                self._write_samples(connection)
                self._health.guard_wal(connection)
        self._intake.forget_gone()
        return connection is not None and not len(self._intake) and not self._alerts.waiting

    def chores(self, now_s: float) -> None:
        """Roll up, delete what is too old, keep the size bound. Bounded work; never raises."""
        self._own()
        if self._file.mode == "writing":
            self._health.look_at_catalogue()
        self._replace_damaged(now_s)
        connection = self._writable(now_s)
        if connection is None:
            return
        try:
            self._retention.run(connection, now_s, self._intake.oldest_ms)
        except schema.SUSPECT as error:
            self._health.failed(error)
        else:
            self._health.succeeded()

    def check(self) -> str | None:
        """Read the whole file; return what is damaged, or None. May run on any thread.

        A damaged file is set aside by the next :meth:`flush` or :meth:`chores`.
        """
        if self._file.mode != "writing":
            return None
        text = database.quick_check(self._directory)
        if text is not None:
            self._health.damage = text
        return text

    def close(self) -> None:
        """Write what waits and let go of the file. May be called twice; never raises."""
        self._own()
        if self._file.connection is not None:
            until_s = time.monotonic() + LAST_TRY_S
            # While another program holds the lock it is tried again for a moment.
            while not self.flush(self._clock()) and self._health.is_locked:
                if time.monotonic() >= until_s:
                    break
                time.sleep(_PAUSE_S)
            self._log_lost()
            self._drop_connection()

    def _log_lost(self) -> None:
        """Log in one line what is lost now that the history is let go; nothing when nothing is."""
        lost = [
            f"{count} {name}{'s' if count > 1 else ''}{f' ({newest})' if newest else ''}"
            for count, name, newest in ((len(self._intake), "sample row", ""), *self._alerts.left())
            if count
        ]
        if lost:
            locked, problems = self._health.is_locked, "; ".join(self._health.problems)
            why = "it is locked by another program" if locked else problems
            log.warning("the history lacks %s: %s", ", ".join(lost), why or "it cannot be written")

    def _own(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("the history belongs to the thread that opened it")

    def _open(self, now_s: float) -> None:
        self._drop_connection()
        max_bytes = self._retention.max_bytes
        opening = database.open_writer(self._directory, max_bytes=max_bytes, now_s=now_s)
        self._file = opening.watched(self._directory)
        self.shelf.use(opening.connection if opening.mode == "writing" else None)
        self._reopen_mono_s = self._monotonic() + _REOPEN_S
        lost = opening.damaged is not None
        self._health.set("opening", None if lost else opening.problem)
        if lost:
            self._health.set("damaged", opening.problem)
            self._event("db", opening.problem or "", now_s)
            self._alerts.write_all_again()
        if opening.connection is not None:
            self._load(opening.connection)

    def _load(self, connection: sqlite3.Connection) -> None:
        try:
            strange = self._alerts.load(connection)
        except schema.SUSPECT as error:
            self._health.failed(error)
            return
        if strange:
            self._health.set(
                "strange",
                f"{strange} stored alerts or messages could not be understood and are left out",
            )

    def _drop_connection(self) -> None:
        opening, self._file = self._file, _CLOSED
        self.shelf.use(None)
        opening.close()

    def _replace_damaged(self, now_s: float) -> None:
        """Set a damaged file aside and begin a new one with what is in memory."""
        why, self._health.damage = self._health.damage, None
        if why is None:
            return
        self._drop_connection()
        try:
            text = database.set_aside(self._directory, now_s)
        except OSError as error:
            self._health.set("opening", database.cannot_write(self._directory, error))
            return
        why = f"the history was damaged ({why}) and was set aside as {text}; a new one was started"
        self._begin_anew(why, now_s)

    def _begin_anew(self, text: str, now_s: float) -> None:
        self._health.set("damaged", text)
        self._event("db", text, now_s)
        self._alerts.write_all_again()
        self._segments.add("start", now_s, self._monotonic())
        self._open(now_s)

    def _notice_loss(self, now_s: float) -> None:
        """Find out that the file was removed, replaced or overwritten below our connection."""
        if self._file.connection is None or self._file.mode != "writing":
            return
        here, identity = database.identity(self._directory), self._file.identity
        if here == identity or None in {here, identity}:
            if identity is None:
                self._file = self._file._replace(identity=here)
            self._health.damage = self._health.damage or self._file.header_damage()
            return
        self._drop_connection()
        self._begin_anew("the history was removed or replaced while gpuwatchd ran", now_s)

    def _writable(self, now_s: float) -> sqlite3.Connection | None:
        if self._file.mode == "memory" and self._monotonic() >= self._reopen_mono_s:
            self._open(now_s)
        return self._file.connection if self._file.mode == "writing" else None

    def _commit(self) -> dict[int, int]:
        """Write the ledger, power-cut-safe; return deliveries that got another row."""
        if self._file.mode == "newer":
            self._alerts.drop()
            return {}
        connection = self._file.connection
        if connection is None or self._file.mode != "writing" or not self._alerts.waiting:
            return {}
        self._retry_mono_s = self._monotonic() + _RETRY_S
        try:
            moved, refused = self._alerts.commit(connection, self._intake)
        except schema.SUSPECT as error:
            self._health.failed(error)
            return {}
        self._health.succeeded(refused=refused)
        return moved

    def _has_space(self, connection: sqlite3.Connection, now_s: float) -> bool:
        enough = self._health.has_space()
        if not enough:
            try:
                self._retention.expire(connection, now_s)
            except schema.SUSPECT as error:
                if schema.is_doubtful(error):
                    self._health.failed(error)
        return enough

    def _write_samples(self, connection: sqlite3.Connection) -> None:
        runs_wait = self.shelf.waiting
        if not len(self._intake) and not runs_wait:
            return
        oldest_ms = self._intake.oldest_ms
        try:
            with schema.transaction(connection):
                refused = self._intake.write(connection)
                if runs_wait:
                    refused += self.shelf.write(connection)
                if oldest_ms is not None:
                    reopen_buckets(connection, oldest_ms)
        except schema.SUSPECT as error:
            if schema.is_damage(error) or not isinstance(error, records.REFUSED):
                self._health.failed(error)
                return
            # A device or a process itself does not fit: without them their rows mean nothing.
            refused = len(self._intake)
        self._intake.written()
        if runs_wait:
            self.shelf.written()
        self._health.lost(0)
        self._health.succeeded(refused=refused)
