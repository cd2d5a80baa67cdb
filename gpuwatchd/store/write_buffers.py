"""Samples, alerts and deliveries in memory, until they are written.

What a tick costs is decided here: a device is noted at every tick, a process only when its memory
(on the device or on the host) changed or a new minute began, so that every minute it lives has a
row. Both are bounded: when nothing can be written for long, the oldest go first. Deliveries get
their row here, so that one can be referred to before the disk has it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.core.model import Device, ProcessInfo
from gpuwatchd.store import records, schema, tables

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import (
        Alert,
        AllocatorReading,
        Decision,
        Delivery,
        DeviceReading,
        ProcessKey,
        ProcessUse,
        Sample,
        Subject,
    )


_WAITING_LIMIT = 2000


class AlertBuffer:
    """Open alerts, pending deliveries, and the rows that wait to be written."""

    def __init__(self) -> None:
        self.open_alerts: dict[str, Alert] = {}
        self.pending: dict[int, Delivery] = {}
        self._next_row = 1
        self.segments: deque[dict[str, Any]] = deque(maxlen=_WAITING_LIMIT)
        self.events: deque[dict[str, Any]] = deque(maxlen=_WAITING_LIMIT)
        self.decisions: deque[Decision] = deque(maxlen=_WAITING_LIMIT)
        self._alerts: dict[tuple[str, float], Alert] = {}
        self._deliveries: dict[int, Delivery] = {}

    @property
    def waiting(self) -> bool:
        """Whether anything is not yet written."""
        return bool(
            self.segments or self.events or self._alerts or self._deliveries or self.decisions
        )

    @property
    def has_alerts(self) -> bool:
        """Whether an alert or a delivery is not yet written."""
        return bool(self._alerts or self._deliveries)

    def left(self) -> tuple[tuple[int, str, str], ...]:
        """Return (how many, what, the newest of them) of what is not yet written."""
        event = self.events[-1]["detail"] if self.events else ""
        alert = next(reversed(self._alerts.values()), None)
        return (
            (len(self.events), "event", event),
            (len(self._alerts), "alert", "" if alert is None else alert.title or alert.key),
            (len(self._deliveries), "message", ""),
        )

    def load(self, connection: sqlite3.Connection) -> int:
        """Take over what the file holds; what is known here is newer. Return strange rows."""
        alerts, strange = records.load_alerts(connection, "resolved_ts_ms IS NULL")
        # What waits to be written may be over already.
        alerts = [one for one in alerts if (one.key, one.opened_at_s) not in self._alerts]
        self.open_alerts = {alert.key: alert for alert in alerts} | self.open_alerts
        deliveries, more = records.load_deliveries(connection, "state = 'pending'")
        found = {d.row: d for d in deliveries if d.row is not None}
        self.pending = {k: v for k, v in found.items() if k not in self._deliveries} | self.pending
        (last,) = connection.execute("SELECT ifnull(max(id), 0) FROM delivery").fetchone()
        self._next_row = max(self._next_row, last + 1)
        return strange + more

    def number_from(self, row: int) -> None:
        """Give new deliveries rows from ``row`` on."""
        self._next_row = max(self._next_row, row)

    def add_alert(self, alert: Alert) -> None:
        """Note how an alert stands now."""
        if alert.resolved_at_s is None:
            self.open_alerts[alert.key] = alert
        else:
            self.open_alerts.pop(alert.key, None)
        self._alerts[alert.key, alert.opened_at_s] = alert
        _bound(self._alerts)

    def add_delivery(self, delivery: Delivery) -> Delivery:
        """Note how a delivery stands now and return it with its row."""
        row = delivery.row
        if row is None:
            row, self._next_row = self._next_row, self._next_row + 1
            delivery = msgspec.structs.replace(delivery, row=row)
        if delivery.state == "pending":
            self.pending[row] = delivery
        else:
            self.pending.pop(row, None)
        self._deliveries[row] = delivery
        _bound(self._deliveries)
        return delivery

    def write_all_again(self) -> None:
        """Have everything that stands written once more: into a new file."""
        for alert in self.open_alerts.values():
            self._alerts.setdefault((alert.key, alert.opened_at_s), alert)
        for row, delivery in self.pending.items():
            self._deliveries.setdefault(row, delivery)

    def commit(
        self, connection: sqlite3.Connection, samples: SampleBuffer
    ) -> tuple[dict[int, int], int]:
        """Write what waits, power-cut-safe, and forget that it waited.

        The devices and processes of alerts are written before them. Return deliveries that got
        another row than they were promised, and how many rows were refused because a value did
        not fit.

        Raises
        ------
        sqlite3.Error
            Nothing was written, and all of it waits; as any of :data:`schema.SUSPECT`.
        """
        with schema.transaction(connection, durable=True):
            moved: dict[int, int] = {}
            subjects = [alert.subject for alert in self._alerts.values()]
            refused = records.refused(partial(samples.save_subject, connection), subjects)
            for write, values in (
                (partial(records.insert, connection, "segment"), self.segments),
                (partial(records.insert, connection, "event"), self.events),
                (partial(records.save_alert, connection), self._alerts.values()),
                (partial(records.save_delivery, connection, moved), self._deliveries.items()),
            ):
                refused += records.refused(write, values)
            if self.decisions:
                refused += tables.save_decisions(connection, self.decisions)
        self._written(moved)
        return moved, refused

    def _written(self, moved: dict[int, int]) -> None:
        self.drop()
        for row, saved in moved.items():
            # What is not pending under the row that it was promised has come to its end.
            delivery = self.pending.pop(row, None)
            self.pending.pop(saved, None)
            if delivery is not None:
                self.pending[saved] = msgspec.structs.replace(delivery, row=saved)

    def drop(self) -> None:
        """Forget what waited; alerts and deliveries that stand are kept."""
        self.segments.clear()
        self.events.clear()
        self._alerts.clear()
        self._deliveries.clear()
        self.decisions.clear()


def _bound(waiting: dict[Any, Any]) -> None:
    if len(waiting) > _WAITING_LIMIT:
        del waiting[next(iter(waiting))]


DEVICE_ROWS = 10_000
PROCESS_ROWS = 20_000
"""About an hour and a half of 8 devices, and 6 MiB, when nothing can be written."""
_MINUTE_MS = 60_000


class Segments:
    """Where time went on differently, written with the alerts that wait."""

    def __init__(self, buffer: AlertBuffer, boot_id: str) -> None:
        self.boot_id = boot_id
        """Of this boot; empty while it is unknown."""
        self._buffer = buffer
        self.begun: set[str] = set()
        """Boots of which there is one."""

    def begin(self, sample: Sample) -> None:
        """Note where the samples of a source begin; a simulated one has a boot of its own."""
        self.boot_id = self.boot_id or sample.boot_id
        self.add("start", sample.taken_at_s, sample.taken_mono_s, sample.boot_id)

    def add(
        self,
        reason: str,
        at_s: float,
        mono_s: float,
        boot_id: str | None = None,
        **steps: float | None,
    ) -> None:
        """Note one; by default of this boot."""
        boot_id = self.boot_id if boot_id is None else boot_id
        self.begun.add(boot_id)
        instants = {"started_ts_ms": round(at_s * 1000), "mono_ms": round(mono_s * 1000)}
        self._buffer.segments.append({"boot_id": boot_id, "reason": reason, **instants, **steps})


@dataclass(slots=True, eq=False)
class _Track:
    """A process on a device: what was last noted of it."""

    boot_id: str
    key: ProcessKey
    info: ProcessInfo | None
    used_bytes: int | None
    host_bytes: int | None
    minute: int
    first_ms: int
    last_ms: int
    row: int | None = None
    """Where it is in the file, once ``saved`` has been written there."""
    saved: ProcessInfo | None = None
    allocator: tuple[int | None, ...] = ()

    def save(self, connection: sqlite3.Connection) -> int:
        """Write who it is, inside the caller's transaction, and return its row."""
        info = self.info or ProcessInfo(key=self.key, name="")
        return records.save_process(connection, self.boot_id, info, (self.first_ms, self.last_ms))

    def is_new(self, allocator: tuple[int | None, ...]) -> bool:
        """Say whether a minute and the figures of its allocator in it differ from the last ones."""
        before, self.allocator = self.allocator, allocator
        return before != allocator


@dataclass(slots=True, eq=False)
class _Card:
    """A device and the processes on it."""

    device: Device
    first_ms: int
    last_ms: int
    tracks: dict[ProcessKey, _Track] = field(default_factory=dict)
    uses: tuple[ProcessUse, ...] | None = None
    """The last list, and the minute that it was noted in: the very same needs no second look."""
    minute: int = -1
    present: list[_Track] = field(default_factory=list)
    """Whom that list names; when they were last seen is written down when it matters."""

    def settle(self, last_ms: int) -> None:
        """Write down when those of the last list were last seen."""
        if self.uses is not None:
            for track in self.present:
                track.last_ms = last_ms


_DeviceRow = tuple[
    int, _Card, int | None, int | None, int | None, int | None, int | None, int | None, int | None
]
_ProcessRow = tuple[int, _Track, _Card, *tuple[int | None, ...]]


def _whole(value: float | None, factor: int = 1) -> int | None:
    try:
        return None if value is None else round(value * factor)
    except (ValueError, OverflowError):  # no number, or no finite one: unknown
        return None


class SampleBuffer:
    """The rows that wait, and the change-only rule."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._device_rows: deque[_DeviceRow] = deque(maxlen=DEVICE_ROWS)
        self._process_rows: deque[_ProcessRow] = deque(maxlen=PROCESS_ROWS)
        self._allocator_rows: deque[_ProcessRow] = deque(maxlen=PROCESS_ROWS)
        self._file: sqlite3.Connection | None = None
        self._saved: list[tuple[_Track, int, ProcessInfo | None]] = []
        """Who is in the file, and where, once the transaction is committed."""
        self.lost = 0
        """Rows that fell out of the buffer unwritten."""

    def __len__(self) -> int:
        return len(self._device_rows) + len(self._process_rows) + len(self._allocator_rows)

    @property
    def oldest_ms(self) -> int | None:
        """The earliest instant that waits, or None."""
        # After the clock was set back the first row is not the earliest.
        rows = (self._device_rows, self._allocator_rows)
        return min((row[0] for each in rows for row in each), default=None)

    def note(
        self,
        sample: Sample,
        devices: Sequence[Device],
        processes: Mapping[ProcessKey, ProcessInfo],
        unattributed: Mapping[str, int] | None = None,
    ) -> None:
        """Take in one sample. In the tick: 8 devices with 8 processes each in some 50 µs."""
        ts_ms = round(sample.taken_at_s * 1000)
        for device in devices:
            card = self._cards.get(device.uid)
            if card is None:
                self._cards[device.uid] = _Card(device, ts_ms, ts_ms)
            elif card.device is not device:
                card.device = device
        known = unattributed or {}
        for reading in sample.readings:
            rest = known.get(reading.device_uid)
            self._note_device(ts_ms, reading, rest, sample.boot_id, processes)

    def _note_device(
        self,
        ts_ms: int,
        reading: DeviceReading,
        rest: int | None,
        boot_id: str,
        processes: Mapping[ProcessKey, ProcessInfo],
    ) -> None:
        uid = reading.device_uid
        card = self._cards.get(uid)
        if card is None:
            unnamed = Device(uid=uid, vendor="", index=None, name="", memory_total_bytes=None)
            card = self._cards[uid] = _Card(unnamed, ts_ms, ts_ms)
        before_ms, card.last_ms = card.last_ms, ts_ms
        if reading.used_bytes is not None or reading.util_pct is not None:
            if len(self._device_rows) == DEVICE_ROWS:
                self.lost += 1
            self._device_rows.append(
                (
                    ts_ms,
                    card,
                    _whole(reading.used_bytes),
                    _whole(reading.util_pct),
                    _whole(reading.memory_util_pct),
                    _whole(reading.temp_c),
                    _whole(reading.power_w, 1000),
                    _whole(reading.clock_mhz),
                    rest,
                )
            )
        minute, uses = ts_ms // _MINUTE_MS, reading.uses
        if uses is not None and uses is card.uses and minute == card.minute:
            return
        card.settle(before_ms)
        card.uses, card.minute, card.present = uses, minute, []
        tracks = card.tracks
        for use in uses or ():
            key, used, host = use.key, use.used_bytes, use.host_bytes
            track = tracks.get(key)
            if track is None:
                info = processes.get(key)
                track = _Track(boot_id, key, info, used, host, minute, ts_ms, ts_ms)
                tracks[key] = track
                card.present.append(track)
            else:
                track.last_ms = ts_ms
                card.present.append(track)
                if track.used_bytes == used and track.minute == minute and track.host_bytes == host:
                    continue
                track.used_bytes, track.host_bytes, track.minute = used, host, minute
                track.info = processes.get(key) or track.info
            if len(self._process_rows) == PROCESS_ROWS:
                self.lost += 1
            row = (ts_ms, track, card, _whole(used), _whole(use.sm_pct), _whole(host))
            self._process_rows.append(row)

    def note_allocator(self, reading: AllocatorReading) -> None:
        """Take in what the allocator of a process says that is on a device of the last sample.

        It has the clock of its process: what is more than a minute from that sample is left out.
        """
        card, ts_ms = self._cards.get(reading.device_uid), _whole(reading.at_s, 1000)
        track = None if card is None else card.tracks.get(reading.key)
        if card is None or track is None or ts_ms is None:
            return
        figures = tuple(getattr(reading, name) for name in _FIGURES)
        near = abs(card.last_ms - ts_ms) <= _MINUTE_MS
        if not near or not track.is_new((ts_ms // _MINUTE_MS, *figures)):
            return
        if len(self._allocator_rows) == PROCESS_ROWS:
            self.lost += 1
        self._allocator_rows.append((ts_ms, track, card, *figures))

    def _save_processes(self, connection: sqlite3.Connection, tracks: dict[_Track, int]) -> None:
        """Write who the processes are, and put their rows into ``tracks``.

        Of one that the file knows already only the last sight is new.
        """
        for card in self._cards.values():
            card.settle(card.last_ms)
        known = [track for track in tracks if track.row is not None and track.saved is track.info]
        touched = connection.executemany(_TOUCH, [(one.last_ms, one.row) for one in known])
        if touched.rowcount == len(known) or not known:
            tracks.update((one, one.row) for one in known if one.row is not None)
        for track, row in tracks.items():
            if not row:
                tracks[track] = track.save(connection)
        self._saved = [(track, row, track.info) for track, row in tracks.items()]

    def write(self, connection: sqlite3.Connection) -> int:
        """Write what waits, inside the caller's transaction; return how many rows were refused.

        Nothing is forgotten: call :meth:`written` after the commit.
        """
        cards = dict.fromkeys((row[1] for row in self._device_rows), 0)
        of_processes = [*self._process_rows, *self._allocator_rows]
        cards.update(dict.fromkeys((row[2] for row in of_processes), 0))
        for card in cards:
            pair = (card.first_ms, card.last_ms)
            cards[card] = records.save_device(connection, card.device, pair)
        # Everybody who is there, so that the last sight of an unchanged process is known too.
        tracks = {track: 0 for card in cards for track in card.tracks.values()}
        tracks.update(dict.fromkeys((row[1] for row in of_processes), 0))
        if connection is not self._file:
            self._file = connection
            everybody = [it for card in self._cards.values() for it in card.tracks.values()]
            for track in (*everybody, *tracks):
                track.row = None
        self._save_processes(connection, tracks)
        devices = [(row[0], cards[row[1]], *row[2:]) for row in self._device_rows]
        refused = records.insert_rows(connection, _INSERT_DEVICE, devices)
        for statement, rows in (
            (_INSERT_PROCESS, self._process_rows),
            (_INSERT_ALLOCATOR, self._allocator_rows),
        ):
            values = [(row[0], tracks[row[1]], cards[row[2]], *row[3:]) for row in rows]
            refused += records.insert_rows(connection, statement, values)
        return refused

    def written(self) -> None:
        """Forget what was written."""
        for track, row, info in self._saved:
            track.row, track.saved = row, info
        self._saved = []
        self.drop()
        self.lost = 0

    def forget_gone(self) -> None:
        """Forget processes that have gone; rows that still wait keep their own."""
        for card in self._cards.values():
            card.settle(card.last_ms)
            gone = [key for key, track in card.tracks.items() if track.last_ms < card.last_ms]
            for key in gone:
                del card.tracks[key]

    def drop(self) -> None:
        """Forget what waits."""
        self._device_rows.clear()
        self._process_rows.clear()
        self._allocator_rows.clear()

    def save_subject(self, connection: sqlite3.Connection, subject: Subject) -> None:
        """Write the rows of a device and a process now, so that an alert can refer to them."""
        card = self._cards.get(subject.device_uid)
        if card is None:
            return
        track = None if subject.process is None else card.tracks.get(subject.process)
        if track is not None and track.row is not None and connection is self._file:
            return  # a flush has written both
        card.settle(card.last_ms)
        records.save_device(connection, card.device, (card.first_ms, card.last_ms))
        if track is not None:
            track.save(connection)


_TOUCH = "UPDATE process SET last_ts_ms = max(last_ts_ms, ?) WHERE id = ?"
_INSERT_DEVICE = (
    "INSERT OR REPLACE INTO gpu_raw(ts_ms, gpu, used_bytes, util_percent, mem_util_percent,"
    " temp_c, power_mw, clock_mhz, unattributed_bytes) VALUES(?,?,?,?,?,?,?,?,?)"
)
_INSERT_PROCESS = (
    "INSERT OR REPLACE INTO process_raw(ts_ms, process, gpu, used_bytes, sm_percent, host_bytes)"
    " VALUES(?,?,?,?,?,?)"
)
_FIGURES = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes", "peak_bytes")
_INSERT_ALLOCATOR = (
    f"INSERT OR REPLACE INTO process_counters(ts_ms, process, gpu, {', '.join(_FIGURES)})"
    " VALUES(?,?,?,?,?,?,?)"
)
