"""The steps of ``[act]``: what is taken, after which notices, and what keeps it from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.act import steps
from gpuwatchd.alerts.ladder import HOST_STEPS
from gpuwatchd.core.codes import ActHold, ActResult
from gpuwatchd.core.config import PolicySection
from gpuwatchd.core.config.schema import OverrideSection
from gpuwatchd.core.model import Matcher, ProcessKey, Silence
from gpuwatchd.pipeline.act_ladder import AGAIN_S
from gpuwatchd.store import tables
from tests.pipeline.idle_machine import GAP_S, UID, IdleMachine, config
from tests.pipeline.restarts import leak

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG_S = 900.0
"""Longer than it takes from the first sample to the step."""
ALL_TOLD = PolicySection(tell_held=("idle",), max_per_hour=1000)


def test_it_is_taken_at_the_minute_that_the_last_of_two_notices_named(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(LONG_S)
    first, last = machine.proposals
    assert (first.at_s, first.notices_left) == (None, 1)
    assert (last.step, last.notices_left, last.at_s % 60.0) == ("end", 0, 0.0)
    ((taken_at_s, request),) = machine.taken
    assert 0.0 <= taken_at_s - last.at_s < 5.0
    told_s = [delivery.created_at_s for delivery in machine.post.taken]
    assert told_s[1] - told_s[0] >= GAP_S
    assert last.at_s - told_s[1] >= GAP_S
    assert (request.step, request.key, request.command) == ("end", machine.info.key, last.command)
    assert machine.rows == [("asked", "idle", False), ("done", "ended", False)]


def _silence(machine: IdleMachine) -> None:
    made = Silence(
        matcher=Matcher(process="python"), from_at_s=machine.time.now_s,
        until_at_s=machine.time.now_s + 1e5, who="alice",
    )  # fmt: skip
    machine.pipeline.silencing.add(made, machine.time.now_s)


def _hold(machine: IdleMachine) -> None:
    until_s = machine.time.now_s + 4 * 3600.0
    machine.history.shelf.write_now(tables.save_hold, machine.info.key, until_s)


def _normal(machine: IdleMachine) -> None:
    (alarm,) = machine.pipeline.alarms.alarms.values()
    alert = alarm.alert
    assert alert is not None
    label = tables.UserLabel(
        alert_key=alert.key, opened_at_s=alert.opened_at_s, subject=alert.subject,
        title=alert.title, word="normal", given_at_s=machine.time.now_s,
    )  # fmt: skip
    machine.history.shelf.write_now(tables.write_label, label)


def _jump(machine: IdleMachine) -> None:
    machine.time.now_s += 3600.0


def _reload(machine: IdleMachine) -> None:
    machine.pipeline.reconfigure(config(notices=3))


def _set(**values: Any) -> Callable[[IdleMachine], None]:
    def change(machine: IdleMachine) -> None:
        for name, value in values.items():
            setattr(machine, name, value)

    return change


def _uid(uid: int) -> Callable[[IdleMachine], None]:
    def change(machine: IdleMachine) -> None:
        machine.pipeline.ladder._runner.uid = uid

    return change


def _spend(machine: IdleMachine) -> None:
    for pid in (1, 2, 3):
        key = ProcessKey(pid=pid, started_at_s=1.0)
        machine.pipeline.ladder._runner.write(key, "end", "asked", "idle", "")


@pytest.mark.parametrize(
    ("change", "hold"),
    [
        (_set(manager=steps.Manager("other", "pod", "kubectl")), ActHold.MANAGED),
        (_uid(0), ActHold.MACHINE),
        (_uid(UID + 1), ActHold.NOT_OWN),
        (_set(busy_pct=80.0), ActHold.NOT_LISTED),
        (_silence, ActHold.SILENCED),
        (_normal, ActHold.NORMAL),
        (_hold, ActHold.HELD),
        (_spend, ActHold.BUDGET_HOST),
        (_jump, ActHold.CLOCK),
        (_reload, ActHold.RELOADED),
    ],
)
@pytest.mark.parametrize("after_s", [400.0, 560.0])  # one notice is out, and both are
def test_whatever_comes_between_ends_the_countdown(
    tmp_path: Path, change: Callable[[IdleMachine], None], hold: ActHold, after_s: float
) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(after_s)
    assert machine.pipeline.ladder._countdowns
    change(machine)
    machine.run(120.0)
    assert machine.taken == []
    assert ("refused", hold, False) in machine.rows


@pytest.mark.parametrize("change", [_jump, _reload])
def test_after_it_every_notice_is_sent_anew(
    tmp_path: Path, change: Callable[[IdleMachine], None]
) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(560.0)
    change(machine)
    before = len(machine.post.taken)
    machine.run(LONG_S)
    assert len(machine.taken) == 1
    assert len(machine.post.taken) - before >= 2


@pytest.mark.parametrize(
    ("machine", "hold"),
    [
        ({"is_new": True}, ActHold.NEW_RULE),
        ({"opted_in": False}, ActHold.NOT_OPTED_IN),
        ({"mode": "propose"}, ActHold.PROPOSE),
        ({"mode": "observe"}, None),
    ],
)
def test_what_is_not_taken_is_proposed_once_and_on_record(
    tmp_path: Path, machine: dict[str, Any], hold: ActHold | None
) -> None:
    is_new, opted_in = machine.pop("is_new", False), machine.pop("opted_in", True)
    settings = msgspec.structs.replace(config(**machine), policy=ALL_TOLD)
    world = IdleMachine(tmp_path, settings, is_new=is_new)
    world.opted_in = opted_in
    world.run(2 * 3600.0)
    assert world.taken == []
    if hold is None:
        assert (world.rows, set(world.proposals)) == ([], {None})
    else:
        assert world.rows == [("asked", hold, True)]
        assert {(one.step, one.hold) for one in world.proposals} == {("end", hold)}


@pytest.mark.parametrize("meanwhile", [{"idle_steps": ()}, {"mode": "propose"}])
@pytest.mark.parametrize("after_s", [30.0, 400.0])  # nothing is idle yet; an alert is open
def test_a_rule_that_was_taken_out_for_a_while_is_new(
    tmp_path: Path, meanwhile: dict[str, Any], after_s: float
) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(after_s)
    machine.pipeline.reconfigure(config(**meanwhile))
    machine.run(60.0)
    machine.pipeline.reconfigure(config())
    machine.run(LONG_S)
    assert machine.taken == []


def test_a_rule_counts_from_when_it_was_set_not_from_the_first_alert(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path, is_new=True)
    machine.run(30.0)
    age_s = machine.pipeline.ladder._rule_age_s(by_override=False)
    assert age_s == pytest.approx(30.0, abs=6.0)


@pytest.mark.parametrize("source", ["replay", "simulate"])
def test_nothing_of_a_recording_is_acted_on_or_proposed(tmp_path: Path, source: str) -> None:
    settings = msgspec.structs.replace(config(), policy=ALL_TOLD)
    machine = IdleMachine(tmp_path, settings)
    machine.device = msgspec.structs.replace(machine.device, source=source)
    machine.start()
    machine.run(LONG_S)
    assert machine.proposals
    assert (machine.taken, machine.rows, set(machine.proposals)) == ([], [], {None})


def test_no_more_is_announced_than_a_day_has_room_for(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path, others=7)
    announced: set[ProcessKey] = set()
    for _ in range(80):
        machine.run(10.0)
        announced |= machine.pipeline.ladder._countdowns.keys()
    assert len(machine.taken) == HOST_STEPS
    assert announced == {request.key for _, request in machine.taken}


@pytest.mark.parametrize("outcome", ["pending", "failed"])
def test_nothing_is_done_where_nobody_could_be_notified(tmp_path: Path, outcome: str) -> None:
    machine = IdleMachine(tmp_path)
    machine.post.outcome = outcome
    machine.run(AGAIN_S)
    assert machine.taken == []
    assert ("refused", ActHold.NOT_DELIVERED, False) in machine.rows
    # A reminder says so, and the next countdown begins when it may.
    machine.run(2 * AGAIN_S)
    holds = [one.hold for one in machine.proposals if one is not None]
    assert ActHold.NOT_DELIVERED in holds
    assert machine.taken == []
    machine.post.outcome = "sent"
    machine.run(2 * AGAIN_S)
    assert len(machine.taken) == 1


def test_nothing_is_done_in_quiet_hours(tmp_path: Path) -> None:
    policy = PolicySection(quiet_hours={"all": ("00:00-24:00",)})
    machine = IdleMachine(tmp_path, msgspec.structs.replace(config(), policy=policy))
    machine.run(3 * LONG_S)
    assert machine.taken == []


def test_nothing_is_done_that_cannot_be_written_down(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(560.0)
    machine.history.shelf.write_now = lambda *_: None  # type: ignore[method-assign]
    machine.run(LONG_S)
    assert machine.taken == []


def test_a_step_that_did_not_help_is_not_taken_again_and_the_next_waits(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path, config(checkpoint="signal", idle_steps=("checkpoint", "end")))
    machine.outcome = lambda: steps.Outcome(ActResult.UNCONFIRMED, "it still runs")
    machine.run(6 * 3600.0)
    assert [request.step for _, request in machine.taken] == ["checkpoint"]
    machine.run(6 * 3600.0)
    assert [request.step for _, request in machine.taken] == ["checkpoint", "end"]
    machine.run(12 * 3600.0)
    assert len(machine.taken) == 2
    assert ("done", "unconfirmed", False) in machine.rows


@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_is_ended_only_where_all_of_it_is_idle(tmp_path: Path, rank: int) -> None:
    machine = IdleMachine(tmp_path)
    machine.manager = steps.Manager("slurm", "42")
    machine.info = msgspec.structs.replace(
        machine.info, job="slurm 42", group="slurm 42.0", rank=rank, world=2
    )
    machine.run(LONG_S)
    assert len(machine.taken) == (rank == 0)


def test_an_override_opts_in_whom_it_names(tmp_path: Path) -> None:
    for name, count in (("alice", 1), ("bob", 0)):
        rule = OverrideSection(act="auto", command="*train.py*", user=name)
        settings = msgspec.structs.replace(config(mode="propose"), override=(rule,))
        machine = IdleMachine(tmp_path / name, settings)
        machine.opted_in = False
        machine.pipeline.ladder._rule_age_s(by_override=True)
        for mark in machine.pipeline.ladder._rules.values():
            machine.history.shelf.write_now(tables.save_meta, mark, machine.time.now_s - 1e6)
        machine.run(LONG_S)
        assert len(machine.taken) == count


@pytest.mark.parametrize("after_s", range(350, 600, 25))
def test_a_daemon_that_is_killed_begins_anew(tmp_path: Path, after_s: float) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(after_s)
    assert machine.taken == []
    machine.restart()
    before = len(machine.post.taken)
    machine.run(LONG_S)
    assert len(machine.taken) == 1
    assert len(machine.post.taken) - before >= 2


class LeakMachine(IdleMachine):
    """One process that leaks."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, config())
        self.curve = leak(40.0, 40)


def test_a_leak_is_only_proposed_and_taken_by_its_button(tmp_path: Path) -> None:
    machine = LeakMachine(tmp_path)
    machine.manager = steps.Manager("slurm", "42")
    machine.run(1200.0)
    assert [one for one in machine.proposals if one] == []  # it has never saved
    saved = tables.Checkpoint(
        process=machine.info.key, saved_at_s=machine.time.now_s, said_by="alice"
    )
    machine.pipeline.costing._note(saved)
    machine.run(900.0)
    tracks = machine.pipeline.watcher.tracks.values()
    alert = next(track.alert for track in tracks if track.alert is not None)
    proposal = machine.pipeline.ladder.proposal(alert)
    assert proposal is not None
    assert (proposal.step, proposal.command, proposal.hold) == (
        "restart", "scontrol requeue 42", ActHold.LEAK,
    )  # fmt: skip
    assert machine.taken == []
    answers: list[tuple[str, str]] = []
    machine.pipeline.ladder.press(alert, lambda *one: answers.append(one))
    assert [request.has_checkpoint for _, request in machine.taken] == [True]
    assert len(answers) == 1
