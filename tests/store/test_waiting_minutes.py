"""What is not rolled up yet is answered from samples, and the answer stays when it is."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.store import curves, occupancy, recent_points, schema, tables
from gpuwatchd.store.reader import Reader
from tests.store import released
from tests.store.test_allocators import said
from tests.store.world import CARDS, INFOS, KNOWN, Time, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History

HOUR_0 = 1_700_006_400
BEFORE_S = 7 * 3600.0
"""More than samples serve."""


def answers(directory: Path, until_s: float) -> dict[str, Any]:
    """Return what readers say of the hours before an instant."""
    uid, span = CARDS[0].uid, (until_s - BEFORE_S, until_s)
    allocators = partial(recent_points.of_allocators, minutes=True)
    whole = int(span[0]), int(until_s) - 60
    with Reader.open(directory) as reader:
        asked: dict[str, Any] = {
            "device": [reader.device_rows(uid, *span, width_s) for width_s in (60.0, 3600.0)],
            "a month": reader.device_rows(uid, until_s - 30 * 86400.0, until_s),
            "power": [reader.power_w(uid, *span), reader.power_w(uid, until_s - 600, until_s)],
            "processes": reader.process_rows(uid, *span),
            "occupancy": sorted(reader.occupancy(uid, *span), key=str),
            "use": reader.ask(lambda it: occupancy.by_minute(it, uid, whole, is_use=True)),
            "allocators": [
                {it.at_s // 60: (it.allocated_bytes, it.reserved_bytes) for it in own}
                for own in reader.ask(allocators, uid, *span).values()
            ],
            "devices": reader.ask(tables.name_and_devices, INFOS[0].key),
            "present": [(*one[:1], one[3]) for one in reader.ask(curves.present, uid, span)],
        }
        for process in (None, *((info.key.pid, info.key.started_at_s) for info in INFOS[:3])):
            asked[f"minutes of {process}"] = reader.ask(occupancy.by_minute, uid, whole, process)
    return asked


def lived(history: History, time: Time, dice: random.Random) -> float:
    """Live a while with pauses, and with the clock set forth and back; return the latest instant.

    Processes come and go, and memory changes or does not: where it seldom does, minutes are alike.
    """
    latest_s, held, shown = time.now_s, [1000, 2000, 3000], 3
    changing = dice.choice((1.0, 0.02))
    for _ in range(dice.randrange(20, 200)):
        jump_s = dice.choice((5, 5, 5, 5, 5, 5, 60, 200))
        time.pass_s(jump_s)
        if dice.random() < 0.03:
            time.now_s += dice.choice((-900, -130, 40, 500))
        if dice.random() < changing:
            held, shown = [one + dice.choice((0, 0, 7)) for one in held], dice.randrange(1, 4)
        uses = tuple(held[:shown])
        util_pct = dice.choice((None, 10.0, 90.0))
        figures: dict[str, Any] = {
            "util_pct": util_pct,
            "power_w": dice.choice((None, 90.0)),
        }
        history.record(sample(time.now_s, sum(uses), uses=uses, **figures), CARDS, KNOWN)
        history.record_allocator([said(time.now_s, dice.randrange(9))])
        history.flush_due(time.now_s)
        latest_s = max(latest_s, time.now_s)
        if dice.random() < 0.1:
            history.chores(time.now_s)
    history.flush(time.now_s)
    return latest_s


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_is_the_same_before_and_after_the_roll_up(tmp_path: Path, seed: int) -> None:
    dice, time = random.Random(seed), Time(HOUR_0 + 60.0 * seed)
    latest_s = time.now_s
    for _ in range(3):
        history = opened(tmp_path, time)
        latest_s = max(latest_s, lived(history, time, dice))
        until_s = latest_s // 60 * 60 + 60.0
        before = answers(tmp_path, until_s)
        time.pass_s(max(0.0, until_s + 960 - time.now_s))
        for _ in range(15):
            history.chores(time.now_s)
        for name, answer in answers(tmp_path, until_s).items():
            assert answer == before[name], name
        history.close()


def minutes_of(directory: Path, query: str) -> dict[Any, Any]:
    """Return minutes of processes by process, device and time."""
    columns = "process, gpu, ts_s, n, used_min_bytes, used_max_bytes, used_last_bytes, count(*)"
    found = rows(directory, f"SELECT {columns} FROM ({query}) GROUP BY process, gpu, ts_s")
    return {row[:3]: row[3:] for row in found}


@pytest.mark.parametrize("seed", range(6))
def test_a_minute_that_is_made_again_is_there_once(tmp_path: Path, seed: int) -> None:
    dice, time = random.Random(seed), Time(HOUR_0 + 60.0 * seed)
    history = opened(tmp_path, time)
    assert history._file.connection is not None

    def live(ticks: int, held: int) -> None:
        for _ in range(ticks):
            uses = (held, 7)[: 1 + (dice.random() < 0.99)]
            history.record(sample(time.now_s, 9, uses=uses), CARDS, KNOWN)
            time.pass_s(10)
        history.flush(time.now_s)
        for _ in range(9):
            history.chores(time.now_s)

    live(dice.randrange(400, 800), 100)
    kept = minutes_of(tmp_path, schema.PROCESS_MINUTES)
    ((count, longest),) = rows(tmp_path, "SELECT count(*), max(minutes) FROM process_1m")
    assert (longest, count < len(kept) / 5) == (schema.MOST_MINUTES, True)
    for again in range(3):
        # Some minutes have no samples any more; the clock is set back before them, or into them.
        hole = int(time.now_s - dice.randrange(600, 3000)) // 600
        history._file.connection.execute(f"DELETE FROM process_raw WHERE ts_ms / 600000 = {hole}")
        time.now_s -= dice.randrange(300, 3600)
        live(dice.randrange(20, 100), 200 + again)
        live(dice.randrange(200, 400), 100)
        until_ms = tables.rolled_s(history._file.connection, "gpu_1m") * 1000
        made = occupancy.PROCESS_MINUTES.replace(":from_ms", "0").replace(":to_ms", str(until_ms))
        kept |= minutes_of(tmp_path, made)
        assert minutes_of(tmp_path, schema.PROCESS_MINUTES) == kept
    history.close()


def test_a_file_of_version_7_is_upgraded_beside_a_reader(tmp_path: Path) -> None:
    query = "SELECT used_min_bytes, used_max_bytes, used_last_bytes FROM"
    with closing(sqlite3.connect(released.load(7, tmp_path), isolation_level=None)) as it:
        it.execute(f"INSERT INTO process_1m VALUES(1, 1, {HOUR_0}, 12, 100, 100, NULL, 50)")
        cursor = it.execute(f"{query} process_1m, (VALUES (1), (2))")
        assert cursor.fetchone() == (50, 100, 100)
        opened(tmp_path, Time(HOUR_0 + 60.0)).close()
        assert cursor.fetchall() == [(50, 100, 100)]
        assert it.execute(f"{query} process_minutes").fetchall() == [(50, 100, 100)]
