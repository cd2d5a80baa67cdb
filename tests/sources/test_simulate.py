"""The simulated world: repeatable, lawful, and honest about what was planted."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.collect.scenarios import worlds
from gpuwatchd.collect.simulate import Planted, SimulateSource
from gpuwatchd.core.errors import ConfigError
from tests.conftest import present

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceReading, Sample

pytestmark = pytest.mark.slow

EPOCH_S = 1_700_000_000.0
MIB = worlds.MIB


def _world(scenario: str = "demo", seed: int = 7) -> SimulateSource:
    source = SimulateSource(scenario, seed, epoch_s=EPOCH_S)
    source.advance(0.0)  # from here on by hand
    return source


def _watch(source: SimulateSource, minutes: float, step_s: float = 10.0) -> list[Sample]:
    samples = [source.read()]
    for _ in range(int(minutes * 60 / step_s)):
        source.advance(step_s)
        samples.append(source.read())
    return samples


def _leaks(source: SimulateSource) -> list[Planted]:
    return [planted for planted in source.truth() if planted.leak]


@pytest.mark.parametrize("scenario", worlds.SCENARIOS)
def test_same_seed_same_world(scenario: str) -> None:
    assert _watch(_world(scenario), 20) == _watch(_world(scenario), 20)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.floats(min_value=0.0, max_value=400.0), min_size=1, max_size=12),
    scenario=st.sampled_from(sorted(worlds.SCENARIOS)),
)
def test_how_often_it_is_read_changes_nothing(steps: list[float], scenario: str) -> None:
    often, once = _world(scenario), _world(scenario)
    for step in steps:
        often.advance(step)
        often.read()
    once.advance(often.elapsed_s)
    assert often.read() == once.read()


def _lawful(reading: DeviceReading) -> None:
    if reading.state != "ok":
        assert reading.used_bytes is None
        assert reading.uses is None
        return
    used, free, total = (
        present(reading.used_bytes),
        present(reading.free_bytes),
        present(reading.total_bytes),
    )
    assert 0 <= used <= total
    assert free >= 0
    assert used + free + present(reading.reserved_bytes) == total
    assert 0 <= present(reading.util_pct) <= 100
    for use in reading.uses or ():
        assert present(use.used_bytes) % (2 * MIB) == 0
    if reading.uses is not None:
        assert sum(use.used_bytes or 0 for use in reading.uses) <= used


@pytest.mark.parametrize("scenario", worlds.SCENARIOS)
def test_memory_obeys_the_card(scenario: str) -> None:
    source = _world(scenario, seed=3)
    for sample in _watch(source, 180, step_s=60.0):
        known = {info.key for info in sample.processes}
        for reading in sample.readings:
            _lawful(reading)
            assert {use.key for use in reading.uses or ()} <= known


@pytest.mark.parametrize("scenario", ["demo", "one-leak", "lost-gpu"])
def test_truth_is_what_happens(scenario: str) -> None:
    source = _world(scenario)
    planted = _leaks(source)
    assert planted
    for leak in sorted(planted, key=lambda p: p.oom_at_s or 0.0):
        source.advance(present(leak.oom_at_s) - 1.0 - source.now_s)
        assert leak.subject.process in {info.key for info in source.read().processes}
        source.advance(1.0)
        assert leak.subject.process not in {info.key for info in source.read().processes}
    # Told in advance and told afterwards is the same.
    assert _leaks(source)[: len(planted)] == planted


def test_the_documented_leak_grows_fifty_megabytes_a_minute() -> None:
    source = _world()
    leak = _leaks(source)[0]
    source.advance(present(leak.onset_at_s) - source.now_s)
    first = _used_by(source.read(), leak)
    assert first == 12 * 1024 * MIB
    source.advance(3600.0)
    grown = _used_by(source.read(), leak) - first
    assert grown == pytest.approx(60 * 50e6, rel=0.01)
    assert leak.rate_bytes_per_s == pytest.approx(50e6 / 60)


def _used_by(sample: Sample, planted: Planted) -> int:
    return next(
        use.used_bytes or 0
        for reading in sample.readings
        for use in reading.uses or ()
        if use.key == planted.subject.process
    )


def test_a_visitor_comes_back_with_another_identity() -> None:
    source = _world()
    keys = {
        info.key
        for sample in _watch(source, 70, step_s=30.0)
        for info in sample.processes
        if "eval_suite.py" in info.argv
    }
    assert len(keys) == 3
    assert keys <= {planted.subject.process for planted in source.truth()}


def test_a_lost_card_is_a_fault_and_its_processes_are_new_afterwards() -> None:
    source = _world("lost-gpu")
    before = source.read()
    source.advance(15 * 60.0)
    lost = source.read()
    assert [reading.state for reading in lost.readings] == ["ok", "lost"]
    assert [fault.device_uid for fault in lost.faults] == [source.devices()[1].uid]
    source.advance(10 * 60.0)
    after = source.read()
    old, new = before.readings[1].uses, after.readings[1].uses
    assert old
    assert new
    assert not {use.key for use in old} & {use.key for use in new}


def test_a_failing_list_of_processes_is_unknown_not_empty() -> None:
    source = _world("lost-gpu")
    source.advance(9 * 60.0)
    reading = source.read().readings[0]
    assert reading.uses is None
    assert reading.uses_reason
    assert reading.used_bytes


def test_time_runs_at_speed_until_it_is_moved_by_hand() -> None:
    now = itertools.count(100.0, 2.0)
    source = SimulateSource("quiet", speed=30.0, clock=lambda: next(now), epoch_s=EPOCH_S)
    assert source.read().taken_at_s == EPOCH_S + 60.0
    assert source.read().taken_mono_s == 120.0
    source.advance(5.0)
    assert source.read().taken_mono_s == 125.0
    assert source.read().taken_mono_s == 125.0


def test_a_long_sleep_is_caught_up_with_in_few_steps() -> None:
    now = iter([0.0, 30 * 86400.0])
    source = SimulateSource("mixed-8x8", clock=lambda: next(now), epoch_s=EPOCH_S)
    sample = source.read()
    assert sample.taken_mono_s == 30 * 86400.0
    for reading in sample.readings:
        _lawful(reading)


def test_secrets_of_the_script_are_masked() -> None:
    words = [word for info in _world().read().processes for word in info.argv]
    assert "--hf-token=****" in words


@pytest.mark.parametrize(("scenario", "speed"), [("nonsense", 1.0), ("demo", 0.0), ("demo", -1.0)])
def test_what_cannot_be_played_is_refused(scenario: str, speed: float) -> None:
    with pytest.raises(ConfigError) as caught:
        SimulateSource(scenario, speed=speed)
    assert caught.value.exit_code == 5
