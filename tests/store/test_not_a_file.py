"""A pipe in the place of the history holds nobody up; what users have added is no damage."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import database
from tests.making import present
from tests.store.world import Time, opened

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60, method="thread")  # SQLite waits for a pipe in C


def test_a_pipe_is_set_aside_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "history.db")
    assert opened(tmp_path, Time()).writing


@pytest.mark.parametrize("first", ["flush", "chores", "check"])
def test_a_pipe_that_appears_later_is_set_aside(tmp_path: Path, first: str) -> None:
    clock = Time()
    history = opened(tmp_path, clock)
    (tmp_path / "history.db").unlink()
    os.mkfifo(tmp_path / "history.db")
    for one in (first, "flush"):
        clock.pass_s(61)
        getattr(history, one)(*(() if one == "check" else (clock.now_s,)))
    assert history.writing
    assert (tmp_path / "history.db").is_file()


def test_a_history_is_read_where_nobody_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path, Time()).close()
    assert database._frozen(tmp_path) is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert database._frozen(tmp_path / "elsewhere") is None
    with closing(present(database._frozen(tmp_path))) as history:
        assert history.execute("SELECT count(*) FROM alert").fetchone() == (0,)
    with closing(sqlite3.connect(tmp_path / "history.db")) as own:
        own.execute("PRAGMA application_id = 1")
    assert database._frozen(tmp_path) is None


def test_a_table_with_a_collation_or_module_of_the_users_is_no_damage(tmp_path: Path) -> None:
    clock = Time()
    opened(tmp_path, clock).close()
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as own:
        own.create_collation("MINE", lambda a, b: (a > b) - (a < b))
        own.execute("CREATE TABLE mine (a TEXT)")
        own.execute("CREATE INDEX of_mine ON mine (a COLLATE MINE)")
        own.execute("PRAGMA writable_schema = ON")
        own.execute(
            "INSERT INTO sqlite_schema VALUES ('table', 'far', 'far', 0,"
            " 'CREATE VIRTUAL TABLE far USING not_here(a)')"
        )
    assert database.quick_check(tmp_path) is None
    history = opened(tmp_path, clock)
    for work in (history.flush, history.chores):
        clock.pass_s(61)
        work(clock.now_s)
    assert history.writing
    assert not list(tmp_path.glob("history.db.corrupt-*"))


def test_the_largest_of_many_damaged_files_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    for size in (100, 9000, 100, 200, 300):
        file.write_bytes(b"x" * size)
        database.set_aside(tmp_path, 1_800_000_000.0)
    kept = sorted(one.stat().st_size for one in tmp_path.glob("history.db.corrupt-*"))
    assert kept == [300, 9000]
