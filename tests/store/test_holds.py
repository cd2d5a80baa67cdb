"""Processes on which no automatic step is taken: kept in ``meta``, one row each, until a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import tables
from tests.store.world import T0

if TYPE_CHECKING:
    import sqlite3

JOB = ProcessKey(pid=4711, started_at_s=T0 - 100.25)
RANK = ProcessKey(pid=4712, started_at_s=T0 - 100.25)


def near(key: ProcessKey, by_s: float) -> ProcessKey:
    return ProcessKey(pid=key.pid, started_at_s=(key.started_at_s or 0.0) + by_s)


def test_it_is_of_one_process_until_its_time_is_over(file: sqlite3.Connection) -> None:
    tables.save_hold(file, JOB, T0 + 10.0)
    tables.save_hold(file, RANK, T0 + 20.0)
    holds = tables.load_holds(file, T0)
    assert holds == {JOB: T0 + 10.0, RANK: T0 + 20.0}
    assert tables.load_holds(file, T0 + 10.0) == {RANK: T0 + 20.0}
    assert tables.held_until_s(holds, JOB) == T0 + 10.0
    # Clocks that two programs read differ a little; a later process with the pid is another one.
    assert tables.held_until_s(holds, near(JOB, 0.9)) == T0 + 10.0
    assert tables.held_until_s(holds, near(JOB, 1.1)) is None
    assert tables.held_until_s(holds, ProcessKey(pid=4711, started_at_s=None)) is None


def test_the_last_one_counts_and_can_be_taken_back(file: sqlite3.Connection) -> None:
    tables.save_hold(file, JOB, T0 + 20.0)
    tables.save_hold(file, near(JOB, 0.5), T0 + 10.0)
    assert list(tables.load_holds(file, T0).values()) == [T0 + 10.0]
    assert tables.clear_hold(file, RANK) == 0
    assert tables.clear_hold(file, near(JOB, -0.2)) == 1
    assert tables.load_holds(file, T0) == {}


def test_what_is_over_does_not_pile_up(file: sqlite3.Connection) -> None:
    def count() -> int:
        (number,) = file.execute("SELECT count(*) FROM meta WHERE key LIKE 'act.%'").fetchone()
        return int(number)

    for number in range(100):
        tables.save_hold(file, near(JOB, 86_400.0 * number), T0 + 86_400.0 * number)
    assert count() <= 8


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("act.hold.4711.1000.000", "soon"),
        ("act.hold.4711.1000.000", "inf"),
        ("act.hold.4711.1000.000", "nan"),
        ("act.hold.4711.", "9e9"),
        ("act.hold.x.1000.000", "9e9"),
        ("act.hold.4711.1000.000.1", "9e9"),
        (f"act.hold.{'9' * 5000}.1000.000", "9e9"),
    ],
)
def test_what_nobody_understands_is_ignored(file: sqlite3.Connection, key: str, value: str) -> None:
    file.execute("INSERT INTO meta VALUES(?, ?)", (key, value))
    tables.save_hold(file, JOB, T0 + 10.0)
    assert tables.load_holds(file, T0) == {JOB: T0 + 10.0}
