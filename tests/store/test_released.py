"""Every history that a release has ever written is opened by this version, with all it holds."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.model import Subject
from gpuwatchd.store import schema
from gpuwatchd.store.reader import Reader
from tests.store import released
from tests.store.test_migration import older
from tests.store.world import CARDS, T0, Time, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = range(1, schema.VERSION + 1)


def tables(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as it:
        found = it.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    return {name: re.sub(r"\s+", " ", sql) for name, sql in found}


def columns(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return name, type, default and part in the key of each column, however it was made."""
    with closing(sqlite3.connect(path)) as it:
        asked = 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)'
        return {name: sorted(it.execute(asked, (name,))) for name in tables(path)}


def test_every_version_has_its_file() -> None:
    there = {path.name for path in released.HISTORIES.glob("*.sql")}
    assert there == {*(f"v{version}.sql" for version in VERSIONS), released.FULL.name}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_step_that_was_released_is_never_changed(tmp_path: Path, version: int) -> None:
    (tmp_path / "then").mkdir()
    (tmp_path / "now").mkdir()
    then = tables(released.load(version, tmp_path / "then"))
    older(tmp_path / "now", version)
    assert tables(tmp_path / "now" / schema.FILE_NAME) == then


def test_a_new_history_has_the_names_that_were_released(tmp_path: Path) -> None:
    for name in ("then", "now"):
        (tmp_path / name).mkdir()
    then = released.load(schema.VERSION, tmp_path / "then")
    opened(tmp_path / "now", Time(T0)).close()
    assert tables(tmp_path / "now" / schema.FILE_NAME) == tables(then)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_opened_and_goes_on(tmp_path: Path, version: int) -> None:
    released.load(version, tmp_path)
    history = opened(tmp_path, Time(T0 + 10))
    assert history.problems == ()
    assert [alert.key for alert in history.open_alerts()] == ["leak:x"]
    card = Subject(device_uid="GPU-0")
    assert list(history.recent_series(0)) == [(card, [(T0, 1000), (T0 + 5, 1001)])]
    assert history.shelf.idle_levels() == {}
    history.record(sample(T0 + 10, 900), CARDS, {}, {"GPU-0": -5})
    history.close()
    assert rows(tmp_path, "PRAGMA user_version") == [(schema.VERSION,)]
    assert rows(tmp_path, "SELECT used_bytes, unattributed_bytes FROM gpu_raw ORDER BY ts_ms") == [
        (1000, None),
        (1001, None),
        (900, -5),
    ]
    with Reader.open(tmp_path) as reader:
        whole = msgspec.structs.replace(card, unattributed=True)
        assert [w.subject for w in reader.user_labels()] == ([whole] if version > 1 else [])
    assert rows(tmp_path, "PRAGMA integrity_check") == [("ok",)]
    backup = tmp_path / f"history.db.bak-v{version}"
    assert backup.exists() == (version < schema.VERSION)


@pytest.mark.parametrize("version", VERSIONS)
def test_afterwards_the_tables_are_those_of_a_new_history(tmp_path: Path, version: int) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    released.load(version, tmp_path / "old")
    for name in ("old", "new"):
        opened(tmp_path / name, Time(T0 + 10)).close()
    assert columns(tmp_path / "old" / schema.FILE_NAME) == columns(
        tmp_path / "new" / schema.FILE_NAME
    )
