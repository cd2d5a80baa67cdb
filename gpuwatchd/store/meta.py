"""Instants that must outlive the daemon: when a digest was last sent, say. Rows of table meta."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


def load(connection: sqlite3.Connection, name: str) -> float | None:
    """Return an instant (epoch seconds); None where none was kept, or nobody understands it."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
    try:
        return None if row is None else float(row[0])
    except ValueError:
        return None


def save(connection: sqlite3.Connection, name: str, at_s: float) -> None:
    """Keep an instant inside the caller's transaction."""
    connection.execute(
        "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)", (name, f"{at_s:.3f}")
    )


def save_whole(connection: sqlite3.Connection, name: str, value: int) -> None:
    """Keep a whole number inside the caller's transaction."""
    connection.execute("INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)", (name, str(value)))


def whole(connection: sqlite3.Connection, name: str) -> int:
    """Return a whole number, such as up to when a roll-up is complete; 0 where none is kept.

    Also where nobody understands it: then the roll-up is made again from what is there.
    """
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
    try:
        return 0 if row is None else int(row[0])
    except (TypeError, ValueError):
        return 0
