"""What the log says of the history's trouble: when it begins, why, and when it is over."""

from __future__ import annotations

import logging
import shlex
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.state_log import MOST_LINES
from gpuwatchd.store import schema
from tests.store import damage
from tests.store.world import CARDS, KNOWN, T0, Time, opened, sample

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


def test_all_is_well_and_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    history = opened(tmp_path, time)
    write(history, time, 20)
    history.close()
    assert lines(caplog) == []


def test_a_lock_is_said_once_with_its_cause_and_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    history = opened(tmp_path, time)
    assert history._connection is not None
    history._connection.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(tmp_path / schema.FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        write(history, time, 20)
        assert lines(caplog) == [(logging.WARNING, "trouble=writing", "busy")]
        other.execute("ROLLBACK")
    write(history, time, 20)
    assert lines(caplog) == [(logging.INFO, "mended=writing", "")]
    history.close()


def test_a_full_disk_is_said_once_and_that_it_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    history = opened(tmp_path, time)
    assert history._connection is not None
    (pages,) = history._connection.execute("PRAGMA page_count").fetchone()
    history._connection.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(600):
        time.pass_s(5.0)
        history.record(sample(time.now_s), CARDS, KNOWN)
    for _ in range(20):
        assert not history.flush(time.now_s)
    assert lines(caplog) == [(logging.WARNING, "trouble=writing", "full")]
    history._connection.execute("PRAGMA max_page_count = 65536")
    write(history, time, 20)
    assert lines(caplog) == [(logging.INFO, "mended=writing", "")]
    history.close()


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
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    history = opened(tmp_path, time)
    for _ in range(100):
        history._health.set("writing", "it is full", cause="full")
        history._health.set("writing", None)
        time.pass_s(5.0)
    assert len(lines(caplog)) == MOST_LINES
    history.close()


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
