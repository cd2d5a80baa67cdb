"""The tables of the history, what makes them of an older file, and what damage to them raises.

A step of :data:`STEPS` takes a file from version n to n + 1; ``user_version`` is the only record of
the version, and it changes in the same transaction as the tables.

One damaged byte may hide behind any error: sqlite3 cannot decode its own message when a name in
the schema is no Unicode, a column "does not exist", a number comes back as text. So whoever asks
the history catches :data:`SUSPECT` and asks :func:`damage` before the file is blamed. Our
statements are plain ASCII: a ``UnicodeDecodeError`` of one is of a name in the file's schema.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE_NAME = "history.db"
APPLICATION_ID = 0x67707764
"""Marks the file as ours: "gpwd"."""
PAGE_BYTES = 1024
"""Of a new file: rows of many series change a page each, and a changed page is written whole."""

# STRICT: without it sqlite3 stores a numpy.int64 as an 8-byte BLOB in an INTEGER column, silently.
# Raw rows are keyed by time first (15 times less writing than by series), roll-ups by series first
# (they are read per series).
_VERSION_1 = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE segment(id INTEGER PRIMARY KEY, started_ts_ms INTEGER NOT NULL, boot_id TEXT NOT NULL,
  mono_ms INTEGER NOT NULL, reason TEXT NOT NULL, wall_step_s REAL, gap_s REAL) STRICT;
CREATE TABLE gpu(id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
  vendor TEXT NOT NULL, position INTEGER, name TEXT NOT NULL, pci_bus TEXT, parent_uuid TEXT,
  memory_kind TEXT NOT NULL, memory_total_bytes INTEGER, first_ts_ms INTEGER NOT NULL,
  last_ts_ms INTEGER NOT NULL) STRICT;
CREATE TABLE process(id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, pid INTEGER NOT NULL,
  started_ts_ms INTEGER, started_at_s REAL, user TEXT, name TEXT NOT NULL, args TEXT,
  parent_pid INTEGER, framework TEXT, framework_sure INTEGER NOT NULL, job TEXT, container TEXT,
  first_ts_ms INTEGER NOT NULL, last_ts_ms INTEGER NOT NULL) STRICT;
CREATE UNIQUE INDEX process_identity ON process(boot_id, pid, ifnull(started_ts_ms, -1));
CREATE TABLE gpu_raw(ts_ms INTEGER NOT NULL, gpu INTEGER NOT NULL, used_bytes INTEGER,
  util_percent INTEGER, mem_util_percent INTEGER, temp_c INTEGER, power_mw INTEGER,
  clock_mhz INTEGER, PRIMARY KEY(ts_ms, gpu)) STRICT, WITHOUT ROWID;
CREATE TABLE process_raw(ts_ms INTEGER NOT NULL, process INTEGER NOT NULL, gpu INTEGER NOT NULL,
  used_bytes INTEGER, sm_percent INTEGER, host_bytes INTEGER, PRIMARY KEY(ts_ms, process, gpu))
  STRICT, WITHOUT ROWID;
CREATE TABLE gpu_1m(gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL, n INTEGER NOT NULL,
  used_min_bytes INTEGER, used_mean_bytes INTEGER, used_max_bytes INTEGER, used_last_bytes INTEGER,
  util_mean_percent INTEGER, temp_max_c INTEGER, energy_mj INTEGER, PRIMARY KEY(gpu, ts_s))
  STRICT, WITHOUT ROWID;
CREATE TABLE gpu_1h(gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL, n INTEGER NOT NULL,
  used_min_bytes INTEGER, used_mean_bytes INTEGER, used_max_bytes INTEGER, used_last_bytes INTEGER,
  util_mean_percent INTEGER, temp_max_c INTEGER, energy_mj INTEGER, PRIMARY KEY(gpu, ts_s))
  STRICT, WITHOUT ROWID;
CREATE TABLE process_1m(process INTEGER NOT NULL, gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL,
  n INTEGER NOT NULL, used_max_bytes INTEGER, used_last_bytes INTEGER, host_last_bytes INTEGER,
  PRIMARY KEY(process, gpu, ts_s)) STRICT, WITHOUT ROWID;
CREATE TABLE alert(id INTEGER PRIMARY KEY, key TEXT NOT NULL, kind TEXT NOT NULL,
  severity TEXT NOT NULL, state TEXT NOT NULL, gpu INTEGER REFERENCES gpu(id),
  process INTEGER REFERENCES process(id), opened_ts_ms INTEGER NOT NULL,
  changed_ts_ms INTEGER NOT NULL, resolved_ts_ms INTEGER, confirmations INTEGER NOT NULL DEFAULT 0,
  notices INTEGER NOT NULL DEFAULT 0, next_notice_ts_ms INTEGER, title TEXT NOT NULL,
  finding TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX alert_open ON alert(key) WHERE resolved_ts_ms IS NULL;
CREATE INDEX alert_key ON alert(key, opened_ts_ms);
CREATE TABLE delivery(id INTEGER PRIMARY KEY, alert INTEGER REFERENCES alert(id),
  alert_key TEXT NOT NULL, channel TEXT NOT NULL, notice TEXT NOT NULL, message_id TEXT NOT NULL,
  payload TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  created_ts_ms INTEGER NOT NULL, next_try_ts_ms INTEGER, lease_until_ts_ms INTEGER,
  sent_ts_ms INTEGER, error TEXT, dry_run INTEGER NOT NULL DEFAULT 0,
  UNIQUE(channel, message_id)) STRICT;
CREATE INDEX delivery_due ON delivery(next_try_ts_ms) WHERE state = 'pending';
CREATE INDEX delivery_alert ON delivery(alert);
CREATE INDEX delivery_key ON delivery(alert_key);
CREATE TABLE silence(id INTEGER PRIMARY KEY, matcher TEXT NOT NULL, from_ts_ms INTEGER NOT NULL,
  until_ts_ms INTEGER NOT NULL, who TEXT, why TEXT) STRICT;
CREATE TABLE action(id INTEGER PRIMARY KEY, ts_ms INTEGER NOT NULL, verb TEXT NOT NULL,
  process INTEGER, dry_run INTEGER NOT NULL, phase TEXT NOT NULL, result TEXT, who TEXT) STRICT;
CREATE TABLE event(id INTEGER PRIMARY KEY, ts_ms INTEGER NOT NULL, kind TEXT NOT NULL,
  gpu_uuid TEXT, detail TEXT) STRICT;
CREATE VIEW gpu_history AS SELECT datetime(r.ts_ms / 1000, 'unixepoch') AS utc, g.name, g.uuid, r.*
  FROM gpu_raw r JOIN gpu g ON g.id = r.gpu;
CREATE VIEW gpu_hourly AS SELECT datetime(h.ts_s, 'unixepoch') AS utc, g.name, g.uuid, h.*
  FROM gpu_1h h JOIN gpu g ON g.id = h.gpu;
CREATE VIEW open_alerts AS SELECT datetime(opened_ts_ms / 1000, 'unixepoch') AS utc, *
  FROM alert WHERE resolved_ts_ms IS NULL
"""

# What earlier runs of a program did, and what the user said of alerts. A profile is kept whole, as
# JSON, in ``profile``; its other columns are for people with an SQL prompt. ``feedback`` is set for
# what a run had done when the user spoke.
_VERSION_2 = """
ALTER TABLE process ADD COLUMN program TEXT;
CREATE TABLE feedback(id INTEGER PRIMARY KEY, alert_key TEXT NOT NULL,
  opened_ts_ms INTEGER NOT NULL, gpu_uuid TEXT NOT NULL, pid INTEGER, started_at_s REAL,
  unattributed INTEGER NOT NULL, title TEXT NOT NULL, word TEXT NOT NULL, why TEXT, who TEXT,
  given_ts_ms INTEGER NOT NULL, undone_ts_ms INTEGER) STRICT;
CREATE INDEX feedback_alert ON feedback(alert_key);
CREATE TABLE profile(id INTEGER PRIMARY KEY, key TEXT NOT NULL, gpu INTEGER NOT NULL
  REFERENCES gpu(id), pid INTEGER, started_at_s REAL, feedback INTEGER, label TEXT NOT NULL,
  begun_ts_ms INTEGER NOT NULL, ended_ts_ms INTEGER NOT NULL, base_bytes INTEGER NOT NULL,
  proven_bytes INTEGER NOT NULL, top_bytes INTEGER NOT NULL, profile TEXT NOT NULL) STRICT;
CREATE UNIQUE INDEX profile_run ON profile(key, gpu, ifnull(pid, -1), ifnull(started_at_s, -1),
  ifnull(feedback, 0));
CREATE VIEW known_programs AS SELECT key, label, count(*) AS runs,
  datetime(max(ended_ts_ms) / 1000, 'unixepoch') AS utc, max(top_bytes) AS top_bytes
  FROM profile WHERE feedback IS NULL GROUP BY key
"""

# What nobody owns on a device: over time (negative where processes share memory, so that they hold
# more than is used), and while the device is idle. Words may be on alerts about host memory.
_VERSION_3 = """
ALTER TABLE gpu_raw ADD COLUMN unattributed_bytes INTEGER;
ALTER TABLE feedback ADD COLUMN host INTEGER NOT NULL DEFAULT 0;
CREATE TABLE baseline(gpu_uuid TEXT PRIMARY KEY, least_bytes INTEGER NOT NULL,
  boot_id TEXT NOT NULL, learned_ts_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID
"""

# Who was told, by what, and why not: what policy decided, message by message; silences that can be
# taken back; and when jobs saved their work.
_VERSION_4 = """
ALTER TABLE delivery ADD COLUMN held TEXT;
ALTER TABLE delivery ADD COLUMN known TEXT;
ALTER TABLE delivery ADD COLUMN fallback_of TEXT;
ALTER TABLE silence ADD COLUMN until_resolved INTEGER NOT NULL DEFAULT 0;
ALTER TABLE silence ADD COLUMN cleared_ts_ms INTEGER;
ALTER TABLE silence ADD COLUMN even_critical INTEGER NOT NULL DEFAULT 0;
CREATE TABLE told(delivery INTEGER NOT NULL, alert_key TEXT NOT NULL,
  PRIMARY KEY(alert_key, delivery)) STRICT, WITHOUT ROWID;
CREATE TABLE decision(id INTEGER PRIMARY KEY, ts_ms INTEGER NOT NULL, alert_key TEXT NOT NULL,
  kind TEXT NOT NULL, notice TEXT NOT NULL, channel TEXT NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE INDEX decision_alert ON decision(alert_key, ts_ms);
CREATE INDEX decision_time ON decision(ts_ms);
CREATE TABLE checkpoint(id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, started_at_s REAL,
  saved_ts_ms INTEGER NOT NULL, said_by TEXT NOT NULL, detail TEXT) STRICT;
CREATE INDEX checkpoint_process ON checkpoint(pid, saved_ts_ms)
"""

# Processes hour by hour, for pictures and costs of long spans: what each held, and how much of the
# device's time falls to it (``taken_s``). Keyed by device and time: a span of a device is read.
_VERSION_5 = """
ALTER TABLE process_1m ADD COLUMN used_min_bytes INTEGER;
CREATE TABLE process_1h(gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL, process INTEGER NOT NULL,
  first_ts_s INTEGER NOT NULL, last_ts_s INTEGER NOT NULL, minutes INTEGER NOT NULL,
  n INTEGER NOT NULL, used_min_bytes INTEGER, used_mean_bytes INTEGER, used_max_bytes INTEGER,
  used_last_bytes INTEGER, top_mean_bytes REAL, host_last_bytes INTEGER, taken_s REAL,
  PRIMARY KEY(gpu, ts_s, process)) STRICT, WITHOUT ROWID
"""

# Why an alert is over, a notice was held and a message failed, as a code and the numbers beside it
# (JSON). The text of rows from before tells it, too: see legacy_text.
_VERSION_6 = """
ALTER TABLE alert ADD COLUMN code TEXT;
ALTER TABLE alert ADD COLUMN facts TEXT;
ALTER TABLE decision ADD COLUMN code TEXT;
ALTER TABLE decision ADD COLUMN facts TEXT;
ALTER TABLE delivery ADD COLUMN code TEXT;
ALTER TABLE delivery ADD COLUMN facts TEXT;
ALTER TABLE action ADD COLUMN code TEXT
"""

# What the allocators of prepared processes say, beside what the driver says of the same processes.
_VERSION_7 = """
CREATE TABLE process_counters(ts_ms INTEGER NOT NULL, process INTEGER NOT NULL,
  gpu INTEGER NOT NULL, allocated_bytes INTEGER NOT NULL, reserved_bytes INTEGER NOT NULL,
  inactive_split_bytes INTEGER, peak_bytes INTEGER, PRIMARY KEY(ts_ms, process, gpu))
  STRICT, WITHOUT ROWID;
CREATE TABLE process_counters_1m(process INTEGER NOT NULL, gpu INTEGER NOT NULL,
  ts_s INTEGER NOT NULL, allocated_last_bytes INTEGER NOT NULL,
  allocated_max_bytes INTEGER NOT NULL, reserved_last_bytes INTEGER NOT NULL,
  inactive_split_last_bytes INTEGER, PRIMARY KEY(process, gpu, ts_s)) STRICT, WITHOUT ROWID
"""

# Minutes of a process that are the same are one row of ``minutes`` of them, as far as they were
# rolled up together; ``n`` is of each. What is equal to ``used_last_bytes`` is NULL beside it. The
# queries have every minute and every figure; both tables are read through them alone. The views are
# for people: damage to the text of a view is not found, and would change answers.
MOST_MINUTES: Final = 15
"""Of a row, and of a roll-up: some 15 ms for 8 devices with 64 processes."""
PROCESS_MINUTES: Final = f"""SELECT m.process, m.gpu, m.ts_s + o.column1 * 60 AS ts_s, m.n,
  ifnull(m.used_min_bytes, m.used_last_bytes) AS used_min_bytes,
  ifnull(m.used_max_bytes, m.used_last_bytes) AS used_max_bytes, m.used_last_bytes,
  m.host_last_bytes, m.ts_s AS row_ts_s, m.minutes AS row_minutes
  FROM process_1m m CROSS JOIN (VALUES {", ".join(f"({at})" for at in range(MOST_MINUTES))}) o
  WHERE o.column1 < m.minutes"""  # noqa: S608 - our own whole numbers
DEVICE_MINUTES: Final = """SELECT gpu, ts_s, n,
  ifnull(used_min_bytes, used_last_bytes) AS used_min_bytes,
  ifnull(used_mean_bytes, used_last_bytes) AS used_mean_bytes,
  ifnull(used_max_bytes, used_last_bytes) AS used_max_bytes, used_last_bytes, util_mean_percent,
  temp_max_c, energy_mj FROM gpu_1m"""
_VERSION_8 = f"""
ALTER TABLE process_1m ADD COLUMN minutes INTEGER NOT NULL DEFAULT 1;
CREATE VIEW process_minutes AS {PROCESS_MINUTES};
CREATE VIEW gpu_minutes AS {DEVICE_MINUTES}
"""

STEPS: tuple[str, ...] = (
    _VERSION_1,
    _VERSION_2,
    _VERSION_3,
    _VERSION_4,
    _VERSION_5,
    _VERSION_6,
    _VERSION_7,
    _VERSION_8,
)
"""Statements, separated by semicolons, of each version."""
VERSION = len(STEPS)


SUSPECT: Final = (
    sqlite3.Error,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""What a question raises when the file is damaged; all but the first may be our fault, too.

``MemoryError`` is how Python tells SQLITE_NOMEM, and means no damage.
"""

HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\0"
_DOUBTFUL: Final = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
}
_UNREADABLE: Final = "its schema is not readable text"
_LATEST_VERSIONS: Final = 100
"""A format so much newer than ours is no format."""


class Connection(sqlite3.Connection):
    """A connection to a history: of its own class, so that its calls can be made to fail."""


@contextmanager
def transaction(connection: sqlite3.Connection, *, durable: bool = False) -> Iterator[None]:
    """Write what is in the block together, or nothing; ``durable``: it survives a power cut.

    Raises
    ------
    sqlite3.Error
        Something cannot be written.
    """
    if connection.in_transaction:  # of an earlier one whose rollback failed as well
        connection.execute("ROLLBACK")
    if durable:  # the level cannot be changed inside a transaction
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
            connection.execute("PRAGMA synchronous = NORMAL")


def connect(path: Path, how: str, timeout_s: float) -> Connection:
    """Open a file; ``how`` is part of its URI ("mode=ro"). Nothing is read yet.

    Raises
    ------
    sqlite3.Error
        It cannot be opened.
    """
    is_file = False
    with suppress(OSError):
        is_file = path.is_file()  # opening a pipe would wait for ever
    if not is_file:
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
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
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
    return 0 <= version <= VERSION + _LATEST_VERSIONS


def damage(connection: sqlite3.Connection) -> str | None:
    """Read a whole file and return what is damaged, or None. 0.43 s per 124 MiB.

    Also wrong types are found: every table is STRICT. A file that is busy or that cannot be read
    at all is not called damaged.
    """
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        checks = ["PRAGMA quick_check(1)"]
        if version <= VERSION:  # what a later version needs is not known
            if why := missing(connection, version):
                return why
            # Our own tables: one that somebody has added may need what is not loaded here.
            tables = {of.partition(".")[0] for kind, of, _ in _needed(version) if kind == "column"}
            checks = [f"PRAGMA quick_check('{table}')" for table in sorted(tables)]
        for check in checks:
            (found,) = connection.execute(check).fetchone()
            if found != "ok" and not _is_sound(connection, check):
                return str(found).replace("\n", " ")
    except UnicodeDecodeError:
        return _UNREADABLE
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
    """Say whether SQLite itself calls the file damaged, or cannot even say it in Unicode."""
    return isinstance(error, UnicodeDecodeError) or _code(error) in {
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CORRUPT,
    }


def is_doubtful(error: BaseException) -> bool:
    """Say whether an error may be a fault of ours or damage: :func:`damage` knows."""
    if isinstance(error, MemoryError):
        return False
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
    try:
        lost = _needed(version) - _parts(connection)
    except UnicodeDecodeError:
        return _UNREADABLE
    return f"{' '.join(min(lost)[:2])} is missing" if lost else None


@cache
def _needed(version: int) -> frozenset[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for step in STEPS[:version]:
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
