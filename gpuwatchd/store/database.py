"""The file of the history: creating, opening, judging and setting it aside, and what it lacks.

Nothing here raises for a file that cannot be used: :func:`open_writer` says what is wrong and what
is left, since a daemon without a history still warns.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.core.state_log import StateLog
from gpuwatchd.store import private_files, schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


Mode = Literal["writing", "newer", "memory"]
"""What the daemon may do: write; only read (a later version wrote it); only remember."""
Trouble = Literal["damaged", "full", "busy", "read-only", "refused", "other"]

BUSY_MS = 250
"""How long a write waits for another writer. It is the sampling thread that waits, and everything
that is not written stays in memory and is tried again, so this is short."""
WAL_LIMIT_BYTES = 16 * 2**20
_SIDE_FILES = ("", "-wal", "-shm")
_NOWHERE = (0, 0)
"""No file is this one."""


class Opening(NamedTuple):
    """What came of opening the history, and what tells the file from any other at its place."""

    connection: sqlite3.Connection | None
    """Read-write in mode "writing"; otherwise for reading what it holds, or None."""
    mode: Mode
    problem: str | None
    """One sentence for people."""
    damaged: str | None = None
    """Why the file that was here before was set aside."""
    identity: tuple[int, int] | None = None
    probe: int | None = None
    """A descriptor to look at the file through, see :meth:`watched`."""

    def watched(self, directory: Path) -> Opening:
        """Return it with what :meth:`header_damage` needs, and which file it is.

        Closing *any* descriptor of a file drops all locks that this process holds on it (POSIX),
        also those of SQLite: the next program that closes its connection then takes itself for the
        last one and deletes the write-ahead log under us. So there is one, and it stays open.
        """
        probe = None
        with suppress(OSError):
            how = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
            if self.connection is not None:
                probe = os.open(directory / schema.FILE_NAME, how)
        return self._replace(identity=identity(directory), probe=probe)

    def header_damage(self) -> str | None:
        """Return what is wrong with the first bytes of the file, or None.

        An open connection does not read them again: it would go on writing into a file that nobody
        can open any more.
        """
        with suppress(OSError):
            if self.probe is not None:
                return schema.header_damage(os.pread(self.probe, schema.HEADER_BYTES, 0))
        return None

    def close(self) -> None:
        """Let go of the file."""
        if self.connection is not None:
            with suppress(sqlite3.Error):
                self.connection.close()
        # After the connection: this drops its locks.
        if self.probe is not None:
            os.close(self.probe)


class DamagedError(Exception):
    """The file is there and is not a usable history."""


def trouble(error: BaseException) -> Trouble:
    """Return what kind of failure an error of sqlite3 (or of the file system) is."""
    if isinstance(error, DamagedError) or schema.is_damage(error):
        return "damaged"
    if isinstance(error, (OSError, MemoryError)):
        return "other"
    kinds: dict[int, Trouble] = {
        sqlite3.SQLITE_FULL: "full",
        sqlite3.SQLITE_BUSY: "busy",
        sqlite3.SQLITE_LOCKED: "busy",
        sqlite3.SQLITE_READONLY: "read-only",
        sqlite3.SQLITE_IOERR: "other",
        sqlite3.SQLITE_CANTOPEN: "other",
        sqlite3.SQLITE_PERM: "other",
        sqlite3.SQLITE_PROTOCOL: "busy",
    }
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, sqlite3.Error) and code is not None:
        return kinds.get(code & 0xFF, "refused")
    return "refused"


def open_writer(directory: Path, *, max_bytes: int, now_s: float) -> Opening:
    """Open the history of ``directory`` for writing, creating or replacing it where needed.

    Never raises for anything that a file, a disk or another program can do.
    """
    try:
        _prepare(directory)
        try:
            return _open(directory, max_bytes)
        except (DamagedError, sqlite3.Error) as error:
            if trouble(error) != "damaged":
                raise
            why = str(error)
            text = set_aside(directory, now_s)
            opening = _open(directory, max_bytes)
            return opening._replace(
                damaged=why,
                problem=f"the history was damaged ({why}) and was set aside as {text}; "
                "a new one was started",
            )
    except (sqlite3.Error, OSError, MemoryError) as error:
        return Opening(_frozen(directory), "memory", cannot_write(directory, error))


def _frozen(directory: Path) -> sqlite3.Connection | None:
    """Open a history on a read-only file system, where SQLite cannot make its side files."""
    path = directory / schema.FILE_NAME
    # A disk that fails says so at every look.
    with suppress(sqlite3.Error, OSError), ExitStack() as stack:
        if os.access(directory, os.W_OK) or not path.exists():
            return None
        connection = stack.enter_context(closing(_connect(path, "ro&immutable=1")))
        if _pragma(connection, "application_id") == schema.APPLICATION_ID:
            stack.pop_all()
            return connection
    return None


def who_has(file: Path) -> str:
    """Return the command that names the programs which hold a history; its locks are in -shm."""
    return shlex.join(("sudo", "fuser", "-v", str(file), f"{file}-shm"))


def cannot_write(directory: Path, error: BaseException) -> str:
    """Return the sentence that says why nothing is written, and that the daemon goes on."""
    file = directory / schema.FILE_NAME
    why = {
        "damaged": "it is damaged",
        "full": "the disk (or its size limit) is full",
        "busy": f"another program holds it locked ({who_has(file)} names it)",
        "read-only": "it is read-only",
    }.get(trouble(error), getattr(error, "strerror", None) or str(error) or "memory is short")
    return f"{file} cannot be written: {why}; samples and alerts are kept in memory"


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat_result = directory.stat()
    mode = private_files.directory_mode(stat_result.st_mode, None)
    if (stat_result.st_mode ^ mode) & 0o077 and stat_result.st_uid == os.getuid():
        with suppress(OSError):  # read-only file system: then nobody can write here either
            directory.chmod(mode)


def _open(directory: Path, max_bytes: int) -> Opening:
    path = directory / schema.FILE_NAME
    if not path.exists():
        _create(path)
    if not (path.is_file() or path.is_dir()):  # opening a pipe would wait for ever
        raise DamagedError("it is no file")
    with path.open("rb") as file:
        why = schema.header_damage(file.read(schema.HEADER_BYTES))
    if why is not None:
        raise DamagedError(why)
    with suppress(OSError):  # as above; the side files take their mode from this one
        private_files.settle_file(path, private_files.file_mode(path.parent))
    connection = _connect(path, "rw")
    try:
        return _judge(path, connection, max_bytes)
    except BaseException:
        connection.close()
        raise


def _judge(path: Path, connection: sqlite3.Connection, max_bytes: int) -> Opening:
    """Decide what may be done with an open file; the connection stays open."""
    if _pragma(connection, "application_id") != schema.APPLICATION_ID:
        raise DamagedError("not a history of gpuwatchd")
    version = _pragma(connection, "user_version")
    if not schema.possible(version):
        raise DamagedError(f"there is no format {version}")
    if version > schema.VERSION:
        return Opening(
            connection,
            "newer",
            f"{path} was written by a later version of gpuwatchd (format {version}, this version "
            f"knows {schema.VERSION}); nothing is stored until gpuwatchd is upgraded",
        )
    _check_tables(connection, version)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        if version < schema.VERSION:
            _upgrade(path, connection, version)
        _tune(connection, max_bytes)
    except sqlite3.OperationalError as error:
        kind = trouble(error)
        if kind == "busy" and version == schema.VERSION:
            _tune(connection, max_bytes)
            return Opening(connection, "writing", None)
        if kind in {"read-only", "full", "other"}:
            return Opening(connection, "memory", cannot_write(path.parent, error))
        raise
    return Opening(connection, "writing", None)


def _check_tables(connection: sqlite3.Connection, version: int) -> None:
    """Read the catalogue: most damage to it, and a truncated file, show themselves here."""
    why = schema.missing(connection, version)
    if why is not None:
        raise DamagedError(why)
    if version < schema.VERSION and schema.missing(connection, version + 1) is None:
        # To upgrade what is upgraded already would fail at each start.
        raise DamagedError(f"its header has format {version}, its tables are of a later one")
    pages, size = _pragma(connection, "page_count"), _pragma(connection, "page_size")
    file: str = connection.execute("PRAGMA database_list").fetchone()[2]
    wal = os.path.exists(f"{file}-wal") and os.path.getsize(f"{file}-wal")  # noqa: PTH110, PTH202
    if not wal and os.path.getsize(file) < pages * size:  # noqa: PTH202
        raise DamagedError("the file is truncated")


def catalogue_damage(directory: Path) -> str | None:
    """Return what is damaged in the description of the tables, or None. A millisecond or two.

    An open connection does not read it again, either.
    """
    try:
        with closing(_connect(directory / schema.FILE_NAME, "ro")) as connection:
            return schema.missing(connection, schema.VERSION)
    except (sqlite3.Error, MemoryError) as error:
        return str(error) if schema.is_damage(error) else None


def identity(directory: Path) -> tuple[int, int] | None:
    """Return which file is at the history's place; None where that cannot be told."""
    try:
        stat_result = (directory / schema.FILE_NAME).stat()
    except FileNotFoundError:
        return _NOWHERE
    except OSError:
        return None
    return stat_result.st_dev, stat_result.st_ino


def _create(path: Path) -> None:
    """Make a new file under another name, complete, then rename it: never half a history."""
    if any(path.with_name(path.name + end).exists() for end in _SIDE_FILES[1:]):
        # A write-ahead log without its file would be replayed into the new one.
        set_aside(path.parent, datetime.now(UTC).timestamp())
    new = path.with_name(path.name + ".new")
    for end in _SIDE_FILES:
        new.with_name(new.name + end).unlink(missing_ok=True)
    _begin(new)
    with closing(_connect(new, "rw")) as connection:
        # auto_vacuum after journal_mode=WAL would be ignored without an error.
        connection.execute(f"PRAGMA page_size = {schema.PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)
        if _pragma(connection, "auto_vacuum") != 2:
            raise sqlite3.OperationalError("auto_vacuum could not be set")
    new.replace(path)


def _begin(path: Path) -> None:
    """Make an empty file that those may read who may read its directory."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        private_files.fit(handle, path.parent)
    finally:
        os.close(handle)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables of an open file to :data:`schema.VERSION`; each step is one transaction.

    ``connection`` is in autocommit (``isolation_level=None``).

    Raises
    ------
    sqlite3.Error
        When a step fails; it is rolled back and the file stays at the version before it.
    """
    version: int = _pragma(connection, "user_version")
    for number, step in enumerate(schema.STEPS[version:], start=version + 1):
        with schema.transaction(connection):
            for statement in step.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def _upgrade(path: Path, connection: sqlite3.Connection, version: int) -> None:
    size = path.stat().st_size
    free = shutil.disk_usage(path.parent).free
    kept = version > 0 and free >= 4 * size and _copied(path, connection, version)
    migrate(connection)
    # The copy of the upgrade before this one has done its service.
    for copy in path.parent.glob(f"{path.name}.bak-v*") if kept else ():
        number = copy.name.removeprefix(f"{path.name}.bak-v")
        if number.isdecimal() and int(number) < version:
            with suppress(OSError):
                copy.unlink()


def _copied(path: Path, connection: sqlite3.Connection, version: int) -> bool:
    """Copy a history to where it is kept; False where that fails: an upgrade waits for no copy."""
    backup = path.with_name(f"{path.name}.bak-v{version}")
    new = backup.with_name(f"{backup.name}.new")
    try:
        new.unlink(missing_ok=True)
        _begin(new)
        with closing(sqlite3.connect(new)) as target:
            connection.backup(target)
        new.replace(backup)
    except (OSError, sqlite3.Error):
        with suppress(OSError):
            new.unlink(missing_ok=True)
        return False
    return True


def _connect(path: Path, mode: Literal["rw", "ro", "ro&immutable=1"]) -> sqlite3.Connection:
    return schema.connect(path, f"mode={mode}", BUSY_MS / 1000)


def _tune(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Set what belongs to a connection and is not stored in the file."""
    page_bytes = _pragma(connection, "page_size")  # files of earlier versions have larger ones
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
    connection.execute(f"PRAGMA max_page_count = {max_bytes // page_bytes}")
    connection.execute("PRAGMA foreign_keys = ON")
    # A page that changes every minute is written back once for many changes.
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_LIMIT_BYTES // page_bytes}")
    # Journals of a statement and rows that are sorted: megabytes a day that nobody needs later.
    connection.execute("PRAGMA temp_store = MEMORY")
    # Debian's SQLite writes each page once more when it is freed, to overwrite it.
    connection.execute("PRAGMA secure_delete = FAST")
    # Rows are appended in time order: a larger cache would only hold pages never read again.
    connection.execute("PRAGMA cache_size = -512")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def set_aside(directory: Path, now_s: float) -> str:
    """Rename the history and its side files; keep the newest of the set-aside ones and the largest.

    Returns the name that the file has now. Never deletes the file itself, never repairs.
    """
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    name, number = f"{schema.FILE_NAME}.corrupt-{stamp}", 1
    while any((directory / (name + end)).exists() for end in _SIDE_FILES):
        number += 1
        name = f"{schema.FILE_NAME}.corrupt-{stamp}-{number}"
    for end in _SIDE_FILES:
        with suppress(FileNotFoundError):
            (directory / (schema.FILE_NAME + end)).rename(directory / (name + end))
    files = [
        file
        for file in directory.glob(f"{schema.FILE_NAME}.corrupt-*")
        if not file.name.endswith(_SIDE_FILES[1:])
    ]
    newest_first = sorted(files, key=lambda file: file.stat().st_ctime_ns, reverse=True)
    # Of a file that is damaged again and again the first one has the most to rescue.
    largest = max(newest_first[1:], key=lambda file: file.stat().st_size, default=None)
    for old in [file for file in newest_first[1:] if file != largest]:
        for end in _SIDE_FILES:
            old.with_name(old.name + end).unlink(missing_ok=True)
    return name


def quick_check(directory: Path) -> str | None:
    """Read the whole file and return what is damaged, or None. May run on any thread.

    0.43 s per 124 MiB; a file that is missing, busy or unreadable is not called damaged.
    """
    try:
        with closing(_connect(directory / schema.FILE_NAME, "ro")) as connection:
            return schema.damage(connection)
    except (sqlite3.Error, MemoryError):  # it cannot be opened
        return None


log = logging.getLogger("gpuwatchd")

_MIB = 2**20
_BUSY_PATIENCE = 3
"""A lock that is met this often in a row is told."""
_WAL_GUARD_BYTES = 64 * _MIB
_RESUME_SHARE = 1.1
_COUNTING = frozenset({"lost", "refused", "space", "wal"})
"""Kinds whose sentence has a figure that changes all the time."""
_LOOK_EVERY_S = 3600.0
"""To read the whole file takes seconds of the sampling thread."""


class WriteProblems:
    """Sentences by kind; each disappears when its cause has."""

    def __init__(
        self,
        directory: Path,
        *,
        min_free_mib: int,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._floor_bytes = min_free_mib * _MIB
        self._sentences: dict[str, str] = {}
        self.problems: tuple[str, ...] = ()
        """The sentences."""
        self._busy = 0
        self._sound_until_mono_s = 0.0
        self.disk_low = False
        self.damage: str | None = None
        """Why the file must be set aside, once that is known."""
        self._sound: tuple[int, ...] | None = None
        """The file as it was when its description of the tables was looked at last."""
        self._log = StateLog(mono)

    @property
    def well(self) -> bool:
        """Whether the last write worked and the disk has room."""
        return not self.disk_low and not self._busy and "writing" not in self._sentences

    @property
    def is_locked(self) -> bool:
        """Whether the last write met a lock of another program."""
        return self._busy > 0

    def look_at_catalogue(self) -> None:
        """Look for damage in the description of the tables, where the file has changed since."""
        changed = None
        with suppress(OSError):
            status = (self._directory / schema.FILE_NAME).stat()
            changed = status.st_ino, status.st_mtime_ns, status.st_size
        if self.damage is None and (changed is None or changed != self._sound):
            self.damage, self._sound = catalogue_damage(self._directory), changed

    def set(self, kind: str, sentence: str | None, *, cause: str = "") -> None:
        """Set the sentence of a kind, and log it where it is new; None takes it back."""
        if sentence is None and kind not in self._sentences:
            return
        if sentence is None:
            del self._sentences[kind]
        else:
            self._sentences[kind] = sentence
        self.problems = tuple(self._sentences.values())
        # Figures that count on are no news.
        state = "" if sentence is None else "counting" if kind in _COUNTING else sentence
        change = self._log.change(kind, state, first="")
        if change is None:
            return
        if sentence is None:
            log.info("history mended=%s%s", kind, change.fields)
        else:
            cause = f" cause={cause}" if cause else ""
            log.warning("history trouble=%s%s why=%r", kind, cause, sentence)

    def failed(self, error: Exception) -> None:
        """Note that the file could not be written or read: one of :data:`schema.SUSPECT`."""
        if schema.is_doubtful(error) and (why := self._found_damaged(error)) is not None:
            error = DamagedError(why)
        kind = trouble(error)
        if kind == "damaged":
            self.damage = str(error)
        if kind == "busy":
            self._busy += 1
            if self._busy < _BUSY_PATIENCE:
                return
        self.set("writing", cannot_write(self._directory, error), cause=kind)

    def _found_damaged(self, error: Exception) -> str | None:
        """Return what damage may have led to an error; without any it is a fault of ours."""
        if self.damage is not None:
            return self.damage  # to read the whole file again would hold the daemon up
        if time.monotonic() < self._sound_until_mono_s:
            return None
        why = quick_check(self._directory)
        if why is None:
            self._sound_until_mono_s = time.monotonic() + _LOOK_EVERY_S
            log.error("the history is sound and cannot be used", exc_info=error)
        return why

    def succeeded(self, *, refused: int = 0) -> None:
        """Note that writing works, and how many rows were left out because a value did not fit."""
        self._busy = 0
        if self.damage is None:  # else another part of the same file works; it is set aside first
            self.set("writing", None)
        if refused:
            self.set("refused", f"{refused} rows were left out of the history: a value did not fit")

    def lost(self, count: int) -> None:
        """Note how many rows of samples fell out of memory unwritten."""
        self.set(
            "lost",
            f"{count} rows of samples could not be kept: nothing can be written to the history "
            "and the memory for them is full"
            if count
            else None,
        )

    def has_space(self) -> bool:
        """Say whether the disk has room; it must stop writing before it is full.

        On a full disk SQLite can neither delete nor check its log in.
        """
        try:
            statvfs_result = os.statvfs(self._directory)
        except OSError:
            return True
        free = statvfs_result.f_bavail * statvfs_result.f_frsize
        floor = self._floor_bytes
        self.disk_low = free < (floor * _RESUME_SHARE if self.disk_low else floor)
        self.set(
            "space",
            f"the disk of {self._directory} has {units.size(free)} left, less than "
            f"store.min-free-mib ({units.size(floor)}); samples are kept in memory only"
            if self.disk_low
            else None,
        )
        return not self.disk_low

    def guard_wal(self, connection: sqlite3.Connection) -> None:
        """Shrink a write-ahead log that a slow reader let grow; say so where it cannot be."""
        file = self._directory / schema.FILE_NAME
        try:
            size = file.with_name(f"{file.name}-wal").stat().st_size
        except OSError:
            size = 0
        if size > _WAL_GUARD_BYTES:
            with suppress(*schema.SUSPECT):
                busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                size = size if busy else 0
        self.set(
            "wal",
            f"a program keeps a read transaction open, so its log grew to {units.size(size)}; "
            f"find it with: {who_has(file)}"
            if size > _WAL_GUARD_BYTES
            else None,
        )
