"""Values of the model <-> rows of the history.

Every function that saves works inside its caller's transaction.
Instants are whole milliseconds in the tables. An alert is kept whole, as JSON, in ``finding``; its
other columns are for people with an SQL prompt.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
from typing import Any

import msgspec

from gpuwatchd.core import typed
from gpuwatchd.core.codes import Facts, Failure
from gpuwatchd.core.model import Alert, Delivery, Device, Message, ProcessInfo, ProcessKey
from gpuwatchd.store import legacy_text

CODES_SINCE = 6
"""Version of the tables that has codes beside the texts."""
PAYLOAD_LIMIT_BYTES = 16 * 1024
REFUSED = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    ValueError,
)
"""What a value that does not fit raises; the transaction goes on without it."""

_ABOUT = "alert_key = ? OR id IN (SELECT delivery FROM told WHERE alert_key = ?)"


def about_alert(key: str) -> tuple[str, tuple[str, str]]:
    """Return the condition (and its values) on deliveries that tell of an alert, among others."""
    return _ABOUT, (key, key)


_QUOTES = frozenset("'\"\\\t\r\n")
_JSON = msgspec.json.Encoder()
_FACTS = typed.decoder(dict[str, float | str])
_ALERT = typed.decoder(Alert)
_MESSAGE = typed.decoder(Message)


def to_ms(at_s: float | None) -> int | None:
    """Return an instant in whole milliseconds; unknown stays None."""
    return None if at_s is None else round(at_s * 1000)


def to_s(ts_ms: int | None) -> float | None:
    """Return an instant in seconds; unknown stays None."""
    return None if ts_ms is None else ts_ms / 1000


def facts_json(facts: Facts) -> str | None:
    """Return the numbers beside a code as JSON; None without any."""
    return _JSON.encode(facts).decode() if facts else None


def code_columns(connection: sqlite3.Connection) -> str:
    """Return the columns of a code and its facts; none where a file waits to be upgraded."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return "code, facts" if version >= CODES_SINCE else "NULL, NULL"


def facts_of(text: str | None) -> Facts:
    """Return the numbers beside a code; none of a text that is damaged."""
    with contextlib.suppress(msgspec.MsgspecError, TypeError):
        return _FACTS.decode(text or "{}")
    return {}


def save_device(connection: sqlite3.Connection, device: Device, seen_ms: tuple[int, int]) -> int:
    """Insert or refresh a device and return its row; ``seen_ms`` is first and last."""
    row: int = connection.execute(
        "INSERT INTO gpu(uuid, source, vendor, position, name, pci_bus, parent_uuid, memory_kind,"
        " memory_total_bytes, first_ts_ms, last_ts_ms) VALUES(?,?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(uuid) DO UPDATE SET source = excluded.source, vendor = excluded.vendor,"
        " position = excluded.position, name = excluded.name,"
        " pci_bus = coalesce(excluded.pci_bus, pci_bus),"
        " parent_uuid = coalesce(excluded.parent_uuid, parent_uuid),"
        " memory_kind = excluded.memory_kind,"
        " memory_total_bytes = coalesce(excluded.memory_total_bytes, memory_total_bytes),"
        " last_ts_ms = max(last_ts_ms, excluded.last_ts_ms) RETURNING id",
        (
            device.uid,
            device.source,
            device.vendor,
            device.index,
            device.name,
            device.pci_bus,
            device.parent_uid,
            device.memory_kind,
            device.memory_total_bytes,
            *seen_ms,
        ),
    ).fetchone()[0]
    return row


def save_process(
    connection: sqlite3.Connection, boot_id: str, info: ProcessInfo, seen_ms: tuple[int, int]
) -> int:
    """Insert or refresh a process and return its row; ``seen_ms`` is first and last."""
    row: int = connection.execute(
        "INSERT INTO process(boot_id, pid, started_ts_ms, started_at_s, user, name, args,"
        " parent_pid, framework, framework_sure, job, container, program, first_ts_ms, last_ts_ms)"
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(boot_id, pid, ifnull(started_ts_ms, -1)) DO UPDATE SET"
        " user = coalesce(excluded.user, user),"
        " name = CASE excluded.name WHEN '' THEN name ELSE excluded.name END,"
        " args = coalesce(excluded.args, args),"
        " parent_pid = coalesce(excluded.parent_pid, parent_pid),"
        " framework = coalesce(excluded.framework, framework),"
        " framework_sure = max(framework_sure, excluded.framework_sure),"
        " job = coalesce(excluded.job, job), container = coalesce(excluded.container, container),"
        " program = coalesce(excluded.program, program),"
        " last_ts_ms = max(last_ts_ms, excluded.last_ts_ms) RETURNING id",
        (
            boot_id,
            info.key.pid,
            to_ms(info.key.started_at_s),
            info.key.started_at_s,
            info.user,
            info.name,
            shlex.join(info.argv) or None,
            info.parent_pid,
            info.framework,
            int(info.framework_sure),
            info.job,
            info.container,
            info.program,
            *seen_ms,
        ),
    ).fetchone()[0]
    return row


def save_alert(connection: sqlite3.Connection, alert: Alert) -> int:
    """Insert an alert, or update the row of the same key, and return the row.

    The row is that of the same opening, else the one that is still open: there is at most one.
    """
    (known,) = connection.execute(
        "SELECT coalesce((SELECT id FROM alert WHERE key = ? AND opened_ts_ms = ?),"
        " (SELECT id FROM alert WHERE key = ? AND resolved_ts_ms IS NULL))",
        (alert.key, to_ms(alert.opened_at_s), alert.key),
    ).fetchone()
    row: int = connection.execute(
        "INSERT INTO alert(id, key, kind, severity, state, gpu, process, opened_ts_ms,"
        " changed_ts_ms, resolved_ts_ms, confirmations, notices, next_notice_ts_ms, title, finding,"
        " code, facts) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET"
        " severity = excluded.severity, state = excluded.state, gpu = excluded.gpu,"
        " process = excluded.process, opened_ts_ms = excluded.opened_ts_ms,"
        " changed_ts_ms = excluded.changed_ts_ms, resolved_ts_ms = excluded.resolved_ts_ms,"
        " confirmations = excluded.confirmations, notices = excluded.notices,"
        " next_notice_ts_ms = excluded.next_notice_ts_ms, title = excluded.title,"
        " finding = excluded.finding, code = excluded.code, facts = excluded.facts RETURNING id",
        (
            known,
            alert.key,
            alert.kind,
            alert.severity,
            alert.state,
            _device_row(connection, alert.subject.device_uid),
            _process_row(connection, alert.subject.process),
            to_ms(alert.opened_at_s),
            to_ms(alert.changed_at_s),
            to_ms(alert.resolved_at_s),
            alert.confirmations,
            alert.notices,
            to_ms(alert.next_notice_at_s),
            alert.title,
            _JSON.encode(alert).decode(),
            alert.ended_code,
            facts_json(alert.ended_facts),
        ),
    ).fetchone()[0]
    return row


def _device_row(connection: sqlite3.Connection, uid: str) -> int | None:
    found = connection.execute("SELECT id FROM gpu WHERE uuid = ?", (uid,)).fetchone()
    return None if found is None else int(found[0])


def _process_row(connection: sqlite3.Connection, key: ProcessKey | None) -> int | None:
    if key is None:
        return None
    found = connection.execute(
        "SELECT id FROM process WHERE pid = ? AND ifnull(started_ts_ms, -1) = ?"
        " ORDER BY last_ts_ms DESC LIMIT 1",
        (key.pid, -1 if key.started_at_s is None else to_ms(key.started_at_s)),
    ).fetchone()
    return None if found is None else int(found[0])


def save_delivery(connection: sqlite3.Connection, delivery: Delivery, row: int) -> int:
    """Insert a delivery under ``row``, or update it, and return the row that it has.

    The same message on the same channel is one delivery: then its older row is kept. Where the row
    is another message's, it gets a new one.
    """
    alert = connection.execute(
        "SELECT id FROM alert WHERE key = ? ORDER BY opened_ts_ms DESC LIMIT 1",
        (delivery.alert_key,),
    ).fetchone()
    change = (
        " DO UPDATE SET state = excluded.state, attempts = excluded.attempts,"
        " next_try_ts_ms = excluded.next_try_ts_ms, sent_ts_ms = excluded.sent_ts_ms,"
        " lease_until_ts_ms = excluded.lease_until_ts_ms, error = excluded.error,"
        " dry_run = excluded.dry_run, held = excluded.held, known = excluded.known,"
        " code = excluded.code, facts = excluded.facts"
    )
    taken = connection.execute(
        "SELECT 1 FROM delivery WHERE id = ? AND (channel, message_id) IS NOT (?, ?)",
        (row, delivery.channel, delivery.message.id),
    ).fetchone()
    found: int = connection.execute(
        "INSERT INTO delivery(id, alert, alert_key, channel, notice, message_id, payload, state,"
        " attempts, created_ts_ms, next_try_ts_ms, sent_ts_ms, error, dry_run, lease_until_ts_ms,"
        " held, known, fallback_of, code, facts)"
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
        f" ON CONFLICT(id){change} ON CONFLICT(channel, message_id){change} RETURNING id",
        (
            row if taken is None else None,
            None if alert is None else alert[0],
            delivery.alert_key,
            delivery.channel,
            delivery.message.notice,
            delivery.message.id,
            _payload(delivery.message),
            delivery.state,
            delivery.attempts,
            to_ms(delivery.created_at_s),
            to_ms(delivery.next_try_at_s),
            to_ms(delivery.sent_at_s),
            delivery.error,
            int(delivery.dry_run),
            to_ms(delivery.lease_until_s),
            delivery.held or None,
            delivery.known or None,
            delivery.fallback_of or None,
            delivery.code,
            facts_json(delivery.facts),
        ),
    ).fetchone()[0]
    connection.executemany(
        "INSERT OR IGNORE INTO told(delivery, alert_key) VALUES(?,?)",
        [(found, key) for key in delivery.message.also],
    )
    return found


def _payload(message: Message) -> str:
    """Return the message as JSON of at most :data:`PAYLOAD_LIMIT_BYTES`."""
    text = _JSON.encode(message)
    if len(text) > PAYLOAD_LIMIT_BYTES and message.finding is not None:
        # The finding is kept whole in its alert.
        message = msgspec.structs.replace(message, finding=None)
        text = _JSON.encode(message)
    if len(text) > PAYLOAD_LIMIT_BYTES and message.chart is not None:
        # Words first: a picture is no more than a comfort.
        message = msgspec.structs.replace(message, chart=None)
        text = _JSON.encode(message)
    if len(text) > PAYLOAD_LIMIT_BYTES:
        # JSON writes a character in at most 6 bytes.
        room = PAYLOAD_LIMIT_BYTES // 12
        message = msgspec.structs.replace(message, body=message.body[:room] + " …", facts={})
        text = _JSON.encode(message)
    return text.decode()


def load_alerts(
    connection: sqlite3.Connection, where: str = "TRUE", values: tuple[Any, ...] = ()
) -> tuple[list[Alert], int]:
    """Return alerts, oldest first, and how many rows could not be understood."""
    alerts: list[Alert] = []
    strange = 0
    for (text,) in connection.execute(
        f"SELECT finding FROM alert WHERE {where} ORDER BY opened_ts_ms, id",  # noqa: S608
        values,
    ):
        try:
            alerts.append(legacy_text.alert(_ALERT.decode(text)))
        except (msgspec.MsgspecError, TypeError):  # also a text that is none any more
            strange += 1
    return alerts, strange


def load_deliveries(
    connection: sqlite3.Connection, where: str, values: tuple[Any, ...] = ()
) -> tuple[list[Delivery], int]:
    """Return deliveries, oldest first, and how many rows could not be understood."""
    deliveries: list[Delivery] = []
    strange = 0
    for row in connection.execute(
        "SELECT id, alert_key, channel, payload, state, attempts, created_ts_ms, next_try_ts_ms,"  # noqa: S608
        " sent_ts_ms, error, dry_run, lease_until_ts_ms, held, known, fallback_of,"
        f" {code_columns(connection)} FROM delivery WHERE {where} ORDER BY id",
        values,
    ):
        try:
            deliveries.append(_delivery(row))
        except (msgspec.MsgspecError, TypeError):  # also a text that is none any more
            strange += 1
    return deliveries, strange


def _delivery(row: tuple[Any, ...]) -> Delivery:
    return Delivery(
        row=row[0],
        alert_key=row[1],
        channel=row[2],
        message=_MESSAGE.decode(row[3]),
        state=row[4],
        attempts=row[5],
        created_at_s=row[6] / 1000,
        next_try_at_s=to_s(row[7]),
        sent_at_s=to_s(row[8]),
        error=row[9],
        dry_run=bool(row[10]),
        lease_until_s=to_s(row[11]),
        held=row[12] or "",
        known=row[13] or "",
        fallback_of=row[14] or "",
        code=Failure(row[15]) if row[15] else legacy_text.failure(row[9]),
        facts=facts_of(row[16]),
    )


def load_devices(connection: sqlite3.Connection) -> list[Device]:
    """Return every device ever seen, by position, then by first sight."""
    rows = connection.execute(
        "SELECT uuid, source, vendor, position, name, pci_bus, parent_uuid, memory_kind,"
        " memory_total_bytes FROM gpu ORDER BY position IS NULL, position, id"
    ).fetchall()
    positions = {row[0]: row[3] for row in rows}
    return [
        Device(
            uid=row[0],
            source=row[1],
            vendor=row[2],
            index=row[3],
            name=row[4],
            pci_bus=row[5],
            parent_uid=row[6],
            parent_index=positions.get(row[6]),
            memory_kind=row[7],
            memory_total_bytes=row[8],
        )
        for row in rows
    ]


PROCESS_COLUMNS = (
    "p.pid, p.started_at_s, p.user, p.name, p.args, p.parent_pid, p.framework, p.framework_sure,"
    " p.job, p.container, p.program"
)


def _argv(joined: str) -> tuple[str, ...]:
    """Return a command line: as a rule no word of it is quoted, and a month has thousands."""
    if _QUOTES.intersection(joined):
        with contextlib.suppress(ValueError):  # not as it was written
            return tuple(shlex.split(joined))
    return tuple(joined.split(" "))


def process_info(row: tuple[Any, ...]) -> ProcessInfo:
    """Return the process of a row that begins with :data:`PROCESS_COLUMNS`."""
    info = ProcessInfo(
        key=ProcessKey(pid=row[0], started_at_s=row[1]),
        user=row[2],
        name=row[3],
        argv=_argv(row[4]) if row[4] else (),
        parent_pid=row[5],
        framework=row[6],
        framework_sure=bool(row[7]),
        job=row[8],
        container=row[9],
        program=row[10],
    )
    return legacy_text.process(info)
