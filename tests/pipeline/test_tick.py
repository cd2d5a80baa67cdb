"""One tick: every part may fail, none stops it; who leaks is found, told and let go."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.config import Config, DaemonSection, PolicySection, Seconds
from gpuwatchd.errors import SourceError, SourceUnavailable
from gpuwatchd.model import Availability, Delivery, Device, ProcessInfo, ProcessKey, Sample
from gpuwatchd.pipeline import Pipeline, Tick
from gpuwatchd.store import live
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

QUIET = ProcessInfo(key=ProcessKey(pid=99, started_at_s=5.0), name="Xorg", user="root")


class Script:
    """A source that plays what a function of the tick number says."""

    def __init__(
        self,
        play: Callable[[int], Sample],
        name: str = "script",
        devices: tuple[Device, ...] = (CARD,),
    ) -> None:
        self.name = name
        self.play = play
        self.count = 0
        self.closed = 0
        self._devices = devices

    def probe(self) -> Availability:
        return Availability(ok=True, reason="scripted")

    def devices(self) -> tuple[Device, ...]:
        return self._devices

    def read(self) -> Sample:
        self.count += 1
        return self.play(self.count - 1)

    def close(self) -> None:
        self.closed += 1


class Postbox:
    """A courier that keeps what it gets and reports what it is told to."""

    def __init__(self, outcome: str = "sent") -> None:
        self.taken: list[Delivery] = []
        self.outcome = outcome
        self._done: list[Delivery] = []

    def submit(self, delivery: Delivery) -> bool:
        self.taken.append(delivery)
        self._done.append(
            msgspec.structs.replace(
                delivery, state=self.outcome, attempts=delivery.attempts + 1,
                error=None if self.outcome == "sent" else "refused", next_try_at_s=0.0,
            )
        )  # fmt: skip
        return True

    def results(self) -> list[Delivery]:
        done, self._done = self._done, []
        return done

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        return []


def leaking(tick: int, *, from_tick: int = 60, mib_per_tick: int = 200) -> Sample:
    grown = max(0, tick - from_tick) * mib_per_tick * MIB
    return sample(1000.0 + 5.0 * tick, [(LEAKER, 20 * GIB + grown), (QUIET, 100 * MIB)])


def run(pipeline: Pipeline, ticks: int) -> list[Tick]:
    return [pipeline.tick() for _ in range(ticks)]


def states(ticks: list[Tick]) -> list[str]:
    return [change.state for tick in ticks for change in tick.changes]


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
