"""Is the file of the history damaged? What damage raises, and how it is told from a fault of ours.

One damaged byte may hide behind any error: sqlite3 cannot decode its own message when a name in
the schema is no Unicode, a column "does not exist", a number comes back as text. So whoever asks
the history catches :data:`SUSPECT` and asks :func:`damage` before the file is blamed.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.store import schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUSPECT: Final = (
    sqlite3.Error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""What a question raises when the file is damaged; all but the first may be our fault, too."""

HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
_DOUBTFUL: Final = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
}
_LATEST_VERSIONS: Final = 100
"""A format so much newer than ours is no format."""


class Connection(sqlite3.Connection):
    """A connection that reports undecodable messages of SQLite as what they are: damage.

    Our statements are plain ASCII, so a name that is no Unicode is one in the schema of the file.
    """

    def execute(self, *call: Any) -> sqlite3.Cursor:
        """Run a statement."""
        try:
            return super().execute(*call)
        except UnicodeDecodeError as error:
            raise _undecodable() from error

    def executemany(self, *call: Any) -> sqlite3.Cursor:
        """Run a statement for each of some rows."""
        try:
            return super().executemany(*call)
        except UnicodeDecodeError as error:
            raise _undecodable() from error

    def executescript(self, script: str) -> sqlite3.Cursor:
        """Run several statements."""
        try:
            return super().executescript(script)
        except UnicodeDecodeError as error:
            raise _undecodable() from error


def _undecodable() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("its schema is not readable text")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


@contextmanager
def transaction(connection: sqlite3.Connection, *, durable: bool = False) -> Iterator[None]:
    """Write what is in the block together, or nothing; ``durable``: it survives a power cut.

    Raises
    ------
    sqlite3.Error
        Something cannot be written.
    """
    # The level cannot be changed inside a transaction.
    level = connection.execute("PRAGMA synchronous").fetchone()[0] if durable else None
    if durable:
        connection.execute("PRAGMA synchronous = FULL")
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    finally:
        # SQLite has already rolled back after some errors; ROLLBACK would then be one more.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if durable:
            connection.execute(f"PRAGMA synchronous = {level}")


def connect(path: Path, how: str, timeout_s: float) -> Connection:
    """Open a file; ``how`` is part of its URI ("mode=ro"). Nothing is read yet.

    Raises
    ------
    sqlite3.Error
        It cannot be opened.
    """
    if not path.is_file():  # opening a pipe would wait for ever
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        timeout=timeout_s,
        factory=Connection,
    )
    # One damaged name must not hide all the rest.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def header_damage(head: bytes) -> str | None:
    """Return what is wrong with the first :data:`HEADER_BYTES` of a file, or None.

    Only what SQLite would not call damage itself, but "read-only" or "not supported".
    """
    if not head:
        return "the file is empty"
    if not head.startswith(_MAGIC):
        return "not a database"
    if len(head) < HEADER_BYTES:
        return "the file is truncated"
    versions, fractions = head[18:20], head[21:24]
    layout, encoding = (int.from_bytes(head[at : at + 4], "big") for at in (44, 56))
    if (
        not {*versions} <= {1, 2}
        or fractions != b"\x40\x20\x20"
        or layout > 4
        or encoding > 1  # 1 is UTF-8; others are never chosen here
    ):
        return "its header is no header of SQLite"
    return None


def possible(version: int) -> bool:
    """Say whether a file's version may be that of a gpuwatchd, perhaps of a later one."""
    return 0 <= version <= schema.VERSION + _LATEST_VERSIONS


def damage(connection: sqlite3.Connection) -> str | None:
    """Read a whole file and return what is damaged, or None. 0.43 s per 124 MiB.

    Also wrong types are found: every table is STRICT. A file that is busy or that cannot be read
    at all is not called damaged.
    """
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        checks = ["PRAGMA quick_check(1)"]
        if version <= schema.VERSION:  # what a later version needs is not known
            if why := missing(connection, version):
                return why
            # Our own tables: one that somebody has added may need what is not loaded here.
            tables = {of.partition(".")[0] for kind, of, _ in _needed(version) if kind == "column"}
            checks = [f"PRAGMA quick_check('{table}')" for table in sorted(tables)]
        for check in checks:
            (found,) = connection.execute(check).fetchone()
            if found != "ok" and not _is_sound(connection, check):
                return str(found).replace("\n", " ")
    except sqlite3.Error as error:
        return str(error) if is_damage(error) or is_doubtful(error) else None
    return None


def _is_sound(connection: sqlite3.Connection, check: str) -> bool:
    """Say whether the whole check contradicts the quick one.

    The quick check of SQLite 3.40 finds a "NULL value" in sound tables that have no row ids and
    whose key begins with a later column.
    """
    (found,) = connection.execute(check.replace("quick_check", "integrity_check")).fetchone()
    return bool(found == "ok")


def damage_within(connection: sqlite3.Connection, limit_s: float) -> str | None:
    """Return the same as :func:`damage`; None, too, where the limit does not suffice."""
    end_s = time.monotonic() + limit_s
    alarm = threading.Timer(limit_s, connection.interrupt)
    alarm.start()
    try:
        text = damage(connection)
    finally:
        alarm.cancel()
        alarm.join()
    # Pages that an interrupted look did not come to would count as lost.
    return text if time.monotonic() < end_s else None


def is_damage(error: BaseException) -> bool:
    """Say whether SQLite itself calls the file damaged."""
    return _code(error) in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}


def is_doubtful(error: BaseException) -> bool:
    """Say whether an error may be a fault of ours or damage: :func:`damage` knows."""
    return not isinstance(error, sqlite3.Error) or _code(error) in _DOUBTFUL


def _code(error: BaseException) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def missing(connection: sqlite3.Connection, version: int) -> str | None:
    """Return which part of the tables of a version a file lacks, or None. A millisecond or two.

    What somebody has added is no damage. Views and plain indexes are not looked at.

    Raises
    ------
    sqlite3.Error
        The schema cannot be read.
    """
    lost = _needed(version) - _parts(connection)
    return f"{' '.join(min(lost)[:2])} is missing" if lost else None


@cache
def _needed(version: int) -> frozenset[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for step in schema.STEPS[:version]:
            model.executescript(step)
        return frozenset(_parts(model))


def _parts(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return the columns, the references between tables, and the unique indexes."""
    return set(connection.execute(_PARTS))


_PARTS: Final = """
SELECT 'column', t.name || '.' || c.name, c.type || c.pk
FROM sqlite_schema t JOIN pragma_table_info(t.name) c
WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL %'
UNION ALL SELECT 'reference', t.name || '.' || r."from", r."table" || '.' || r."to"
FROM sqlite_schema t JOIN pragma_foreign_key_list(t.name) r
WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL %'
UNION ALL SELECT 'index', name, sql FROM sqlite_schema WHERE sql LIKE 'CREATE UNIQUE INDEX %'
"""
