"""Who held what, minute by minute: the same before and after the minutes are rolled up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.analysis import cost
from gpuwatchd.core.model import DeviceReading, ProcessUse, Sample
from gpuwatchd.store import occupancy
from gpuwatchd.store.reader import Reader
from tests.store.world import BOOT, CARDS, INFOS, KNOWN, T0, Time, opened

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History

GIB = 2**30
MINUTES = 30


def record(history: History, clock: Time, *, power_w: float | None = None) -> None:
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
    clock.pass_s(MINUTES * 60.0)
    history.flush(clock.now_s)


@pytest.mark.parametrize("rolled", [False, True])
def test_hours_are_the_same_from_raw_rows_and_from_minutes(tmp_path: Path, rolled: bool) -> None:
    clock = Time()
    history = opened(tmp_path, clock)
    record(history, clock)
    for _ in range(20 if rolled else 0):
        history.chores(clock.now_s)
    history.close()
    with Reader.open(tmp_path) as reader:
        rows = reader.occupancy(CARDS[0].uid, T0, clock.now_s)
        assert reader.occupancy("GPU-none", T0, clock.now_s) == []
        assert reader.occupancy(CARDS[0].uid, clock.now_s, T0) == []
    assert len(rows) == MINUTES + MINUTES // 2
    found = cost.taken(rows, T0, clock.now_s)
    assert found[INFOS[0].key].hours == pytest.approx(0.25 + 0.25 * 0.75)
    assert found[INFOS[1].key].hours == pytest.approx(0.25 * 0.25)


def test_the_daemon_reads_the_same(tmp_path: Path) -> None:
    clock = Time()
    history = opened(tmp_path, clock)
    record(history, clock)
    history.chores(clock.now_s)
    mine = history.shelf.occupancy(CARDS[0].uid, T0 + 90.0, clock.now_s)
    history.close()
    with Reader.open(tmp_path) as reader:
        assert sorted(map(str, mine or ())) == sorted(
            map(str, reader.occupancy(CARDS[0].uid, T0 + 90.0, clock.now_s))
        )
    assert min(row.at_s for row in mine or ()) == T0 + 60.0


def test_mean_power_is_that_of_the_minutes_it_was_measured_in(tmp_path: Path) -> None:
    clock = Time()
    history = opened(tmp_path, clock)
    record(history, clock, power_w=300.0)
    for _ in range(20):
        history.chores(clock.now_s)
    history.close()
    with Reader.open(tmp_path) as reader:
        measured = reader.power_w(CARDS[0].uid, T0 + 60.0, clock.now_s)
        assert measured == pytest.approx(300.0, rel=0.02)
        assert reader.power_w(CARDS[1].uid, T0, clock.now_s) is None


@pytest.mark.parametrize("most", [1, 3, 7, 10, 30])
def test_of_a_long_span_some_minutes_stand_for_all(tmp_path: Path, most: int) -> None:
    clock = Time()
    history = opened(tmp_path, clock)
    record(history, clock)
    for _ in range(20):
        history.chores(clock.now_s)
    connection = history._connection
    assert connection is not None
    rows = occupancy.load(connection, CARDS[0].uid, T0, clock.now_s, most_minutes=most)
    history.close()
    assert len({row.at_s for row in rows}) <= most + 1
    found = cost.taken(rows, T0, clock.now_s)
    assert sum(one.hours or 0.0 for one in found.values()) <= 0.5 + 1e-9
    if most >= 7:
        assert found[INFOS[0].key].hours == pytest.approx(0.25 + 0.25 * 0.75, abs=0.08)
