"""What was asked of jobs and when they saved: who it was is found without reading all they held."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import action_events
from tests import histories

if TYPE_CHECKING:
    from pathlib import Path

_A_THOUSAND = 1000
_AT_MOST = 20
"""Thousands of steps of SQLite: a month of minutes would be some hundred."""


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    histories.thirty_days(folder)
    return folder / "history.db"


def test_a_job_of_a_month_is_known_by_name_and_device(month: Path) -> None:
    with closing(sqlite3.connect(month)) as it:
        (one,) = action_events.load(it, 0.0)
    assert (one.kind, one.name, one.device_uids) == (
        action_events.SAVED,
        "python",
        (histories.uid(0),),
    )


def test_its_minutes_are_not_read_for_it(month: Path) -> None:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(month)) as it:
        it.set_progress_handler(step, _A_THOUSAND)
        action_events.load(it, 0.0)
    assert steps <= _AT_MOST
