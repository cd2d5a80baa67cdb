"""Silences: kept by any program, replaced, taken back, read by the daemon as soon as it may."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import Matcher, Silence
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from tests.making import alert
from tests.store.world import T0, opened, rows

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History


HOUR_S = 3600.0


def silence(**changes: object) -> Silence:
    values: dict[str, object] = {
        "matcher": Matcher(user="bob*"),
        "from_at_s": T0,
        "until_at_s": T0 + HOUR_S,
        "who": "alice",
        "why": "it is a test",
    }
    return Silence(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_added_is_read_back_whole(tmp_path: Path) -> None:
    opened(tmp_path).close()
    kept = transaction(
        tmp_path, tables.write_silence, silence(even_critical=True, until_resolved=True)
    )
    assert kept.row is not None
    with Reader.open(tmp_path) as reader:
        assert reader.silences() == [kept]
    assert msgspec.structs.replace(kept, row=None) == silence(
        even_critical=True, until_resolved=True
    )


def test_one_on_the_same_takes_the_place_of_the_older(tmp_path: Path) -> None:
    opened(tmp_path).close()
    first = transaction(tmp_path, tables.write_silence, silence())
    other = transaction(tmp_path, tables.write_silence, silence(matcher=Matcher(gpu="0")))
    second = transaction(
        tmp_path, tables.write_silence, silence(from_at_s=T0 + 60, until_at_s=T0 + 2 * HOUR_S)
    )
    with Reader.open(tmp_path) as reader:
        assert [one.row for one in reader.silences()] == [other.row, second.row]
        past = [one for one in reader.silences(all_of_them=True) if one.row == first.row]
    assert past[0].cleared_at_s == T0 + 60


def test_clearing_ends_only_what_stands(tmp_path: Path) -> None:
    opened(tmp_path).close()
    kept = transaction(tmp_path, tables.write_silence, silence())
    assert kept.row is not None
    assert transaction(tmp_path, tables.end_silences, (kept.row, 999), T0 + 5) == 1
    assert transaction(tmp_path, tables.end_silences, (kept.row,), T0 + 9) == 0
    with Reader.open(tmp_path) as reader:
        assert reader.silences() == []
        assert reader.silences(all_of_them=True)[0].cleared_at_s == T0 + 5


def test_a_row_that_nobody_understands_is_left_out(tmp_path: Path) -> None:
    opened(tmp_path).close()
    kept = transaction(tmp_path, tables.write_silence, silence())
    with closing(sqlite3.connect(tmp_path / "history.db")) as connection, connection:
        connection.execute(
            "INSERT INTO silence(matcher, from_ts_ms, until_ts_ms) VALUES('nonsense', 1, 2)"
        )
    with Reader.open(tmp_path) as reader:
        assert reader.silences(all_of_them=True) == [kept]


def test_of_one_alert_critical_is_told_unless_it_is_so_already() -> None:
    warned = tables.silence_of(alert(severity="warning"), now_s=T0, for_s=HOUR_S)
    assert not warned.even_critical
    assert tables.silence_of(alert(severity="critical"), now_s=T0, for_s=HOUR_S).even_critical
    long = tables.silence_of(alert(), now_s=T0, for_s=1e9)
    assert long.until_at_s - long.from_at_s == tables.LONGEST_S
    assert warned.matcher == Matcher(key=alert().key)


def test_the_shelf_gives_what_is_in_force(tmp_path: Path, history: History) -> None:
    going = alert(key="leak:going")
    history.apply([going], [])
    kept = transaction(tmp_path, tables.write_silence, silence())
    of_it = transaction(
        tmp_path,
        tables.write_silence,
        silence(matcher=Matcher(key="leak:going"), until_resolved=True),
    )
    transaction(
        tmp_path,
        tables.write_silence,
        silence(matcher=Matcher(key="leak:over"), until_resolved=True),
    )
    assert history.shelf.changed_elsewhere()
    assert history.shelf.silences(T0) == [kept, of_it]
    assert history.shelf.silences(T0 + HOUR_S) == []
    history.apply([msgspec.structs.replace(going, state="resolved", resolved_at_s=T0 + 1)], [])
    assert history.shelf.silences(T0) == [kept]


def test_the_daemon_writes_and_moves_them_itself(tmp_path: Path, history: History) -> None:
    kept = history.shelf.write_now(tables.write_silence, silence())
    assert kept is not None
    moved = msgspec.structs.replace(kept, from_at_s=T0 - 500, until_at_s=T0 + 100)
    assert history.shelf.write_now(tables.move_silences, [moved]) == 1
    assert history.shelf.silences(T0) == [moved]
    assert history.shelf.write_now(tables.end_silences, [kept.row], T0 + 7) == 1
    assert history.shelf.silences(T0) == []
    history.close()
    assert rows(tmp_path, "SELECT cleared_ts_ms FROM silence") == [(round((T0 + 7) * 1000),)]
