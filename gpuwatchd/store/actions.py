"""What was done to processes, by whom, and what came of it: a row before and a row after.

Like the other small tables that several programs write, each row is a transaction of its own; one
that was asked for and has no row after it was cut off in the middle.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gpuwatchd.core.model import ProcessKey, Value
from gpuwatchd.store import checkpoints, client_connection, legacy_text, records

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

# What was asked of jobs and when they saved their work, as things that happened: for people.

ASK: Final = "ask-to-save"
SAVED: Final = "saved"
_KINDS: Final[dict[Phase, str]] = {
    "asked": ASK,
    "done": "asked-to-save",
    "refused": "not-asked-to-save",
}

# One look at each device: of one that runs for a month every minute has a row.
_ON: Final = (
    """SELECT uuid FROM gpu g WHERE EXISTS
  (SELECT 1 FROM process_1m WHERE process = ? AND gpu = g.id) ORDER BY id""",
    """SELECT uuid FROM gpu WHERE id IN (SELECT gpu FROM process_raw WHERE process = ?)
ORDER BY id""",
)


class ActionEvent(Value, frozen=True, kw_only=True):
    """One thing that was done to a job, or that it did."""

    at_s: float
    kind: str
    """ask-to-save, asked-to-save, not-asked-to-save or saved."""
    process: ProcessKey | None
    name: str = ""
    """Of the process, where it was seen."""
    who: str = ""
    """The user who did or said it; "" for a file that was seen."""
    result: str = ""
    device_uids: tuple[str, ...] = ()
    """Devices that the process was seen on; () where nobody knows."""


def load_events(connection: sqlite3.Connection, since_s: float) -> list[ActionEvent]:
    """Return what was done since then, oldest first."""
    since_ms = records.to_ms(since_s)
    events = [
        ActionEvent(
            at_s=action.at_s, kind=_KINDS[action.phase], process=action.process, who=action.who,
            result=action.result,
        )
        for action in load(connection, "a.ts_ms >= ? AND NOT a.dry_run", (since_ms,))
        if action.phase in _KINDS  # damage may make anything of a word
        and not action.saved  # which the checkpoint itself says
    ]  # fmt: skip
    for saved in checkpoints.load(connection, "saved_ts_ms >= ?", (since_ms,)):
        who = "" if saved.said_by == "file" else saved.said_by
        events.append(
            ActionEvent(
                at_s=saved.saved_at_s, kind=SAVED, process=saved.process, who=who,
                result=saved.detail,
            )
        )  # fmt: skip
    title = functools.cache(lambda key: _title_row(connection, key))
    for number, event in enumerate(events):
        if event.process is not None:
            name, uids = title(event.process)
            events[number] = msgspec.structs.replace(event, name=name, device_uids=uids)
    return sorted(events, key=lambda event: event.at_s)


def _title_row(connection: sqlite3.Connection, key: ProcessKey) -> tuple[str, tuple[str, ...]]:
    """Return the name of a process and the devices that it was seen on."""
    known = connection.execute(
        "SELECT id, name FROM process WHERE pid = ? AND abs(ifnull(started_at_s, 0) - ?) < ?"
        " ORDER BY id DESC LIMIT 1",
        (key.pid, key.started_at_s or 0.0, checkpoints.SAME_S),
    ).fetchone()
    if known is None:
        return "", ()
    for query in _ON:
        on = connection.execute(query, (known[0],)).fetchall()
        if on:
            return known[1], tuple(uid for (uid,) in on)
    return known[1], ()


Phase = Literal["asked", "done", "refused"]
_SAVED = "saved"


class Action(Value, frozen=True, kw_only=True):
    """One step of something that was done to a process."""

    at_s: float
    verb: str
    """Name of the action: checkpoint."""
    process: ProcessKey | None
    phase: Phase
    dry_run: bool = False
    result: str = ""
    """What came of it, in a line."""
    saved: bool = False
    """A further row "done": the checkpoint that was asked for has been seen."""
    who: str = ""
    row: int | None = None


def insert(connection: sqlite3.Connection, action: Action) -> int:
    """Write a row inside the caller's transaction; return its number."""
    row: int = connection.execute(
        "INSERT INTO action(ts_ms, verb, process, dry_run, phase, result, who, code)"
        " VALUES(?,?,?,?,?,?,?,?) RETURNING id",
        (
            records.to_ms(action.at_s),
            action.verb,
            _process_row(connection, action.process),
            int(action.dry_run),
            action.phase,
            action.result or None,
            action.who or None,
            _SAVED if action.saved else None,
        ),
    ).fetchone()[0]
    return row


def _process_row(connection: sqlite3.Connection, key: ProcessKey | None) -> int | None:
    """Return the newest row of a process; None for one that no device was seen to be used by."""
    if key is None:
        return None
    found = connection.execute(
        "SELECT id FROM process WHERE pid = ? AND abs(ifnull(started_at_s, 0) - ?) < 1"
        " ORDER BY id DESC LIMIT 1",
        (key.pid, key.started_at_s or 0.0),
    ).fetchone()
    return None if found is None else int(found[0])


def load(
    connection: sqlite3.Connection, where: str = "TRUE", values: tuple[object, ...] = ()
) -> list[Action]:
    """Return rows, oldest first."""
    return [
        Action(
            row=row[0],
            at_s=row[1] / 1000,
            verb=row[2],
            process=None if row[3] is None else ProcessKey(pid=row[3], started_at_s=row[4]),
            dry_run=bool(row[5]),
            phase=row[6],
            result=row[7] or "",
            who=row[8] or "",
            saved=row[9] == _SAVED or legacy_text.is_saved(row[7] or ""),
        )
        for row in connection.execute(
            "SELECT a.id, a.ts_ms, a.verb, p.pid, p.started_at_s, a.dry_run, a.phase, a.result,"  # noqa: S608
            f" a.who, a.code FROM action a LEFT JOIN process p ON p.id = a.process WHERE {where}"
            " ORDER BY a.id",
            values,
        )
    ]


def add(directory: Path, action: Action) -> int:
    """Keep a row and return its number; power-cut-safe when it returns. For any program.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    return client_connection.transaction(directory, lambda it: insert(it, action))
