"""What allocators say is stored when it changes, rolled up, and there again after a restart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.model import AllocatorReading
from gpuwatchd.store import retention, write_buffers
from gpuwatchd.store.write_buffers import SampleBuffer
from tests.store.world import BOOT, CARDS, INFOS, KNOWN, T0, Time, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History

DAY_S = 86_400.0
MINUTES = (
    "SELECT ts_s, allocated_last_bytes, allocated_max_bytes, reserved_last_bytes,"
    " inactive_split_last_bytes FROM process_counters_1m ORDER BY ts_s"
)


def said(at_s: float, allocated: int = 100, **changes: Any) -> AllocatorReading:
    values: dict[str, Any] = {
        "key": INFOS[0].key,
        "device_uid": "GPU-0",
        "reserved_bytes": 500,
    } | changes
    return AllocatorReading(at_s=at_s, allocated_bytes=allocated, **values)


def tick(history: History, at_s: float, *readings: AllocatorReading, boot_id: str = BOOT) -> None:
    history.record(sample(at_s, uses=(5, 6), boot_id=boot_id), CARDS, KNOWN)
    history.record_allocator(readings)


def test_a_row_is_a_change_or_a_new_minute() -> None:
    buffer = SampleBuffer()
    for second, allocated, count in ((0, 1, 1), (5, 1, 1), (10, 2, 2), (59, 2, 2), (60, 2, 3)):
        buffer.note(sample(T0 + second, uses=(5,)), CARDS, KNOWN)
        buffer.note_allocator(said(T0 + second, allocated))
        assert len(buffer._allocator_rows) == count
    buffer.note_allocator(said(T0 + 61, 2, inactive_split_bytes=7))
    buffer.note_allocator(said(T0 + 62, 2, inactive_split_bytes=7, peak_bytes=2))
    assert [row[3:] for row in list(buffer._allocator_rows)[-2:]] == [
        (2, 500, 7, None),
        (2, 500, 7, 2),
    ]
    for number in range(write_buffers.PROCESS_ROWS):
        buffer.note_allocator(said(T0 + 63, number))
    assert (len(buffer._allocator_rows), buffer.lost) == (write_buffers.PROCESS_ROWS, 5)


@pytest.mark.parametrize(
    "reading",
    [
        *map(said, (T0 - 61, T0 + 61, math.nan, math.inf)),
        said(T0, device_uid="GPU-9"),
        said(T0, key=INFOS[2].key),
    ],
)
def test_what_is_of_another_clock_or_of_nobody_there_is_left_out(
    history: History, reading: AllocatorReading
) -> None:
    tick(history, T0, reading)
    assert len(history._intake) == 3


def test_what_does_not_fit_costs_no_other_row(tmp_path: Path, history: History) -> None:
    tick(history, T0, said(T0, 2**63), said(T0, 7, key=INFOS[1].key))
    assert history.flush(T0)
    assert rows(tmp_path, "SELECT process, allocated_bytes FROM process_counters") == [(2, 7)]
    assert rows(tmp_path, "SELECT count(*) FROM process_raw") == [(2,)]


@pytest.mark.parametrize("stepped_s", [0.0, 3600.0])
def test_it_is_there_after_a_restart_with_the_clock_of_now(
    tmp_path: Path, stepped_s: float
) -> None:
    time, whole = Time(T0 + 10), {"inactive_split_bytes": 40, "peak_bytes": 130}
    history = opened(tmp_path, time)
    tick(history, T0 + 20, said(T0 + 20, 1), boot_id="boot-0")
    history.close()
    history = opened(tmp_path, time)
    tick(history, T0, said(T0, key=INFOS[1].key))
    history.flush(T0)
    for second in (5, 10, 70):
        tick(history, T0 + second, said(T0 + second - 1, 100, **whole))
    history.close()
    time.pass_s(100)
    time.now_s += stepped_s
    again = opened(tmp_path, time)
    found = dict(again.recent_allocators(T0 + stepped_s, stepped_s=stepped_s))
    assert found == {
        ("GPU-0", INFOS[0].key): [
            said(T0 + second + stepped_s, 100, **whole) for second in (4, 69)
        ],
        ("GPU-0", INFOS[1].key): [said(T0 + stepped_s, key=INFOS[1].key)],
    }
    assert [*again.recent_allocators(T0 + 70 + stepped_s, stepped_s=stepped_s)] == []
    again.close()


def test_minutes_are_made_and_made_again_for_a_late_row(tmp_path: Path, history: History) -> None:
    for step in range(24):
        split = None if step == 23 else step
        tick(history, T0 + 5 * step, said(T0 + 5 * step, 90 - step, inactive_split_bytes=split))
    history.flush(T0 + 120)
    history.chores(T0 + 900)
    assert rows(tmp_path, MINUTES) == [
        (T0, 79, 90, 500, 11),
        (T0 + 60, 67, 78, 500, None),
    ]
    tick(history, T0 + 121, said(T0 + 119, 95, reserved_bytes=600))
    history.flush(T0 + 122)
    history.chores(T0 + 960)
    assert rows(tmp_path, MINUTES)[1] == (T0 + 60, 95, 95, 600, None)


def test_it_goes_with_the_rows_of_its_process(tmp_path: Path) -> None:
    time = Time(T0 + 40 * DAY_S)
    history = opened(tmp_path, time)
    for day in (0, 20, 39):
        tick(history, T0 + day * DAY_S, said(T0 + day * DAY_S))
    tick(history, T0 + 90 * DAY_S, said(T0 + 90 * DAY_S))  # of a clock that was wrong
    history.flush(time.now_s)
    for _ in range(12):
        history.chores(time.now_s)
        time.pass_s(retention.SETTLE_S / 2)
    for raw, minutes in (
        ("process_raw", "process_1m"),
        ("process_counters", "process_counters_1m"),
    ):
        assert rows(tmp_path, f"SELECT DISTINCT ts_ms / 1000 FROM {raw}") == [(T0 + 39 * DAY_S,)]
        kept = rows(tmp_path, f"SELECT DISTINCT ts_s FROM {minutes} ORDER BY ts_s")
        assert kept == [(T0 + 20 * DAY_S,), (T0 + 39 * DAY_S,)]
    history.close()


def test_nothing_is_written_where_nothing_is_prepared(tmp_path: Path, history: History) -> None:
    for step in range(60):
        tick(history, T0 + 5 * step)
    history.flush(T0 + 300)
    history.chores(T0 + 300)
    for table in ("process_counters", "process_counters_1m"):
        assert rows(tmp_path, f"SELECT count(*) FROM {table}") == [(0,)]
