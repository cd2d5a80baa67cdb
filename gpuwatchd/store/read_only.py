"""A history in a directory that we may not write to, and that no daemon has open.

While a daemon has it open, its side files are there, and whoever may read them reads along. A
daemon that stops in order takes them away, and SQLite would have to make them again: then nothing
changes the file any more, and it is read as one that never does. One that was killed may leave a
write-ahead log without the index to it: that is read from a copy, since the file alone may have
been left in the middle of a change.

A daemon may start while such a file is read: what was read then may be of two times, or look like
damage. So every answer counts only if nothing has moved since the file was opened.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpuwatchd.core.errors import StoreError
from gpuwatchd.store import client_connection, integrity

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
Seen: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""Number, size and change of a history and of its log; None for one that is not there."""


class Opened:
    """A history that is open for reading.

    Parameters
    ----------
    trace
        Is told every statement.

    Raises
    ------
    StoreError
        It is not a history of this version.
    sqlite3.Error
        It cannot be opened, or not be read.
    """

    def __init__(self, path: Path, trace: Callable[[str], None]) -> None:
        self._path = path
        self._trace = trace
        self._open()

    def answer(self, work: Callable[[], _T]) -> _T:
        """Return what some reading from :attr:`connection` finds.

        Raises
        ------
        sqlite3.Error
            It cannot be read.
        """
        try:
            done = work()
        except integrity.SUSPECT:
            if not self._has_moved():
                raise
        else:
            if not self._has_moved():
                return done
        self.connection.close()
        self._open()
        return work()

    def _open(self) -> None:
        self.connection, self._seen = _opened(self._path)
        self.connection.set_trace_callback(self._trace)

    def _has_moved(self) -> bool:
        return self._seen is not None and file_state(self._path) != self._seen


def _opened(path: Path) -> tuple[sqlite3.Connection, Seen | None]:
    """Return an open history, judged, and how it was where nobody may change it; None elsewhere."""
    seen = file_state(path)
    try:
        return client_connection.connect(path, "mode=ro"), None
    except sqlite3.OperationalError as error:
        if not _is_it(error):
            raise
    try:
        return _connect(path), seen
    except (sqlite3.Error, StoreError):
        if file_state(path) == seen:
            raise
    return client_connection.connect(
        path, "mode=ro"
    ), None  # a daemon has started, and lets us read along


def file_state(path: Path) -> Seen:
    """Return how a history and its log are now."""
    return tuple(_stat(one) for one in (path, _log(path)))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        stat_result = path.stat()
    except OSError:
        return None
    return stat_result.st_ino, stat_result.st_size, stat_result.st_mtime_ns


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _is_it(error: sqlite3.OperationalError) -> bool:
    """Say whether SQLite failed since it could not make files beside the history."""
    return error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def _connect(path: Path) -> sqlite3.Connection:
    log = _log(path)
    try:
        whole = log.stat().st_size == 0
    except OSError:
        whole = True
    if whole:
        return client_connection.connect(path, "immutable=1")
    with tempfile.TemporaryDirectory(prefix="gpuwatchd-") as private:
        copy = Path(private, path.name)
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name(log.name))
        except OSError as error:
            raise sqlite3.OperationalError(f"it cannot be copied: {error.strerror}") from error
        # What is open stays readable when its directory goes.
        return client_connection.connect(copy, "mode=ro")
