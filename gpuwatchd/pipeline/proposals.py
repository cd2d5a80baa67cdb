"""Which step of ``[act]`` could be taken on a process, and what holds it back."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.act import reap, steps
from gpuwatchd.alerts import ladder
from gpuwatchd.core import text
from gpuwatchd.core.codes import ActHold
from gpuwatchd.core.model import Button, Proposal
from gpuwatchd.store import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import ActStep, Alert, Holding, ProcessInfo, ProcessKey
    from gpuwatchd.notify.outbox.outbox import Outbox
    from gpuwatchd.pipeline.state import State
    from gpuwatchd.pipeline.step_runner import StepRunner
    from gpuwatchd.store.profiles import ProfileStore
    from gpuwatchd.store.tables import UserLabel

_T = TypeVar("_T")

_LABELS: Final[dict[ActStep, str]] = {
    "end": "End it", "restart": "Restart it", "requeue": "Requeue it",
}  # fmt: skip
_RULE: Final = "act.rule."
_KEPT: Final = 1000


class Proposals:
    """Says what could be done about an alert, by what is known now. Takes no step itself."""

    def __init__(self, state: State, outbox: Outbox, runner: StepRunner) -> None:
        self._state = state
        self._outbox = outbox
        self._runner, self._rehearses = runner, False
        self._rules: dict[bool, str] = {}
        self._now_s = 0.0
        self._proposed: dict[tuple[str, float, str], None] = {}
        """Alert, when it opened, step: those that are on record as proposed."""
        self._asked: dict[str, Any] | None = None
        """What the history has answered while countdowns are moved; None at other times."""

    def rehearse(self, runner: StepRunner) -> None:
        """Look at devices of a simulation too; ``runner`` only simulates steps."""
        self._runner, self._rehearses = runner, True

    def reloaded(self) -> None:
        """Follow new settings."""
        self._rules = {}

    @property
    def knows_rules(self) -> bool:
        """Whether it is written down since when each rule is in force, where that can be."""
        return bool(self._rules) or self._runner.shelf is None

    @contextmanager
    def at(self, now_s: float) -> Iterator[None]:
        """Ask the history each question once, for all countdowns that are moved within."""
        if not self._rules:
            self.name_rules()
        self._now_s, self._asked = now_s, {}
        try:
            yield
        finally:
            self._asked = None

    def asked_anew(self) -> None:
        """Ask the history again: a step that begins spends budgets of others."""
        if self._asked:
            self._asked.clear()

    def proposal(self, alert: Alert) -> Proposal | None:
        """Return what could be done about an alert, or will be; waits for the files of a process.

        See :data:`gpuwatchd.pipeline.step_runner.LOOK_S`.
        """
        key, info, act = alert.subject.process, self.info(alert), self._state.settings.config.act
        if key is None or info is None or info.foreign or alert.kind not in {"leak", "held"}:
            return None
        effective = policy.rules_for(alert, self._state.settings.rules)
        mode = effective.act or act.mode
        # What works again is still told of for a while.
        if mode == "observe" or (alert.kind == "held" and not self._is_idle(info)):
            return None
        step, command = self._possible(alert, info)
        if step is None or not command:
            return None
        if any(holding.kind not in reap.FREED for holding in self.holdings_of(key)):
            return None
        hold: ActHold | None = ActHold.PROPOSE
        if self._state.countdowns.resting.get(key, (0.0, hold))[1] is ActHold.NOT_DELIVERED:
            hold = ActHold.NOT_DELIVERED
        elif alert.kind == "leak":
            hold = ActHold.LEAK
        elif mode == "auto":
            hold = self.hold(alert, key, step)
        runner = text.clean(Path(act.runner[0]).name) if act.runner else ""
        return Proposal(step=step, command=command, hold=hold, runner=runner)

    def _possible(self, alert: Alert, info: ProcessInfo) -> tuple[ActStep | None, str]:
        """Return the next step and its command: of those on a leak the first that is possible."""
        manager, act = self._runner.manager_of(info), self._state.settings.config.act
        if manager is None:
            return None, ""
        for step in act.leak_steps if alert.kind == "leak" else (self.next_step(info.key),):
            command = "" if step is None else steps.command_for(step, manager, info.key, act.signal)
            if step in {"restart", "requeue"} and self._state.checkpoints.newest(info.key) is None:
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

    def _counted(self, alert: Alert, proposal: Proposal, message_id: str) -> Proposal:
        key = alert.subject.process
        countdown = None if key is None else self._state.countdowns.get(key)
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
        self.take_in_arrivals()
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
            and (info := self.info(alert)) is not None
            and info.uid == self._runner.uid
            and (manager := self._runner.manager_of(info)) is not None
            and manager.kind != "other"
        )

    # What holds a step back.

    def hold(self, alert: Alert, key: ProcessKey, step: ActStep | None) -> ActHold | None:
        """Return why no step is taken on an alert's process now."""
        info = self.info(alert)
        known = None if info is None else self._runner.classified(info)
        if info is None or known is None:
            return ActHold.NOT_LISTED
        effective = policy.rules_for(alert, self._state.settings.rules)
        by_override = effective.act == "auto"
        beside = self._beside(info, known.manager)
        is_alone = (info.world or 1) <= 1 or (known.manager.kind != "bare" and info.rank == 0)
        target = ladder.Target(
            mode=effective.act or self._state.settings.config.act.mode,
            opted_in=known.opted_in or by_override,
            rule_age_s=self._rule_age_s(by_override=by_override),
            is_machine=self._runner.uid == 0,
            is_own=info.uid == self._runner.uid and not info.foreign,
            has_runner=bool(self._state.settings.config.act.runner),
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
        mine, wall_s = self.holdings_of(info.key), self._runner.wall()
        uids = {alert.subject.device_uid, *(holding.device_uid for holding in mine)}
        devices = [self._state.devices.get(uid) for uid in uids]
        holds = self._ask("holds", lambda shelf: shelf.read(tables.load_holds, wall_s))
        labels = self._ask("labels", lambda shelf: shelf.user_labels())
        return ladder.Moment(
            sample_age_s=max((self._now_s - it.taken_s for it in devices if it), default=0.0),
            interval_s=float(self._state.settings.config.daemon.interval),
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
            is_silenced=policy.silenced(alert, self._state.silences.active, wall_s) is not None,
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
        soon = [wall_s for other in self._state.countdowns if other not in every]
        return ladder.budget_hold(mine, [*soon, *(row.at_s for row in rows)], wall_s)

    def _beside(self, info: ProcessInfo, manager: steps.Manager) -> list[ProcessInfo] | None:
        """Return the processes that a step on one is a step on, as far as this host knows.

        None where the processes of a device cannot be read.
        """
        if manager.kind == "bare" and info.job is None and info.group is None:
            return []
        devices = self._state.devices.values()
        # Of a card in parts the driver lists processes with these alone.
        cut = {it.device.parent_uid for it in devices}
        if any(
            it.uses is None for it in devices if not it.device.recorded and it.device.uid not in cut
        ):
            return None
        keys = {use.key for device in devices for use in device.uses or ()}
        others = [self._state.infos[key] for key in keys - {info.key}]
        return [other for other in others if _is_together(other, info, manager)]

    def _rule_age_s(self, *, by_override: bool) -> float:
        """Return for how long the rule that lets a step be taken has been in force."""
        shelf, now_s = self._runner.shelf, self._runner.wall()
        if shelf is None or not (self._rules or self.name_rules()):
            return 0.0
        name = self._rules[by_override]
        since_s = self._ask(name, lambda it: it.read(tables.load_instant, name))
        if since_s is None or since_s > now_s:
            shelf.write_now(tables.save_meta, name, now_s)
            return 0.0
        return now_s - since_s

    def name_rules(self) -> bool:
        """Write down since when each rule that acts is in force, and forget those that are not.

        A rule that was taken out and comes back is new. False where nothing can be written.
        """
        shelf, names = self._runner.shelf, rule_names(self._state.settings.config)
        if shelf and shelf.write_now(tables.forget_meta, _RULE, names.values()) is not None:
            self._rules = names
            for by_override in (False, True):
                self._rule_age_s(by_override=by_override)
        return bool(self._rules)

    def take_in_arrivals(self) -> None:
        """Note which notices have arrived."""
        notices = [notice for one in self._state.countdowns.values() for notice in one.notices]
        arrived = self._outbox.wait_for(it.message_id for it in notices)
        mono_s = self._runner.mono()
        for notice in notices:
            if notice.message_id in arrived and notice.sent_mono_s is None:
                notice.sent_mono_s = mono_s

    def subject(self, info: ProcessInfo) -> reap.Subject:
        """Return as what a process is listed now, by the newest look; also called in a thread."""
        mine = self.holdings_of(info.key)
        idle = {holding.device_uid for holding in mine}
        busy_on = next(
            (
                device.device.label
                for uid, device in [*self._state.devices.items()]
                for use in device.uses or ()
                if use.key == info.key and (use.sm_pct or (uid not in idle and use.used_bytes))
            ),
            "",
        )
        kinds = frozenset(holding.kind for holding in mine)
        return reap.Subject(self._state.infos.get(info.key) or info, kinds, busy_on=busy_on)

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
        found = (it.process.key for it in self._state.holdings if it.process)
        since_s = self._runner.wall() - ladder.HOST_S
        since_s = min([since_s, *(key.started_at_s or 0.0 for key in found)])
        return self._ask("steps", lambda shelf: shelf.read(tables.load_steps, since_s))

    def _is_idle(self, info: ProcessInfo) -> bool:
        """Say whether a process is listed with memory that its end frees, and works nowhere."""
        subject = self.subject(info)
        return not subject.busy_on and bool(subject.kinds) and subject.kinds <= reap.FREED

    def holdings_of(self, key: ProcessKey) -> list[Holding]:
        """Return what a process holds without work, of this machine."""
        return [
            it
            for it in self._state.holdings
            if it.process and it.process.key == key and not self.is_recorded(it.device_uid)
        ]

    def next_step(self, key: ProcessKey) -> ActStep | None:
        """Return the step that follows those that were taken on idle memory, not refused."""
        done = [it.process for it in self._steps() or () if it.phase == "done" and it.process]
        taken = sum(tables.same_process(process, key) for process in done)
        return ladder.next_step(self._state.settings.config.act.idle_steps, taken)

    def info(self, alert: Alert) -> ProcessInfo | None:
        """Return who an alert is about; None for a recording, whose pids are others' by now."""
        key = alert.subject.process
        if key is None or self.is_recorded(alert.subject.device_uid):
            return None
        return self._state.infos.get(key)

    def is_recorded(self, uid: str) -> bool:
        """Say whether a device is one of a recording, whose pids are others' by now."""
        device = self._state.devices.get(uid)
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
