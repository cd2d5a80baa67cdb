"""The steps of ``[act]``: what is taken, after which notices, and what keeps it from that."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.act import reap, steps
from gpuwatchd.alerts.ladder import HOST_STEPS
from gpuwatchd.core.codes import ActHold, ActResult
from gpuwatchd.core.config import PolicySection
from gpuwatchd.core.config.schema import OverrideSection
from gpuwatchd.core.model import Matcher, ProcessKey, ProcessUse, Silence
from gpuwatchd.pipeline import act_ladder, step_runner
from gpuwatchd.pipeline.act_ladder import AGAIN_S
from gpuwatchd.store import tables
from tests.making import GIB, present
from tests.pipeline.idle_machine import GAP_S, UID, IdleMachine, config
from tests.pipeline.restarts import leak

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.model import Alert, Device, Sample

LONG_S = 900.0
"""Longer than it takes from the first sample to the step."""
ALL_TOLD = PolicySection(tell_held=("idle",), max_per_hour=1000)


@pytest.mark.requirement("W21")
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
    assert request.by_consent  # looked at once more when it is taken
    assert machine.rows == [("asked", "idle", False), ("done", "ended", False)]


def _silence(machine: IdleMachine) -> None:
    made = Silence(
        matcher=Matcher(process="python"), from_at_s=machine.time.now_s,
        until_at_s=machine.time.now_s + 1e5, who="alice",
    )  # fmt: skip
    machine.pipeline.state.silences.add(made, machine.time.now_s)


def _hold(machine: IdleMachine) -> None:
    until_s = machine.time.now_s + 4 * 3600.0
    machine.history.shelf.write_now(tables.save_hold, machine.info.key, until_s)


def _normal(machine: IdleMachine) -> None:
    (alarm,) = machine.pipeline.state.conditions.values()
    alert = alarm.alert
    assert alert is not None
    label = tables.UserLabel(
        alert_key=alert.key, opened_at_s=alert.opened_at_s - 1e4, subject=alert.subject,
        title=alert.title, word="normal", given_at_s=machine.time.now_s,
    )  # fmt: skip
    machine.history.shelf.write_now(tables.write_label, label)


def _jump(machine: IdleMachine) -> None:
    machine.time.now_s += 3600.0


def _stop(machine: IdleMachine) -> None:
    machine.time.pass_s(300.0)


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
        (_stop, ActHold.CLOCK),
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


def _work(machine: IdleMachine) -> None:
    machine.busy_pct = 80.0
    machine.run(1.0)  # one tick
    machine.busy_pct = 0.0


@pytest.mark.parametrize("before_s", [5.0, 10.0, 25.0])
def test_work_just_before_the_step_ends_the_countdown(tmp_path: Path, before_s: float) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(560.0)
    due_s = machine.proposals[-1].at_s
    while machine.time.now_s < due_s - before_s:
        machine.run(1.0)
    _work(machine)
    machine.run(60.0)
    assert machine.taken == []
    assert ("refused", ActHold.NOT_LISTED, False) in machine.rows


@pytest.mark.parametrize("steps_s", [(-1.9,), (-1.0,) * 5, (1.0,) * 5])
def test_it_is_never_before_its_minute_however_the_clock_is_set(
    tmp_path: Path, steps_s: tuple[float, ...]
) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(500.0)
    named_at_s = machine.proposals[-1].at_s
    for step_s in steps_s:
        machine.time.now_s += step_s
        machine.run(1.0)
    machine.run(120.0)
    assert all(at_s >= named_at_s for at_s, _ in machine.taken)
    assert (("refused", ActHold.CLOCK, False) in machine.rows) == (len(steps_s) > 1)


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
    world.run(2 * LONG_S)
    assert world.taken == []
    if hold is None:
        assert (world.rows, set(world.proposals)) == ([], {None})
    else:
        assert world.rows == [("asked", hold, True)]
        assert {(one.step, one.hold) for one in world.proposals} == {("end", hold)}


def test_a_daemon_that_was_stopped_past_the_minute_begins_anew(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path)
    while not any(one and one.at_s for one in machine.proposals):
        machine.run(5.0)
    due_s = next(one.at_s for one in machine.proposals if one and one.at_s)
    machine.time.pass_s(due_s + act_ladder.GAP_S + 5.0 - machine.time.now_s)
    machine.run(60.0)
    assert machine.taken == []
    assert ("refused", ActHold.CLOCK, False) in machine.rows
    machine.run(LONG_S)
    assert len(machine.taken) == 1


def test_what_no_signal_frees_is_not_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reap, "FREED", frozenset())
    settings = msgspec.structs.replace(config(mode="propose"), policy=ALL_TOLD)
    world = IdleMachine(tmp_path, settings)
    world.run(LONG_S)
    assert (world.rows, world.proposals) == ([], [None])


@pytest.mark.parametrize("between", [{"idle_steps": ()}, {"mode": "propose"}])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_rule_that_was_taken_out_for_a_while_is_new(
    tmp_path: Path, between: dict[str, Any], *, restarts: bool
) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(400.0)
    machine.is_new = True
    for settings, for_s in ((config(**between), 60.0), (config(), LONG_S)):
        machine.config = settings
        if restarts:
            machine.restart()
        else:
            machine.pipeline.reconfigure(settings)
        machine.run(for_s)
    assert machine.taken == []


def test_a_rule_counts_from_when_it_was_set_not_from_the_first_alert(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path, is_new=True)
    machine.run(30.0)
    age_s = machine.pipeline.ladder.proposals._rule_age_s(by_override=False)
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
    for wait_s, taken in ((0.0, 1), (4 * 3600.0, 1), (3 * 3600.0, 2), (24 * 3600.0, 2)):
        machine.time.pass_s(wait_s)
        machine.run(2 * LONG_S)
        assert [request.step for _, request in machine.taken] == ["checkpoint", "end"][:taken]
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


@pytest.mark.requirement("W15")
def test_an_override_opts_in_whom_it_names(tmp_path: Path) -> None:
    for name, count in (("alice", 1), ("bob", 0)):
        rule = OverrideSection(act="auto", command="*train.py*", user=name)
        settings = msgspec.structs.replace(config(mode="propose"), override=(rule,))
        machine = IdleMachine(tmp_path / name, settings)
        machine.opted_in = False
        machine.pipeline.ladder.proposals._rule_age_s(by_override=True)
        for mark in machine.pipeline.ladder.proposals._rules.values():
            machine.history.shelf.write_now(tables.save_meta, mark, machine.time.now_s - 1e6)
        machine.run(LONG_S)
        assert len(machine.taken) == count


def test_who_opts_in_is_told_of_nothing_more_where_only_others_are_acted_on(tmp_path: Path) -> None:
    rule = OverrideSection(act="auto", command="*train.py*", user="bob")
    settings = msgspec.structs.replace(config(mode="propose"), override=(rule,))
    machine = IdleMachine(tmp_path, settings)
    machine.run(500.0)
    assert machine.post.taken == []


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

    def __init__(self, directory: Path, **act: Any) -> None:
        super().__init__(directory, config(**act))
        self.curve = leak(40.0, 40)


def test_a_leak_is_only_proposed_and_taken_by_its_button(tmp_path: Path) -> None:
    machine = LeakMachine(tmp_path)
    machine.manager = steps.Manager("slurm", "42")
    machine.run(1200.0)
    assert [one for one in machine.proposals if one] == []  # it has never saved
    saved = tables.Checkpoint(
        process=machine.info.key, saved_at_s=machine.time.now_s, said_by="alice"
    )
    machine.pipeline.state.checkpoints.append(saved)
    machine.run(900.0)
    tracks = machine.pipeline.state.tracks.values()
    alert = next(track.alert for track in tracks if track.alert is not None)
    proposal = machine.pipeline.ladder.proposals.proposal(alert)
    assert proposal is not None
    assert (proposal.step, proposal.command, proposal.hold) == (
        "restart", "scontrol requeue 42", ActHold.LEAK,
    )  # fmt: skip
    assert machine.taken == []
    answers: list[tuple[str, str]] = []
    other = msgspec.structs.replace(proposal, command="scancel 42")
    for shown in (None, other):  # its button said another thing
        machine.pipeline.ladder.press(alert, shown, "alice", lambda *one: answers.append(one))
    assert machine.taken == []
    machine.pipeline.ladder.press(alert, proposal, "alice", lambda *one: answers.append(one))
    assert [request.has_checkpoint for _, request in machine.taken] == [True]
    assert len(answers) == 3


def test_of_several_steps_on_a_leak_the_first_possible_one_is_proposed(tmp_path: Path) -> None:
    several = ("requeue", "checkpoint", "end")
    machine = LeakMachine(tmp_path, mode="propose", checkpoint="signal", leak_steps=several)
    machine.run(1200.0)
    alert = next(one.alert for one in machine.pipeline.state.tracks.values() if one.alert)
    runner: Any = machine.pipeline.ladder._runner
    slurm, found = steps.Manager("slurm", "42"), []
    for manager, can_save, saved in (
        (slurm, False, True),
        (slurm, False, False),  # it never saved, so what asks it to comes next
        (steps.Manager("bare"), True, True),
        (steps.Manager("bare"), False, True),
    ):
        machine.manager = manager
        runner.can_save = lambda *_, it=can_save: it
        checkpoints = (
            [tables.Checkpoint(process=machine.info.key, saved_at_s=0.0, said_by="alice")]
            if saved
            else []
        )
        machine.pipeline.state.checkpoints[:] = checkpoints
        proposal = machine.pipeline.ladder.proposals.proposal(alert)
        found.append(proposal and proposal.step)
    assert found == ["requeue", "checkpoint", "checkpoint", None]


def test_a_runner_is_named_in_the_notices_that_it_takes_the_step(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path, runner=("/opt/site/take-step", "--now"))
    machine.run(LONG_S)
    assert [one.runner for one in machine.proposals] == ["take-step"] * 2
    assert all("take-step" in one.message.body for one in machine.post.taken)


def test_files_of_a_process_that_hang_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def hangs(_: object) -> steps.Manager:
        begun.release()
        gate.wait()
        return steps.Manager("slurm", "42")

    monkeypatch.setattr(steps, "manager_of", hangs)
    monkeypatch.setattr(step_runner, "LOOK_S", 0.0)
    machine = IdleMachine(tmp_path)
    runner = step_runner.StepRunner(None, wall=lambda: 0.0, mono=lambda: 0.0, booted_at_s=None)
    infos = [
        msgspec.structs.replace(machine.info, key=ProcessKey(pid=pid, started_at_s=1.0))
        for pid in range(step_runner.MOST_LOOKS + 2)
    ]
    assert [runner.manager_of(info) for info in infos] == [None] * len(infos)
    for _ in range(step_runner.MOST_LOOKS):
        begun.acquire()
    assert not begun.acquire(blocking=False)  # no thread for the others
    gate.set()
    for look in runner._looks.values():
        look.ended.wait()
    assert runner.manager_of(infos[0]) == steps.Manager("slurm", "42")


def test_the_button_of_what_works_again_ends_nothing(tmp_path: Path) -> None:
    machine = IdleMachine(
        tmp_path, msgspec.structs.replace(config(mode="propose"), policy=ALL_TOLD)
    )
    machine.manager = steps.Manager("user-unit", "train.service")
    machine.run(500.0)
    shown = machine.proposals[-1]
    assert shown.step == "end"
    machine.busy_pct = 80.0
    machine.run(60.0)
    (alarm,) = machine.pipeline.state.conditions.values()
    assert alarm.alert is not None
    machine.pipeline.ladder.press(alarm.alert, shown, "alice", lambda *_: None)
    assert machine.taken == []


@pytest.mark.parametrize("pragma", ["query_only = ON", "max_page_count = 1"], ids=["read", "full"])
def test_a_history_that_cannot_be_written_any_more_in_a_countdown_takes_no_step_without_a_row(
    pragma: str, tmp_path: Path
) -> None:
    machine = IdleMachine(tmp_path)
    machine.run(400.0)
    countdown = next(iter(machine.pipeline.ladder._countdowns.values()))
    present(machine.history._file.connection).execute(f"PRAGMA {pragma}")
    machine.run(2 * LONG_S)
    assert countdown.left == 0
    # Of a full file the history gives up its oldest samples; then there is room for the row.
    asked = [phase for phase, _, dry_run in machine.rows if phase == "asked" and not dry_run]
    assert len(machine.taken) == len(asked) == ("max_page" in pragma)
    if not asked:
        (resting,) = machine.pipeline.state.countdowns.resting.values()
        assert resting[1] is ActHold.NOT_WRITTEN
        assert len(machine.proposals) == 2


class UnitMachine(IdleMachine):
    """A unit of two idle processes."""

    def begin(self, pid: int) -> None:
        super().begin(pid)
        key = ProcessKey(pid=pid + 1, started_at_s=self.began_s)
        self.info = msgspec.structs.replace(self.info, unit="train.service")
        self.other = msgspec.structs.replace(self.info, key=key)

    def _look(self) -> Sample:
        one = super()._look()
        (reading,) = one.readings
        (use,) = reading.uses or ()
        uses = (use, msgspec.structs.replace(use, key=self.other.key, used_bytes=2 * GIB))
        reading = msgspec.structs.replace(reading, uses=uses)
        return msgspec.structs.replace(
            one, readings=(reading,), processes=(*one.processes, self.other)
        )


class MigMachine(IdleMachine):
    """A card in parts: as the driver has it, its processes are listed with the parts alone."""

    @property
    def devices(self) -> tuple[Device, ...]:
        part = msgspec.structs.replace(
            self.device, uid="MIG-a", parent_uid=self.device.uid, parent_index=0,
            memory_total_bytes=40 * GIB,
        )  # fmt: skip
        return self.device, part

    def _look(self) -> Sample:
        one = super()._look()
        (whole,) = one.readings
        part = msgspec.structs.replace(whole, device_uid="MIG-a", util_pct=None)
        whole = msgspec.structs.replace(
            whole, uses=None, uses_reason="memory is read per MIG instance", util_pct=None
        )
        return msgspec.structs.replace(one, readings=(whole, part))


@pytest.mark.parametrize(
    "manager", [steps.Manager("bare"), steps.Manager("user-unit", "a.service")]
)
def test_on_an_instance_of_a_card_in_parts_one_step_is_taken(
    manager: steps.Manager, tmp_path: Path
) -> None:
    machine = MigMachine(tmp_path)
    machine.manager = manager
    machine.run(LONG_S)
    assert [request.key for _, request in machine.taken] == [machine.info.key]
    alerts = [it.alert for it in machine.pipeline.state.conditions.values() if it.alert]
    assert [alert.subject.device_uid for alert in alerts] == ["MIG-a"]


def test_nothing_is_done_by_itself_where_no_driver_tells_how_busy_the_gpu_is(
    tmp_path: Path,
) -> None:
    """That it uses no CPU lists it as idle, and is no proof: one kernel may run for hours."""
    machine = MigMachine(tmp_path)
    machine.run(400.0)
    ladder, alert = machine.pipeline.ladder, _alert(machine)
    assert ladder.proposals.hold(alert, machine.info.key, "end") is None
    part = machine.pipeline.state.devices["MIG-a"]
    uses = tuple(msgspec.structs.replace(use, sm_pct=None) for use in part.uses or ())
    part.uses = uses
    assert ladder.proposals.hold(alert, machine.info.key, "end") is ActHold.USE_UNKNOWN


def _alert(machine: IdleMachine) -> Alert:
    alerts = [alarm.alert for alarm in machine.pipeline.state.conditions.values() if alarm.alert]
    return next(one for one in alerts if one.subject.process == machine.info.key)


def test_one_step_is_taken_on_a_unit_whose_processes_are_all_idle(tmp_path: Path) -> None:
    machine = UnitMachine(tmp_path)
    machine.manager = steps.Manager("user-unit", "train.service")
    machine.outcome = lambda: steps.Outcome(ActResult.UNCONFIRMED, "it still runs")
    machine.run(LONG_S)
    assert len(machine.taken) == 1
    assert ("refused", ActHold.BUDGET_TARGET, False) in machine.rows


def test_a_unit_that_was_started_again_is_the_same_target(tmp_path: Path) -> None:
    machine = IdleMachine(tmp_path)
    machine.manager = steps.Manager("user-unit", "train.service")
    machine.run(LONG_S)
    assert len(machine.taken) == 1
    machine.begin(machine.info.key.pid + 1)
    machine.run(LONG_S)
    assert len(machine.taken) == 1
    machine.manager = steps.Manager("user-unit", "other.service")
    machine.run(LONG_S)
    assert len(machine.taken) == 2


def test_a_unit_is_not_ended_where_another_process_of_it_is_held(tmp_path: Path) -> None:
    machine = UnitMachine(tmp_path)
    machine.manager = steps.Manager("user-unit", "train.service")
    machine.run(400.0)
    ladder, alert = machine.pipeline.ladder, _alert(machine)
    assert ladder.proposals.hold(alert, machine.info.key, "end") is None
    machine.history.shelf.write_now(tables.save_hold, machine.other.key, machine.time.now_s + 9e3)
    assert ladder.proposals.hold(alert, machine.info.key, "end") is ActHold.HELD
    machine.run(LONG_S)
    assert machine.taken == []


def test_a_unit_is_not_ended_where_another_process_of_it_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = UnitMachine(tmp_path)
    machine.manager = steps.Manager("user-unit", "train.service")
    machine.run(400.0)
    ladder, alert = machine.pipeline.ladder, _alert(machine)
    use = ProcessUse(key=machine.other.key, used_bytes=GIB)
    card = SimpleNamespace(recorded=False, label="GPU 2", uid="GPU-2", parent_uid=None)
    beside = SimpleNamespace(device=card, uses=(use,))
    devices = {**machine.pipeline.state.devices, "GPU-2": beside}
    monkeypatch.setattr(machine.pipeline.state, "devices", devices)
    assert ladder.proposals.hold(alert, machine.info.key, "end") is ActHold.RANK
