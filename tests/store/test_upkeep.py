"""Roll-ups keep what they stand for; deleting by age and size takes the oldest and no alert."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as laws
from hypothesis import strategies as st

from gpuwatchd.store import retention
from tests.making import alert
from tests.store.world import CARDS, KNOWN, T0, Time, delivery, opened, rows, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.store.writer import History

DAY_S = 86_400
HOUR_0 = 1_700_002_800.0
"""A full hour after T0."""


@pytest.fixture
def time() -> Time:
    return Time(HOUR_0)


@pytest.fixture(autouse=True, scope="module")
def _each_minute() -> Iterator[None]:
    """Roll up what is there, as where many rows wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "_ROLL_ROWS", 0)
        yield


def _fill(history: History, points: list[tuple[float, int | None]], **more: Any) -> None:
    for at_s, used in points:
        history.record(sample(at_s, used, util_pct=10.0, **more), CARDS, KNOWN)


def _settle(history: History, time: Time) -> None:
    """Let the clock run evenly long enough to be believed."""
    history.chores(time.now_s)
    time.pass_s(retention.SETTLE_S + 1)


@pytest.mark.slow
@laws(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.integers(0, 7199),
        st.one_of(st.none(), st.integers(0, 2**40)),
        min_size=1,
        max_size=120,
    ),
    st.lists(st.integers(1, 7300), max_size=4),
)
def test_rollups_keep_number_least_most_and_last(
    values: dict[int, int | None], pauses: list[int]
) -> None:
    """Whatever the values are and whenever the chores run."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        history = opened(directory)
        done = 0
        for until in [*sorted(pauses), 7200]:
            part = [(HOUR_0 + t, values[t]) for t in sorted(values) if done <= t < until]
            _fill(history, part)
            history.flush(HOUR_0 + until)
            history.chores(HOUR_0 + until)
            done = max(done, until)
        for _ in range(5):
            history.chores(HOUR_0 + 7200)
        history.close()
        for table, width in (("gpu_minutes", 60), ("gpu_1h", 3600)):
            expected = {}
            for start in range(0, 7200, width):
                inside = [values[t] for t in sorted(values) if start <= t < start + width]
                known = [value for value in inside if value is not None]
                if inside:
                    expected[HOUR_0 + start] = (
                        len(known),
                        min(known, default=None),
                        max(known, default=None),
                        known[-1] if known else None,
                    )
            found = {
                row[0]: row[1:]
                for row in rows(
                    directory,
                    f"SELECT ts_s, n, used_min_bytes, used_max_bytes, used_last_bytes FROM {table}",
                )
            }
            if table == "gpu_1h":
                # The hour of the last sample is closed by later minutes, not by the clock alone.
                expected = {start: row for start, row in expected.items() if start in found}
            assert found == expected
        means = rows(
            directory, "SELECT used_mean_bytes, used_min_bytes, used_max_bytes FROM gpu_minutes"
        )
        assert all(mean is None or low <= mean <= high for mean, low, high in means)


def test_the_open_minute_is_not_rolled_up(tmp_path: Path, history: History) -> None:
    _fill(history, [(HOUR_0 + 5 * i, i) for i in range(18)])
    history.flush(HOUR_0 + 89)
    history.chores(HOUR_0 + 89)
    assert rows(tmp_path, "SELECT ts_s, n, used_mean_bytes FROM gpu_1m") == [(HOUR_0, 12, 6)]


def test_a_minute_that_still_waits_in_memory_is_not_rolled_up(
    tmp_path: Path, history: History
) -> None:
    _fill(history, [(HOUR_0 + 5 * i, i) for i in range(6)])
    history.flush(HOUR_0 + 30)
    _fill(history, [(HOUR_0 + 30 + 5 * i, i) for i in range(7)])
    history.chores(HOUR_0 + 65)
    assert rows(tmp_path, "SELECT count(*) FROM gpu_1m") == [(0,)]
    history.flush(HOUR_0 + 65)
    history.chores(HOUR_0 + 65)
    assert rows(tmp_path, "SELECT n FROM gpu_1m") == [(12,)]


def test_minutes_of_processes_and_energy(tmp_path: Path, history: History) -> None:
    for i in range(24):
        taken = sample(HOUR_0 + 5 * i, 9, uses=(100 + i, 7), power_w=200.0, temp_c=50.0 + i)
        history.record(taken, CARDS, KNOWN)
    history.flush(HOUR_0 + 120)
    history.chores(HOUR_0 + 120)
    made = rows(tmp_path, "SELECT process, n, used_max_bytes, used_last_bytes FROM process_minutes")
    assert made == [(1, 12, 111, 111), (1, 12, 123, 123), (2, 1, 7, 7), (2, 1, 7, 7)]
    # 200 W: the first minute knows 11 pauses of 5 s, the second 12.
    assert rows(tmp_path, "SELECT energy_mj, temp_max_c FROM gpu_1m") == [
        (11_000_000, 61),
        (12_000_000, 73),
    ]


def test_a_clock_set_back_makes_the_minutes_again(tmp_path: Path, history: History) -> None:
    _fill(history, [(HOUR_0 + 5 * i, 100) for i in range(48)])
    history.flush(HOUR_0 + 240)
    history.chores(HOUR_0 + 240)
    history.segment("clock-step", wall_step_s=-120.0)
    _fill(history, [(HOUR_0 + 120 + 5 * i, 900) for i in range(12)])
    history.flush(HOUR_0 + 180)
    history.chores(HOUR_0 + 180)
    history.chores(HOUR_0 + 240)
    assert rows(tmp_path, "SELECT n, used_max_bytes FROM gpu_minutes") == [
        (12, 100),
        (12, 100),
        (12, 900),
        (12, 100),
    ]


@pytest.mark.requirement("B9")
def test_what_is_too_old_goes_and_the_rest_stays(tmp_path: Path) -> None:
    time = Time(HOUR_0 + 100 * DAY_S)
    history = opened(tmp_path, time)
    days = [0, 50, 80, 95, 97.5, 99.5]
    _fill(history, [(HOUR_0 + DAY_S * day, 5) for day in days], uses=(1,))
    history.flush(time.now_s)
    _settle(history, time)
    for _ in range(12):
        history.chores(time.now_s)

    def kept(table: str) -> list[float]:
        column = "ts_ms / 1000" if table.endswith("raw") else "ts_s"
        query = f"SELECT ({column} - {int(HOUR_0)}) / 86400.0 FROM {table} ORDER BY 1"
        return [round(day, 1) for (day,) in rows(tmp_path, query)]

    assert kept("gpu_raw") == [95, 97.5, 99.5]
    assert kept("process_raw") == [99.5]
    assert kept("gpu_1m") == [50, 80, 95, 97.5, 99.5]
    assert kept("process_1m") == [80, 95, 97.5, 99.5]
    assert len(kept("gpu_1h")) >= 5
    history.close()


def test_a_clock_that_is_not_believed_deletes_nothing(
    tmp_path: Path, history: History, time: Time
) -> None:
    _fill(history, [(HOUR_0, 5)], uses=(1,))
    history.flush(HOUR_0)
    for wild_s in (-20 * 365 * DAY_S, 20 * 365 * DAY_S):
        time.now_s = HOUR_0 + wild_s
        for _ in range(5):
            history.chores(time.now_s)
            time.pass_s(60)
        time.now_s = HOUR_0
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(1,)]
    assert rows(tmp_path, "SELECT count(*) FROM process_raw") == [(1,)]


def test_rows_of_the_future_go_once_the_clock_is_believed(
    tmp_path: Path, history: History, time: Time
) -> None:
    _fill(history, [(HOUR_0 + 3 * DAY_S, 5), (HOUR_0, 6)])
    history.flush(HOUR_0)
    history.chores(time.now_s)
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(2,)]
    _settle(history, time)
    history.chores(time.now_s)
    assert rows(tmp_path, "SELECT used_bytes FROM gpu_raw") == [(6,)]


def test_alerts_that_are_open_or_not_yet_told_stay(tmp_path: Path) -> None:
    time = Time(T0 + 800 * DAY_S)
    history = opened(tmp_path, time)
    over = {"state": "resolved", "opened_at_s": T0, "resolved_at_s": T0 + 60}
    history.apply(
        [
            alert(key="open", opened_at_s=T0),
            alert(key="over", **over),
            alert(key="untold", **over),
        ],
        [delivery("over", state="sent"), delivery("untold"), delivery("test", 3, state="failed")],
    )
    history.segment("start")
    _settle(history, time)
    history.chores(time.now_s)
    assert rows(tmp_path, "SELECT key FROM alert ORDER BY id") == [("open",), ("untold",)]
    assert rows(tmp_path, "SELECT alert_key FROM delivery") == [("untold",)]
    assert rows(tmp_path, "SELECT count(*) FROM segment") == [(1,)]
    history.close()


_MANY = """
WITH RECURSIVE count(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM count WHERE i < 5000)
INSERT INTO process_raw(ts_ms, process, gpu, used_bytes)
SELECT {first_ms} + 2000 * i, i % 3 + 1, 1, 1234567890 + i FROM count;
"""


@pytest.mark.slow
def test_near_the_size_bound_the_oldest_rows_go_and_the_file_stays_within(tmp_path: Path) -> None:
    time = Time(HOUR_0)
    history = opened(tmp_path, time, max_db_mib=8)
    history.apply([alert()], [delivery("leak:x")])
    history.record(sample(HOUR_0, 1, uses=(1,) * 3, cards=CARDS), CARDS, KNOWN)
    assert history.flush(HOUR_0)
    assert history._file.connection is not None
    count = 0
    for _ in range(120):
        history._file.connection.executescript(
            _MANY.format(first_ms=int(HOUR_0 * 1000) + count * 2000)
        )
        count += 5000
        history.chores(HOUR_0 + count * 2)
    assert history.problems == ()
    ((oldest,),) = rows(tmp_path, "SELECT min(ts_ms) / 1000 FROM process_raw")
    assert oldest > HOUR_0
    ((newest,),) = rows(tmp_path, "SELECT max(ts_ms) / 1000 FROM process_raw")
    assert newest == HOUR_0 + count * 2
    assert rows(tmp_path, "SELECT count(*) FROM alert") == [(1,)]
    history.close()
    assert (tmp_path / "history.db").stat().st_size <= 8 * 2**20


def test_deleted_pages_are_given_back(tmp_path: Path, history: History, time: Time) -> None:
    for tick in range(6000):
        history.record(sample(HOUR_0 + tick, tick, uses=(tick,) * 3), CARDS, KNOWN)
    history.flush(HOUR_0)
    before = rows(tmp_path, "PRAGMA page_count")[0][0]
    time.now_s = HOUR_0 + 30 * DAY_S
    _settle(history, time)
    for _ in range(4):
        history.chores(time.now_s)
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(0,)]
    assert rows(tmp_path, "PRAGMA page_count")[0][0] < before / 2


def test_a_chore_that_fails_is_told_and_tried_again(tmp_path: Path, history: History) -> None:
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            history.chores(T0)
        assert any("locked" in problem for problem in history.problems)
        other.execute("ROLLBACK")
    history.chores(T0)
    assert history.problems == ()
