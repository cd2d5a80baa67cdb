"""Questions about the past: the right table for the span, and one line for every trouble."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import StoreBusy, StoreDamaged, StoreError, StoreNewer
from gpuwatchd.store import schema
from gpuwatchd.store.reader import Reader
from tests.making import alert
from tests.store.world import CARDS, INFOS, KNOWN, Time, delivery, opened, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History


HOUR_0 = 1_700_002_800.0
DAY_S = 86_400.0


@pytest.fixture
def past(tmp_path: Path) -> Path:
    """Three hours of a minute's sample each, rolled up, with ten more minutes that are not."""
    time = Time(HOUR_0)
    history = opened(tmp_path, time)
    for minute in range(190):
        for second in (0, 30):
            at_s = HOUR_0 + 60 * minute + second
            used = 1000 + minute + second
            history.record(sample(at_s, used, uses=(minute,), power_w=100.0), CARDS, KNOWN)
    history.flush(HOUR_0 + 190 * 60)
    for _ in range(10):
        history.chores(HOUR_0 + 180 * 60)
    history.close()
    return tmp_path


def test_a_short_span_comes_from_raw_samples(past: Path) -> None:
    with Reader.open(past) as reader:
        found = reader.device_rows("GPU-0", HOUR_0 + 60, HOUR_0 + 120)
        assert [(row.at_s - HOUR_0, row.width_s, row.used_last_bytes) for row in found] == [
            (60, 0, 1001),
            (90, 0, 1031),
        ]
        assert "gpu_raw" in reader.last_query
        assert "1m" not in reader.last_query
        assert str(int(HOUR_0 + 60) * 1000) in reader.last_query


def test_days_come_from_minutes_and_are_complete_to_the_last_sample(past: Path) -> None:
    with Reader.open(past) as reader:
        found = reader.device_rows("GPU-0", HOUR_0 - DAY_S, HOUR_0 + DAY_S)
        assert [row.at_s for row in found] == [HOUR_0 + 60 * minute for minute in range(190)]
        for minute in (0, 100, 185):  # the last one is not rolled up yet
            row = found[minute]
            assert (row.width_s, row.n) == (60, 2)
            assert (row.used_min_bytes, row.used_max_bytes) == (1000 + minute, 1030 + minute)
            assert (row.used_mean_bytes, row.used_last_bytes) == (1015 + minute, 1030 + minute)
        assert found[100].energy_j == 6000.0


def test_a_month_comes_from_hours_and_from_samples_since_the_last_roll_up(past: Path) -> None:
    with Reader.open(past) as reader:
        asked: list[str] = []
        reader._connection.set_trace_callback(asked.append)
        found = reader.device_rows("GPU-0", HOUR_0 - 15 * DAY_S, HOUR_0 + 15 * DAY_S)
        assert [(row.at_s - HOUR_0, row.width_s, row.n) for row in found] == [
            (0, 3600, 120),
            (3600, 3600, 120),
            (7200, 3600, 120),
            (10800, 3600, 20),
        ]
        assert (found[1].used_min_bytes, found[1].used_max_bytes) == (1060, 1149)
        assert found[2].used_last_bytes == 1209
        plans = []
        for statement in asked:
            plans += reader._connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        touched = " ".join(str(step) for step in plans)
        assert "gpu_1h" in touched
        assert "SCAN gpu_raw" not in touched
        assert "SCAN gpu_1h" not in touched


def test_an_hour_that_is_not_closed_is_made_from_minutes(tmp_path: Path, history: History) -> None:
    for minute in range(10):
        history.record(sample(HOUR_0 + 60 * minute, minute), CARDS, {})
    history.flush(HOUR_0 + 600)
    history.chores(HOUR_0 + 600)
    history.close()
    with Reader.open(tmp_path) as reader:
        (row,) = reader.device_rows("GPU-0", HOUR_0 - 29 * DAY_S, HOUR_0 + DAY_S)
        assert (row.at_s, row.n, row.used_max_bytes) == (HOUR_0, 10, 9)


def test_a_short_span_of_long_ago_comes_from_what_is_left(past: Path) -> None:
    with closing(sqlite3.connect(past / "history.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM gpu_raw WHERE ts_ms < ?", (int(HOUR_0 + 9000) * 1000,))
        connection.execute("DELETE FROM gpu_1m WHERE ts_s < ?", (HOUR_0 + 3600,))
    with Reader.open(past) as reader:
        minutes = reader.device_rows("GPU-0", HOUR_0 + 3600, HOUR_0 + 3900)
        assert [row.width_s for row in minutes] == [60] * 5
        (hour,) = reader.device_rows("GPU-0", HOUR_0, HOUR_0 + 600)
        assert (hour.width_s, hour.n) == (3600, 120)


def test_buckets_join_samples(past: Path) -> None:
    with Reader.open(past) as reader:
        found = reader.device_rows("GPU-0", HOUR_0, HOUR_0 + 1200, bucket_s=600)
        assert [(row.at_s - HOUR_0, row.n, row.used_last_bytes) for row in found] == [
            (0, 20, 1039),
            (600, 20, 1049),
        ]
        long = reader.device_rows("GPU-0", HOUR_0, HOUR_0 + 5 * DAY_S, bucket_s=1800)
        assert [(row.at_s - HOUR_0, row.n) for row in long[:2]] == [(0, 60), (1800, 60)]
        assert long[0].width_s == 1800


def test_processes_over_time(past: Path) -> None:
    with Reader.open(past) as reader:
        raw = reader.process_rows("GPU-0", HOUR_0 + 60, HOUR_0 + 180)
        assert [(row.at_s - HOUR_0, row.used_last_bytes) for row in raw] == [(60, 1), (120, 2)]
        assert raw[0].process == INFOS[0].key
        minutes = reader.process_rows("GPU-0", HOUR_0 - DAY_S, HOUR_0 + DAY_S)
        assert [row.used_max_bytes for row in minutes[:4]] == [0, 1, 2, 3]
        assert minutes[0].width_s == 60
        assert reader.processes(since_s=HOUR_0 + DAY_S) == []


def test_nothing_is_an_empty_list(past: Path) -> None:
    with Reader.open(past) as reader:
        assert reader.device_rows("GPU-9", HOUR_0, HOUR_0 + 60) == []
        assert reader.device_rows("GPU-0", HOUR_0, HOUR_0) == []
        assert reader.process_rows("GPU-9", HOUR_0, HOUR_0 + 60) == []
        assert reader.alerts() == []
        assert reader.deliveries("k") == []
        assert reader.events() == []


def test_it_reads_while_the_daemon_writes(tmp_path: Path, history: History) -> None:
    with Reader.open(tmp_path) as reader:
        assert reader.alerts() == []
        history.apply([alert()], [delivery("leak:x")])
        assert reader.alerts() == [alert()]
        assert len(reader.deliveries("leak:x")) == 1


def test_it_cannot_write(past: Path) -> None:
    with Reader.open(past) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._connection.execute("DELETE FROM alert")


def test_no_history(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no history") as caught:
        Reader.open(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "why", "hint"),
    [(b"", "empty", ""), (b"a letter to grandmother\n" * 100, "not a database", ".recover")],
)
def test_something_else(tmp_path: Path, content: bytes, why: str, hint: str) -> None:
    (tmp_path / "history.db").write_bytes(content)
    with pytest.raises(StoreDamaged, match=why) as caught:
        Reader.open(tmp_path)
    assert hint in caught.value.hint


def test_a_database_of_somebody_else(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "history.db")) as connection:
        connection.execute("CREATE TABLE t(a)")
    with pytest.raises(StoreDamaged, match="not a history"):
        Reader.open(tmp_path)


@pytest.mark.parametrize(
    ("version", "kind", "hint"), [(99, StoreNewer, "upgrade"), (0, StoreError, "start the daemon")]
)
def test_another_version(past: Path, version: int, kind: type[StoreError], hint: str) -> None:
    with closing(sqlite3.connect(past / "history.db")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(kind) as caught:
        Reader.open(past)
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


def test_locked(past: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatchd.store.checked_connection.BUSY_S", 0.01)
    with closing(sqlite3.connect(past / "history.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("DELETE FROM event")
        with pytest.raises(StoreBusy, match="locked"):
            Reader.open(past)


def test_damage_that_shows_while_reading(past: Path) -> None:
    file = past / "history.db"
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = 'gpu_raw'"
        (page,) = connection.execute(query).fetchone()
    content, size = bytearray(file.read_bytes()), schema.PAGE_BYTES
    content[size * (page - 1) : size * page] = b"\xa5" * size
    file.write_bytes(content)
    with Reader.open(past) as reader:
        assert reader.events() == []
        with pytest.raises(StoreDamaged):
            reader.device_rows("GPU-0", HOUR_0, HOUR_0 + 3 * 3600)


def test_reading_loads_neither_numpy_nor_sqlite_utils(past: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gpuwatchd.store.reader import Reader\n"
        "with Reader.open(Path(sys.argv[1])) as r: print(len(r.devices()))\n"
        "print(sorted({'numpy', 'sqlite_utils', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(past)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n[]\n"
