"""Histories as released versions wrote them: one file of SQL text for each version of the tables.

``python -m tests.store.released`` writes the file of the present version, once, before its release.
A file that is there is never written again: what users have on their disks does not change either.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from gpuwatchd.store import schema

HISTORIES = Path(__file__).with_name("histories")
FULL = HISTORIES / "v5-full.sql"
"""A history with everything in it: each way an alert can end, each reason to hold a notice back,
each state of a delivery, every field away from its default somewhere. The program of dcd1649 wrote
it, by ``write_v5_full.py``, which git still has; it is never written again."""


def path_of(version: int) -> Path:
    """Return the file of a version."""
    return HISTORIES / f"v{version}.sql"


def load(version: int, directory: Path) -> Path:
    """Write the history of a version into a directory, as that version had it on disk."""
    return load_text(path_of(version), directory)


def load_text(file: Path, directory: Path) -> Path:
    """Write the history of a file of SQL text into a directory."""
    path = directory / schema.FILE_NAME
    with closing(sqlite3.connect(path, isolation_level=None)) as it:
        it.executescript(file.read_text("utf-8"))
    return path


def dump(path: Path) -> str:
    """Return a history as SQL text."""
    with closing(sqlite3.connect(path)) as it:
        marks = [
            f"PRAGMA {name} = {it.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        return "\n".join(["PRAGMA journal_mode = wal;", *it.iterdump(), *marks]) + "\n"


def write(version: int) -> bool:
    """Write the file of a version from its steps; False when it is there already."""
    from tests.store.test_migration import older

    if path_of(version).exists():
        return False
    with tempfile.TemporaryDirectory() as scratch:
        older(Path(scratch), version)
        path_of(version).write_text(dump(Path(scratch) / schema.FILE_NAME), "utf-8")
    return True


if __name__ == "__main__":
    for number in range(1, schema.VERSION + 1):
        if write(number):
            print(path_of(number))
    sys.exit(0)
