"""What the log says of the history's trouble: when it begins, why, and when it is over."""

from __future__ import annotations

import logging
import shlex
import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.state_log import MOST_LINES
from gpuwatchd.store import schema
from tests.store import damage
from tests.store.world import CARDS, KNOWN, T0, Time, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gpuwatchd")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, str]]:
    """Return level, trouble or end, and cause of every line about the history."""
    found = []
    for record in caplog.records:
        first, *words = shlex.split(record.getMessage())
        if first == "history":
            keys = dict(word.split("=", 1) for word in words)
            found.append((record.levelno, words[0], keys.get("cause", "")))
    caplog.clear()
    return found


def write(history: History, time: Time, ticks: int = 1) -> None:
    for _ in range(ticks):
        time.pass_s(5.0)
        history.record(sample(time.now_s), CARDS, KNOWN)
        history.flush(time.now_s)


def test_all_is_well_and_nothing_is_said(
    history: History, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    write(history, time, 20)
    history.close()
    assert lines(caplog) == []


def test_a_lock_is_said_once_with_its_cause_and_its_end(
    tmp_path: Path, history: History, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    assert history._file.connection is not None
    history._file.connection.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(tmp_path / schema.FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        write(history, time, 20)
        assert lines(caplog) == [(logging.WARNING, "trouble=writing", "busy")]
        other.execute("ROLLBACK")
    write(history, time, 20)
    assert lines(caplog) == [(logging.INFO, "mended=writing", "")]


def test_a_full_disk_is_said_once_and_that_it_is_written_again(
    history: History, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    assert history._file.connection is not None
    (pages,) = history._file.connection.execute("PRAGMA page_count").fetchone()
    history._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(600):
        time.pass_s(5.0)
        history.record(sample(time.now_s), CARDS, KNOWN)
    for _ in range(20):
        assert not history.flush(time.now_s)
    assert lines(caplog) == [(logging.WARNING, "trouble=writing", "full")]
    history._file.connection.execute("PRAGMA max_page_count = 65536")
    write(history, time, 20)
    assert lines(caplog) == [(logging.INFO, "mended=writing", "")]


def test_little_space_is_one_line_though_its_figure_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    history = opened(tmp_path, time, min_free_mib=2**40)
    write(history, time, 3)
    (tmp_path / "ballast").write_bytes(b"x" * 10_000_000)
    write(history, time, 3)
    assert lines(caplog) == [(logging.WARNING, "trouble=space", "")]
    history._health._floor_bytes = 0
    write(history, time, 3)
    assert lines(caplog) == [(logging.INFO, "mended=space", "")]
    history.close()


def test_damage_is_said_with_where_the_file_was_put(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / schema.FILE_NAME
    file.write_bytes(b"no database at all" * 1000)
    history = opened(tmp_path, Time())
    (record,) = [r for r in caplog.records if r.getMessage().startswith("history ")]
    aside = next(one.name for one in tmp_path.iterdir() if ".corrupt-" in one.name)
    assert aside in record.getMessage()
    assert lines(caplog) == [(logging.WARNING, "trouble=damaged", "")]
    history.close()


def test_one_that_comes_and_goes_does_not_fill_the_log(
    history: History, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        history._health.set("writing", "it is full", cause="full")
        history._health.set("writing", None)
        time.pass_s(5.0)
    assert len(lines(caplog)) == MOST_LINES


def test_a_place_that_cannot_be_written_and_then_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where the directory is to be; tried again each minute."""
    place = tmp_path / "state"
    place.write_text("")
    time = Time()
    history = opened(place, time)
    for _ in range(5):
        write(history, time)
        time.pass_s(61.0)
    assert lines(caplog) == [(logging.WARNING, "trouble=opening", "")]
    place.unlink()
    time.pass_s(61.0)
    write(history, time)
    assert lines(caplog) == [(logging.INFO, "mended=opening", "")]
    history.close()


def test_a_damaged_page_that_some_writes_do_not_meet_is_one_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage.build(tmp_path)
    file = tmp_path / schema.FILE_NAME
    with closing(sqlite3.connect(file)) as connection:
        pages = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name IN ('alert', 'feedback')"
        ).fetchall()
    with file.open("r+b") as content:
        for (page,) in pages:
            content.seek((page - 1) * damage.PAGE_BYTES)
            content.write(bytes(damage.PAGE_BYTES))
    time = Time(T0 + damage.SPAN_S)
    caplog.clear()
    history = opened(tmp_path, time)
    history.event("gpu-lost", "gone", CARDS[0].uid)
    history.apply([], [])
    assert history.shelf.user_labels() is None
    write(history, time, 20)
    assert lines(caplog) == [
        (logging.WARNING, "trouble=writing", "damaged"),
        (logging.WARNING, "trouble=damaged", ""),
        (logging.INFO, "mended=writing", ""),
    ]
    history.close()


_EVENTS = "SELECT detail FROM event WHERE kind = 'xid'"
LEAVES_WITHIN_S = 2.0


def test_an_event_is_written_when_the_lock_is_let_go_in_time(
    tmp_path: Path, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        history.event("xid", "XID 79", CARDS[0].uid)
        later = threading.Timer(0.6, other.execute, args=["ROLLBACK"])
        later.start()
        history.close()
        later.join()
    assert rows(tmp_path, _EVENTS) == [("XID 79",)]
    assert "the history lacks" not in caplog.text


@pytest.mark.slow
def test_what_cannot_be_written_is_named_in_one_line_and_nobody_waits_long(
    tmp_path: Path, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    history.record(sample(T0), CARDS[:1], KNOWN)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        history.event("xid", "XID 79", CARDS[0].uid)
        begun_s = time.monotonic()
        history.close()
        assert time.monotonic() - begun_s < LEAVES_WITHIN_S
        other.execute("ROLLBACK")
    told = [record.getMessage() for record in caplog.records]
    assert told.pop(0).startswith("history trouble=writing cause=busy ")
    assert told == [
        "the history lacks 1 sample row, 1 event (XID 79): it is locked by another program"
    ]
    assert rows(tmp_path, _EVENTS) == []


def test_an_end_in_order_says_nothing(
    tmp_path: Path, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    history.record(sample(T0), CARDS[:1], KNOWN)
    history.event("xid", "XID 79", CARDS[0].uid)
    history.close()
    history.close()
    assert caplog.records == []
    assert rows(tmp_path, _EVENTS) == [("XID 79",)]
