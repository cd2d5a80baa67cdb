"""When jobs saved their work: one small table, written by the daemon and by whoever saves.

Like the user's label of an alert (:mod:`labels`): a row in a transaction of its own, kept whether
the daemon runs or not. A process is its pid and its start time, so that a later one with the same
pid never inherits a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.core.model import ProcessKey, Value
from gpuwatchd.store import client_connection, records

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

SAME_S: Final = 2.0
"""Start times of one process, told by different programs, differ by less."""
KEPT_PER_PROCESS: Final = 100
NEWEST: Final = 1000
"""Those that the daemon reads, in the thread that samples: jobs may tell of thousands."""


class Checkpoint(Value, frozen=True, kw_only=True):
    """One time at which a process had saved its work."""

    process: ProcessKey
    saved_at_s: float
    said_by: str
    """"file", or the user who said it."""
    detail: str = ""
    """The file, where it was one."""
    row: int | None = None


def same(key: ProcessKey, other: ProcessKey) -> bool:
    """Say whether two identities, perhaps from different programs, are of one process."""
    if key.pid != other.pid:
        return False
    if key.started_at_s is None or other.started_at_s is None:
        return key.started_at_s is other.started_at_s
    return abs(key.started_at_s - other.started_at_s) < SAME_S


def load(
    connection: sqlite3.Connection, where: str = "TRUE", values: tuple[Any, ...] = ()
) -> list[Checkpoint]:
    """Return checkpoints, oldest first."""
    return [
        Checkpoint(
            row=row[0],
            process=ProcessKey(pid=row[1], started_at_s=row[2]),
            saved_at_s=row[3] / 1000,
            said_by=row[4],
            detail=row[5] or "",
        )
        for row in connection.execute(
            "SELECT id, pid, started_at_s, saved_ts_ms, said_by, detail FROM checkpoint"  # noqa: S608
            f" WHERE {where} ORDER BY saved_ts_ms, id",
            values,
        )
    ]


def lately(connection: sqlite3.Connection) -> list[Checkpoint]:
    """Return those that were noted last, oldest first; how many there are costs nothing."""
    return load(connection, "id IN (SELECT id FROM checkpoint ORDER BY id DESC LIMIT ?)", (NEWEST,))


def insert(connection: sqlite3.Connection, checkpoint: Checkpoint) -> int:
    """Write a checkpoint inside the caller's transaction, unless it is known; return its row.

    Of one process only the newest are kept.
    """
    saved_ms = records.to_ms(checkpoint.saved_at_s)
    pid, started_at_s = checkpoint.process.pid, checkpoint.process.started_at_s
    known = connection.execute(
        "SELECT id FROM checkpoint WHERE pid = ? AND started_at_s IS ? AND saved_ts_ms = ?",
        (pid, started_at_s, saved_ms),
    ).fetchone()
    if known is not None:
        return int(known[0])
    row: int = connection.execute(
        "INSERT INTO checkpoint(pid, started_at_s, saved_ts_ms, said_by, detail)"
        " VALUES(?,?,?,?,?) RETURNING id",
        (pid, started_at_s, saved_ms, checkpoint.said_by, checkpoint.detail or None),
    ).fetchone()[0]
    connection.execute(
        "DELETE FROM checkpoint WHERE pid = ? AND started_at_s IS ? AND id NOT IN (SELECT id FROM"
        " checkpoint WHERE pid = ? AND started_at_s IS ? ORDER BY saved_ts_ms DESC, id DESC"
        " LIMIT ?)",
        (pid, started_at_s, pid, started_at_s, KEPT_PER_PROCESS),
    )
    return row


def write(directory: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Write a checkpoint, for programs other than the daemon; return it with its row.

    It survives a power cut once this returns.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    row = client_connection.transaction(directory, lambda it: insert(it, checkpoint))
    return msgspec.structs.replace(checkpoint, row=row)


def expire(connection: sqlite3.Connection, before_ms: int) -> None:
    """Forget checkpoints that are too old, in the caller's transaction."""
    connection.execute("DELETE FROM checkpoint WHERE saved_ts_ms < ?", (before_ms,))
