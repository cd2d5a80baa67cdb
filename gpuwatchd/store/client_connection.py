"""May this file be used? For every program but the daemon, which has :mod:`database` for it."""

from __future__ import annotations

import shlex
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from gpuwatchd.core.errors import StoreBusy, StoreDamaged, StoreError, StoreNewer
from gpuwatchd.store import integrity, schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_T = TypeVar("_T")
BUSY_S = 5.0
"""How long a question (or a word of the user's) waits for the daemon's transaction."""


def find(directory: Path) -> Path:
    """Return the file of a state directory.

    Raises
    ------
    StoreError
        There is none, or it may not be read.
    StoreDamaged
        It is empty.
    """
    path = directory / schema.FILE_NAME
    try:
        size = path.stat().st_size
    except OSError as error:
        raise StoreError(
            f"{path}: no history: {error.strerror}",
            hint="is the daemon running? See gpuwatchctl doctor",
            page="errors#no-history",
        ) from error
    if size == 0:
        raise damaged(path, "the file is empty")
    return path


def connect(path: Path, how: str) -> sqlite3.Connection:
    """Return an open file, judged; ``how`` is part of its URI ("mode=ro").

    Raises
    ------
    StoreError
        It is not a history of this version.
    sqlite3.Error
        It cannot be opened, or not be read.
    """
    connection = integrity.connect(path, how, BUSY_S)
    try:
        _judge(connection, path)
    except BaseException as error:
        with closing(connection):
            if isinstance(error, integrity.SUSPECT):
                blame(path, error, connection)
        raise
    return connection


def _judge(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is not a history of this version."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if mark != schema.APPLICATION_ID:
        raise damaged(path, "not a history of gpuwatchd")
    if not integrity.possible(version):
        raise damaged(path, f"there is no format {version}")
    if version > schema.VERSION:
        raise StoreNewer(
            f"{path} was written by a later version of gpuwatchd (format {version}, this version "
            f"knows {schema.VERSION})",
            hint="upgrade gpuwatchd",
        )
    if version < schema.VERSION:
        raise StoreError(
            f"{path} is of an older format ({version}, this version needs {schema.VERSION})",
            hint="start the daemon once: it brings the history up to date",
            page="errors#history-older",
        )
    connection.execute("SELECT count(*) FROM meta").fetchone()


def damaged(path: Path, why: str) -> StoreDamaged:
    """Return the error for a file that is no usable history."""
    return StoreDamaged(
        f"{path} is damaged: {why}",
        hint="a running daemon sets it aside within two minutes, gpuwatchd --once at once; "
        f"to rescue rows: {rescue(path)}",
    )


def rescue(path: Path) -> str:
    """Return the command that copies the rows of a damaged file; its header must be intact."""
    return f"sqlite3 {shlex.quote(str(path))} .recover | sqlite3 rescued.db"


def translated(path: Path, error: sqlite3.Error) -> StoreError:
    """Return one of our errors for one of SQLite's."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if integrity.is_damage(error):
        return damaged(path, str(error))
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreBusy(f"{path} is locked by another program", hint="try again in a moment")
    full = code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
    return StoreError(
        f"{path} cannot be used: {error}",
        hint="is the disk full?" if full else "check the owner and mode of the file",
    )


def blame(path: Path, error: BaseException, connection: sqlite3.Connection) -> None:
    """Blame the file for an error of :data:`integrity.SUSPECT`, if it is damaged.

    Raises
    ------
    StoreDamaged
        It is. Returns otherwise: then it is a fault of ours, or no damage.
    """
    if integrity.is_doubtful(error) and (why := integrity.damage(connection)) is not None:
        raise damaged(path, why) from error


def transaction(directory: Path, work: Callable[[sqlite3.Connection], _T]) -> _T:
    """Write something from a program other than the daemon; it survives a power cut on return.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    path = find(directory)
    try:
        with closing(connect(path, "mode=rw")) as connection:
            try:
                return written(connection, work)
            except integrity.SUSPECT as error:
                blame(path, error, connection)
                raise
    except sqlite3.Error as error:
        raise translated(path, error) from error


def written(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], _T]) -> _T:
    """Do some writing in a transaction of its own that survives a power cut."""
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    try:
        connection.execute("BEGIN IMMEDIATE")
        done = work(connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute(f"PRAGMA synchronous = {level}")
    return done
