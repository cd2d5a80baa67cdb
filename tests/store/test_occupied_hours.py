"""What falls to each process by whole hours is what falls to it minute by minute."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.analysis import cost
from gpuwatchd.store import occupancy, process_hours
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.schema import FILE_NAME
from tests.store.world import opened

if TYPE_CHECKING:
    from pathlib import Path

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
        while process_hours.roll(it):
            pass
        it.execute("COMMIT")
    since_s, until_s = T + 1800.0 + chance.random() * 600, T + 20 * HOUR + 777.0
    with Reader.open(tmp_path) as reader:
        minutes = reader.ask(lambda it: occupancy.load(it, "GPU-0", since_s, until_s))
        hours = reader.ask(lambda it: occupancy.by_hour(it, "GPU-0", since_s, until_s))
    assert len(hours) < len(minutes) / 4
    exact, quick = cost.taken(minutes, since_s, until_s), cost.taken(hours, since_s, until_s)
    assert quick.keys() == exact.keys()
    for who, one in exact.items():
        other = quick[who]
        assert (other.hours is None) == (one.hours is None)
        assert other.hours == (None if one.hours is None else pytest.approx(one.hours, abs=BOUND_H))
        assert other.whole_hours == pytest.approx(one.whole_hours, abs=BOUND_H)
        assert (other.first_at_s, other.last_at_s) == (one.first_at_s, one.last_at_s)
