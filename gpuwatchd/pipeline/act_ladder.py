"""The steps of ``[act]``: proposed in alerts, and for idle memory taken after a countdown.

A countdown lives in memory: a daemon that starts, settings that are read anew, a clock that jumps
or a machine that slept, and a device that is not read end it. Nothing is done that was not written
down before, and that people were not told of.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.act import reap, steps
from gpuwatchd.alerts import ladder
from gpuwatchd.alerts.matching import fits
from gpuwatchd.collect.host import process_identity
from gpuwatchd.core import text
from gpuwatchd.core.codes import ActHold
from gpuwatchd.core.model import Button, Proposal
from gpuwatchd.pipeline.step_runner import OWN
from gpuwatchd.store import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.alerts.ladder import Countdown
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import ActStep, Alert, Holding, ProcessInfo, ProcessKey
    from gpuwatchd.notify.outbox.outbox import Outbox
    from gpuwatchd.pipeline.active_silences import ActiveSilences
    from gpuwatchd.pipeline.condition_alerts import ConditionAlert
    from gpuwatchd.pipeline.idle_memory import IdleMemory
    from gpuwatchd.pipeline.state import Settings
    from gpuwatchd.pipeline.step_runner import StepRunner
    from gpuwatchd.pipeline.tracker import SampleIntake
    from gpuwatchd.store.profiles import ProfileStore
    from gpuwatchd.store.tables import Checkpoint, UserLabel

_T = TypeVar("_T")
log = logging.getLogger("gpuwatchd")

CLOCK_STEP_S: Final = 2.0
"""What the clocks drift apart by more than this in a countdown is a jump, or sleep."""
GAP_S: Final = 60.0
"""After so long without a look, or three intervals, the minute that was named is over."""
AGAIN_S: Final = 3600.0
"""After a countdown that reached nobody, or a step that could not be written down, so long."""
_LABELS: Final[dict[ActStep, str]] = {
    "end": "End it", "restart": "Restart it", "requeue": "Requeue it",
}  # fmt: skip
_RULE: Final = "act.rule."
_KEPT: Final = 1000


class ActLadder:
    """Proposes the next step for what an alert is about, and takes those for idle memory.

    Its clocks are those of the people who are told, its runner's.
    """

    def __init__(
        self,
        settings: Settings,
        intake: SampleIntake,
        holdings: IdleMemory,
        outbox: Outbox,
        *,
        runner: StepRunner,
        silencing: ActiveSilences,
    ) -> None:
        self._settings = settings
        self.may_act = True
        """Whether :meth:`acted_on` and :meth:`step` have anything to do: under new settings at
        least to forget the rules that are not in force any more."""
        self._intake = intake
        self._holdings = holdings
        self._outbox = outbox
        self._runner, self._rehearses = runner, False
        self._silencing = silencing
        self._offset_s, self._now_s = runner.wall() - runner.mono(), 0.0
        self._rules: dict[bool, str] = {}
        self._countdowns: dict[ProcessKey, Countdown] = {}
        self._resting: dict[ProcessKey, tuple[float, ActHold]] = {}
        """Until when no countdown begins, and what has ended the last one."""
        self._proposed: dict[tuple[str, float, str], None] = {}
        """Alert, when it opened, step: those that are on record as proposed."""
        self._asked: dict[str, Any] | None = None
        """What the history has answered while countdowns are moved; None at other times."""

    def rehearse(self, runner: StepRunner) -> None:
        """Take steps by one that only simulates them, on devices of a simulation too."""
        self._runner, self._rehearses = runner, True

    def reloaded(self) -> None:
        """Follow new settings: what counted down begins anew."""
        self._rules, self.may_act = {}, True
        self._cancel_all(ActHold.RELOADED)

    def acted_on(self, alarms: Iterable[ConditionAlert]) -> frozenset[ProcessKey]:
        """Return the processes that hold idle memory and opted in: people are told of each.

        Those with an alert stay while nobody knows yet, as just after a start.
        """
        infos = {it.process.key: it.process for it in self._holdings.found if it.process}
        self._runner.collect(infos)
        if not self._is_auto():
            return frozenset()
        held = {it.alert.subject.process for it in alarms if it.alert and it.alert.kind == "held"}
        keys = {key for key in held if key is not None and key not in infos}
        autos = [rule for rule in self._settings.config.override if rule.act == "auto"]
        for holding in self._holdings.found:
            info = holding.process
            if info is None or info.foreign or holding.kind not in reap.FREED:
                continue
            if self._is_recorded(holding.device_uid):
                continue
            known, command = self._runner.classified(info), " ".join(info.argv)
            by_override = any(
                fits(rule.user, info.user or "") and fits(rule.command, command) for rule in autos
            )
            opted_in = info.key in held if known is None else known.opted_in
            if by_override or (opted_in and self._settings.config.act.mode == "auto"):
                keys.add(info.key)
        return frozenset(keys)

    def _is_auto(self) -> bool:
        config = self._settings.config
        return "auto" in (config.act.mode, *(rule.act for rule in config.override))

    def step(self, alarms: Iterable[ConditionAlert], now_s: float) -> None:
        """Move every countdown on; ``now_s`` is on the clock of the alerts."""
        offset_s = self._runner.wall() - self._runner.mono()
        gap_s = max(GAP_S, ladder.STALE_INTERVALS * float(self._settings.config.daemon.interval))
        for target, countdown in [*self._countdowns.items()]:
            if abs(offset_s - countdown.offset_s) > CLOCK_STEP_S or now_s - self._now_s > gap_s:
                self._cancel(target, ActHold.CLOCK)
        if not self._rules:
            self._name_rules()
        self._offset_s, self._now_s = offset_s, now_s
        self._take_in_arrivals()
        alive, self._asked = set(), {}
        try:
            for alarm in alarms:
                key = None if alarm.alert is None else alarm.alert.subject.process
                if alarm.alert and key and alarm.alert.kind == "held":
                    alive.add(key)
                    self._move(alarm, alarm.alert, key)
        finally:
            self._asked = None
        for key in [key for key in self._countdowns if key not in alive]:
            self._cancel(key, ActHold.NOT_LISTED)
        is_named = self._rules or self._runner.shelf is None
        self.may_act = self._is_auto() or bool(self._runner.busy) or not is_named

    def proposal(self, alert: Alert) -> Proposal | None:
        """Return what could be done about an alert, or will be; waits for the files of a process.

        See :data:`gpuwatchd.pipeline.step_runner.LOOK_S`.
        """
        key, info, act = alert.subject.process, self._info(alert), self._settings.config.act
        if key is None or info is None or info.foreign or alert.kind not in {"leak", "held"}:
            return None
        effective = policy.rules_for(alert, self._intake.watcher.settings.rules)
        mode = effective.act or act.mode
        # What works again is still told of for a while.
        if mode == "observe" or (alert.kind == "held" and not self._is_idle(info)):
            return None
        step, command = self._possible(alert, info)
        if step is None or not command:
            return None
        if any(holding.kind not in reap.FREED for holding in self._holdings_of(key)):
            return None
        hold: ActHold | None = ActHold.PROPOSE
        if self._resting.get(key, (0.0, hold))[1] is ActHold.NOT_DELIVERED:
            hold = ActHold.NOT_DELIVERED
        elif alert.kind == "leak":
            hold = ActHold.LEAK
        elif mode == "auto":
            hold = self._hold(alert, key, step)
        runner = text.clean(Path(act.runner[0]).name) if act.runner else ""
        return Proposal(step=step, command=command, hold=hold, runner=runner)

    def _possible(self, alert: Alert, info: ProcessInfo) -> tuple[ActStep | None, str]:
        """Return the next step and its command: of those on a leak the first that is possible."""
        manager, act = self._runner.manager_of(info), self._settings.config.act
        if manager is None:
            return None, ""
        for step in act.leak_steps if alert.kind == "leak" else (self._next(info.key),):
            command = "" if step is None else steps.command_for(step, manager, info.key, act.signal)
            if step in {"restart", "requeue"} and self._runner.saved(info.key) is None:
                continue
            # `reap` ends what is idle, not what leaks.
            if (
                alert.kind == "leak"
                and manager.kind == "bare"
                and not (step == "checkpoint" and self._runner.can_save(info, act))
            ):
                continue
            if command:
                return step, command
        return None, ""

    def for_message(self, alerts: Iterable[Alert], message_id: str) -> list[tuple[Alert, Proposal]]:
        """Return what a message with this id says of these alerts: counted, and on record."""
        proposals = ((alert, self.proposal(alert)) for alert in alerts)
        return [(it, self._counted(it, step, message_id)) for it, step in proposals if step]

    def saved(self, process: ProcessKey) -> Checkpoint | None:
        """Return the newest checkpoint of a process; None where none is known."""
        return self._runner.saved(process)

    def _counted(self, alert: Alert, proposal: Proposal, message_id: str) -> Proposal:
        key = alert.subject.process
        countdown = None if key is None else self._countdowns.get(key)
        if key is not None and (countdown is None or proposal.hold is not None):
            mark = (alert.key, alert.opened_at_s, proposal.step)
            if mark not in self._proposed:
                self._proposed = dict.fromkeys([*self._proposed, mark][-_KEPT:])
                code = proposal.hold or ActHold.NOTICES
                self._runner.write(
                    key, proposal.step, "asked", code, proposal.command, dry_run=True
                )
        if countdown is None or proposal.hold is not None:
            return proposal
        mono_s = self._runner.mono()
        until_minute_s = -(mono_s + countdown.offset_s + countdown.gap_s) % 60.0
        countdown.named(message_id, mono_s, until_minute_s)
        self._take_in_arrivals()
        due_s = countdown.due_mono_s
        if due_s is not None:
            return msgspec.structs.replace(proposal, at_s=due_s + countdown.offset_s)
        return msgspec.structs.replace(proposal, notices_left=max(1, countdown.left - 1))

    def buttons(self, proposals: Iterable[tuple[Alert, Proposal]]) -> tuple[Button, ...]:
        """Return a button for each step that is not for people alone to take."""
        return tuple(
            Button(name="act", label=_LABELS[proposal.step], command=proposal.command)
            for alert, proposal in proposals
            if proposal.step in _LABELS
            and (info := self._info(alert)) is not None
            and info.uid == self._runner.uid
            and (manager := self._runner.manager_of(info)) is not None
            and manager.kind != "other"
        )

    def press(
        self, alert: Alert, shown: Proposal | None, who: str, answer: Callable[[str, str], None]
    ) -> None:
        """Take the step that a button has shown, by the word of ``who`` pressed it."""
        proposal, info = self.proposal(alert), self._info(alert)
        is_shown = shown is not None and proposal is not None and proposal.command == shown.command
        if not is_shown or proposal is None or info is None or info.key in self._runner.busy:
            answer("Not done", "The step is not possible any more.")
            return
        self._cancel(info.key, ActHold.PROPOSE)
        self._begin(alert, info, proposal.step, who=who, answer=answer)

    # What holds a step back.

    def _hold(self, alert: Alert, key: ProcessKey, step: ActStep | None) -> ActHold | None:
        """Return why no step is taken on an alert's process now."""
        info = self._info(alert)
        known = None if info is None else self._runner.classified(info)
        if info is None or known is None:
            return ActHold.NOT_LISTED
        effective = policy.rules_for(alert, self._intake.watcher.settings.rules)
        by_override = effective.act == "auto"
        beside = self._beside(info, known.manager)
        is_alone = (info.world or 1) <= 1 or (known.manager.kind != "bare" and info.rank == 0)
        target = ladder.Target(
            mode=effective.act or self._settings.config.act.mode,
            opted_in=known.opted_in or by_override,
            rule_age_s=self._rule_age_s(by_override=by_override),
            is_machine=self._runner.uid == 0,
            is_own=info.uid == self._runner.uid and not info.foreign,
            has_runner=bool(self._settings.config.act.runner),
            is_managed=known.manager.kind == "other",
            is_one=is_alone and beside is not None and all(map(self._is_idle, beside)),
        )
        hold = ladder.target_hold(target)
        if hold is None and step is None:
            hold = ActHold.NO_STEP
        every = [key, *(other.key for other in beside or ())]
        moment = self._moment(alert, info, every)
        return hold or ladder.moment_hold(moment) or self._budget_hold(every, known.manager)

    def _moment(
        self, alert: Alert, info: ProcessInfo, every: Iterable[ProcessKey]
    ) -> ladder.Moment:
        mine, wall_s = self._holdings_of(info.key), self._runner.wall()
        uids = {alert.subject.device_uid, *(holding.device_uid for holding in mine)}
        devices = [self._intake.devices.get(uid) for uid in uids]
        holds = self._ask("holds", lambda shelf: shelf.read(tables.load_holds, wall_s))
        labels = self._ask("labels", lambda shelf: shelf.user_labels())
        return ladder.Moment(
            sample_age_s=max((self._now_s - it.taken_s for it in devices if it), default=0.0),
            interval_s=float(self._settings.config.daemon.interval),
            is_listed=self._is_idle(info),
            is_use_known=all(
                it.reading.util_pct is not None
                or any(use.key == info.key and use.sm_pct is not None for use in it.uses or ())
                for it in devices
                if it is not None and it.reading is not None
            ),
            has_fault=any(
                it is None or it.reading is None or it.reading.state != "ok" for it in devices
            ),
            is_silenced=policy.silenced(alert, self._silencing.active, wall_s) is not None,
            # What cannot be read may say no; what was said of an earlier alert of it still holds.
            is_normal=labels is None or any(_is_normal(label, info.key) for label in labels),
            is_held=holds is None
            or any(tables.held_until_s(holds, key) is not None for key in every),
        )

    def _budget_hold(self, every: Iterable[ProcessKey], manager: steps.Manager) -> ActHold | None:
        rows, wall_s = self._steps(), self._runner.wall()
        if rows is None:
            return ActHold.NOT_WRITTEN
        rows = [row for row in rows if row.phase == "asked"]
        mine = [
            row.at_s
            for row in rows
            if row.process and any(tables.same_process(row.process, key) for key in every)
        ]
        if target := manager.target:
            # A unit that was started again has another process by now.
            last_s = self._ask(target, lambda shelf: shelf.read(tables.last_step_s, target))
            mine += [] if last_s is None else [last_s]
        # Nobody is told of a step for which another one's countdown leaves no budget.
        soon = [wall_s for other in self._countdowns if other not in every]
        return ladder.budget_hold(mine, [*soon, *(row.at_s for row in rows)], wall_s)

    def _beside(self, info: ProcessInfo, manager: steps.Manager) -> list[ProcessInfo] | None:
        """Return the processes that a step on one is a step on, as far as this host knows.

        None where the processes of a device cannot be read.
        """
        if manager.kind == "bare" and info.job is None and info.group is None:
            return []
        devices = self._intake.devices.values()
        # Of a card in parts the driver lists processes with these alone.
        cut = {it.device.parent_uid for it in devices}
        if any(
            it.uses is None for it in devices if not it.device.recorded and it.device.uid not in cut
        ):
            return None
        keys = {use.key for device in devices for use in device.uses or ()}
        others = [self._intake.infos[key] for key in keys - {info.key}]
        return [other for other in others if _is_together(other, info, manager)]

    def _rule_age_s(self, *, by_override: bool) -> float:
        """Return for how long the rule that lets a step be taken has been in force."""
        shelf, now_s = self._runner.shelf, self._runner.wall()
        if shelf is None or not (self._rules or self._name_rules()):
            return 0.0
        name = self._rules[by_override]
        since_s = self._ask(name, lambda it: it.read(tables.load_instant, name))
        if since_s is None or since_s > now_s:
            shelf.write_now(tables.save_meta, name, now_s)
            return 0.0
        return now_s - since_s

    def _name_rules(self) -> bool:
        """Write down since when each rule that acts is in force, and forget those that are not.

        A rule that was taken out and comes back is new. False where nothing can be written.
        """
        shelf, names = self._runner.shelf, rule_names(self._settings.config)
        if shelf and shelf.write_now(tables.forget_meta, _RULE, names.values()) is not None:
            self._rules = names
            for by_override in (False, True):
                self._rule_age_s(by_override=by_override)
        return bool(self._rules)

    # Countdowns.

    def _move(self, alarm: ConditionAlert, alert: Alert, key: ProcessKey) -> None:
        """Move the countdown of one process on; begin it, or end it, as things are."""
        mono_s, act, info = self._runner.mono(), self._settings.config.act, self._info(alert)
        step = self._next(key)
        hold = self._hold(alert, key, step)
        if hold is not None or step is None or info is None:
            self._cancel(key, hold or ActHold.NO_STEP)
            return
        if key in self._runner.busy or self._resting.get(key, (mono_s,))[0] > mono_s:
            return
        self._resting.pop(key, None)
        if key not in self._countdowns:
            log.info("countdown begins step=%s pid=%d", step, key.pid)
            self._countdowns[key] = ladder.Countdown(
                step=step, wanted=act.notices, gap_s=float(act.notice_gap),
                offset_s=self._offset_s,
            )  # fmt: skip
        countdown = self._countdowns[key]
        # By the slower of both clocks: the wall may have been set back by less than a jump.
        move = countdown.move(min(mono_s, self._runner.wall() - countdown.offset_s))
        if move == "act":
            self._holdings.refresh(self._now_s)  # What it did since the last look counts, too.
            if (hold := self._hold(alert, key, step)) is not None:
                self._cancel(key, hold)
                return
        if move == "notify":
            countdown.asked_mono_s = mono_s
        # One that has just opened again waits for its cool-down else.
        if countdown.asked_mono_s is not None and alert.held_code is None and move != "give-up":
            alarm.alert = msgspec.structs.replace(alert, next_notice_at_s=self._now_s)
        if move == "give-up":
            self._cancel(key, ActHold.NOT_DELIVERED)
        elif move == "act":
            del self._countdowns[key]
            self._begin(alert, info, step)

    def _take_in_arrivals(self) -> None:
        notices = [notice for one in self._countdowns.values() for notice in one.notices]
        arrived, mono_s = (
            self._outbox.wait_for(it.message_id for it in notices),
            self._runner.mono(),
        )
        for notice in notices:
            if notice.message_id in arrived and notice.sent_mono_s is None:
                notice.sent_mono_s = mono_s

    def _cancel(self, key: ProcessKey, hold: ActHold) -> None:
        countdown = self._countdowns.pop(key, None)
        if countdown is not None:
            result = "nobody could be notified" if hold is ActHold.NOT_DELIVERED else f"{hold}"
            self._runner.write(key, countdown.step, "refused", hold, f"not done: {result}")
            # No storm of reloads is to be one of messages.
            rest_s = AGAIN_S if hold is ActHold.NOT_DELIVERED else countdown.gap_s
            self._resting[key] = self._runner.mono() + rest_s, hold

    def _cancel_all(self, hold: ActHold) -> None:
        for key in [*self._countdowns]:
            self._cancel(key, hold)

    def _begin(
        self,
        alert: Alert,
        info: ProcessInfo,
        step: ActStep,
        *,
        who: str = OWN,
        answer: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        key, act, self.may_act = info.key, self._settings.config.act, True
        manager = self._runner.manager_of(info)
        if manager is None:
            answer("Not done", "Who manages it cannot be read.")
            return
        by_override = policy.rules_for(alert, self._intake.watcher.settings.rules).act == "auto"
        request = steps.Request(
            step=step,
            key=key,
            manager=manager,
            command=steps.command_for(step, manager, key, act.signal),
            kinds=frozenset(holding.kind for holding in self._holdings_of(key)),
            evidence={"alert": alert.key, "finding": msgspec.to_builtins(alert.finding.public)},
            has_checkpoint=self._runner.saved(key) is not None,
            knows_ranks=(info.world or 1) > 1,
            by_consent=who == OWN and not by_override,
        )
        if self._asked:
            self._asked.clear()  # A step spends budgets of others.

        def subject_now() -> reap.Subject:
            return self._subject(info)._replace(launcher=process_identity.launcher_of(info))

        why = alert.finding.reason
        if not self._runner.begin(request, act, subject_now, why=why, who=who, answer=answer):
            # Nobody is to be told again and again of what then does not happen.
            self._resting[key] = self._runner.mono() + AGAIN_S, ActHold.NOT_WRITTEN

    def _subject(self, info: ProcessInfo) -> reap.Subject:
        """Return as what a process is listed now, by the newest look; also called in a thread."""
        mine = self._holdings_of(info.key)
        idle = {holding.device_uid for holding in mine}
        busy_on = next(
            (
                device.device.label
                for uid, device in [*self._intake.devices.items()]
                for use in device.uses or ()
                if use.key == info.key and (use.sm_pct or (uid not in idle and use.used_bytes))
            ),
            "",
        )
        kinds = frozenset(holding.kind for holding in mine)
        return reap.Subject(self._intake.infos.get(info.key) or info, kinds, busy_on=busy_on)

    # Small questions.

    def _ask(self, name: str, question: Callable[[ProfileStore], _T | None]) -> _T | None:
        """Ask the history, once for all countdowns of a tick; None where it does not answer."""
        shelf, asked = self._runner.shelf, self._asked
        if shelf is None:
            return None
        if asked is None:
            return question(shelf)
        if name not in asked:
            asked[name] = question(shelf)
        answer: _T | None = asked[name]
        return answer

    def _steps(self) -> list[tables.Action] | None:
        """Return the steps of a day, and all on processes that hold idle memory now."""
        found = (it.process.key for it in self._holdings.found if it.process)
        since_s = self._runner.wall() - ladder.HOST_S
        since_s = min([since_s, *(key.started_at_s or 0.0 for key in found)])
        return self._ask("steps", lambda shelf: shelf.read(tables.load_steps, since_s))

    def _is_idle(self, info: ProcessInfo) -> bool:
        """Say whether a process is listed with memory that its end frees, and works nowhere."""
        subject = self._subject(info)
        return not subject.busy_on and bool(subject.kinds) and subject.kinds <= reap.FREED

    def _holdings_of(self, key: ProcessKey) -> list[Holding]:
        return [
            it
            for it in self._holdings.found
            if it.process and it.process.key == key and not self._is_recorded(it.device_uid)
        ]

    def _next(self, key: ProcessKey) -> ActStep | None:
        """Return the step that follows those that were taken on idle memory, not refused."""
        done = [it.process for it in self._steps() or () if it.phase == "done" and it.process]
        taken = sum(tables.same_process(process, key) for process in done)
        return ladder.next_step(self._settings.config.act.idle_steps, taken)

    def _info(self, alert: Alert) -> ProcessInfo | None:
        """Return who an alert is about; None for a recording, whose pids are others' by now."""
        key = alert.subject.process
        if key is None or self._is_recorded(alert.subject.device_uid):
            return None
        return self._intake.infos.get(key)

    def _is_recorded(self, uid: str) -> bool:
        device = self._intake.devices.get(uid)
        return device is not None and device.device.recorded and not self._rehearses


def rule_names(config: Config) -> dict[bool, str]:
    """Return whether it is one of the overrides -> under which name a rule's beginning is kept."""
    autos = [rule for rule in config.override if rule.act == "auto"]
    return {
        one: f"{_RULE}{crc32(msgspec.json.encode((rule, config.act.idle_steps))):08x}"
        for one, rule in ((False, config.act.mode), (True, autos))
    }


def _is_together(other: ProcessInfo, info: ProcessInfo, manager: steps.Manager) -> bool:
    """Say whether a step on one process is one on another, too."""
    if manager.kind == "user-unit" and other.unit == info.unit:
        return True
    same_job = info.job is not None and other.job == info.job
    return same_job or (info.group is not None and other.group == info.group)


def _is_normal(label: UserLabel, key: ProcessKey) -> bool:
    process = label.subject.process
    return label.word == "normal" and process is not None and tables.same_process(process, key)
