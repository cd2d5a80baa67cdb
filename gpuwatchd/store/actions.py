"""What was done to processes, by whom, and what came of it: a row before and a row after.

Like the other small tables that several programs write, each row is a transaction of its own; one
that was asked for and has no row after it was cut off in the middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpuwatchd.core.model import ProcessKey, Value
from gpuwatchd.store import access, legacy_text, records

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

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
    return access.transaction(directory, lambda it: insert(it, action))
