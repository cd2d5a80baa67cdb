"""Pictures get few points of any span, with every peak, and are told where nothing is known."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.model import ProcessKey
from gpuwatchd.store import curves, retention, tables
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.schema import FILE_NAME
from tests.store.world import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

HOUR = 3600
DAY = 86_400
T = 1_700_000_000 // DAY * DAY
KEY = ProcessKey(pid=7, started_at_s=float(T))


def filled(
    directory: Path, statements: Iterable[tuple[str, Sequence[tuple[object, ...]]]]
) -> Reader:
    opened(directory).close()
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as it:
        it.execute("BEGIN")
        it.execute(
            "INSERT INTO gpu(id, uuid, source, vendor, position, name, memory_kind, first_ts_ms,"
            " last_ts_ms) VALUES(1,'GPU-0','nvml','nvidia',0,'A100','dedicated',0,0)"
        )
        it.execute(
            "INSERT INTO process(id, boot_id, pid, started_ts_ms, started_at_s, name,"
            " framework_sure, first_ts_ms, last_ts_ms) VALUES(1,'b',7,?,?,'python',0,?,?)",
            (T * 1000, KEY.started_at_s, T * 1000, (T + 60 * DAY) * 1000),
        )
        for statement, values in statements:
            it.executemany(statement, values)
        it.execute("COMMIT")
    return Reader.open(directory)


def samples(instants: Iterable[int], used: int = 1000) -> tuple[str, list[tuple[object, ...]]]:
    statement = "INSERT INTO gpu_raw(ts_ms, gpu, used_bytes) VALUES(?,1,?)"
    return statement, [(at_s * 1000, used) for at_s in instants]


def minutes(instants: Iterable[int], high: int = 1000) -> tuple[str, list[tuple[object, ...]]]:
    statement = "INSERT INTO gpu_1m VALUES(1,?,12,1000,1000,?,1000,NULL,NULL,NULL)"
    return statement, [(at_s, high) for at_s in instants]


def rolled(**until: int) -> tuple[str, list[tuple[object, ...]]]:
    statement = "INSERT OR REPLACE INTO meta(key, value) VALUES(?,?)"
    return statement, [(f"{table}.until", str(at_s)) for table, at_s in until.items()]


def device(reader: Reader, span: tuple[float, float], points: int = 400) -> curves.RecordedCurve:
    return reader.ask(lambda it: curves.of_device(it, "GPU-0", span, points))


def process(reader: Reader, span: tuple[float, float], points: int = 400) -> curves.RecordedCurve:
    return reader.ask(lambda it: curves.of_process(it, "GPU-0", KEY, span, points))


def test_few_samples_are_shown_one_by_one(tmp_path: Path) -> None:
    with filled(tmp_path, [samples(range(T, T + 300, 5))]) as reader:
        found = device(reader, (T, T + 300))
    assert (found.level, found.width_s, len(found.points), found.holes) == ("raw", 0.0, 60, [])


def test_a_pause_between_samples_is_a_gap_and_a_late_sample_is_none(tmp_path: Path) -> None:
    instants = [*range(T, T + 300, 5), *range(T + 340, T + 600, 5), *range(T + 900, T + 1200, 5)]
    with filled(tmp_path, [samples(instants)]) as reader:
        found = device(reader, (T, T + 1200))
    assert found.holes == [(T + 595, T + 900)]


def test_a_gap_inside_a_point_is_found_too(tmp_path: Path) -> None:
    gone = range(T + 3 * HOUR, T + 3 * HOUR + 300, 60)
    kept = [at_s for at_s in range(T, T + 10 * DAY, 60) if at_s not in gone]
    with filled(tmp_path, [minutes(kept), rolled(gpu_1m=T + 10 * DAY)]) as reader:
        found = device(reader, (T, T + 10 * DAY), points=100)
    assert found.level == "minute"
    assert found.width_s == 3 * HOUR
    assert found.holes == [(T + 3 * HOUR, T + 3 * HOUR + 300)]


@pytest.mark.parametrize(
    ("level", "length_s", "rows", "n", "thin"),
    [
        ("hour", 3600.0, 1, 96, False), ("hour", 3600.0, 1, 95, True),
        ("minute", 600.0, 9, 9, False), ("minute", 600.0, 8, 8, True),
        ("raw", 600.0, 30, 30, False), ("raw", 600.0, 28, 28, True),
        ("raw", 600.0, 1, 1, False), ("raw", 60.0, 2, 2, False),
    ],
)  # fmt: skip
def test_a_point_with_a_gap_inside_has_fewer_rows_than_usual(
    level: curves.Level, length_s: float, rows: int, n: int, thin: bool
) -> None:
    point = curves.Point(0.0, length_s, rows, n, None, None, None)
    assert curves._is_thin(level, point, usual=100, limit_s=60.0) is thin


def test_a_peak_survives_every_bucket(tmp_path: Path) -> None:
    peak = ("UPDATE gpu_1m SET used_max_bytes = ? WHERE ts_s = ?", [(77_777, T + HOUR)])
    with filled(tmp_path, [minutes(range(T, T + DAY, 60)), peak, rolled(gpu_1m=T + DAY)]) as reader:
        for points in (10, 50, 400):
            found = device(reader, (T, T + DAY), points)
            assert len(found.points) <= points
            assert max(one.high_bytes or 0 for one in found.points) == 77_777
            assert all(one.low_bytes == 1000 for one in found.points)


@pytest.mark.parametrize("days", [15, 300])
def test_points_made_of_hours_are_whole_hours_wide(tmp_path: Path, days: int) -> None:
    with filled(tmp_path, [samples([T])]) as reader:
        found = device(reader, (T, T + days * DAY))
    assert (found.level, found.width_s % HOUR) == ("hour", 0)


@pytest.mark.parametrize("days", [15, 30, 400])
def test_a_long_span_reads_samples_only_since_the_last_roll_up(tmp_path: Path, days: int) -> None:
    """As the reader holds it for tables: by the plan of every question."""
    asked: list[str] = []
    with filled(tmp_path, [samples([T]), minutes([T]), rolled(gpu_1m=T, gpu_1h=T)]) as reader:

        def work(it: sqlite3.Connection) -> None:
            it.set_trace_callback(asked.append)
            curves.of_device(it, "GPU-0", (T, T + days * DAY), 400)
            curves.of_process(it, "GPU-0", KEY, (T, T + days * DAY), 400)
            it.set_trace_callback(None)
            plans = [
                row[-1]
                for query in asked
                if "min(ts_ms)" not in query
                for row in it.execute(f"EXPLAIN QUERY PLAN {query}")
            ]
            assert plans
            assert not [plan for plan in plans if "_raw" in plan and "(ts_ms>?" not in plan]

        reader.ask(work)


def test_a_process_that_does_not_change_has_no_gaps(tmp_path: Path) -> None:
    statement = "INSERT INTO process_raw(ts_ms, process, gpu, used_bytes) VALUES(?,1,1,500)"
    rows = [((T + at_s) * 1000,) for at_s in [*range(0, 1800, 60), *range(2400, 3600, 60)]]
    with filled(tmp_path, [(statement, rows)]) as reader:
        found = process(reader, (T, T + HOUR))
    assert found.holes == [(T + 1740, T + 2400)]
    assert {one.mean_bytes for one in found.points} == {500}


def test_hours_of_a_process_say_what_its_minutes_say(tmp_path: Path) -> None:
    statement = (
        "INSERT INTO process_1m(process, gpu, ts_s, n, used_min_bytes, used_max_bytes,"
        " used_last_bytes) VALUES(1,1,?,12,?,?,?)"
    )
    rows = [(T + 60 * n, n, n + 100, n + 50) for n in range(20 * 24 * 60)]
    with filled(tmp_path, [(statement, rows), rolled(gpu_1m=T + 20 * DAY)]) as reader:
        before = process(reader, (T, T + 20 * DAY), points=200)
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as it:
        it.execute("BEGIN")
        while retention.roll_process_hours(it):
            pass
        it.execute("COMMIT")
        assert tables.rolled_s(it, "process_1h") == T + 20 * DAY
        (hours,) = it.execute("SELECT count(*) FROM process_1h").fetchone()
        assert it.execute("SELECT sum(taken_s) FROM process_1h").fetchone() == (20.0 * DAY,)
    assert hours == 20 * 24
    with Reader.open(tmp_path) as reader:
        after = process(reader, (T, T + 20 * DAY), points=200)
    assert [(p.first_s, p.last_s, p.low_bytes, p.high_bytes) for p in after.points] == [
        (p.first_s, p.last_s, p.low_bytes, p.high_bytes) for p in before.points
    ]
    assert [p.mean_bytes for p in after.points] == pytest.approx(
        [p.mean_bytes for p in before.points], abs=1.0
    )


@pytest.mark.slow
@pytest.mark.parametrize("hours", [False, True])
def test_each_minute_of_a_process_counts_the_same(tmp_path: Path, hours: bool) -> None:
    """It has a sample a minute while it does not change, many while it does."""
    statement = (
        "INSERT INTO process_1m(process, gpu, ts_s, n, used_min_bytes, used_max_bytes,"
        " used_last_bytes) VALUES(1,1,?,?,?,?,?)"
    )
    days = 20 if hours else 1
    rows = [
        (T + 60 * n, *((12, 900, 900, 900) if n % 120 >= 90 else (1, 100, 100, 100)))
        for n in range(days * 24 * 60)
    ]
    filled(tmp_path, [(statement, rows), rolled(gpu_1m=T + days * DAY)]).close()
    if hours:
        with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as it:
            while retention.roll_process_hours(it):
                pass
    with Reader.open(tmp_path) as reader:
        found = process(reader, (T, T + days * DAY), points=days * 12 + 1)
    assert found.level == ("hour" if hours else "minute")
    assert {one.mean_bytes for one in found.points if one.rows >= 2} == {300.0}
    assert found.holes == []


def test_a_gap_is_found_after_the_interval_was_changed(tmp_path: Path) -> None:
    """Hours with fewer samples than others are not all gaps, and hide none."""
    gone = range(T + 25 * DAY + 600, T + 25 * DAY + 1800, 60)
    every = [at_s for at_s in range(T, T + 30 * DAY, 60) if at_s not in gone]
    fine = [at_s for at_s in every if at_s < T + 2 * DAY]
    coarse = ("INSERT INTO gpu_1m VALUES(1,?,2,1000,1000,1000,1000,NULL,NULL,NULL)",
              [(at_s,) for at_s in every if at_s >= T + 2 * DAY])  # fmt: skip
    summed = "SELECT 1, ts_s / 3600 * 3600, sum(n), 1000, 1000, 1000, 1000, NULL, NULL, NULL"
    hours = (f"INSERT INTO gpu_1h {summed} FROM gpu_1m WHERE ? GROUP BY ts_s / 3600", [(1,)])
    until = rolled(gpu_1m=T + 30 * DAY, gpu_1h=T + 30 * DAY)
    with filled(tmp_path, [minutes(fine), coarse, hours, until]) as reader:
        found = device(reader, (T, T + 30 * DAY))
    assert found.level == "hour"
    assert found.holes == [(T + 25 * DAY + 600, T + 25 * DAY + 1800)]


def test_late_rows_have_their_hour_made_again(tmp_path: Path) -> None:
    statement = "INSERT INTO process_1m(process, gpu, ts_s, n, used_max_bytes, used_last_bytes) VALUES(1,1,?,12,?,?)"  # noqa: E501
    rows = [(T + 60 * n, 10, 10) for n in range(120)]
    filled(tmp_path, [(statement, rows), rolled(gpu_1m=T + 2 * HOUR)]).close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as it:
        while retention.roll_process_hours(it):
            pass
        it.execute("UPDATE process_1m SET used_max_bytes = 99 WHERE ts_s = ?", (T + 60,))
        retention.reopen_buckets(it, (T + 60) * 1000)
        assert tables.rolled_s(it, "process_1h") == T
        tables.save_meta(it, "gpu_1m.until", T + 2 * HOUR)
        while retention.roll_process_hours(it):
            pass
        found = it.execute("SELECT used_max_bytes FROM process_1h ORDER BY ts_s").fetchall()
    assert found == [(99,), (10,)]


def test_between_two_hours_no_process_is_looked_at(tmp_path: Path) -> None:
    filled(tmp_path, [rolled(gpu_1m=T + 2 * HOUR - 60, process_1h=T + HOUR)]).close()
    asked: list[str] = []
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as it:
        it.set_trace_callback(asked.append)
        assert retention.roll_process_hours(it) == 0
    assert asked
    assert not [query for query in asked if "FROM process" in query]
