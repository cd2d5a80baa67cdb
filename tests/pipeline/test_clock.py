"""A step of the wall clock moves what is remembered, and bends nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.alerts import Rules, wording
from gpuwatchd.collect.host import BootAnchor, Host
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.pipeline.clock import moved_alert, resumed
from gpuwatchd.pipeline.source_workers import SourceClocks
from gpuwatchd.pipeline.track_evaluation import carried_over
from gpuwatchd.store.ring import Ring
from tests.host.world import FakeProc
from tests.making import GIB, MIB, alert, finding, sample
from tests.pipeline.play import EAGER, Script, leaking, run
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Sample
    from gpuwatchd.pipeline.tick import Tick

RULES = Rules()
STEPS = [3600.0, -600.0, -365 * 86_400.0, 8 * 3600.0]


def at(mono_s: float, wall_s: float) -> Sample:
    return msgspec.structs.replace(sample(mono_s, []), taken_at_s=wall_s)


def test_a_step_is_told_once_and_the_time_is_that_of_the_wall() -> None:
    clock = SourceClocks()
    assert clock.stamp("a", at(10.0, 1_000.0), 0.0) == (1_000.0, None)
    assert clock.stamp("a", at(15.0, 1_006.0), 0.0) == (1_005.0, None)
    assert clock.stamp("a", at(20.0, 4_610.0), 0.0) == (4_610.0, 3_600.0)
    assert clock.stamp("a", at(25.0, 4_615.0), 0.0) == (4_615.0, None)


def test_sources_have_clocks_of_their_own() -> None:
    clock = SourceClocks()
    clock.stamp("live", at(10.0, 1_000_000.0), 0.0)
    assert clock.stamp("log", at(0.0, 500.0), 0.0) == (500.0, None)


def test_a_silent_source_goes_on_by_our_clock() -> None:
    clock = SourceClocks()
    assert clock.now("a", 7.0) is None
    clock.stamp("a", at(10.0, 1_000.0), 7.0)
    assert clock.now("a", 37.0) == 1_030.0


@given(
    st.lists(st.floats(min_value=0.5, max_value=400), max_size=300),
    st.sampled_from(STEPS),
    st.integers(min_value=0, max_value=2**31),
)
def test_a_moved_ring_keeps_its_distances_and_values(
    pauses: list[float], by_s: float, seed: int
) -> None:
    times = 1.7e9 + np.cumsum(pauses)
    values = np.random.default_rng(seed).integers(0, 2**15, times.size) * 2.0 * MIB
    ring = Ring(1e9)
    for t_s, value in zip(times, values, strict=True):
        ring.add(float(t_s), float(value))
    before_t, before_v = ring.window()
    ring.shift(by_s)
    after_t, after_v = ring.window()
    np.testing.assert_allclose(after_t, before_t + by_s, atol=0.02)
    np.testing.assert_array_equal(after_v, before_v)
    next_s = 1.7e9 + sum(pauses) + by_s + 60.0
    ring.add(next_s, 1.0)
    assert ring.last == (next_s, 1.0)


def test_a_step_moves_the_alert_of_every_subject() -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(leaking)])
    pipeline.tick()
    (device,) = pipeline.state.devices.values()
    for track in device.tracks():
        track.alert = alert(subject=track.subject, key=track.subject.id)
    moved = pipeline.intake.move(device.source, 60.0)
    assert {one.key for one in moved} == {track.subject.id for track in device.tracks()}
    assert len(moved) > 2


def test_a_fault_while_what_is_remembered_moves_ends_no_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Script(lambda i: at(1_000.0 + 5 * i, 2e9 + 5 * i + 3_600.0 * (i > 2)))
    pipeline = make_pipeline(config=EAGER, sources=[source])
    run(pipeline, 3)
    pipeline.intake.host_memory.headroom.take(1_010.0, 10.0, 0.0)
    pipeline._step_clock("script", 3_600.0)
    assert pipeline.intake.host_memory.headroom.full_at_s == 4_610.0
    monkeypatch.setattr(pipeline.alert_notifier, "move", None)
    assert len(pipeline.tick().samples) == 1
    assert [problem.partition(":")[0] for problem in pipeline.guard.problems] == ["clock"]


def test_after_a_pause_the_evidence_of_another_growth_counts_for_nothing() -> None:
    before = alert(state="watch", evidence=2.0, alert_confirmations=3, finding=finding())
    judged_s = before.finding.judged_at_s
    same = finding(onset_at_s=judged_s - 60.0)
    assert carried_over(before, same, judged_s + 600.0) is before
    other = carried_over(before, finding(onset_at_s=judged_s + 60.0), judged_s + 600.0)
    assert (other.evidence, other.alert_confirmations) == (None, 0)


def test_what_was_stored_before_the_clock_was_set_back_counts_as_now() -> None:
    year_s = 365 * 86_400.0
    stored = moved_alert(
        alert(notices=1, held_since_s=9_000.0, last_notice_at_s=9_950.0, next_notice_at_s=13_550.0),
        year_s,
    )
    fit = resumed(stored, RULES, 10_000.0)
    assert (fit.opened_at_s, fit.held_since_s, fit.last_notice_at_s) == (10_000.0,) * 3
    assert fit.next_notice_at_s == 10_000.0 + RULES.repeat_s[-1]
    # Nor is it judged in a year: what has not been seen since is unseen for as long as that is.
    before = stored.finding
    assert before.onset_at_s is not None
    assert fit.finding.judged_at_s == 10_000.0
    assert fit.finding.onset_at_s == before.onset_at_s - before.judged_at_s + 10_000.0


@pytest.mark.parametrize("by_s", STEPS)
def test_what_has_not_appeared_since_a_restart_moves_too(by_s: float) -> None:
    pipeline = make_pipeline(
        config=EAGER,
        sources=[Script(lambda tick: at(1000.0 + 5 * tick, 2e9 + 5 * tick + by_s * (tick > 3)))],
    )
    away = msgspec.structs.replace(alert().subject, device_uid="GPU-away")
    left = alert(
        subject=away, notices=1, last_notice_at_s=2e9 - 100.0, next_notice_at_s=2e9 + 3500.0
    )
    pipeline.state.restored.adopt(left)
    pipeline.conditions.adopt(msgspec.structs.replace(left, key="gpu:x", kind="gpu"), 2e9)
    over = alert(
        state="resolved", resolved_at_s=2e9 - 100.0, **wording.ending(Ending.ENDED_NEAR_LIMIT)
    )
    pipeline.alert_notifier.deaths.note([over])
    ticks = run(pipeline, 10)
    (dead,) = ticks[-1].state.deaths
    assert dead.opened_at_s == over.opened_at_s, "its row is known by that"
    assert dead.resolved_at_s == pytest.approx(2e9 - 100.0 + by_s, abs=0.01)
    (unseen,), (alarm,) = (
        pipeline.state.restored.alerts.values(),
        pipeline.state.conditions.values(),
    )
    assert alarm.alert is not None
    for one in (unseen, alarm.alert):
        assert one.next_notice_at_s == pytest.approx(2e9 + 3500.0 + by_s, abs=0.01)
        assert one.last_notice_at_s == pytest.approx(2e9 - 100.0 + by_s, abs=0.01)


def test_what_was_stored_in_the_past_stays_as_it_is() -> None:
    stored = alert(notices=1, last_notice_at_s=9_950.0, next_notice_at_s=13_550.0)
    assert resumed(stored, RULES, 10_000.0) is stored


PID = 4711
NUMBER = ProcessInfo(key=ProcessKey(pid=PID, started_at_s=None), name="")
"""What the driver says of a process."""


def ticks_after_restart(tmp_path: Path, *, kept: bool, step_s: int) -> list[Tick]:
    """Return two ticks of a daemon that adopts an alert of one that ran before the step."""
    anchor = BootAnchor(tmp_path / "boot.json") if kept else None
    proc = FakeProc(tmp_path / "proc")
    proc.process(PID)
    first = Host(proc.folder, contained=False, anchor=anchor).processes([PID])[PID]
    proc.put("stat", f"btime {1_700_000_000 + step_s}\n")
    host = Host(proc.folder, contained=False, anchor=anchor)
    source = Script(lambda tick: sample(1000.0 + 5.0 * tick, [(NUMBER, GIB)]))
    pipeline = make_pipeline(config=EAGER, sources=[source], host=host)
    subject = msgspec.structs.replace(alert().subject, process=first.key)
    pipeline.state.restored.adopt(alert(subject=subject, key=f"leak:{subject.id}", notices=1))
    return [pipeline.tick(), pipeline.tick()]


@pytest.mark.parametrize("step_s", [-90, 0, 3600])
def test_it_goes_on(tmp_path: Path, step_s: int) -> None:
    for tick in ticks_after_restart(tmp_path, kept=True, step_s=step_s):
        assert [a.state for a in tick.alerts] == ["firing"]
        assert tick.changes == ()


def test_without_the_time_of_boot_it_would_end(tmp_path: Path) -> None:
    first, second = ticks_after_restart(tmp_path, kept=False, step_s=-90)
    assert first.changes == ()
    assert [a.ended_code for a in second.changes] == [Ending.ENDED_UNOBSERVED]
