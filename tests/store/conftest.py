"""An open history on a clock that is moved by hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import database
from tests.store.world import Time, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.store.writer import History


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    """Return an empty history in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        database.migrate(connection)
        yield connection


@pytest.fixture
def history(tmp_path: Path, time: Time) -> Iterator[History]:
    """Return a history in a folder of the test's own; closed at its end, if it is not before."""
    found = opened(tmp_path, time)
    yield found
    found.close()
