"""Who held what, minute by minute: the same before and after the minutes are rolled up."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.analysis import cost
from gpuwatchd.core.model import DeviceReading, ProcessUse, Sample
from gpuwatchd.store import occupancy, retention
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.schema import FILE_NAME
from tests.store.world import BOOT, CARDS, INFOS, KNOWN, T0, Time, opened

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History

GIB = 2**30
MINUTES = 30


def record(history: History, time: Time, *, power_w: float | None = None) -> None:
    """Record half an hour: one process all the time, another in its second half."""
    for tick in range(MINUTES * 6):
        at_s = T0 + 10.0 * tick
        uses = [ProcessUse(key=INFOS[0].key, used_bytes=30 * GIB)]
        if tick >= MINUTES * 3:
            uses.append(ProcessUse(key=INFOS[1].key, used_bytes=10 * GIB))
        reading = DeviceReading(
            device_uid=CARDS[0].uid, used_bytes=40 * GIB, free_bytes=GIB, total_bytes=80 * GIB,
            uses=tuple(uses), power_w=power_w,
        )  # fmt: skip
        history.record(
            Sample(taken_at_s=at_s, taken_mono_s=at_s, boot_id=BOOT, readings=(reading,)),
            CARDS, KNOWN,
        )  # fmt: skip
    time.pass_s(MINUTES * 60.0)
    history.flush(time.now_s)


@pytest.mark.parametrize("rolled", [False, True])
def test_hours_are_the_same_from_raw_rows_and_from_minutes(
    tmp_path: Path, history: History, time: Time, rolled: bool
) -> None:
    record(history, time)
    for _ in range(20 if rolled else 0):
        history.chores(time.now_s)
    history.close()
    with Reader.open(tmp_path) as reader:
        rows = reader.occupancy(CARDS[0].uid, T0, time.now_s)
        assert reader.occupancy("GPU-none", T0, time.now_s) == []
        assert reader.occupancy(CARDS[0].uid, time.now_s, T0) == []
    assert len(rows) == MINUTES + MINUTES // 2
    found = cost.usage_by_process(rows, T0, time.now_s)
    assert found[INFOS[0].key].hours == pytest.approx(0.25 + 0.25 * 0.75)
    assert found[INFOS[1].key].hours == pytest.approx(0.25 * 0.25)


def test_what_a_process_held_is_known_for_a_while(
    tmp_path: Path, history: History, time: Time
) -> None:
    record(history, time)
    history.close()
    with Reader.open(tmp_path) as reader:
        for later_s, held in ((0.0, {CARDS[0].uid: 30 * GIB}), (900.0, {})):
            at_s = time.now_s + later_s
            assert reader.ask(occupancy.levels, INFOS[0].key, at_s, 600.0) == held


def test_the_daemon_reads_the_same(tmp_path: Path, history: History, time: Time) -> None:
    record(history, time)
    history.chores(time.now_s)
    mine = history.shelf.occupancy(CARDS[0].uid, T0 + 90.0, time.now_s)
    history.close()
    with Reader.open(tmp_path) as reader:
        assert sorted(map(str, mine or ())) == sorted(
            map(str, reader.occupancy(CARDS[0].uid, T0 + 90.0, time.now_s))
        )
    assert min(row.at_s for row in mine or ()) == T0 + 60.0


def test_mean_power_is_that_of_the_minutes_it_was_measured_in(
    tmp_path: Path, history: History, time: Time
) -> None:
    record(history, time, power_w=300.0)
    for _ in range(20):
        history.chores(time.now_s)
    history.close()
    with Reader.open(tmp_path) as reader:
        measured = reader.power_w(CARDS[0].uid, T0 + 60.0, time.now_s)
        assert measured == pytest.approx(300.0, rel=0.02)
        assert reader.power_w(CARDS[1].uid, T0, time.now_s) is None


@pytest.mark.parametrize("most", [1, 3, 7, 10, 30])
def test_of_a_long_span_some_minutes_stand_for_all(history: History, time: Time, most: int) -> None:
    record(history, time)
    for _ in range(20):
        history.chores(time.now_s)
    connection = history._file.connection
    assert connection is not None
    rows = occupancy.load(connection, CARDS[0].uid, T0, time.now_s, most_minutes=most)
    history.close()
    assert len({row.at_s for row in rows}) <= most + 1
    found = cost.usage_by_process(rows, T0, time.now_s)
    assert sum(one.hours or 0.0 for one in found.values()) <= 0.5 + 1e-9
    if most >= 7:
        assert found[INFOS[0].key].hours == pytest.approx(0.25 + 0.25 * 0.75, abs=0.08)


HOUR = 3600
T = 1_700_000_000 // HOUR * HOUR
BOUND_H = 1e-9
"""Hours: sums of floating point in another order, and nothing else."""


@pytest.mark.parametrize("seed", range(6))
def test_sums_are_those_of_the_minutes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    opened(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as it:
        it.execute("BEGIN")
        it.execute(
            "INSERT INTO gpu(id, uuid, source, vendor, position, name, memory_kind, first_ts_ms,"
            " last_ts_ms) VALUES(1,'GPU-0','nvml','nvidia',0,'A100','dedicated',0,0)"
        )
        for row in range(1, 7):
            first = T + 60 * chance.randrange(600)
            last = first + 60 * chance.randrange(1, 900)
            it.execute(
                "INSERT INTO process(id, boot_id, pid, started_ts_ms, started_at_s, name,"
                " framework_sure, first_ts_ms, last_ts_ms) VALUES(?,'b',?,?,?,'python',0,?,?)",
                (row, row, first * 1000, float(first), first * 1000, last * 1000),
            )
            for at_s in range(first, last, 60):
                if chance.random() < 0.9:
                    held = chance.choice([0, None]) if chance.random() < 0.02 else row * at_s % 997
                    it.execute(
                        "INSERT INTO process_1m(process, gpu, ts_s, n, used_max_bytes,"
                        " used_last_bytes) VALUES(?,1,?,12,?,?)",
                        (row, at_s, held, held),
                    )
        it.execute("INSERT INTO meta(key, value) VALUES('gpu_1m.until', ?)", (str(T + 26 * HOUR),))
        while retention.roll_process_hours(it):
            pass
        it.execute("COMMIT")
    since_s, until_s = T + 1800.0 + chance.random() * 600, T + 20 * HOUR + 777.0
    with Reader.open(tmp_path) as reader:
        minutes = reader.ask(lambda it: occupancy.load(it, "GPU-0", since_s, until_s))
        hours = reader.ask(lambda it: occupancy.by_hour(it, "GPU-0", since_s, until_s))
    assert len(hours) < len(minutes) / 4
    exact, quick = (
        cost.usage_by_process(minutes, since_s, until_s),
        cost.usage_by_process(hours, since_s, until_s),
    )
    assert quick.keys() == exact.keys()
    for who, one in exact.items():
        other = quick[who]
        assert (other.hours is None) == (one.hours is None)
        assert other.hours == (None if one.hours is None else pytest.approx(one.hours, abs=BOUND_H))
        assert other.whole_hours == pytest.approx(one.whole_hours, abs=BOUND_H)
        assert (other.first_at_s, other.last_at_s) == (one.first_at_s, one.last_at_s)
