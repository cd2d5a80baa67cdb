"""How the file is made, opened, upgraded and kept from others."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core import registry
from gpuwatchd.store import database, schema
from tests.conftest import ROOT, ran
from tests.making import alert
from tests.store import released
from tests.store.world import CARDS, KNOWN, T0, delivery, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History


def test_what_is_stored_in_a_new_file(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for pragma, value in {
        "auto_vacuum": 2,
        "application_id": 0x67707764,
        "user_version": schema.VERSION,
        "journal_mode": "wal",
        "page_size": schema.PAGE_BYTES,
    }.items():
        assert rows(tmp_path, f"PRAGMA {pragma}") == [(value,)]


def test_what_belongs_to_the_connection_is_set_each_time(tmp_path: Path) -> None:
    for _ in range(2):
        history = opened(tmp_path, max_db_mib=9)
        assert history._file.connection is not None
        for pragma, value in {
            "synchronous": 1,
            "journal_size_limit": 16 * 2**20,
            "max_page_count": 9 * 2**20 // schema.PAGE_BYTES,
            "foreign_keys": 1,
            "busy_timeout": database.BUSY_MS,
        }.items():
            assert history._file.connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)
        history.close()


def test_every_table_is_strict(tmp_path: Path) -> None:
    opened(tmp_path).close()
    found = rows(tmp_path, "SELECT name, strict FROM pragma_table_list WHERE type = 'table'")
    loose = {name for name, strict in found if not strict and not name.startswith("sqlite_")}
    assert loose == set()
    assert {"gpu_raw", "process_raw", "alert", "delivery", "silence", "action"} <= dict(
        found
    ).keys()


def test_the_views_speak_utc(tmp_path: Path, history: History) -> None:
    history.record(sample(T0), CARDS, {})
    history.apply([alert()], [])
    history.close()
    assert rows(tmp_path, "SELECT utc, name, used_bytes FROM gpu_history") == [
        ("2023-11-14 22:14:00", "NVIDIA A100", 1000)
    ]
    assert rows(tmp_path, "SELECT utc, state FROM open_alerts") == [
        ("1970-01-01 02:38:20", "firing")
    ]


def test_nobody_else_may_read_any_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = tmp_path / "a" / "state"
        history = opened(directory)
        history.record(sample(T0), CARDS, KNOWN)
        history.flush(T0)
        found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}
        assert found == dict.fromkeys(("history.db", "history.db-wal", "history.db-shm"), 0o600)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        history.close()
    finally:
        os.umask(before)


def test_an_open_door_is_closed(tmp_path: Path) -> None:
    opened(tmp_path).close()
    tmp_path.chmod(0o755)
    (tmp_path / "history.db").chmod(0o644)
    opened(tmp_path).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "history.db").stat().st_mode) == 0o600


def test_a_half_made_file_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "history.db.new").write_bytes(b"half")
    history = opened(tmp_path)
    assert history.problems == ()
    history.close()
    assert [file.name for file in tmp_path.iterdir()] == ["history.db"]


def test_a_message_about_several_alerts_is_no_damage(tmp_path: Path, history: History) -> None:
    one = delivery("leak:x")
    message = msgspec.structs.replace(one.message, also=("leak:b", "leak:c"))
    history.apply([alert()], [msgspec.structs.replace(one, message=message)])
    history.close()
    with closing(sqlite3.connect(tmp_path / "history.db")) as connection:
        assert connection.execute("SELECT count(*) FROM told").fetchone() == (2,)
        assert schema.damage(connection) is None


def test_a_copy_that_fails_holds_up_no_upgrade_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released.load_text(released.FULL, tmp_path)
    (tmp_path / "history.db.bak-v4").touch()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(database, "_begin", full)
        history = opened(tmp_path)
    assert history.problems == ()
    history.close()
    assert sorted(one.name for one in tmp_path.glob("*.bak-*")) == ["history.db.bak-v4"]


def test_a_history_that_cannot_be_upgraded_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released.load_text(released.FULL, tmp_path)

    def full(_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(database, "migrate", full)
    history = opened(tmp_path)
    assert history.problems != ()
    assert (len(history.open_alerts()), len(history.pending_deliveries())) == (7, 11)
    history.close()


@pytest.mark.parametrize("version", range(1, schema.VERSION))
def test_the_tables_of_no_version_are_those_of_the_next(version: int) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        for step in schema.STEPS[:version]:
            model.executescript(step)
        assert schema.missing(model, version) is None
        assert schema.missing(model, version + 1) is not None


def test_an_older_file_is_copied_and_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "history.db.bak-v2").touch()
    history = opened(tmp_path)
    history.apply([alert()], [])
    history.close()
    step = "CREATE TABLE note(id INTEGER PRIMARY KEY, text TEXT) STRICT;\nDROP TABLE silence\n"
    before = schema.VERSION
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, step))
    monkeypatch.setattr(schema, "VERSION", before + 1)
    history = opened(tmp_path)
    assert history.problems == ()
    assert history.open_alerts() == [alert()]
    history.close()
    assert rows(tmp_path, "PRAGMA user_version") == [(before + 1,)]
    assert rows(tmp_path, "SELECT count(*) FROM note") == [(0,)]
    backup = tmp_path / f"history.db.bak-v{before}"
    assert [one.name for one in tmp_path.glob("*.bak-*")] == [backup.name]
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (before,)
        assert connection.execute("SELECT count(*) FROM alert").fetchone() == (1,)


def test_a_step_that_fails_changes_nothing_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).close()
    before = schema.VERSION
    bad = "CREATE TABLE note(id INTEGER PRIMARY KEY) STRICT;\nDROP TABLE nowhere\n"
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, bad))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    history = opened(tmp_path)
    assert not history.writing
    assert any("nowhere" in problem for problem in history.problems)
    history.close()
    assert rows(tmp_path, "PRAGMA user_version") == [(before,)]
    assert rows(tmp_path, "SELECT count(*) FROM sqlite_schema WHERE name = 'note'") == [(0,)]


IMPORTS = (
    "import sys; from pathlib import Path\n"
    "from gpuwatchd.core.config import StoreSection\n"
    "from gpuwatchd.store.writer import History\n"
)


def test_making_a_history_does_not_load_numpy(tmp_path: Path) -> None:
    code = (
        f"{IMPORTS}for _ in range(2):\n"
        "    history = History.open(Path(sys.argv[1]), StoreSection(min_free_mib=0))\n"
        "    print(history.writing, sorted({'numpy', 'pandas'} & set(sys.modules)))\n"
        "    history.close()\n"
        "import numpy; print(numpy.arange(3).sum())"
    )
    done = ran([sys.executable, "-c", code, tmp_path], check=True, cwd=ROOT)
    assert done.stdout == "True []\nTrue []\n3\n"


def test_a_new_history_does_not_load_sqlite_utils(tmp_path: Path) -> None:
    code = (
        f"{IMPORTS}history = History.open(Path(sys.argv[1]), StoreSection())\n"
        "print(history.writing, 'sqlite_utils' in sys.modules); history.close()"
    )
    done = ran([sys.executable, "-c", code, tmp_path], check=True, cwd=ROOT)
    assert done.stdout == "True False\n"


def test_sqlite_utils_reads_what_we_write(tmp_path: Path, history: History) -> None:
    history.record(sample(T0), CARDS, {})
    history.close()
    database_ = registry.import_without("sqlite_utils", "numpy").Database(tmp_path / "history.db")
    try:
        assert [row["used_bytes"] for row in database_["gpu_raw"].rows] == [1000]
    finally:
        database_.conn.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_NOTADB, "damaged"),
        (sqlite3.SQLITE_CORRUPT | (1 << 8), "damaged"),
        (sqlite3.SQLITE_FULL, "full"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "busy"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "read-only"),
        (sqlite3.SQLITE_IOERR_READ, "other"),
        (sqlite3.SQLITE_CONSTRAINT, "refused"),
    ],
)
def test_kinds_of_trouble(code: int, kind: str) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = code
    assert database.trouble(error) == kind
