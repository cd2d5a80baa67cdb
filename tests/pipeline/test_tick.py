"""One tick: every part may fail, none stops it; who leaks is found, told and let go."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.config import Config, DaemonSection, PolicySection, Seconds
from gpuwatchd.errors import SourceError, SourceUnavailable
from gpuwatchd.model import ProcessInfo, ProcessKey, Sample
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.store import live
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, sample
from tests.pipeline.play import QUIET, Postbox, Script, leaking, run, states

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.config import DetectionSection
    from gpuwatchd.model import Finding, Series


def test_a_leak_is_watched_then_told_then_over_when_its_process_ends() -> None:
    def play(tick: int) -> Sample:
        if tick < 220:
            return leaking(tick)
        return sample(1000.0 + 5.0 * tick, [(QUIET, 100 * MIB)])

    post = Postbox()
    pipeline = Pipeline(config=Config(), sources=[Script(play)], courier=post)
    ticks = run(pipeline, 230)
    assert states(ticks) == ["watch", "firing", "resolved"]
    assert [d.message.notice for d in post.taken] == ["firing", "resolved"]
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.process == KEY
    assert fired.finding.pattern == "gradual"
    assert fired.finding.rate_bytes_per_s == pytest.approx(40 * MIB, rel=0.05)
    assert "python[4711] of alice" in post.taken[0].message.body
    assert post.taken[1].message.thread == post.taken[0].message.id
    pipeline.close()


def test_the_eta_is_right() -> None:
    pipeline = Pipeline(config=Config(), sources=[Script(leaking)])
    ticks = run(pipeline, 180)
    fired = next((t, a) for t in ticks for a in t.changes if a.state == "firing")
    reading = fired[0].sample.readings[0] if fired[0].sample else None
    assert reading is not None
    assert reading.free_bytes is not None
    eta = fired[1].finding.eta
    assert eta is not None
    true_s = reading.free_bytes / (40 * MIB)
    assert eta.mid_s == pytest.approx(true_s, rel=0.1)
    assert eta.low_s <= true_s <= (eta.high_s or float("inf"))


def test_a_flat_machine_says_so_and_tells_nobody() -> None:
    post = Postbox()
    flat = Script(lambda i: sample(1000.0 + 5 * i, [(LEAKER, 20 * GIB), (QUIET, 100 * MIB)]))
    ticks = run(Pipeline(config=Config(), sources=[flat], courier=post), 200)
    assert states(ticks) == []
    assert post.taken == []
    finding = ticks[-1].state.devices[0].finding
    assert finding is not None
    assert finding.pattern == "stable"


def test_one_source_that_raises_hides_no_other() -> None:
    def broken(_: int) -> Sample:
        raise SourceError("the driver says no")

    good = Script(leaking, name="good")
    pipeline = Pipeline(config=Config(), sources=[Script(broken, name="bad"), good])
    tick = run(pipeline, 3)[-1]
    assert len(tick.state.devices) == 1
    assert tick.state.problems == ("bad: the driver says no",)


def test_an_unexpected_exception_is_a_problem_not_an_end(caplog: pytest.LogCaptureFixture) -> None:
    def rude(_: int) -> Sample:
        raise ZeroDivisionError

    pipeline = Pipeline(config=Config(), sources=[Script(rude, name="rude"), Script(leaking)])
    tick = run(pipeline, 3)[-1]
    assert any("ZeroDivisionError" in problem for problem in tick.state.problems)
    assert len(tick.state.devices) == 1


def test_a_source_that_hangs_delays_one_tick_by_its_deadline_only() -> None:
    release = threading.Event()

    def hang(_: int) -> Sample:
        release.wait(30)
        raise SourceError("woken")

    config = Config(daemon=DaemonSection(source_deadline=Seconds(0.05)))
    pipeline = Pipeline(config=config, sources=[Script(hang, name="stuck"), Script(leaking)])
    before = threading.active_count()
    ticks = run(pipeline, 20)
    assert all(len(tick.state.devices) == 1 for tick in ticks)
    assert any("no answer" in problem for problem in ticks[-1].state.problems)
    assert threading.active_count() == before
    release.set()
    pipeline.close()


def test_a_source_that_is_not_there_is_tried_again_with_growing_pauses() -> None:
    now = [0.0]
    absent = Script(lambda _: _raise(SourceUnavailable("no driver")), name="nvml")
    pipeline = Pipeline(config=Config(), sources=[absent], mono=lambda: now[0])
    for second in range(0, 600, 5):
        now[0] = float(second)
        pipeline.tick()
    assert 3 <= absent.count <= 9
    assert pipeline.tick().state.problems == ("nvml: no driver",)


def _raise(error: Exception) -> Any:
    raise error


def test_an_unknown_process_list_is_not_an_empty_one() -> None:
    def play(tick: int) -> Sample:
        if 100 <= tick < 110:
            return sample(1000.0 + 5 * tick, None, used_bytes=30 * GIB)
        return leaking(tick)

    pipeline = Pipeline(config=Config(), sources=[Script(play)])
    ticks = run(pipeline, 140)
    assert ticks[105].state.devices[0].processes is None
    assert "resolved" not in states(ticks)


def test_a_reused_pid_is_another_process() -> None:
    other = ProcessInfo(key=ProcessKey(pid=KEY.pid, started_at_s=99_999.0), name="python")

    def play(tick: int) -> Sample:
        if tick < 150:
            return leaking(tick)
        return sample(1000.0 + 5 * tick, [(other, 20 * GIB), (QUIET, 100 * MIB)])

    ticks = run(Pipeline(config=Config(), sources=[Script(play)]), 200)
    ended = [a for t in ticks for a in t.changes if a.state == "resolved"]
    assert [a.ended for a in ended] == ["its process has ended"]
    assert ticks[-1].alerts == ()


def test_a_step_of_the_wall_clock_bends_no_series() -> None:
    def play(tick: int) -> Sample:
        one = leaking(tick)
        return msgspec.structs.replace(
            one, taken_at_s=one.taken_mono_s + (3600.0 if tick > 100 else 0.0)
        )

    ticks = run(Pipeline(config=Config(), sources=[Script(play)]), 180)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.finding.rate_bytes_per_s == pytest.approx(40 * MIB, rel=0.05)


def test_memory_that_no_process_owns_is_a_subject_of_its_own() -> None:
    def play(tick: int) -> Sample:
        grown = max(0, tick - 60) * 200 * MIB
        return sample(1000.0 + 5 * tick, [(QUIET, GIB)], used_bytes=10 * GIB + grown)

    ticks = run(Pipeline(config=Config(), sources=[Script(play)]), 180)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.unattributed
    assert "no listed process owns" in fired.title


def test_a_device_without_process_memory_is_judged_as_a_whole() -> None:
    def play(tick: int) -> Sample:
        grown = max(0, tick - 60) * 200 * MIB
        return sample(1000.0 + 5 * tick, [(LEAKER, None)], used_bytes=10 * GIB + grown)

    ticks = run(Pipeline(config=Config(), sources=[Script(play)]), 180)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.process is None
    assert not fired.subject.unattributed


def test_a_failed_delivery_shows_as_a_problem_until_one_arrives() -> None:
    post = Postbox(outcome="pending")
    pipeline = Pipeline(config=Config(), sources=[Script(leaking)], courier=post)
    ticks = run(pipeline, 180)
    assert any("channel desktop does not deliver: refused" in p for p in ticks[-1].state.problems)
    assert len(post.taken) > 3
    assert len({d.message.id for d in post.taken}) == 1
    post.outcome = "sent"
    ticks = run(pipeline, 3)
    assert ticks[-1].state.problems == ()


def test_the_live_state_is_written_each_tick_and_marked_at_the_end(tmp_path: Path) -> None:
    pipeline = Pipeline(config=Config(), sources=[Script(leaking)], runtime_dir=tmp_path)
    pipeline.tick()
    first = live.read(tmp_path)
    assert first is not None
    assert (first.ticks, first.stopped) == (1, False)
    pipeline.close()
    last = live.read(tmp_path)
    assert last is not None
    assert last.stopped


def test_a_live_state_that_cannot_be_written_is_a_problem_only(tmp_path: Path) -> None:
    pipeline = Pipeline(config=Config(), sources=[Script(leaking)], runtime_dir=tmp_path / "gone")
    ticks = run(pipeline, 2)
    assert any("live state" in problem for problem in ticks[-1].state.problems)


def test_new_settings_are_taken_over() -> None:
    pipeline = Pipeline(config=Config(), sources=[Script(leaking)], courier=Postbox())
    pipeline.reconfigure(Config(policy=PolicySection(channels=("email",))))
    ticks = run(pipeline, 180)
    assert {d.target for t in ticks for d in t.decisions} == {"email"}


def test_an_alert_of_an_earlier_run_goes_on_with_its_process() -> None:
    pipeline = Pipeline(config=Config(), sources=[Script(leaking)])
    pipeline.intake.adopt(alert(key=f"leak:{alert().subject.id}", notices=1))
    tick = pipeline.tick()
    assert [a.state for a in tick.alerts] == ["firing"]
    assert tick.changes == ()


def test_an_alert_whose_process_ended_meanwhile_is_over() -> None:
    alone = Script(lambda i: sample(1000.0 + 5 * i, [(QUIET, GIB)]))
    post = Postbox()
    pipeline = Pipeline(config=Config(), sources=[alone], courier=post)
    pipeline.intake.adopt(alert(notices=1))
    tick = pipeline.tick()
    assert [(a.state, a.ended) for a in tick.changes] == [
        ("resolved", "its process ended while nobody watched")
    ]
    assert [d.message.notice for d in post.taken] == ["resolved"]


def test_what_a_silent_source_showed_last_is_unknown_now() -> None:
    def play(tick: int) -> Sample:
        if tick == 1:
            raise SourceError("no answer")
        if tick == 2:
            return msgspec.structs.replace(sample(1010.0, []), readings=())
        return sample(1000.0 + 5.0 * tick, [(QUIET, MIB)])

    pipeline = Pipeline(config=Config(), sources=[Script(play)])
    shown = [tick.state.devices[0] for tick in run(pipeline, 4)]
    assert [one.reading is not None for one in shown] == [True, False, False, True]
    assert [one.faults for one in shown] == [
        (), ("script: no answer",), ("not reported now",), ()
    ]  # fmt: skip
    pipeline.close()


def test_each_source_is_judged_at_its_own_time() -> None:
    recorded = msgspec.structs.replace(CARD, uid="GPU-log")

    def old(tick: int) -> Sample:
        flat = sample(100.0 + 5 * tick, [(QUIET, GIB)], device=recorded)
        return msgspec.structs.replace(flat, taken_at_s=flat.taken_mono_s)

    def play(tick: int) -> Sample:
        one = leaking(tick)
        return msgspec.structs.replace(one, taken_at_s=one.taken_mono_s + 1.7e9)

    sources = [Script(play, name="live"), Script(old, name="log", devices=(recorded,))]
    ticks = run(Pipeline(config=Config(), sources=sources), 180)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.device_uid == CARD.uid
    assert fired.firing_at_s == pytest.approx(1.7e9 + 1000 + 5 * 133, abs=60)
    flat = ticks[-1].findings["GPU-log/99@5.0"]
    assert 100 < flat.judged_at_s <= 100 + 5 * 179
    assert ticks[-1].state.taken_at_s > 1.7e9


def test_two_sources_of_one_kind_are_told_apart() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)
    second = Script(
        lambda i: sample(1000.0 + 5 * i, [(QUIET, GIB)], device=other), devices=(other,)
    )
    tick = run(Pipeline(config=Config(), sources=[Script(leaking), second]), 3)[-1]
    assert [d.reading is not None for d in tick.state.devices] == [True, True]


def test_a_silent_source_confirms_nothing() -> None:
    def play(tick: int) -> Sample:
        if tick >= 75:
            raise SourceError("the driver says no")
        return leaking(tick)

    clock = [0.0]
    pipeline = Pipeline(config=Config(), sources=[Script(play)], mono=lambda: clock[0])
    ticks = []
    for _ in range(400):
        clock[0] += 5.0
        ticks += run(pipeline, 1)
    assert states(ticks) == ["watch"]
    assert ticks[-1].state.devices[0].reading is None


def test_a_first_notice_that_is_due_is_told_although_the_driver_hangs() -> None:
    def play(tick: int) -> Sample:
        if tick >= 134:
            raise SourceError("the driver says no")
        return leaking(tick)

    clock = [0.0]
    post = Postbox()
    pipeline = Pipeline(
        config=Config(), sources=[Script(play)], courier=post, mono=lambda: clock[0]
    )
    ticks = []
    for _ in range(2000):
        clock[0] += 5.0
        ticks += run(pipeline, 1)
    assert states(ticks) == ["watch", "firing"]
    assert [d.message.notice for d in post.taken] == ["firing"]


def test_one_series_that_cannot_be_judged_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gpuwatchd import verdict

    real = verdict.judge

    def judge(series: Series, settings: DetectionSection) -> Finding:
        if series.subject.process == QUIET.key:
            raise ZeroDivisionError
        return real(series, settings)

    def play(tick: int) -> Sample:
        noise = (tick * 7919 % 13) * 40 * MIB
        return sample(
            1000.0 + 5.0 * tick,
            [(LEAKER, 20 * GIB + max(0, tick - 60) * 200 * MIB), (QUIET, GIB + noise)],
        )

    monkeypatch.setattr(verdict, "judge", judge)
    ticks = run(Pipeline(config=Config(), sources=[Script(play)]), 180)
    assert "firing" in states(ticks)
    assert any("could not be judged" in problem for problem in ticks[-1].state.problems)
    assert len([r for r in caplog.records if "part=detectors" in r.message]) <= 2


def test_a_recovery_that_was_held_back_is_told_later() -> None:
    def play(tick: int) -> Sample:
        if tick < 220:
            return leaking(tick)
        return sample(1000.0 + 5.0 * tick, [(QUIET, 100 * MIB)])

    clock = [0.0]
    post = Postbox()
    config = Config(policy=PolicySection(max_per_hour=1))
    pipeline = Pipeline(config=config, sources=[Script(play)], courier=post, mono=lambda: clock[0])
    run(pipeline, 230)
    assert [d.message.notice for d in post.taken] == ["firing"]
    clock[0] += 3601.0
    run(pipeline, 2)
    assert [d.message.notice for d in post.taken] == ["firing", "resolved"]


def test_a_message_that_cannot_be_made_stays_due(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwatchd.pipeline import messages

    real = messages.compose

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no words")

    post = Postbox()
    pipeline = Pipeline(config=Config(), sources=[Script(leaking)], courier=post)
    monkeypatch.setattr(messages, "compose", broken)
    ticks = run(pipeline, 180)
    assert post.taken == []
    assert any("no words" in problem for problem in ticks[-1].state.problems)
    monkeypatch.setattr(messages, "compose", real)
    ticks = run(pipeline, 2)
    assert [d.message.notice for d in post.taken] == ["firing"]
    assert ticks[-1].state.problems == ()


def test_a_source_that_cannot_be_made_anew_stops_no_tick() -> None:
    release = threading.Event()

    def hang(_: int) -> Sample:
        release.wait(30)
        raise SourceError("woken")

    def no_source(_: str) -> Any:
        raise ImportError("no such library")

    clock = [0.0]
    config = Config(daemon=DaemonSection(source_deadline=Seconds(0.01)))
    pipeline = Pipeline(
        config=config,
        sources=[Script(hang, name="stuck"), Script(leaking)],
        fresh=no_source,
        mono=lambda: clock[0],
    )
    for _ in range(20):
        clock[0] += 10.0
        (tick,) = run(pipeline, 1)
        assert tick.state.devices[0].reading is not None
    release.set()
    pipeline.close()


def test_a_process_whose_memory_is_unknown_elsewhere_may_end_here() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)

    def play(tick: int) -> Sample:
        here = sample(1000.0 + 5 * tick, [(LEAKER, GIB)] if tick < 3 else [])
        there = sample(1000.0 + 5 * tick, [(LEAKER, None)], device=other)
        return msgspec.structs.replace(
            here, readings=(*here.readings, *there.readings), processes=(LEAKER,)
        )

    ticks = run(Pipeline(config=Config(), sources=[Script(play, devices=(CARD, other))]), 6)
    assert ticks[-1].state.devices[1].processes is not None
    assert ticks[-1].state.devices[1].processes[0].info.name == "python"


def test_who_was_here_once_is_not_remembered_for_ever() -> None:
    def play(tick: int) -> Sample:
        passer = ProcessInfo(key=ProcessKey(pid=tick + 1, started_at_s=None), name="short")
        return sample(1000.0 + 5 * tick, [(passer, None), (QUIET, GIB)])

    pipeline = Pipeline(config=Config(), sources=[Script(play)])
    run(pipeline, 1000)
    assert len(pipeline.intake.infos) < 300


def test_a_device_that_is_removed_takes_its_alerts_with_it() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)
    source = Script(leaking, devices=(CARD, other))
    post = Postbox()
    pipeline = Pipeline(config=Config(), sources=[source], courier=post)
    run(pipeline, 180)
    source.known = (other,)
    tick = run(pipeline, 1)[-1]
    assert [(a.state, a.ended) for a in tick.changes] == [("resolved", "its device is gone")]
    assert tick.state.devices == ()
    assert [d.message.notice for d in post.taken] == ["firing", "resolved"]


def test_an_alert_whose_device_never_comes_back_is_over_after_a_day() -> None:
    elsewhere = msgspec.structs.replace(alert().subject, device_uid="GPU-sold")
    pipeline = Pipeline(
        config=Config(),
        sources=[Script(lambda i: sample(1000.0 + 600 * i, [(QUIET, GIB)]))],
    )
    pipeline.intake.adopt(alert(subject=elsewhere))
    ticks = run(pipeline, 144)
    assert [a.subject.device_uid for a in ticks[-1].alerts] == ["GPU-sold"]
    ticks = run(pipeline, 1)
    assert [a.ended for a in ticks[-1].changes] == ["its device has not been seen for a day"]


def test_a_driver_that_hangs_at_the_end_costs_no_history(tmp_path: Path) -> None:
    order: list[str] = []

    class Last(Script):
        def close(self) -> None:
            state = live.read(tmp_path)
            assert state is not None
            order.append("stopped" if state.stopped else "running")

    pipeline = Pipeline(config=Config(), sources=[Last(leaking)], runtime_dir=tmp_path)
    pipeline.tick()
    pipeline.close()
    assert order == ["stopped"]
