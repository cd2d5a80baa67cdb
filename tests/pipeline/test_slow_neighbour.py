"""A slow neighbour is not blamed for the room that a leak beside it has eaten."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import ProcessInfo, ProcessKey, Subject
from gpuwatchd.pipeline import replay
from tests.making import CARD, GIB, MIB


def played(*mib_per_min: float, names: tuple[str, ...]) -> list[int]:
    """Return how often each of some processes alerts that grow beside one another until full."""
    t = 1.7e9 + np.arange(0.0, 60.0 * 150.0, 10.0)
    minutes = np.maximum(0.0, (t - t[0]) / 60.0 - 10.0)
    parts = [8.0 * GIB + minutes * rate * MIB for rate in mib_per_min]
    whole = np.asarray(np.sum(parts, axis=0) + GIB)
    kept = whole < 80.0 * GIB - 16.0 * MIB

    def one(pid: int | None, used: np.ndarray, name: str) -> LogSeries:
        key = None if pid is None else ProcessKey(pid=pid, started_at_s=None)
        return LogSeries(
            subject=Subject(device_uid=CARD.uid, process=key), device=CARD,
            process=None if key is None else ProcessInfo(key=key, name=name),
            t_s=t[kept], used_bytes=used[kept], limit_bytes=80.0 * GIB, total_bytes=80.0 * GIB,
        )  # fmt: skip

    series = [one(None, whole, "")]
    series += [one(k, used, names[k]) for k, used in enumerate(parts)]
    found = replay.analyze(LogFile(path="x", devices=[CARD], series=series), Config())
    return [len(result.alerts) and 1 for result in found[1 : 1 + len(parts)]]


@pytest.mark.parametrize("slow", [2.0, 5.0, 10.0])
def test_a_slow_neighbour_of_a_fast_leak_does_not_alert(slow: float) -> None:
    assert played(600.0, slow, names=("train", "serve")) == [1, 0]


def test_equal_leaks_of_different_programs_all_alert() -> None:
    assert played(250.0, 250.0, names=("train", "serve")) == [1, 1]
