"""Utilisation samples as a driver hands them out: of each process the newest that can be."""

from __future__ import annotations

import random
import struct

import pytest

from gpuwatchd.collect.nvml.processes import _newest

ENTRY = struct.Struct("@IQI12x")


def by_hand(samples: list[tuple[int, int, int]]) -> tuple[dict[int, float], int]:
    newest: dict[int, tuple[int, float]] = {}
    for pid, at_us, share in samples:
        if not pid or share > 100:
            continue
        if pid not in newest or at_us >= newest[pid][0]:
            newest[pid] = (at_us, float(share))
    shares = {pid: share for pid, (_, share) in newest.items()}
    return shares, max((at_us for at_us, _ in newest.values()), default=0)


@pytest.mark.parametrize("seed", range(40))
def test_the_newest_of_each_counts(seed: int) -> None:
    chance = random.Random(seed)
    samples = [
        (chance.choice([0, 7, 8, 2**32 - 1, chance.randrange(1, 1000)]),
         1_700_000_000_000_000 + chance.randrange(20),
         chance.choice([0, 1, 50, 100, 101, 2**31]))
        for _ in range(chance.choice([1, 2, 12]))
    ]  # fmt: skip
    assert _newest(b"".join(ENTRY.pack(*one) for one in samples)) == by_hand(samples)
