"""A history in a directory that we may not write to, and that no daemon has open.

While a daemon has it open, its side files are there, and whoever may read them reads along. A
daemon that stops in order takes them away, and SQLite would have to make them again: then nothing
changes the file any more, and it is read as one that never does. One that was killed may leave a
write-ahead log without the index to it: that is read from a copy, since the file alone may have
been left in the middle of a change.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

from gpuwatchd.store import entry


def is_it(error: sqlite3.OperationalError) -> bool:
    """Say whether SQLite failed since it could not make files beside the history."""
    return error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def connect(path: Path) -> sqlite3.Connection:
    """Return an open history, judged.

    Raises
    ------
    StoreError
        It is not a history of this version.
    sqlite3.Error
        It cannot be opened, or not be read.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        whole = log.stat().st_size == 0
    except OSError:
        whole = True
    if whole:
        return entry.connect(path, "immutable=1")
    with tempfile.TemporaryDirectory(prefix="gpuwatchd-") as private:
        copy = Path(private, path.name)
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name(log.name))
        except OSError as error:
            raise sqlite3.OperationalError(f"it cannot be copied: {error.strerror}") from error
        # What is open stays readable when its directory goes.
        return entry.connect(copy, "mode=ro")
