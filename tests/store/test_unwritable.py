"""A history that nobody may write to, while a daemon begins to write it all the same."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpuwatchd.core.errors import StoreDamaged
from gpuwatchd.store import checked_connection, schema
from gpuwatchd.store.reader import Reader
from tests.conftest import present
from tests.store.world import CARDS, KNOWN, Time, opened, sample

NOW_S = 1_700_002_800.0


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a daemon has left in order, with much in it."""
    history = opened(tmp_path, Time(NOW_S))
    for second in range(2000):
        history.record(sample(NOW_S + second, 1000 + second), CARDS, KNOWN)
    history.flush(NOW_S + 2000)
    history.close()
    return tmp_path


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """No side file can be made, as for a user without the right to write, root or not."""
    connect = checked_connection.connect

    def refusing(path: Path, how: str) -> sqlite3.Connection:
        if how == "mode=ro" and not path.with_name(f"{path.name}-shm").exists():
            refused = sqlite3.OperationalError("unable to open database file")
            refused.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise refused
        return connect(path, how)

    monkeypatch.setattr(checked_connection, "connect", refusing)


def begin_to_write(path: Path) -> sqlite3.Connection:
    """Do what a daemon does that starts: here it deletes nearly all and shrinks the file."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DELETE FROM gpu_raw WHERE ts_ms > (SELECT min(ts_ms) FROM gpu_raw)")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return connection


def rows_of(reader: Reader) -> int:
    return len(reader.device_rows("GPU-0", NOW_S - 1, NOW_S + 3000))


@pytest.mark.usefixtures("forbidden")
def test_a_daemon_that_starts_meanwhile_is_no_damage(left: Path) -> None:
    with Reader.open(left) as reader:
        assert rows_of(reader) == 2000
        with closing(begin_to_write(left / "history.db")):
            assert rows_of(reader) == 1
            assert rows_of(reader) == 1


@pytest.mark.usefixtures("forbidden")
def test_a_daemon_that_starts_while_it_is_opened_is_no_damage(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect, begun = left / "history.db", checked_connection.connect, []

    def late(found: Path, how: str) -> sqlite3.Connection:
        if how == "immutable=1":
            begun.append(begin_to_write(path))
            raise checked_connection.damaged(path, "torn")
        return connect(found, how)

    monkeypatch.setattr(checked_connection, "connect", late)
    with Reader.open(left) as reader:
        assert rows_of(reader) == 1
    assert begun
    begun[0].close()


@pytest.mark.usefixtures("forbidden")
def test_true_damage_is_told(left: Path) -> None:
    raw = bytearray((left / "history.db").read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    (left / "history.db").write_bytes(raw)
    with pytest.raises(StoreDamaged), Reader.open(left) as reader:
        rows_of(reader)


@pytest.mark.usefixtures("forbidden")
def test_a_copy_that_was_made_while_a_daemon_started_does_not_count(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left / "history.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO meta VALUES ('test', '1')")
    log = path.with_name(f"{path.name}-wal").read_bytes()
    connection.close()
    path.with_name(f"{path.name}-wal").write_bytes(log)  # as after a kill, without the index
    begun: list[sqlite3.Connection] = []

    def copyfile(source: Path, target: Path) -> None:
        target.write_bytes(Path(source).read_bytes())
        if not begun:
            begun.append(begin_to_write(path))

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    with Reader.open(left) as reader:
        assert rows_of(reader) == 1
    assert begun
    begun[0].close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_file_that_cannot_be_looked_at_for_a_moment_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    history = opened(tmp_path, time := Time(NOW_S))

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    with monkeypatch.context() as patch:
        for name in ("stat", "access"):
            patch.setattr(os, name, refused)
        history.record(sample(NOW_S), CARDS, KNOWN)
        history.flush(NOW_S)
        history.chores(NOW_S)
    time.pass_s(61)
    assert history.flush(time.now_s)
    assert history.problems == ()
    history.close()


def test_a_rollback_that_fails_does_not_keep_later_ones_from_writing(tmp_path: Path) -> None:
    history = opened(tmp_path, Time(NOW_S))
    present(history._file.connection).execute("BEGIN IMMEDIATE")
    history.record(sample(NOW_S), CARDS, KNOWN)
    assert history.flush(NOW_S)
    history.close()


def test_memory_that_is_short_is_a_problem_of_the_disk_s_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = opened(tmp_path, Time(NOW_S))

    def short(*_: object) -> None:
        raise MemoryError  # as Python tells SQLITE_NOMEM

    with monkeypatch.context() as patch:
        patch.setattr(schema.Connection, "execute", short)
        history.record(sample(NOW_S), CARDS, KNOWN)
        assert not history.flush(NOW_S)
        history.chores(NOW_S)
        assert any("memory is short" in problem for problem in history.problems)
    assert history.flush(NOW_S)
    assert (history.problems, [*tmp_path.glob("*.corrupt-*")]) == ((), [])
    history.close()
