"""One tick: every part may fail, none stops it; who leaks is found, told and let go."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import main, verdict_text
from gpuwatchd.collect.host import Host
from gpuwatchd.core import units
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import Config, DetectionSection, PolicySection
from gpuwatchd.core.errors import SourceError
from gpuwatchd.core.model import Fault, ProcessInfo, ProcessKey, Sample
from gpuwatchd.pipeline import Pipeline
from gpuwatchd.pipeline.tracker import Intake
from gpuwatchd.pipeline.watcher import Watcher
from gpuwatchd.store import live
from gpuwatchd.store.live import LiveDevice, LiveProcess, LiveState
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, present, sample
from tests.pipeline.play import EAGER, QUIET, Postbox, Script, leaking, leaking_until, run, states

if TYPE_CHECKING:
    from pathlib import Path


def test_a_leak_is_watched_then_told_then_over_when_its_process_ends() -> None:
    post = Postbox()
    pipeline = Pipeline(config=EAGER, sources=[Script(leaking_until(220))], courier=post)
    ticks = run(pipeline, 230)
    assert states(ticks) == ["watch", "firing", "resolved"]
    assert [d.message.notice for d in post.taken] == ["firing", "resolved"]
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.process == KEY
    assert fired.finding.pattern == "gradual"
    assert fired.finding.rate_bytes_per_s == pytest.approx(40 * MIB, rel=0.05)
    assert post.taken[1].message.thread == post.taken[0].message.id
    assert [(one.process, one.share) for one in fired.finding.blame] == [(KEY, 1.0)]
    assert "Who grew" not in post.taken[0].message.facts  # nobody but itself
    pipeline.close()


def test_of_a_leak_that_has_given_back_no_rate_is_shown_as_if_it_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(tick: int) -> Sample:
        return leaking(tick) if tick < 180 else sample(1000.0 + 5 * tick, [(LEAKER, 2 * GIB)])

    monkeypatch.setenv("GPUWATCHD_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(tmp_path))
    pipeline = Pipeline(config=EAGER, sources=[Script(play)])
    tick = run(pipeline, 200)[-1]
    (held,) = tick.alerts
    assert held.state == "firing"
    assert held.clear_since_s is not None
    shown = tick.state.devices[0].finding
    assert shown is not None
    assert (shown.rate_bytes_per_s, shown.eta) == (0.0, None)
    grew = f"grew by {units.size(held.finding.growth_bytes)}, stopped "
    assert shown.reason.startswith(grew)
    later = {"taken_at_s": time.time(), "pid": os.getpid()}
    live.write(tmp_path, msgspec.structs.replace(tick.state, **later))
    for verb in ("status", "predict", "alerts", "explain"):
        main([verb])
        told = " ".join(capsys.readouterr().out.split())
        assert "stopped " in told, verb
        assert "full in ?" not in told, verb
        assert "MB/min gradual" not in told, verb
        assert "it has grown since" not in told, verb
    pipeline.close()


def test_a_flat_machine_says_so_and_tells_nobody() -> None:
    post = Postbox()
    flat = Script(lambda i: sample(1000.0 + 5 * i, [(LEAKER, 20 * GIB), (QUIET, 100 * MIB)]))
    ticks = run(Pipeline(config=EAGER, sources=[flat], courier=post), 200)
    assert states(ticks) == []
    assert post.taken == []
    finding = present(ticks[-1].state.devices[0].finding)
    assert finding.pattern == "stable"


def test_an_unknown_process_list_is_not_an_empty_one() -> None:
    def play(tick: int) -> Sample:
        if 100 <= tick < 110:
            return sample(1000.0 + 5 * tick, None, used_bytes=30 * GIB)
        return leaking(tick)

    pipeline = Pipeline(config=EAGER, sources=[Script(play)])
    ticks = run(pipeline, 140)
    stale = ticks[105].state.devices[0]
    assert [p.info.key.pid for p in present(stale.processes)] == [KEY.pid, QUIET.key.pid]
    assert stale.processes_age_s == 30.0
    assert stale.ledger is not None
    assert (stale.ledger.state, stale.ledger.owned_bytes) == ("none", None)
    assert ticks[99].state.devices[0].processes_age_s is None
    assert "resolved" not in states(ticks)


def test_a_reused_pid_is_another_process() -> None:
    other = ProcessInfo(key=ProcessKey(pid=KEY.pid, started_at_s=99_999.0), name="python")

    def play(tick: int) -> Sample:
        if tick < 150:
            return leaking(tick)
        return sample(1000.0 + 5 * tick, [(other, 20 * GIB), (QUIET, 100 * MIB)])

    ticks = run(Pipeline(config=EAGER, sources=[Script(play)]), 200)
    ended = [a for t in ticks for a in t.changes if a.state == "resolved"]
    assert [a.ended_code for a in ended] == [Ending.PROCESS_ENDED]
    assert ticks[-1].alerts == ()


def test_memory_that_no_process_owns_is_a_subject_of_its_own() -> None:
    def play(tick: int) -> Sample:
        grown = max(0, tick - 60) * 200 * MIB
        return sample(1000.0 + 5 * tick, [(QUIET, GIB)], used_bytes=10 * GIB + grown)

    ticks = run(Pipeline(config=EAGER, sources=[Script(play)]), 180)
    fired = next(a for t in ticks for a in t.changes if a.state == "firing")
    assert fired.subject.unattributed
    assert "no listed process owns" in fired.title


def test_the_live_state_is_written_each_tick_and_marked_at_the_end(tmp_path: Path) -> None:
    pipeline = Pipeline(config=EAGER, sources=[Script(leaking)], runtime_dir=tmp_path)
    pipeline.tick()
    first = present(live.read(tmp_path))
    assert (first.ticks, first.stopped) == (1, False)
    pipeline.close()
    last = present(live.read(tmp_path))
    assert last.stopped


def test_new_settings_are_taken_over() -> None:
    pipeline = Pipeline(config=EAGER, sources=[Script(leaking)], courier=Postbox())
    pipeline.reconfigure(Config(policy=PolicySection(channels=("email",))))
    ticks = run(pipeline, 180)
    assert {d.target for t in ticks for d in t.decisions} == {"email"}


def test_a_longer_look_back_is_taken_over() -> None:
    short = Config(detection=DetectionSection(analysis_window_hours=0.5))
    pipeline = Pipeline(config=short, sources=[Script(lambda i: leaking(i, from_tick=10_000))])
    run(pipeline, 1)
    pipeline.reconfigure(Config(detection=DetectionSection(analysis_window_hours=4.0)))
    run(pipeline, 2000)
    times, _ = pipeline.watcher.tracks["GPU-1"].window.window()
    assert times[-1] - times[0] > 2 * 3600.0


def test_an_alert_whose_process_ended_meanwhile_is_over() -> None:
    alone = Script(lambda i: sample(1000.0 + 5 * i, [(QUIET, GIB)]))
    post = Postbox()
    pipeline = Pipeline(config=EAGER, sources=[alone], courier=post)
    pipeline.intake.adopt(alert(notices=1))
    tick = pipeline.tick()
    assert [(a.state, a.ended_code) for a in tick.changes] == [
        ("resolved", Ending.ENDED_UNOBSERVED)
    ]
    assert [d.message.notice for d in post.taken] == ["resolved"]


def test_what_a_silent_source_showed_last_is_unknown_now() -> None:
    def play(tick: int) -> Sample:
        if tick == 1:
            raise SourceError("no answer")
        if tick == 2:
            return msgspec.structs.replace(sample(1010.0, []), readings=())
        return sample(1000.0 + 5.0 * tick, [(QUIET, MIB)])

    pipeline = Pipeline(config=EAGER, sources=[Script(play)])
    shown = [tick.state.devices[0] for tick in run(pipeline, 4)]
    assert [one.reading is not None for one in shown] == [True, False, False, True]
    assert [one.faults for one in shown] == [
        (), ("script: no answer",), ("not reported now",), ()
    ]  # fmt: skip
    pipeline.close()


def test_a_process_whose_memory_is_unknown_elsewhere_may_end_here() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)

    def play(tick: int) -> Sample:
        here = sample(1000.0 + 5 * tick, [(LEAKER, GIB)] if tick < 3 else [])
        there = sample(1000.0 + 5 * tick, [(LEAKER, None)], device=other)
        return msgspec.structs.replace(
            here, readings=(*here.readings, *there.readings), processes=(LEAKER,)
        )

    ticks = run(Pipeline(config=EAGER, sources=[Script(play, devices=(CARD, other))]), 6)
    assert present(ticks[-1].state.devices[1].processes)[0].info.name == "python"


def test_who_was_here_once_is_not_remembered_for_ever() -> None:
    def play(tick: int) -> Sample:
        passer = ProcessInfo(key=ProcessKey(pid=tick + 1, started_at_s=None), name="short")
        return sample(1000.0 + 5 * tick, [(passer, None), (QUIET, GIB)])

    pipeline = Pipeline(config=EAGER, sources=[Script(play)])
    run(pipeline, 1000)
    assert len(pipeline.intake.infos) < 300


def test_a_device_that_is_removed_takes_its_alerts_with_it() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)
    source = Script(leaking, devices=(CARD, other))
    post = Postbox()
    pipeline = Pipeline(config=EAGER, sources=[source], courier=post)
    run(pipeline, 180)
    source.known = (other,)
    tick = run(pipeline, 1)[-1]
    assert [(a.state, a.ended_code) for a in tick.changes] == [("resolved", Ending.DEVICE_GONE)]
    assert tick.state.devices == ()
    assert [d.message.notice for d in post.taken] == ["firing", "resolved"]


def test_an_alert_whose_device_never_comes_back_is_over_after_a_day() -> None:
    elsewhere = msgspec.structs.replace(alert().subject, device_uid="GPU-sold")
    pipeline = Pipeline(
        config=EAGER,
        sources=[Script(lambda i: sample(1000.0 + 600 * i, [(QUIET, GIB)]))],
    )
    pipeline.intake.adopt(alert(subject=elsewhere))
    ticks = run(pipeline, 144)
    assert [a.subject.device_uid for a in ticks[-1].alerts] == ["GPU-sold"]
    ticks = run(pipeline, 1)
    assert [a.ended_code for a in ticks[-1].changes] == [Ending.NOT_SEEN]


@pytest.mark.parametrize(("framework", "expected"), [("display", "watch"), ("PyTorch", "firing")])
def test_what_draws_is_watched_at_most(framework: str, expected: str) -> None:
    grower = msgspec.structs.replace(LEAKER, framework=framework)

    def play(tick: int) -> Sample:
        grown = max(0, tick - 60) * 200 * MIB
        return sample(1000.0 + 5.0 * tick, [(grower, 20 * GIB + grown)])

    post = Postbox()
    pipeline = Pipeline(config=EAGER, sources=[Script(play)], courier=post)
    ticks = run(pipeline, 250)
    assert [a.state for a in ticks[-1].alerts] == [expected]
    assert bool(post.taken) is (expected == "firing")
    shown = present(ticks[-1].state.devices[0].finding)
    assert shown.pattern == "gradual"


def test_one_list_without_a_process_is_not_believed() -> None:
    def play(tick: int) -> Sample:
        if tick in {100, 120}:
            return sample(1000.0 + 5 * tick, [(QUIET, 100 * MIB)])
        return leaking(tick)

    ticks = run(Pipeline(config=EAGER, sources=[Script(play)]), 180)
    assert "resolved" not in states(ticks)
    assert states(ticks)[-1] == "firing"


# ---- who the processes are -----------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [1, 2])
def test_one_that_ended_while_nobody_watched_is_named_everywhere(
    restarts: int, tmp_path: Path
) -> None:
    """What is listed as held and what is shown of the device give the same name."""
    pid = 2**22 + 5  # No kernel gives it out.
    listed = ProcessInfo(key=ProcessKey(pid=pid, started_at_s=None), name="")
    was = msgspec.structs.replace(LEAKER, key=ProcessKey(pid=pid, started_at_s=1.0))
    device = LiveDevice(
        device=CARD, reading=None, processes=(LiveProcess(info=was, used_bytes=GIB),)
    )
    live.write(
        tmp_path,
        LiveState(
            pid=1, version="1", started_at_s=0.0, taken_at_s=990.0, interval_s=5.0,
            devices=(device,),
        ),
    )  # fmt: skip
    for _ in range(restarts):
        source = Script(
            lambda i: msgspec.structs.replace(
                sample(1000.0 + 60.0 * i, [(listed, 9 * GIB)]), processes=()
            )
        )
        host = Host(contained=False)
        pipeline = Pipeline(config=Config(), sources=[source], host=host, runtime_dir=tmp_path)
        pipeline.resume()
        state = run(pipeline, 25)[-1].state
        pipeline.close()
        host.close()
        (process,) = state.devices[0].processes or ()
        assert verdict_text.who(process.info) == f"pid {pid} (gone, was python train.py of alice)"
        (held,) = [one.process for one in state.holdings if one.process is not None]
        assert verdict_text.who(held) == verdict_text.who(process.info)


def test_who_is_present_is_the_same_tuple_until_somebody_changes() -> None:
    intake = Intake(Watcher(Config()), None)

    def take(at_s: float, *who: ProcessInfo) -> tuple[ProcessInfo, ...]:
        intake.take("script", sample(at_s, [(one, GIB) for one in who]), (CARD,), at_s)
        return intake.people.present(intake.devices.values())

    first = take(1.0, LEAKER, QUIET)
    assert first == (LEAKER, QUIET)
    assert take(2.0, LEAKER, QUIET) is first
    renamed = msgspec.structs.replace(LEAKER, framework="vLLM")
    assert take(3.0, renamed, QUIET) == (renamed, QUIET)
    assert take(4.0, QUIET) == (QUIET,)
    assert LEAKER.key in intake.infos
    intake.silent("script", Fault(where="", why="no answer"))
    assert intake.people.present(intake.devices.values()) == ()
