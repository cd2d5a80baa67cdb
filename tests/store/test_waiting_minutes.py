"""What is not rolled up yet is answered from samples, and the answer stays when it is."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.store import curves, occupancy, recent_points, tables
from gpuwatchd.store.reader import Reader
from tests.store.test_allocators import said
from tests.store.world import CARDS, INFOS, KNOWN, Time, opened, sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.store.writer import History

HOUR_0 = 1_700_006_400
BEFORE_S = 7 * 3600.0
"""More than samples serve."""


allocators = partial(recent_points.of_allocators, minutes=True)


def answers(directory: Path, until_s: float) -> dict[str, Any]:
    """Return what readers say of the hours before an instant."""
    uid, span = CARDS[0].uid, (until_s - BEFORE_S, until_s)
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

    Processes come and go, and memory changes or does not.
    """
    latest_s, held = time.now_s, [1000, 2000, 3000]
    for _ in range(dice.randrange(20, 200)):
        jump_s = dice.choice((5, 5, 5, 5, 5, 5, 60, 200))
        time.pass_s(jump_s)
        if dice.random() < 0.03:
            time.now_s += dice.choice((-900, -130, 40, 500))
        held = [one + dice.choice((0, 0, 7)) for one in held]
        uses = tuple(held[: dice.randrange(1, 4)])
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
