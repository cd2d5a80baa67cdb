"""A checked connection to the history, for every program but the daemon (see :mod:`database`).

For reading, a directory may be one that we may not write to. While a daemon has the file open, its
side files are there, and whoever may read them reads along. A daemon that stops in order takes them
away, and SQLite would have to make them again: then nothing changes the file any more, and it is
read as one that never does. One that was killed may leave a write-ahead log without the index to
it: that is read from a copy, since the file alone may have been left in the middle of a change.

A daemon may start while such a file is read: what was read then may be of two times, or look like
damage. So an answer counts only if the file is in the state that it was opened in.
"""

from __future__ import annotations

import shlex
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpuwatchd.core.errors import StoreBusy, StoreDamaged, StoreError, StoreNewer
from gpuwatchd.store import schema

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
FileState: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""Number, size and change of a history and of its log; None for one that is not there."""
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
    connection = schema.connect(path, how, BUSY_S)
    try:
        _judge(connection, path)
    except BaseException as error:
        with closing(connection):
            if isinstance(error, schema.SUSPECT):
                blame(path, error, connection)
        raise
    return connection


def _judge(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is not a history of this version."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if mark != schema.APPLICATION_ID:
        raise damaged(path, "not a history of gpuwatchd")
    if not schema.possible(version):
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
    if schema.is_damage(error):
        return damaged(path, str(error))
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreBusy(f"{path} is locked by another program", hint="try again in a moment")
    full = code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
    return StoreError(
        f"{path} cannot be used: {error}",
        hint="is the disk full?" if full else "check the owner and mode of the file",
    )


def blame(path: Path, error: BaseException, connection: sqlite3.Connection) -> None:
    """Blame the file for an error of :data:`schema.SUSPECT`, if it is damaged.

    Raises
    ------
    StoreDamaged
        It is. Returns otherwise: then it is a fault of ours, or no damage.
    """
    if schema.is_doubtful(error) and (why := schema.damage(connection)) is not None:
        raise damaged(path, why) from error


def transaction(directory: Path, work: Callable[..., _T], *args: object) -> _T:
    """Write something from a program other than the daemon; it survives a power cut on return.

    ``work`` gets the open history, and ``args``.

    Raises
    ------
    StoreError
        There is no history, or it cannot be written.
    """
    path = find(directory)
    try:
        with closing(connect(path, "mode=rw")) as connection:
            try:
                with schema.transaction(connection, durable=True):
                    return work(connection, *args)
            except schema.SUSPECT as error:
                blame(path, error, connection)
                raise
    except sqlite3.Error as error:
        raise translated(path, error) from error


def open_reading(path: Path) -> tuple[sqlite3.Connection, FileState | None]:
    """Return a checked history, and its state where nobody may change it; None elsewhere.

    Raises
    ------
    StoreError
        It is not a history of this version.
    sqlite3.Error
        It cannot be opened, or not be read.
    """
    seen = file_state(path)
    try:
        return connect(path, "mode=ro"), None
    except sqlite3.OperationalError as error:
        # It failed since it could not make files beside the history?
        if error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
            raise
    try:
        return _connect_alone(path), seen
    except (sqlite3.Error, StoreError):
        if file_state(path) == seen:
            raise
    return connect(path, "mode=ro"), None  # a daemon has started, and lets us read along


def file_state(path: Path) -> FileState:
    """Return how a history and its log are now."""
    state: list[tuple[int, int, int] | None] = []
    for file in (path, _log(path)):
        try:
            stat_result = file.stat()
        except OSError:
            state.append(None)
        else:
            state.append((stat_result.st_ino, stat_result.st_size, stat_result.st_mtime_ns))
    return tuple(state)


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _connect_alone(path: Path) -> sqlite3.Connection:
    log = _log(path)
    try:
        whole = log.stat().st_size == 0
    except OSError:
        whole = True
    if whole:
        return connect(path, "immutable=1")
    with tempfile.TemporaryDirectory(prefix="gpuwatchd-") as private:
        copy = Path(private, path.name)
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name(log.name))
        except OSError as error:
            raise sqlite3.OperationalError(f"it cannot be copied: {error.strerror}") from error
        # What is open stays readable when its directory goes.
        return connect(copy, "mode=ro")
