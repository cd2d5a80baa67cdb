"""Every part of a tick may fail; none stops it, and none hides another."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.codes import Hold
from gpuwatchd.core.config import Config, DaemonSection, Seconds, StoreSection
from gpuwatchd.core.errors import SourceError, SourceUnavailable
from gpuwatchd.core.model import Event
from gpuwatchd.store import live
from gpuwatchd.store.writer import History
from tests.making import CARD, GIB, LEAKER, MIB, sample
from tests.pipeline.play import EAGER, QUIET, Postbox, Script, leaking, run, states
from tests.pipelines import make_pipeline
from tests.store.world import rows

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Finding, Sample, Series


@pytest.mark.parametrize(
    ("error", "why"),
    [(SourceError("the driver says no"), "the driver says no"), (ZeroDivisionError(), "ZeroDiv")],
)
def test_one_source_that_raises_hides_no_other(error: Exception, why: str) -> None:
    bad = Script(lambda _: _raise(error), name="bad")
    tick = run(make_pipeline(config=EAGER, sources=[bad, Script(leaking, name="good")]), 3)[-1]
    assert len(tick.state.devices) == 1
    (problem,) = tick.state.problems
    assert problem.startswith("bad: ")
    assert why in problem


def test_a_source_that_hangs_delays_one_tick_by_its_deadline_only() -> None:
    release = threading.Event()

    def hang(_: int) -> Sample:
        release.wait(30)
        raise SourceError("woken")

    config = Config(daemon=DaemonSection(source_deadline=Seconds(0.05)))
    pipeline = make_pipeline(config=config, sources=[Script(hang, name="stuck"), Script(leaking)])
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
    pipeline = make_pipeline(config=EAGER, sources=[absent], mono=lambda: now[0])
    for second in range(0, 600, 5):
        now[0] = float(second)
        pipeline.tick()
    assert 3 <= absent.count <= 9
    assert pipeline.tick().state.problems == ("nvml: no driver",)


def _raise(error: Exception) -> Any:
    raise error


def test_a_failed_delivery_shows_as_a_problem_until_one_arrives() -> None:
    post = Postbox(outcome="pending")
    pipeline = make_pipeline(config=EAGER, sources=[Script(leaking)], message_dispatcher=post)
    ticks = run(pipeline, 180)
    assert any("channel desktop does not deliver: refused" in p for p in ticks[-1].state.problems)
    assert len(post.taken) > 3
    assert len({d.message.id for d in post.taken}) == 1
    post.outcome = "sent"
    ticks = run(pipeline, 3)
    assert ticks[-1].state.problems == ()


def test_a_live_state_that_cannot_be_written_is_a_problem_only(tmp_path: Path) -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(leaking)], runtime_dir=tmp_path / "gone")
    ticks = run(pipeline, 2)
    assert any("live state" in problem for problem in ticks[-1].state.problems)


@pytest.mark.parametrize("part", ["outbox", "evaluator"])
def test_memory_that_is_short_for_a_moment_ends_no_tick(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(leaking)])
    before = run(pipeline, 2)[-1].state

    def short(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(
            getattr(pipeline, part), "channel_health" if part == "outbox" else "due_of", short
        )
        during = pipeline.tick().state
        assert len(pipeline.guard.problems) == 1
    assert during.devices[0].device == before.devices[0].device
    assert pipeline.tick().state.ticks == 4
    assert pipeline.guard.problems == []


def test_each_source_is_judged_at_its_own_time() -> None:
    recorded = msgspec.structs.replace(CARD, uid="GPU-log")

    def old(tick: int) -> Sample:
        flat = sample(100.0 + 5 * tick, [(QUIET, GIB)], device=recorded)
        return msgspec.structs.replace(flat, taken_at_s=flat.taken_mono_s)

    def play(tick: int) -> Sample:
        one = leaking(tick)
        return msgspec.structs.replace(one, taken_at_s=one.taken_mono_s + 1.7e9)

    sources = [Script(play, name="live"), Script(old, name="log", devices=(recorded,))]
    ticks = run(make_pipeline(config=EAGER, sources=sources), 180)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.device_uid == CARD.uid
    assert fired.firing_at_s == pytest.approx(1.7e9 + 1000 + 5 * 129, abs=60)
    flat = ticks[-1].findings["GPU-log/99@5.0"]
    assert 100 < flat.judged_at_s <= 100 + 5 * 179
    assert ticks[-1].state.taken_at_s > 1.7e9


def test_two_sources_of_one_kind_are_told_apart() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)
    second = Script(
        lambda i: sample(1000.0 + 5 * i, [(QUIET, GIB)], device=other), devices=(other,)
    )
    tick = run(make_pipeline(config=EAGER, sources=[Script(leaking), second]), 3)[-1]
    assert [d.reading is not None for d in tick.state.devices] == [True, True]


def test_a_silent_source_confirms_nothing() -> None:
    def play(tick: int) -> Sample:
        if tick >= 75:
            raise SourceError("the driver says no")
        return leaking(tick)

    clock = [0.0]
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)], mono=lambda: clock[0])
    ticks = []
    for _ in range(400):
        clock[0] += 5.0
        ticks += run(pipeline, 1)
    assert states(ticks) == ["watch"]
    assert ticks[-1].state.devices[0].reading is None


def test_a_first_notice_that_is_due_is_told_although_the_driver_hangs() -> None:
    def play(tick: int) -> Sample:
        if tick >= 150:
            raise SourceError("the driver says no")
        return leaking(tick)

    clock = [0.0]
    post = Postbox()
    script = Script(play)
    pipeline = make_pipeline(
        config=EAGER, sources=[script], message_dispatcher=post, mono=lambda: clock[0]
    )
    ticks = []
    for _ in range(2000):
        clock[0] += 5.0
        ticks += run(pipeline, 1)
    assert states(ticks) == ["watch", "firing"]
    assert [d.message.notice for d in post.taken] == ["firing"]
    assert [a.held_code for a in ticks[100].alerts] == [None] * len(ticks[100].alerts)
    assert [a.held_code for a in ticks[-1].alerts] == [Hold.NO_DATA]
    script.play = leaking
    for _ in range(100):
        clock[0] += 5.0
        ticks += run(pipeline, 1)
    assert [a.held_code for a in ticks[-1].alerts] == [None]


def test_one_series_that_cannot_be_judged_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gpuwatchd.analysis import verdict

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
    ticks = run(make_pipeline(config=EAGER, sources=[Script(play)]), 180)
    assert "firing" in states(ticks)
    assert any("could not be evaluated" in problem for problem in ticks[-1].state.problems)
    assert len([r for r in caplog.records if "part=detectors" in r.message]) <= 2


def test_a_message_that_cannot_be_made_stays_due(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwatchd.pipeline import messages

    real = messages.compose

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("no words")

    post = Postbox()
    pipeline = make_pipeline(config=EAGER, sources=[Script(leaking)], message_dispatcher=post)
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

    def no_source(_: int) -> Any:
        raise ImportError("no such library")

    clock = [0.0]
    config = Config(daemon=DaemonSection(source_deadline=Seconds(0.01)))
    pipeline = make_pipeline(
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


def test_a_device_log_that_fails_costs_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("odd")

    def play(_: int) -> Sample:
        lost = Event(at_s=1000.0, kind="xid", device_uid=CARD.uid, text="XID 79", code=79)
        return msgspec.structs.replace(leaking(0), events=(lost,))

    monkeypatch.setattr("gpuwatchd.pipeline.event_log.DeviceLog.update", fails)
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
    state = pipeline.tick().state
    assert [event.code for event in state.devices[0].events] == [79]
    assert state.problems == ("events: odd",)
    pipeline.close()


def test_a_last_live_state_that_cannot_be_made_costs_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    source = Script(leaking)
    pipeline = make_pipeline(config=EAGER, sources=[source], history=history)
    pipeline.tick()
    monkeypatch.setattr(pipeline.outbox, "channel_health", None)
    pipeline.close()
    assert source.closed == 1
    assert rows(tmp_path, "SELECT count(*) FROM gpu_raw") == [(1,)]


def test_a_driver_that_hangs_at_the_end_costs_no_history(tmp_path: Path) -> None:
    order: list[str] = []

    class Last(Script):
        def close(self) -> None:
            state = live.read(tmp_path)
            assert state is not None
            order.append("stopped" if state.stopped else "running")

    pipeline = make_pipeline(config=EAGER, sources=[Last(leaking)], runtime_dir=tmp_path)
    pipeline.tick()
    pipeline.close()
    assert order == ["stopped"]
