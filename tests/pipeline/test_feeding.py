"""However rings are fed, what is judged of them is the same to the bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuwatchd.pipeline.ring_feed import CLOCK_TICKS, Feeder
from gpuwatchd.store import ring as ring_module
from gpuwatchd.store.ring import Ring
from tests.making import MIB


def same(one: Ring, other: Ring) -> bool:
    found, wanted = one.window(), other.window()
    return (
        np.array_equal(found[0], wanted[0])
        and np.array_equal(found[1], wanted[1])
        and (one.count, one.moves, one.last) == (other.count, other.moves, other.last)
        and one.recent(32, 20.0) == other.recent(32, 20.0)
    )


@pytest.mark.parametrize("seed", range(12))
def test_windows_are_what_a_point_at_every_look_would_make_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "_TRIM_AT", 256)
    chance = random.Random(seed)
    step_s = chance.choice([0.5, 1.7, 5.0, 5.0, 12.0])
    fed = [Ring(1500.0 * step_s) for _ in range(6)]
    plain = [Ring(1500.0 * step_s) for _ in range(6)]
    held = [chance.randrange(4096) * 2 * MIB for _ in fed]
    feeder, now_s, again = Feeder(), 1.7e9, False
    here: list[int] = []
    for look in range(2500):
        now_s += step_s * chance.uniform(0.9, 1.1)
        if chance.random() < 0.01:
            now_s += chance.uniform(20.0, 3600.0)
        if chance.random() < 0.004:
            by_s = chance.uniform(-4000.0, 4000.0)
            now_s += by_s
            for ring in (*fed, *plain):
                ring.shift(by_s)
        if chance.random() < 0.1:
            again = False
            held[chance.randrange(6)] = chance.randrange(4096) * 2 * MIB
        if again and look % 100:
            feeder.again(now_s)
        else:
            # Some come and go, and one may be missing for a moment.
            here = [n for n in range(6) if (look // 100 + n) % 5 and chance.random() > 0.02]
            feeder.feed(now_s, [(fed[n], held[n]) for n in here])
        again = chance.random() < 0.8
        for n in here:
            plain[n].add(now_s, held[n])
        if chance.random() < 0.02:
            looked_at = chance.randrange(6)
            assert same(fed[looked_at], plain[looked_at]), look
    assert all(same(one, other) for one, other in zip(fed, plain, strict=True))
    assert sum(ring.count for ring in fed) > 5000


@pytest.mark.parametrize("gap_s", [0.004, 0.02, 0.3])
def test_looks_that_follow_each_other_closely(gap_s: float) -> None:
    fed, plain, feeder = Ring(1e6), Ring(1e6), Feeder()
    for look in range(500):
        now_s = 1.7e9 + 10.0 * (look // 2) + gap_s * (look % 2 - 0.5)
        feeder.feed(now_s, [(fed, 7.0 + look // 50)])
        plain.add(now_s, 7.0 + look // 50)
    assert same(fed, plain)
    assert np.all(np.diff(fed.window()[0]) > 0)


def test_what_stands_still_is_brought_up_to_date_now_and_then() -> None:
    ring, feeder = Ring(1e6), Feeder()
    feeder.feed(0.0, [(ring, 7.0)])
    for look in range(1, 3 * CLOCK_TICKS):
        feeder.again(10.0 * look)
        assert ring.last == (10.0 * look, 7.0)
    assert ring.count == 3 * CLOCK_TICKS
    feeder.feed(1e5, [])
    feeder.again(1e5 + 10)
    assert ring.last == (10.0 * (3 * CLOCK_TICKS - 1), 7.0)


def test_of_one_that_is_named_twice_the_first_counts() -> None:
    ring, feeder = Ring(1e6), Feeder()
    feeder.feed(0.0, [(ring, 7.0), (ring, 9.0)])
    feeder.again(5.0)
    assert ring.window()[1].tolist() == [7.0, 7.0]
