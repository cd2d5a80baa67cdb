"""The recorded log as a source: probe, pace, gaps, the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatchd.collect.replay import ReplaySource
from gpuwatchd.core.errors import SourceUnavailable
from tests.conftest import present

LOGS = Path(__file__).resolve().parent.parent / "data" / "logs"
MIB = 1024**2


class Clock:
    """A clock that goes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def source(name: str, clock: Clock, speed: float = 1.0) -> ReplaySource:
    return ReplaySource(str(LOGS / name), speed, clock=clock, wall=lambda: 1_000_000.0)


def test_probe_says_why_not() -> None:
    assert ReplaySource().probe().reason == "no log is named"
    assert not ReplaySource("x", 0.0).probe().ok
    assert "No such file" in ReplaySource("/does/not/exist").probe().reason
    unclear = ReplaySource(str(LOGS / "nvidia_no_time.csv")).probe()
    assert "no time in this log" in unclear.reason
    assert unclear.hint
    with pytest.raises(SourceUnavailable, match="no time"):
        ReplaySource(str(LOGS / "nvidia_no_time.csv")).read()


@pytest.mark.parametrize("speed", [1.0, 10.0])
def test_recorded_rate_at_any_speed(speed: float) -> None:
    clock = Clock()
    played = source("nvidia_two_gpus.csv", clock, speed)
    assert played.probe().ok
    assert [device.index for device in played.devices()] == [0, 1]
    first = played.read()
    clock.now += 30.0 / speed
    second = played.read()
    assert first.taken_at_s == 1_000_000.0
    assert second.taken_at_s - first.taken_at_s == pytest.approx(30.0)
    assert second.taken_mono_s - first.taken_mono_s == pytest.approx(30.0)
    levels = [sample.readings[0].used_bytes for sample in (first, second)]
    assert levels == [1000 * MIB, 1060 * MIB]
    assert first.readings[0].total_bytes == 24576 * MIB
    assert first.readings[0].free_bytes == 23576 * MIB
    assert first.readings[0].uses is None


def test_processes_are_named_by_the_source_itself() -> None:
    clock = Clock()
    played = source("gpustat.json", clock)
    sample = played.read()
    assert [process.user for process in sample.processes] == ["ann"]
    uses = present(sample.readings[0].uses)
    assert uses[0].key == sample.processes[0].key
    assert uses[0].used_bytes == (6400 - 9) * MIB


def test_a_gap_is_no_reading_and_a_fault() -> None:
    clock = Clock()
    played = source("two_columns_day_first.csv", clock)
    played.read()
    clock.now += 12 * 3600.0
    sample = played.read()
    assert sample.readings == ()
    assert "no reading" in sample.faults[0].why


def test_the_end_is_told() -> None:
    clock = Clock()
    played = source("nvidia_two_gpus.csv", clock)
    played.read()
    clock.now += 3600.0
    with pytest.raises(SourceUnavailable, match="ended"):
        played.read()
    played.close()
    played.close()
    assert played.read().readings, "after close it starts anew"
