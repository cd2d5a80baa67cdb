"""One tick: every part may fail, none stops it; who leaks is found, told and let go."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core.codes import Ending, Hold
from gpuwatchd.core.config import Config, DetectionSection, OverrideSection, PolicySection, Seconds
from gpuwatchd.core.errors import SourceError
from gpuwatchd.core.model import Finding, ProcessInfo, ProcessKey, ProcessUse, Sample
from gpuwatchd.store import live
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, calm, finding, present, sample
from tests.pipeline.play import EAGER, QUIET, Postbox, Script, leaking, leaking_until, run, states
from tests.pipelines import make_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Sample


def test_a_leak_is_watched_then_told_then_over_when_its_process_ends() -> None:
    post = Postbox()
    pipeline = make_pipeline(
        config=EAGER, sources=[Script(leaking_until(220))], message_dispatcher=post
    )
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


@pytest.mark.requirement("M28")
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"user": "nobody", "minimum_growth_mib": 1e6}, ["watch", "firing"]),
        ({"process": LEAKER.name, "minimum_growth_mib": 1e6}, []),
        ({"process": LEAKER.name, "eta_horizon": Seconds(60)}, ["watch"]),
        ({"process": LEAKER.name, "confidence_threshold": 1.0}, ["watch"]),
        ({"kind": "held", "minimum_growth_mib": 1e6}, ["watch", "firing"]),
    ],
)
def test_an_override_has_thresholds_of_its_own(
    override: dict[str, Any], expected: list[str]
) -> None:
    config = msgspec.structs.replace(EAGER, override=(OverrideSection(**override),))
    pipeline = make_pipeline(config=config, sources=[Script(leaking)])
    ticks = run(pipeline, 220)
    mine = [a for t in ticks for a in t.changes if a.subject.process == LEAKER.key]
    assert [alert.state for alert in mine] == expected


def test_of_a_leak_that_has_given_back_no_rate_is_shown_as_if_it_went_on() -> None:
    def play(tick: int) -> Sample:
        return leaking(tick) if tick < 180 else sample(1000.0 + 5 * tick, [(LEAKER, 2 * GIB)])

    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
    tick = run(pipeline, 200)[-1]
    (held,) = tick.alerts
    assert held.state == "firing"
    assert held.clear_since_s is not None
    shown = tick.state.devices[0].finding
    assert shown is not None
    assert (shown.rate_bytes_per_s, shown.eta) == (0.0, None)
    pipeline.close()


def test_a_flat_machine_says_so_and_tells_nobody() -> None:
    post = Postbox()
    flat = Script(lambda i: sample(1000.0 + 5 * i, [(LEAKER, 20 * GIB), (QUIET, 100 * MIB)]))
    ticks = run(make_pipeline(config=EAGER, sources=[flat], message_dispatcher=post), 200)
    assert states(ticks) == []
    assert post.taken == []
    finding = present(ticks[-1].state.devices[0].finding)
    assert finding.pattern == "stable"


def test_an_unknown_process_list_is_not_an_empty_one() -> None:
    def play(tick: int) -> Sample:
        if 100 <= tick < 110:
            return sample(1000.0 + 5 * tick, None, used_bytes=30 * GIB)
        return leaking(tick)

    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
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

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play)]), 200)
    ended = [a for t in ticks for a in t.changes if a.state == "resolved"]
    assert [a.ended_code for a in ended] == [Ending.PROCESS_ENDED]
    assert ticks[-1].alerts == ()


def test_the_live_state_is_written_each_tick_and_marked_at_the_end(tmp_path: Path) -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(leaking)], runtime_dir=tmp_path)
    pipeline.tick()
    first = present(live.read(tmp_path))
    assert (first.ticks, first.stopped) == (1, False)
    pipeline.close()
    last = present(live.read(tmp_path))
    assert last.stopped


def test_new_settings_are_taken_over() -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(leaking)], message_dispatcher=Postbox())
    pipeline.reconfigure(Config(policy=PolicySection(channels=("email",))))
    ticks = run(pipeline, 300)
    assert {d.target for t in ticks for d in t.decisions} == {"email"}


def test_a_longer_look_back_is_taken_over() -> None:
    short = Config(detection=DetectionSection(analysis_window_hours=0.5))
    pipeline = make_pipeline(config=short, sources=[Script(lambda i: leaking(i, from_tick=10_000))])
    run(pipeline, 1)
    pipeline.reconfigure(Config(detection=DetectionSection(analysis_window_hours=4.0)))
    run(pipeline, 2000)
    times, _ = pipeline.state.tracks["GPU-1"].window.window()
    assert times[-1] - times[0] > 2 * 3600.0


def test_an_alert_whose_process_ended_meanwhile_is_over() -> None:
    alone = Script(lambda i: sample(1000.0 + 5 * i, [(QUIET, GIB)]))
    post = Postbox()
    pipeline = make_pipeline(config=EAGER, sources=[alone], message_dispatcher=post)
    pipeline.state.restored.adopt(alert(notices=1))
    assert pipeline.tick().changes == ()  # one list without it may be a slip of the driver
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

    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
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

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play, devices=(CARD, other))]), 6)
    assert present(ticks[-1].state.devices[1].processes)[0].info.name == "python"


def test_who_was_here_once_is_not_remembered_for_ever() -> None:
    def play(tick: int) -> Sample:
        passer = ProcessInfo(key=ProcessKey(pid=tick + 1, started_at_s=None), name="short")
        return sample(1000.0 + 5 * tick, [(passer, None), (QUIET, GIB)])

    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
    run(pipeline, 1000)
    assert len(pipeline.state.infos) < 300


def test_a_device_that_is_removed_takes_its_alerts_with_it() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)
    source = Script(leaking, devices=(CARD, other))
    post = Postbox()
    pipeline = make_pipeline(config=EAGER, sources=[source], message_dispatcher=post)
    run(pipeline, 180)
    source.known = (other,)
    tick = run(pipeline, 1)[-1]
    assert [(a.state, a.ended_code) for a in tick.changes] == [("resolved", Ending.DEVICE_GONE)]
    assert tick.state.devices == ()
    assert [d.message.notice for d in post.taken] == ["firing", "resolved"]


@pytest.mark.parametrize(("notices", "told"), [(0, ["firing", "resolved"]), (1, ["resolved"])])
def test_an_alert_whose_device_never_comes_back_is_over_after_a_day(
    notices: int, told: list[str]
) -> None:
    left = alert(
        subject=msgspec.structs.replace(alert().subject, device_uid="GPU-sold"),
        finding=msgspec.structs.replace(finding(), judged_at_s=1000.0),
        notices=notices,
        next_notice_at_s=1000.0,
    )
    post = Postbox()
    source = Script(lambda i: sample(1000.0 + 300 * i, [(QUIET, GIB)]))
    pipeline = make_pipeline(config=EAGER, sources=[source], message_dispatcher=post)
    pipeline.state.restored.adopt(left)
    run(pipeline, 2)
    assert post.taken == []  # for ten minutes it may still appear
    pipeline.tick()
    assert [d.message.notice for d in post.taken] == told[:-1]
    ticks = run(pipeline, 285)  # nobody is reminded of what nobody sees
    assert [d.message.notice for d in post.taken] == told[:-1]
    assert [(a.notices, a.held_code) for a in ticks[-1].alerts] == [(1, Hold.NO_DATA)]
    assert [a.ended_code for a in pipeline.tick().changes] == [Ending.NOT_SEEN]
    assert [d.message.notice for d in post.taken] == told


def test_sparklines_are_drawn_in_turn_and_seldom_where_columns_are_wide() -> None:
    other = msgspec.structs.replace(CARD, uid="GPU-2", index=1)

    def play(tick: int) -> Sample:
        first = leaking(tick, from_tick=0)
        second = sample(1000.0 + 5 * tick, [], device=other, used_bytes=GIB)
        return msgspec.structs.replace(first, readings=first.readings + second.readings)

    pipeline = make_pipeline(config=EAGER, sources=[Script(play, devices=(CARD, other))])
    ticks = run(pipeline, 822)
    drawn: list[list[int]] = [[], []]
    for number, (before, after) in enumerate(pairwise(ticks), 2):
        for changed, old, new in zip(drawn, before.state.devices, after.state.devices, strict=True):
            if new.samples != old.samples:
                changed.append(number)
    assert [numbers[:7] for numbers in drawn] == [
        [2, 3, 4, 5, 6, 12, 18],
        [2, 3, 4, 5, 7, 13, 19],
    ]
    # Where it shows more than 769 samples, a quarter of a column takes more than six ticks.
    assert [numbers[-4:] for numbers in drawn] == [[786, 798, 810, 822], [775, 787, 799, 811]]
    shown = ticks[32].state.devices[0]
    assert (shown.recent_step_s, shown.samples) == (5.0, 30)
    held = tuple(20 * GIB + (100 + 200 * tick) * MIB for tick in range(30))
    assert shown.recent_bytes == held
    late = ticks[-1].state.devices[0]
    assert (len(late.recent_bytes), late.recent_step_s) == (32, 5.0 * 821 / 32)


@pytest.mark.parametrize(("framework", "expected"), [("display", "watch"), ("PyTorch", "firing")])
def test_what_draws_is_watched_at_most(framework: str, expected: str) -> None:
    grower = msgspec.structs.replace(LEAKER, framework=framework)

    def play(tick: int) -> Sample:
        grown = max(0, tick - 60) * 200 * MIB
        return sample(1000.0 + 5.0 * tick, [(grower, 20 * GIB + grown)])

    post = Postbox()
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)], message_dispatcher=post)
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

    ticks = run(make_pipeline(config=EAGER, sources=[Script(play)]), 180)
    assert "resolved" not in states(ticks)
    assert states(ticks)[-1] == "firing"


FLAT = (
    ProcessUse(key=LEAKER.key, used_bytes=GIB, sm_pct=40.0, host_bytes=5 * MIB),
    ProcessUse(key=QUIET.key, used_bytes=MIB),
)


def play(tick: int) -> Sample:
    """The very same list for ten ticks, then another one."""
    one = sample(1000.0 + 5 * tick, [(LEAKER, GIB), (QUIET, MIB)])
    uses = FLAT if tick < 10 else (msgspec.structs.replace(FLAT[0], sm_pct=90.0), FLAT[1])
    reading = msgspec.structs.replace(one.readings[0], uses=uses)
    return msgspec.structs.replace(one, readings=(reading,), processes=one.processes)


def test_what_changes_is_shown_at_once(tmp_path: Path) -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)], runtime_dir=tmp_path)
    shown = [tick.state.devices[0].processes or () for tick in run(pipeline, 5)]
    assert any(one is other for one, other in pairwise(shown))
    assert shown[4][0].sm_pct == 40.0
    found: Finding = calm(reason="judged anew")
    pipeline.state.tracks[found.subject.id].finding = found
    (tick,) = run(pipeline, 1)
    processes = tick.state.devices[0].processes or ()
    assert [p.finding for p in processes if p.info.key == KEY] == [found]
    written = present(live.read(tmp_path))
    assert written.devices == tick.state.devices
    pipeline.state.infos[KEY] = msgspec.structs.replace(LEAKER, user="bob")
    source = pipeline.sources.workers["script"].source
    assert isinstance(source, Script)
    source.play = lambda i: msgspec.structs.replace(play(i), processes=())
    (tick,) = run(pipeline, 1)
    assert [p.info.user for p in tick.state.devices[0].processes or ()] == ["bob", "root"]
    tick = run(pipeline, 6)[-1]
    assert [p.sm_pct for p in tick.state.devices[0].processes or ()] == [90.0, None]
    assert present(live.read(tmp_path)) == tick.state


def test_the_same_bytes_whether_pieces_are_used_again_or_not() -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
    pieces = live.Pieces()
    for tick in run(pipeline, 15):
        content = live.encode(tick.state, pieces)
        assert content == live.encode(tick.state, live.Pieces())
        assert msgspec.json.decode(b"".join(content), type=live.LiveState) == tick.state
        assert len(pieces.lists) == len(pieces.each) == 1


def test_of_processes_only_what_is_not_as_by_default_is_written() -> None:
    tick = run(make_pipeline(config=EAGER, sources=[Script(play)]), 15)[-1]
    lean, whole = b"".join(live.encode(tick.state, live.Pieces())), msgspec.json.encode(tick.state)
    assert len(lean) < len(whole)
    processes = msgspec.json.decode(lean)["devices"][0]["processes"]
    assert [one["info"]["name"] for one in processes] == [LEAKER.name, QUIET.name]
    assert all("foreign" not in one["info"] and "kind" not in one for one in processes)
    # As an earlier version wrote it.
    assert msgspec.json.decode(whole, type=live.LiveState) == tick.state


def test_an_alert_of_the_rank_that_leads_is_shown_of_those_it_stands_for() -> None:
    pipeline = make_pipeline(config=EAGER, sources=[Script(play)])
    run(pipeline, 100)
    led, lead = (pipeline.state.tracks[f"{CARD.uid}/{who.key.pid}@{who.key.started_at_s}"]
                 for who in (LEAKER, QUIET))  # fmt: skip
    led.lead = lead
    (tick,) = run(pipeline, 1)
    assert [p.finding and p.finding.tier for p in tick.state.devices[0].processes or ()] == [
        "none",
        "none",
    ]
    lead.alert = alert(state="firing", finding=finding(subject=lead.subject))
    (tick,) = run(pipeline, 1)
    shown = [p.finding and p.finding.tier for p in tick.state.devices[0].processes or ()]
    assert shown == ["alert", "alert"]


def test_a_list_that_fails_for_a_moment_starves_no_series() -> None:
    def gap(tick: int) -> Sample:
        full = play(min(tick, 5))
        full = msgspec.structs.replace(full, taken_mono_s=1000.0 + 5 * tick)
        full = msgspec.structs.replace(full, taken_at_s=full.taken_mono_s)
        if tick != 20:
            return full
        reading = msgspec.structs.replace(full.readings[0], uses=None, uses_reason="no permission")
        return msgspec.structs.replace(full, readings=(reading,))

    pipeline = make_pipeline(config=EAGER, sources=[Script(gap)])
    run(pipeline, 200)
    track = pipeline.state.tracks[calm().subject.id]
    t_s, held = track.window.window()
    assert t_s.tolist() == [1000.0 + 5 * tick for tick in range(200) if tick != 20]
    assert set(held.tolist()) == {float(GIB)}
