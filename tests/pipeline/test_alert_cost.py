"""What an alert costs while the daemon runs: shares, checkpoints, jobs, what is unknown."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.analysis import cost
from gpuwatchd.collect.host.checkpoint_files import Saved
from gpuwatchd.core.config import CheckpointsSection, CostSection, Seconds, StoreSection
from gpuwatchd.core.model import Holding, ProcessInfo, ProcessKey, Sample, Subject
from gpuwatchd.pipeline.alert_cost import DEADLINE_S, AlertCosts, CheckpointSearch, Saves
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.tables import Checkpoint
from gpuwatchd.store.writer import History
from tests.making import CARD, GIB, KEY, LEAKER, MIB, alert, present, sample
from tests.pipeline.play import EAGER, Postbox, Script, leaking_until, run
from tests.pipeline.test_ranks import CARDS, growing, spread
from tests.pipelines import make_pipeline
from tests.store.world import Time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, Cost, HoldingKind
    from gpuwatchd.pipeline.live_pipeline import LivePipeline

PRICED = msgspec.structs.replace(EAGER, cost=CostSection(usd_per_gpu_hour=4.0))
NOW_S = 1000.0 + 5.0 * 199
KINDS: tuple[HoldingKind, ...] = ("idle", "idle", "ghost")


def alone(tick: int, who: ProcessInfo = LEAKER) -> Sample:
    grown = max(0, tick - 60) * 200 * MIB
    return sample(1000.0 + 5.0 * tick, [(who, 20 * GIB + grown)])


def costs(pipeline: LivePipeline) -> AlertCosts:
    """Return what the pipeline asks for costs."""
    return pipeline.alert_notifier._builder._costs


def of(pipeline: LivePipeline, now_s: float = NOW_S) -> Cost:
    return present(costs(pipeline).of(opened(pipeline), now_s))


def opened(pipeline: LivePipeline) -> Alert:
    found = [t.alert for t in pipeline.state.tracks.values() if t.alert is not None]
    return next(one for one in found if one.subject.process is not None)


def playing(
    config: Config = PRICED, ticks: int = 200, history: History | None = None
) -> LivePipeline:
    pipeline = make_pipeline(config=config, sources=[Script(alone)], history=history)
    run(pipeline, ticks)
    return pipeline


def test_one_that_is_alone_costs_the_whole_device_since_its_start() -> None:
    found = of(playing())
    assert found.since == "start"
    assert found.gpu_hours == pytest.approx(995 / 3600, abs=0.01)
    assert found.spent_usd == pytest.approx(995 / 3600 * 4.0, abs=0.05)
    assert found.whole_usd_per_hour == found.usd_per_hour == 4.0
    assert found.basis == "yours"


def test_what_is_at_risk_is_the_time_until_the_middle_of_the_forecast() -> None:
    pipeline = playing()
    finding = opened(pipeline).finding
    left_h = (finding.judged_at_s + present(finding.eta).mid_s - NOW_S) / 3600
    assert of(pipeline).at_risk_usd == pytest.approx(left_h * 4.0)
    late = of(pipeline, NOW_S + 1e6)
    assert late.at_risk_usd == 0.0


def test_a_job_of_ranks_has_all_of_its_devices() -> None:
    pipeline = make_pipeline(
        config=PRICED, sources=[Script(lambda i: spread(i, growing), devices=CARDS)]
    )
    (open_,) = run(pipeline, 260)[-1].alerts
    found = present(costs(pipeline).of(open_, 1000.0 + 5 * 259))
    assert {one.device_uid for one in found.members} == {card.uid for card in CARDS}
    assert found.usd_per_hour == pytest.approx(16.0)
    assert found.gpu_hours == pytest.approx(4 * 1295 / 3600, rel=0.05)


@pytest.mark.slow
def test_a_death_is_told_as_critical_with_all_that_it_cost_and_its_curve(tmp_path: Path) -> None:
    """Nothing was written before it died: what ``cost`` counts later is what the mail says."""
    post = Postbox()
    history = History.open(
        tmp_path, StoreSection(min_free_mib=0, flush=Seconds(1e9)), boot_id="b",
        clock=lambda: NOW_S + 900.0, monotonic=lambda: 1e6,
    )  # fmt: skip
    source = Script(leaking_until(360))
    pipeline = make_pipeline(
        config=PRICED, sources=[source], history=history, message_dispatcher=post,
        wall=lambda: 1000.0 + 5.0 * source.count,
    )  # fmt: skip
    run(pipeline, 300)
    saved = Checkpoint(process=KEY, saved_at_s=2000.0, said_by="file")
    pipeline.context.checkpoints._note(saved)
    run(pipeline, 70)
    pipeline.close()
    message = post.taken[-1].message
    assert (message.notice, message.severity) == ("resolved", "critical")
    assert {"Checkpoint", "Advice"} <= message.facts.keys()
    with Reader.open(tmp_path) as reader:
        (told,) = [one for one in reader.alerts(0.0) if one.ran_out]
        end_s = present(told.resolved_at_s)
        rows = reader.occupancy(CARD.uid, 2000.0, end_s)
    hours = cost.usage_by_process(rows, 2000.0, end_s)[KEY].hours
    assert present(told.cost).spent_usd == pytest.approx(4.0 * present(hours), abs=0.001)
    assert (present(told.cost).since, present(told.cost).since_at_s) == ("checkpoint", 2000.0)
    assert present(message.chart).died_at_s == end_s


def test_another_price_or_none_is_heard_without_a_restart() -> None:
    pipeline = playing()
    assert costs(pipeline).of(alert(kind="gpu"), NOW_S) is None, "hardware has no cost of its own"
    dear = msgspec.structs.replace(PRICED, cost=CostSection(usd_per_gpu_hour=8.0))
    pipeline.reconfigure(dear)
    assert of(pipeline).whole_usd_per_hour == 8.0
    pipeline.reconfigure(msgspec.structs.replace(EAGER, cost=CostSection(mode="off")))
    assert costs(pipeline).of(opened(pipeline), NOW_S) is None


def test_a_process_that_was_there_before_us_counts_from_when_it_was_seen() -> None:
    early = msgspec.structs.replace(LEAKER, key=ProcessKey(pid=4711, started_at_s=-90_000.0))
    pipeline = make_pipeline(config=PRICED, sources=[Script(lambda tick: alone(tick, early))])
    run(pipeline, 200)
    found = of(pipeline)
    assert found.since == "first-seen"
    assert found.gpu_hours == pytest.approx(995 / 3600, abs=0.02)


def test_electricity_counts_by_what_was_measured() -> None:
    section = CostSection(
        mode="owned", purchase=8760.0, lifetime=Seconds(365 * 86_400), electricity_per_kwh=0.5
    )
    pipeline = playing(msgspec.structs.replace(EAGER, cost=section), ticks=100)
    price = present(pipeline.state.prices.of(CARD.uid, NOW_S))
    assert price.electricity_usd_per_hour is None
    reading = present(pipeline.state.devices[CARD.uid].reading)
    pipeline.state.devices[CARD.uid].reading = msgspec.structs.replace(reading, power_w=400.0)
    for at_s in (5000.0, 5005.0, 5010.0):
        pipeline.state.prices.measure(at_s)
    price = present(pipeline.state.prices.of(CARD.uid, NOW_S))
    assert price.electricity_usd_per_hour == pytest.approx(0.2)
    assert price.running_usd_per_hour == pytest.approx(1.2)


def test_what_is_held_on_several_devices_counts_on_each() -> None:
    def play(tick: int) -> Sample:
        parts = [sample(1000.0 + 5.0 * tick, [(LEAKER, 20 * GIB)], device=c) for c in CARDS[:2]]
        readings = tuple(part.readings[0] for part in parts)
        return msgspec.structs.replace(parts[0], readings=readings)

    settings = msgspec.structs.replace(
        PRICED, policy=msgspec.structs.replace(PRICED.policy, tell_held=("idle",))
    )
    pipeline = make_pipeline(config=settings, sources=[Script(play, devices=CARDS[:2])])
    run(pipeline, 121)
    pipeline.state.holdings = tuple(
        Holding(kind=kind, device_uid=card.uid, process=LEAKER, held_bytes=20 * GIB)
        for kind, card in zip(KINDS, CARDS, strict=False)
    )
    subject = Subject(device_uid=CARDS[0].uid, process=KEY)
    open_ = alert(kind="held", opened_at_s=1000.0, subject=subject)
    found = present(costs(pipeline).of(open_, 1600.0))
    assert [one.device_uid for one in found.members] == [card.uid for card in CARDS[:2]]
    assert found.gpu_hours == pytest.approx(2 * 600 / 3600 / 4, rel=0.15)
    over = msgspec.structs.replace(open_, state="resolved", resolved_at_s=1600.0, cost=found)
    pipeline.state.holdings = ()
    assert costs(pipeline).of(over, 1600.0) == found


@pytest.mark.requirement("B20")
def test_it_counts_from_the_checkpoint_that_was_said(tmp_path: Path) -> None:
    history = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    pipeline = playing(history=history)
    near = ProcessKey(pid=KEY.pid, started_at_s=(KEY.started_at_s or 0.0) + 0.9)
    transaction(
        tmp_path,
        tables.write_checkpoint,
        Checkpoint(process=near, saved_at_s=NOW_S - 360.0, said_by="alice"),
    )
    run(pipeline, 1)
    found = of(pipeline, NOW_S + 5.0)
    assert (found.since, found.since_at_s) == ("checkpoint", NOW_S - 360.0)
    assert found.gpu_hours == pytest.approx(365 / 3600, abs=0.02)
    assert "since the last checkpoint" in cost.line(found)
    pipeline.close()


def test_conditions_know_the_power_and_the_checkpoints_of_the_same_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def powered(tick: int) -> Sample:
        taken = alone(tick)
        (reading,) = taken.readings
        return msgspec.structs.replace(
            taken, readings=(msgspec.structs.replace(reading, power_w=400.0),)
        )

    now = Time()
    history = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    section = CostSection(mode="owned", purchase=8760.0, electricity_per_kwh=0.5)
    pipeline = make_pipeline(
        config=msgspec.structs.replace(EAGER, cost=section), sources=[Script(powered)],
        history=history, wall=now.clock, mono=now.monotonic,
    )  # fmt: skip
    run(pipeline, 1)
    transaction(
        tmp_path,
        tables.write_checkpoint,
        Checkpoint(process=KEY, saved_at_s=now.now_s, said_by="alice"),
    )
    now.pass_s(5.0)
    state, known = pipeline.state, list[tuple[float, float | None]]()

    def step(now_s: float) -> list[Alert]:
        saved = present(state.checkpoints.newest(KEY))
        price = present(state.prices.of(CARD.uid, now_s))
        known.append((saved.saved_at_s, price.electricity_usd_per_hour))
        return []

    monkeypatch.setattr(pipeline.conditions, "step", step)
    run(pipeline, 1)
    ((saved_at_s, electricity),) = known
    assert saved_at_s == now.now_s - 5.0
    assert electricity == pytest.approx(0.2)
    pipeline.close()


def test_a_file_is_a_checkpoint_while_an_alert_is_open(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def look(patterns: tuple[str, ...], info: ProcessInfo, now_s: float) -> Saved | None:
        asked.append((patterns[0], info.key.pid))
        return Saved(now_s - 60.0, "/runs/1.ckpt")

    history = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    config = msgspec.structs.replace(PRICED, checkpoints=CheckpointsSection(paths=("/runs/*",)))
    pipeline = playing(config, history=history)
    costing = CheckpointSearch(pipeline.state, history.shelf, Saves(look))
    costing.step(NOW_S)
    while pipeline.state.checkpoints.newest(KEY) is None:  # the test's own limit ends it
        costing.step(NOW_S + 1.0)
        time.sleep(0.005)
    saved = present(pipeline.state.checkpoints.newest(KEY))
    assert (saved.saved_at_s, saved.said_by, saved.detail) == (NOW_S - 60.0, "file", "/runs/1.ckpt")
    assert asked == [("/runs/*", 4711)]
    pipeline.close()
    kept = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    assert [one.detail for one in kept.shelf.checkpoints() or ()] == ["/runs/1.ckpt"]
    kept.close()


def test_a_restart_knows_the_hours_of_before(tmp_path: Path) -> None:
    history = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    first = playing(history=history)
    before = of(first).gpu_hours
    first.close()
    again = History.open(tmp_path, StoreSection(min_free_mib=0), boot_id="boot")
    pipeline = make_pipeline(
        config=PRICED, sources=[Script(lambda i: alone(i + 200))], history=again
    )
    run(pipeline, 3)
    found = costs(pipeline).of(alert(), NOW_S + 15.0)
    pipeline.close()
    assert present(found).gpu_hours == pytest.approx(present(before) + 15 / 3600, abs=0.02)


def test_of_one_that_has_ended_what_it_cost_is_still_known() -> None:
    def play(tick: int) -> Sample:
        return alone(tick) if tick < 220 else sample(1000.0 + 5.0 * tick, [])

    post = Postbox()
    pipeline = make_pipeline(config=PRICED, sources=[Script(play)], message_dispatcher=post)
    ticks = run(pipeline, 240)
    over = next(a for t in ticks for a in t.changes if a.state == "resolved")
    before = next(a.cost for t in ticks[::-1] for a in t.alerts if a.cost is not None)
    found = costs(pipeline).of(msgspec.structs.replace(over, cost=before), 2200.0)
    assert found == before
    assert [d.message.notice for d in post.taken] == ["firing", "resolved"]


def collected(saves: Saves) -> list[Checkpoint]:
    while saves.busy:
        if found := saves.collect():
            return found
        time.sleep(0.005)
    return []


def test_one_that_fails_does_not_stop_the_next() -> None:
    calls = []

    def look(patterns: Sequence[str], _info: ProcessInfo, *, now_s: float) -> Saved | None:
        calls.append(patterns)
        if len(calls) == 1:
            raise OSError("stale file handle")
        return Saved(1.0, "/x")

    saves = Saves(look)
    saves.ask(("/a",), (LEAKER, LEAKER), 10.0)
    assert len(collected(saves)) == 1
    saves.close()


def test_a_look_that_hangs_is_told_and_asked_nothing_more() -> None:
    free, now = threading.Event(), [0.0]

    def look(*_: object, now_s: float) -> Saved | None:
        free.wait(30.0)
        return None

    saves = Saves(look, mono=lambda: now[0])
    try:
        saves.ask(("/nfs/*",), (LEAKER,), 10.0)
        begun_s = time.monotonic()
        saves.ask(("/nfs/*",), (LEAKER,), 20.0)
        assert saves.collect() == []
        assert time.monotonic() - begun_s < 1.0
        assert saves.problem == ""
        now[0] = DEADLINE_S + 1.0
        assert "has not come back for 31 s" in saves.problem
    finally:
        free.set()
        saves.close()
    assert collected(saves) == []
