"""Values of the model <-> rows of the history.

Every function that saves works inside its caller's transaction.
Instants are whole milliseconds in the tables. An alert is kept whole, as JSON, in ``finding``; its
other columns are for people with an SQL prompt.
"""

from __future__ import annotations

import contextlib
import enum
import re
import shlex
import sqlite3
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, get_args

import msgspec

from gpuwatchd.core import decoding
from gpuwatchd.core.model import Alert, Delivery, Device, Message, ProcessInfo, ProcessKey, Subject
from gpuwatchd.store import legacy_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpuwatchd.core.codes import Facts

    _Decoder = msgspec.json.Decoder[Any]

_Any = TypeVar("_Any")
_Value = TypeVar("_Value", bound=msgspec.Struct)
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

_QUOTES = frozenset("'\"\\\t\r\n")
_JSON = msgspec.json.Encoder()
_FACTS = decoding.decoder(dict[str, float | str])
_ALERT = decoding.decoder(Alert)


def to_ms(at_s: float | None) -> int | None:
    """Return an instant in whole milliseconds; unknown stays None."""
    return None if at_s is None else round(at_s * 1000)


def to_s(ts_ms: int | None) -> float | None:
    """Return an instant in seconds; unknown stays None."""
    return None if ts_ms is None else ts_ms / 1000


def facts_json(facts: Facts) -> str | None:
    """Return the numbers beside a code as JSON; None without any."""
    return json_text(facts) if facts else None


def json_text(value: object) -> str:
    """Return a value as JSON."""
    return _JSON.encode(value).decode()


def facts_of(text: str | None) -> Facts:
    """Return the numbers beside a code; none of a text that is damaged."""
    with contextlib.suppress(msgspec.MsgspecError, TypeError):
        return _FACTS.decode(text or "{}")
    return {}


def insert(
    connection: sqlite3.Connection,
    table: str,
    row: Mapping[str, Any],
    then: str = "",
    *,
    or_replace: bool = False,
) -> int:
    """Insert a row, given as column -> value, and return its number; ``then`` is for conflicts."""
    marks = ", ".join("?" * len(row))
    insert = "INSERT OR REPLACE" if or_replace else "INSERT"
    found: int = connection.execute(
        f"{insert} INTO {table}({', '.join(row)}) VALUES({marks}) {then} RETURNING id",
        tuple(row.values()),
    ).fetchone()[0]
    return found


def refused(write: Callable[[_Any], object], values: Iterable[_Any]) -> int:
    """Write values one by one; return how many were left out because they did not fit."""
    count = 0
    for value in values:
        try:
            write(value)
        except UnicodeDecodeError:  # of a name in the file: damage
            raise
        except REFUSED:
            count += 1
    return count


def insert_rows(connection: sqlite3.Connection, statement: str, rows: list[tuple[Any, ...]]) -> int:
    """Insert rows; where one does not fit, leave out that one. Return how many were left out."""
    try:
        connection.executemany(statement, rows)
    except REFUSED:
        return refused(lambda row: connection.execute(statement, row), rows)
    return 0


def updating(columns: Iterable[str], form: str = "excluded.{0}", **others: str) -> str:
    """Return ``DO UPDATE SET``: each column as ``form`` says, some as ``others`` do."""
    changes = dict.fromkeys(columns, form) | others
    return "DO UPDATE SET " + ", ".join(f"{it} = {how.format(it)}" for it, how in changes.items())


_NAMES: Final = {
    "row": "id",
    "uid": "uuid",
    "index": "position",
    "parent_uid": "parent_uuid",
    "device_uid": "gpu_uuid",
    "target": "channel",
    "message": "payload",
    "argv": "args",
    "at_s": "ts_ms",
    "lease_until_s": "lease_until_ts_ms",
    "started_at_s": "started_at_s",
}
"""Field -> column, where it is not the same, nor an instant: ``saved_at_s`` is ``saved_ts_ms``."""


class _Field(NamedTuple):
    """A field of a Struct, and its columns."""

    name: str
    columns: tuple[str, ...]
    cells: Callable[[Any], Iterable[Any]]
    value: Callable[..., Any]


def _fields(
    kind: type[msgspec.Struct], without: Iterable[str] = (), json: _Decoder | None = None
) -> tuple[_Field, ...]:
    fields = msgspec.structs.fields(kind)
    return tuple(_field(field, json) for field in fields if field.name not in without)


def _field(field: msgspec.structs.FieldInfo, json: _Decoder | None) -> _Field:
    name = field.name
    column = _NAMES.get(name) or re.sub("_at_s$", "_ts_ms", name)
    kinds = [kind for kind in (field.type, *get_args(field.type)) if isinstance(kind, type)]
    kind: Any = kinds[0] if kinds else str
    optional = type(None) in kinds
    if kind in {ProcessKey, Subject}:
        parts = _fields(kind)
        columns = tuple(column for part in parts for column in part.columns)
        return _Field(
            name,
            columns,
            partial(_cells, parts),
            lambda *row: None if optional and row[0] is None else _made(kind, parts, row, {}),
        )
    cell: Callable[[Any], Any] = _same
    value: Callable[[Any], Any] = _same
    if name == "facts":
        cell, value = facts_json, facts_of
    elif name == "argv":
        cell, value = (lambda argv: shlex.join(argv) or None), _argv
    elif column.endswith("ts_ms"):
        cell, value = to_ms, to_s if optional else (lambda ts_ms: ts_ms / 1000)
    elif kind is bool:
        value = bool
    elif issubclass(kind, enum.Enum):
        value = lambda code: kind(code) if code else None  # noqa: E731
    elif json is not None and issubclass(kind, msgspec.Struct):
        cell, value = json_text, json.decode
    elif field.default == "":
        cell, value = (lambda text: text or None), (lambda text: text or "")
    return _Field(name, (column,), lambda one: (cell(one),), value)


def _same(value: Any) -> Any:
    return value


def _cells(fields: tuple[_Field, ...], value: msgspec.Struct | None) -> list[Any]:
    if value is None:
        return [None for field in fields for _ in field.columns]
    return [cell for field in fields for cell in field.cells(getattr(value, field.name))]


def _made(
    kind: type[_Value], fields: tuple[_Field, ...], row: tuple[Any, ...], others: dict[str, Any]
) -> _Value:
    values, at = dict(others), 0
    for field in fields:
        end = at + len(field.columns)
        values[field.name] = field.value(*row[at:end])
        at = end
    return kind(**values)


class Table(Generic[_Value]):
    """A table that keeps values of one Struct, a column of each field.

    An instant is whole milliseconds, a text that is empty by default NULL then, a process its pid
    and its start, and a Struct in it JSON.

    Parameters
    ----------
    json
        Decodes the Struct in it.
    rows
        Where its rows are read from, if a column is not as its field needs it.
    skipped
        What a row that cannot be understood raises: it is left out.
    others
        Fields that are not kept, with their values.
    """

    def __init__(
        self,
        name: str,
        kind: type[_Value],
        *,
        json: _Decoder | None = None,
        rows: str = "",
        order: str = "id",
        skipped: tuple[type[Exception], ...] = (),
        **others: Any,
    ) -> None:
        self.name = name
        self._kind = kind
        self._json = json
        self._rows = rows or name
        self._order = order
        self._skipped = skipped
        self._others = others

    @cached_property
    def _fields(self) -> tuple[_Field, ...]:
        return _fields(self._kind, self._others, self._json)

    def row(self, value: _Value) -> dict[str, Any]:
        """Return the columns of a value, but for its number."""
        columns = (column for field in self._fields for column in field.columns)
        row = dict(zip(columns, _cells(self._fields, value), strict=True))
        row.pop("id", None)
        return row

    def insert(self, connection: sqlite3.Connection, value: _Value) -> int:
        """Write a value, inside the caller's transaction; return its row."""
        return insert(connection, self.name, self.row(value))

    def load(
        self, connection: sqlite3.Connection, where: str = "TRUE", values: tuple[Any, ...] = ()
    ) -> list[_Value]:
        """Return the values of rows, in order."""
        return self.load_counted(connection, where, values)[0]

    def load_counted(
        self, connection: sqlite3.Connection, where: str = "TRUE", values: tuple[Any, ...] = ()
    ) -> tuple[list[_Value], int]:
        """Return the values of rows, in order, and how many could not be understood."""
        columns = [column for field in self._fields for column in field.columns]
        if "facts" in columns:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version < CODES_SINCE:  # a file that waits to be upgraded
                columns = ["NULL" if it in {"code", "facts"} else it for it in columns]
        found: list[_Value] = []
        strange = 0
        for row in connection.execute(
            f"SELECT {', '.join(columns)} FROM {self._rows} WHERE {where} ORDER BY {self._order}",  # noqa: S608
            values,
        ):
            try:
                value = _made(self._kind, self._fields, row, self._others)
            except self._skipped:
                strange += 1
            else:
                found.append(value)
        return found, strange


DEVICES: Final = Table("gpu", Device, order="position IS NULL, position, id", parent_index=None)


def save_device(connection: sqlite3.Connection, device: Device, seen_ms: tuple[int, int]) -> int:
    """Insert or refresh a device and return its row; ``seen_ms`` is first and last."""
    row = DEVICES.row(device) | {"source": device.source}
    change = updating(
        (*row, "last_ts_ms"),
        **dict.fromkeys(("pci_bus", "parent_uuid", "memory_total_bytes"), _KEPT),
        last_ts_ms=_LATEST,
    )
    row |= {"first_ts_ms": seen_ms[0], "last_ts_ms": seen_ms[1]}
    return insert(connection, "gpu", row, f"ON CONFLICT(uuid) {change}")


def load_devices(connection: sqlite3.Connection) -> list[Device]:
    """Return every device ever seen, by position, then by first sight."""
    devices = DEVICES.load(connection)
    positions = {device.uid: device.index for device in devices}
    return [
        msgspec.structs.replace(device, parent_index=positions.get(device.parent_uid or ""))
        for device in devices
    ]


def device_row(connection: sqlite3.Connection, uid: str) -> int | None:
    """Return the row of a device; None of one that was never seen."""
    found = connection.execute("SELECT id FROM gpu WHERE uuid = ?", (uid,)).fetchone()
    return None if found is None else int(found[0])


_KEPT: Final = "coalesce(excluded.{0}, {0})"
"""What was known stays where nothing new is."""
_LATEST: Final = "max({0}, excluded.{0})"


_KNOWN: Final = {
    "key", "user", "name", "argv", "parent_pid", "framework", "framework_sure", "job", "container",
    "program",
}  # fmt: skip
"""What is kept of a process."""
_DEFAULTS: Final = zip(
    ProcessInfo.__struct_fields__[-len(ProcessInfo.__struct_defaults__) :],
    ProcessInfo.__struct_defaults__,
    strict=True,
)
PROCESSES: Final = Table(
    "process",
    ProcessInfo,
    order="first_ts_ms, id",
    **{name: value for name, value in _DEFAULTS if name not in _KNOWN},
)


def save_process(
    connection: sqlite3.Connection, boot_id: str, info: ProcessInfo, seen_ms: tuple[int, int]
) -> int:
    """Insert or refresh a process and return its row; ``seen_ms`` is first and last."""
    row = PROCESSES.row(info)
    change = updating(
        [column for column in row if column not in {"pid", "started_at_s"}],
        _KEPT,
        name="CASE excluded.name WHEN '' THEN name ELSE excluded.name END",
        framework_sure=_LATEST,
        last_ts_ms=_LATEST,
    )
    row |= {"boot_id": boot_id, "started_ts_ms": to_ms(info.key.started_at_s)}
    row |= {"first_ts_ms": seen_ms[0], "last_ts_ms": seen_ms[1]}
    conflict = f"ON CONFLICT(boot_id, pid, ifnull(started_ts_ms, -1)) {change}"
    try:
        return insert(connection, "process", row, conflict)
    except REFUSED:
        # A text that is no Unicode got this far; who it is stays known.
        if info == (nameless := ProcessInfo(key=info.key, name="?")):
            raise
        return save_process(connection, boot_id, nameless, seen_ms)


def load_processes(
    connection: sqlite3.Connection, where: str, values: tuple[Any, ...] = ()
) -> list[ProcessInfo]:
    """Return processes, by their first sight."""
    return list(map(legacy_text.process, PROCESSES.load(connection, where, values)))


DELIVERIES: Final = Table(
    "delivery",
    Delivery,
    json=decoding.decoder(Message),
    skipped=(msgspec.MsgspecError, TypeError),  # also a text that is none any more
)
ABOUT_ALERT: Final = "alert_key = ? OR id IN (SELECT delivery FROM told WHERE alert_key = ?)"
"""Deliveries that tell of an alert, among others: its key, twice."""


def save_alert(connection: sqlite3.Connection, alert: Alert) -> int:
    """Insert an alert, or update the row of the same key, and return the row.

    The row is that of the same opening, else the one that is still open: there is at most one.
    """
    opened_ms, process = to_ms(alert.opened_at_s), alert.subject.process
    found = (
        process
        and connection.execute(
            "SELECT id FROM process WHERE pid = ? AND ifnull(started_ts_ms, -1) = ?"
            " ORDER BY last_ts_ms DESC LIMIT 1",
            (process.pid, -1 if process.started_at_s is None else to_ms(process.started_at_s)),
        ).fetchone()
    )
    (row,) = connection.execute(
        "SELECT coalesce((SELECT id FROM alert WHERE key = ? AND opened_ts_ms = ?),"
        " (SELECT id FROM alert WHERE key = ? AND resolved_ts_ms IS NULL))",
        (alert.key, opened_ms, alert.key),
    ).fetchone()
    changing = {
        "severity": alert.severity,
        "state": alert.state,
        "gpu": device_row(connection, alert.subject.device_uid),
        "process": found and found[0],
        "opened_ts_ms": opened_ms,
        "changed_ts_ms": to_ms(alert.changed_at_s),
        "resolved_ts_ms": to_ms(alert.resolved_at_s),
        "confirmations": alert.confirmations,
        "notices": alert.notices,
        "next_notice_ts_ms": to_ms(alert.next_notice_at_s),
        "title": alert.title,
        "finding": json_text(alert),
        "code": alert.ended_code,
        "facts": facts_json(alert.ended_facts),
    }
    whole = {"id": row, "key": alert.key, "kind": alert.kind} | changing
    return insert(connection, "alert", whole, f"ON CONFLICT(id) {updating(changing)}")


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


_LASTING: Final = {"alert_key", "channel", "payload", "created_ts_ms", "fallback_of"}
"""Columns of a delivery that do not change."""


def save_delivery(
    connection: sqlite3.Connection, moved: dict[int, int], promised: tuple[int, Delivery]
) -> None:
    """Insert a delivery under the row that it was promised, or update it.

    The same message on the same channel is one delivery: then its older row is kept. Where the row
    is another message's, it gets a new one. ``moved`` then gets the row that it has.
    """
    row, delivery = promised
    message = delivery.message
    alert = connection.execute(
        "SELECT id FROM alert WHERE key = ? ORDER BY opened_ts_ms DESC LIMIT 1",
        (delivery.alert_key,),
    ).fetchone()
    taken = connection.execute(
        "SELECT 1 FROM delivery WHERE id = ? AND (channel, message_id) IS NOT (?, ?)",
        (row, delivery.channel, message.id),
    ).fetchone()
    columns = DELIVERIES.row(msgspec.structs.replace(delivery, message=bounded(message)))
    change = updating([column for column in columns if column not in _LASTING])
    whole = columns | {
        "id": row if taken is None else None,
        "alert": alert and alert[0],
        "notice": message.notice,
        "message_id": message.id,
    }
    conflicts = f"ON CONFLICT(id) {change} ON CONFLICT(channel, message_id) {change}"
    found = insert(connection, "delivery", whole, conflicts)
    connection.executemany(
        "INSERT OR IGNORE INTO told(delivery, alert_key) VALUES(?,?)",
        [(found, key) for key in message.also],
    )
    if found != row:
        moved[row] = found


def bounded(message: Message) -> Message:
    """Return what of a message is at most :data:`PAYLOAD_LIMIT_BYTES` of JSON."""
    # JSON writes a character in at most 6 bytes.
    end = PAYLOAD_LIMIT_BYTES // 12
    for less in (
        {"finding": None},  # it is kept whole in its alert
        {"chart": None},  # words first: a picture is no more than a comfort
        {"body": message.body[:end] + " …", "facts": {}},
    ):
        if len(_JSON.encode(message)) <= PAYLOAD_LIMIT_BYTES:
            break
        message = msgspec.structs.replace(message, **less)
    return message


def load_deliveries(
    connection: sqlite3.Connection, where: str, values: tuple[Any, ...] = ()
) -> tuple[list[Delivery], int]:
    """Return deliveries, oldest first, and how many rows could not be understood."""
    deliveries, strange = DELIVERIES.load_counted(connection, where, values)
    return [
        delivery
        if delivery.code or not delivery.error
        else msgspec.structs.replace(delivery, code=legacy_text.failure(delivery.error))
        for delivery in deliveries
    ], strange


def _argv(joined: str | None) -> tuple[str, ...]:
    """Return a command line: as a rule no word of it is quoted, and a month has thousands."""
    if not joined:
        return ()
    if _QUOTES.intersection(joined):
        with contextlib.suppress(ValueError):  # not as it was written
            return tuple(shlex.split(joined))
    return tuple(joined.split(" "))
