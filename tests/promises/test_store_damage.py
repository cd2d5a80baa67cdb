"""Promise 9: whatever became of the file, the daemon starts, records, warns, and says so once."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store.reader import Reader
from tests.making import alert
from tests.store.world import CARDS, KNOWN, T0, Time, delivery, opened, rows, sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A directory with a history of some hundred pages, an open alert and a pending mail."""
    history = opened(tmp_path)
    for tick in range(4000):
        history.record(sample(T0 + 5 * tick, tick, uses=(tick,) * 3, cards=CARDS), CARDS, KNOWN)
    history.flush(T0)
    history.apply([alert()], [delivery("leak:x")])
    history.close()
    return tmp_path


def _garbage(file: Path, begin: int, size: int) -> None:
    with file.open("r+b") as handle:
        handle.seek(begin)
        handle.write(random.Random(size).randbytes(size))


def _somebody_elses(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE cookies(a)")


HARM: dict[str, Callable[[Path], object]] = {
    "a header of garbage": lambda file: _garbage(file, 0, 100),
    "a catalogue of garbage": lambda file: _garbage(file, 100, 3000),
    "all garbage": lambda file: _garbage(file, 0, file.stat().st_size),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "cut to a header": lambda file: os.truncate(file, 100),
    "empty": lambda file: os.truncate(file, 0),
    "a text": lambda file: file.write_text("dear diary\n" * 1000),
    "somebody else's": _somebody_elses,
}


@pytest.mark.parametrize("name", HARM)
def test_a_lost_file_is_set_aside_and_a_new_one_begun(used: Path, name: str) -> None:
    file = used / "history.db"
    HARM[name](file)
    before = file.read_bytes()

    history = opened(used)
    assert history.writing
    (problem,) = history.problems
    (kept,) = used.glob("history.db.corrupt-*")
    assert kept.name in problem
    assert "\n" not in problem
    assert kept.read_bytes() == before
    history.record(sample(T0), CARDS, {})
    history.apply([alert()], [delivery("leak:x")])
    assert history.flush(T0)
    history.close()

    with Reader.open(used) as reader:
        assert [event.kind for event in reader.events()] == ["db"]
        assert reader.alerts() == [alert()]
    history = opened(used)
    assert history.problems == ()  # told once
    history.close()


def test_damage_in_the_middle_is_found_by_the_check_and_nothing_in_memory_is_lost(
    used: Path,
) -> None:
    file = used / "history.db"
    with file.open("r+b") as handle:
        for page in range(60, 80):
            handle.seek(4096 * page)
            handle.write(random.Random(page).randbytes(4096))
    time = Time()
    history = opened(used, time)
    history.record(sample(T0 + 1), CARDS, {})
    assert history.check() is not None
    assert history.flush(T0 + 1)
    assert history.open_alerts() == [alert()]
    assert any("set aside" in problem for problem in history.problems)
    history.close()
    with Reader.open(used) as reader:
        assert reader.alerts(open_only=True) == [alert()]
        assert len(reader.deliveries("leak:x")) == 1
    assert rows(used, "SELECT used_bytes FROM gpu_raw") == [(1000,)]


def test_a_log_of_garbage_beside_the_file_costs_nothing(used: Path) -> None:
    (used / "history.db-wal").write_bytes(random.Random(5).randbytes(50_000))
    history = opened(used)
    assert history.problems == ()
    assert history.open_alerts() == [alert()]
    assert history.check() is None
    history.close()


def test_a_log_without_its_file_does_not_enter_the_new_one(tmp_path: Path) -> None:
    """SQLite would replay it: nothing in it says which file it belongs to."""
    history = opened(tmp_path / "old")
    history.apply([alert()], [])
    (tmp_path / "new").mkdir()
    log = (tmp_path / "old" / "history.db-wal").read_bytes()
    (tmp_path / "new" / "history.db-wal").write_bytes(log)
    history.close()

    history = opened(tmp_path / "new")
    assert history.writing
    assert history.open_alerts() == []
    history.close()
    (kept,) = (tmp_path / "new").glob("*.corrupt-*-wal")
    assert kept.read_bytes() == log


def test_two_lost_files_are_kept(tmp_path: Path) -> None:
    time = Time()
    for _ in range(4):
        opened(tmp_path, time).close()
        HARM["empty"](tmp_path / "history.db")
        time.pass_s(1)
    history = opened(tmp_path, time)
    kept = sorted(file.name for file in tmp_path.glob("*.corrupt-*"))
    assert len(kept) == 2
    assert kept[-1] == "history.db.corrupt-20231114T221404Z"
    history.close()


def test_a_newer_file_is_read_and_not_touched(used: Path) -> None:
    file = used / "history.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = file.read_bytes()
    history = opened(used)
    assert not history.writing
    assert any("later version" in problem for problem in history.problems)
    assert history.open_alerts() == [alert()]
    (pending,) = history.pending_deliveries()
    history.record(sample(T0), CARDS, KNOWN)
    (mine,) = history.apply([alert(key="leak:y")], [delivery("leak:y")])
    assert mine.row is not None
    assert mine.row != pending.row
    assert not history.flush(T0)
    history.chores(T0)
    assert len(history.open_alerts()) == 2
    history.close()
    assert file.read_bytes() == before
    assert list(used.iterdir()) == [file]


def test_a_file_locked_by_another_writer_is_waited_for(used: Path) -> None:
    time = Time()
    history = opened(used, time)
    with closing(sqlite3.connect(used / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        history.record(sample(T0 + 10, 1), CARDS, {})
        told = []
        for _ in range(3):
            assert not history.flush(T0)
            told.append(any("locked" in problem for problem in history.problems))
        assert told == [False, False, True]
        (mine,) = history.apply([alert(key="leak:y")], [delivery("leak:y")])
        assert mine in history.pending_deliveries()
        other.execute("ROLLBACK")
    time.pass_s(6)
    history.flush_due(T0 + 6)
    assert rows(used, "SELECT key FROM alert ORDER BY id") == [("leak:x",), ("leak:y",)]
    assert rows(used, "SELECT id FROM delivery WHERE alert_key = 'leak:y'") == [(mine.row,)]
    assert history.flush(T0)
    assert history.problems == ()
    history.close()


def test_a_file_that_is_locked_whole_at_the_start_is_opened_later(used: Path) -> None:
    time = Time()
    with closing(sqlite3.connect(used / "history.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("DELETE FROM event")
        history = opened(used, time)
        assert not history.writing
        assert any("locked" in problem for problem in history.problems)
        (mine,) = history.apply([alert(key="leak:y")], [delivery("leak:y")])
        history.record(sample(T0 + 10), CARDS, {})
        other.execute("ROLLBACK")
    time.pass_s(61)
    assert history.flush(time.now_s)
    assert history.problems == ()
    assert {found.key for found in history.open_alerts()} == {"leak:x", "leak:y"}
    assert mine in history.pending_deliveries()
    assert len(history.pending_deliveries()) == 2
    assert rows(used, "SELECT count(*) FROM alert") == [(2,)]
    history.close()


def test_a_directory_that_cannot_be_made_leaves_the_daemon_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    time = Time()
    history = opened(tmp_path / "file" / "state", time)
    assert not history.writing
    (problem,) = history.problems
    assert "kept in memory" in problem
    history.record(sample(T0), CARDS, KNOWN)
    (mine,) = history.apply([alert()], [delivery("leak:x")])
    history.event("gpu-lost", "gone")
    history.segment("gap", gap_s=60.0)
    history.chores(T0)
    assert not history.flush(T0)
    assert history.check() is None
    assert list(history.recent_series(0)) == []
    assert history.open_alerts() == [alert()]
    assert history.pending_deliveries() == [mine]

    (tmp_path / "file").unlink()
    time.pass_s(61)
    assert history.flush(time.now_s)
    assert history.problems == ()
    history.close()
    with Reader.open(tmp_path / "file" / "state") as reader:
        assert reader.alerts() == [alert()]
        assert reader.deliveries("leak:x") == [mine]
        assert [event.kind for event in reader.events()] == ["gpu-lost"]
        assert len(reader.device_rows("GPU-0", T0, T0 + 1)) == 1


def test_memory_is_bounded_when_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    history = opened(tmp_path / "file")
    for tick in range(11_000):
        history.record(sample(T0 + 60 * tick, uses=(1, 2, 3)), CARDS, KNOWN)
    assert len(history._intake) == 10_000 + 20_000
    assert any("could not be kept" in problem for problem in history.problems)
    history.close()


def _removed(file: Path) -> None:
    for end in ("", "-wal", "-shm"):
        file.with_name(file.name + end).unlink()


def _exchanged(file: Path) -> None:
    file.rename(file.with_name("elsewhere.db"))
    file.write_bytes(b"something else")


@pytest.mark.parametrize("harm", [_removed, _exchanged, HARM["all garbage"], HARM["empty"]])
def test_harm_below_an_open_history_is_noticed_and_open_alerts_are_written_anew(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    history = opened(tmp_path)
    history.record(sample(T0, 1, cards=CARDS), CARDS, KNOWN)
    history.apply([alert()], [delivery("leak:x")])
    assert history.flush(T0)
    harm(tmp_path / "history.db")
    for tick in (1, 2):
        history.record(sample(T0 + 60 * tick, tick, cards=CARDS), CARDS, KNOWN)
        history.flush(T0 + 60 * tick)
    assert any("removed or replaced" in p or "set aside" in p for p in history.problems)
    assert history.writing
    history.close()
    with closing(sqlite3.connect(tmp_path / "history.db")) as base:
        assert base.execute("SELECT count(*) FROM gpu_raw").fetchone()[0] >= len(CARDS)
        assert base.execute("SELECT count(*) FROM alert").fetchone()[0] == 1
        assert base.execute("SELECT count(*) FROM delivery").fetchone()[0] == 1
