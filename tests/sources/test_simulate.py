"""The simulated world: repeatable, lawful, and honest about what was planted."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.collect.scenarios import curves, worlds
from gpuwatchd.collect.simulate import FIRST_PID, Planted, SimulateSource
from gpuwatchd.core.errors import ConfigError
from gpuwatchd.core.model import LEAK_PATTERNS

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceReading, Sample

pytestmark = pytest.mark.slow

EPOCH_S = 1_700_000_000.0
MIB = curves.MIB


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


def test_another_seed_another_world_with_the_same_story() -> None:
    one, other = _world(seed=1), _world(seed=2)
    assert _watch(one, 20) != _watch(other, 20)
    assert [p.pattern for p in one.truth()] == [p.pattern for p in other.truth()]


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
    used, free, total = reading.used_bytes, reading.free_bytes, reading.total_bytes
    assert used is not None
    assert free is not None
    assert total is not None
    assert reading.reserved_bytes is not None
    assert 0 <= used <= total
    assert free >= 0
    assert used + free + reading.reserved_bytes == total
    assert reading.util_pct is not None
    assert 0 <= reading.util_pct <= 100
    for use in reading.uses or ():
        assert use.used_bytes is not None
        assert use.used_bytes % (2 * MIB) == 0
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
        assert leak.oom_at_s is not None
        source.advance(leak.oom_at_s - 1.0 - source.now_s)
        assert leak.subject.process in {info.key for info in source.read().processes}
        source.advance(1.0)
        assert leak.subject.process not in {info.key for info in source.read().processes}
    # Told in advance and told afterwards is the same.
    assert _leaks(source)[: len(planted)] == planted


def test_the_documented_leak_grows_fifty_megabytes_a_minute() -> None:
    source = _world()
    leak = _leaks(source)[0]
    assert leak.onset_at_s is not None
    source.advance(leak.onset_at_s - source.now_s)
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


def test_the_quiet_world_has_no_leak() -> None:
    source = _world("quiet")
    source.advance(4 * 3600.0)
    assert not _leaks(source)
    assert all(p.oom_at_s is None and p.onset_at_s is None for p in source.truth())


@pytest.mark.parametrize("scenario", worlds.SCENARIOS)
def test_truth_says_leak_for_leak_patterns_only(scenario: str) -> None:
    for planted in _world(scenario).truth():
        assert planted.leak == (planted.pattern in LEAK_PATTERNS)
        assert planted.title.endswith(tuple("abcdefghijklmnopqrstuvwxyz"))
        assert planted.subject.process is not None
        assert planted.subject.process.pid >= FIRST_PID


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


def test_it_fits_the_port() -> None:
    source = _world()
    assert source.probe().ok
    assert [device.index for device in source.devices()] == [0, 1, 2, 3]
    assert {r.device_uid for r in source.read().readings} == {d.uid for d in source.devices()}
    source.close()
    source.close()


@pytest.mark.parametrize(("scenario", "speed"), [("nonsense", 1.0), ("demo", 0.0), ("demo", -1.0)])
def test_what_cannot_be_played_is_refused(scenario: str, speed: float) -> None:
    with pytest.raises(ConfigError) as caught:
        SimulateSource(scenario, speed=speed)
    assert caught.value.exit_code == 5


@given(seed=st.integers(0, 2**40), index=st.integers(-(2**40), 2**40))
def test_unit_is_a_share(seed: int, index: int) -> None:
    assert 0 <= curves.unit(seed, index) < 1


def test_unit_is_even() -> None:
    drawn = sorted(curves.unit(5, index) for index in range(4000))
    worst = max(abs(value - rank / 4000) for rank, value in enumerate(drawn))
    assert worst < 0.03


@given(age_s=st.floats(0, 1e6), later_s=st.floats(0, 1e5), seed=st.integers(0, 99))
def test_what_is_kept_never_shrinks(age_s: float, later_s: float, seed: int) -> None:
    for shape in (
        curves.Stairs(5.0, 3.0, 60.0, 30.0, 0.5, seed),
        curves.Linear(1.0, 2.0, 50.0),
        curves.WarmUp(1.0, 9.0, 100.0),
    ):
        assert shape.at(age_s + later_s) >= shape.at(age_s) - 1e-6


def test_shapes_at_known_ages() -> None:
    assert curves.Flat(7.0).at(1e9) == 7.0
    assert curves.Linear(10.0, 2.0, 5.0, 8.0).at(7.0) == 14.0
    assert curves.Linear(10.0, 2.0, 5.0, 8.0).at(1e6) == 18.0
    assert curves.Stairs(1.0, 4.0, 10.0, jitter=0.0).at(14.0) == 5.0
    assert curves.Stairs(1.0, 4.0, 10.0, jitter=0.0).at(15.0) == 9.0
    cycle = curves.Cyclic(100.0, 8.0, 10.0, creep_bytes=1.0, jitter=0.0)
    assert [cycle.at(age) for age in (0.0, 4.0, 9.0, 10.0, 14.0)] == [100, 104, 100, 101, 105]
    spikes = curves.Spikes(1.0, 5.0, 10.0, 2.0, 20.0)
    assert [spikes.at(age) for age in (9.0, 11.0, 13.0, 31.0)] == [1, 6, 1, 6]
    once = curves.Spikes(1.0, 5.0, 10.0, 2.0)
    assert [once.at(age) for age in (9.0, 11.0, 13.0, 31.0)] == [1, 6, 1, 1]
    phases = curves.Phases(((5.0, curves.Flat(1.0)), (5.0, curves.Linear(0.0, 1.0))))
    assert [phases.at(age) for age in (4.0, 5.0, 8.0, 50.0)] == [1, 0, 3, 45]
    assert curves.Swap((3.0,), 60.0).at(500.0) == 3.0
    assert {curves.Swap((1.0, 2.0), 10.0, 4).at(10.0 * k) for k in range(30)} == {1.0, 2.0}
    assert abs(curves.Noisy(curves.Flat(50.0), 5.0).at(3.0) - 50.0) <= 5.0
