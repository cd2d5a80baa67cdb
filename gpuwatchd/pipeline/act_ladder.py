"""The steps of ``[act]``: proposed in alerts, and for idle memory taken after a countdown.

A countdown lives in memory: a daemon that starts, settings that are read anew, a clock that jumps
or a machine that slept, and a device that is not read end it. Nothing is done that was not written
down before, and that people were not told of.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.act import reap, steps
from gpuwatchd.alerts import ladder
from gpuwatchd.alerts.routing import fits
from gpuwatchd.collect.host import process_identity
from gpuwatchd.core.codes import ActHold
from gpuwatchd.pipeline.step_runner import OWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import ActStep, Alert, ProcessInfo, ProcessKey, Proposal
    from gpuwatchd.pipeline.proposals import Proposals
    from gpuwatchd.pipeline.state import ConditionAlert, State
    from gpuwatchd.pipeline.step_runner import StepRunner

log = logging.getLogger("gpuwatchd")

CLOCK_STEP_S: Final = 2.0
"""What the clocks drift apart by more than this in a countdown is a jump, or sleep."""
GAP_S: Final = 60.0
"""After so long without a look, or three intervals, the minute that was named is over."""
AGAIN_S: Final = 3600.0
"""After a countdown that reached nobody, or a step that could not be written down, so long."""


class ActLadder:
    """Proposes the next step for what an alert is about, and takes those for idle memory.

    Its clocks are those of the people who are told, its runner's.
    """

    def __init__(self, state: State, proposals: Proposals, runner: StepRunner) -> None:
        self._state = state
        self.may_act = True
        """Whether :meth:`acted_on` and :meth:`step` have anything to do: under new settings at
        least to forget the rules that are not in force any more."""
        self.proposals = proposals
        self._runner = runner
        self._countdowns = state.countdowns
        self._offset_s, self._now_s = runner.wall() - runner.mono(), 0.0

    def rehearse(self, runner: StepRunner) -> None:
        """Take steps by one that only simulates them, on devices of a simulation too."""
        self._runner = runner
        self.proposals.rehearse(runner)

    def reloaded(self) -> None:
        """Follow new settings: what counted down begins anew."""
        self.may_act = True
        self.proposals.reloaded()
        for key in [*self._countdowns]:
            self._cancel(key, ActHold.RELOADED)

    def acted_on(self) -> frozenset[ProcessKey]:
        """Return the processes that hold idle memory and opted in: people are told of each.

        Those with an alert stay while nobody knows yet, as just after a start.
        """
        alarms = self._state.conditions.values()
        infos = {it.process.key: it.process for it in self._state.holdings if it.process}
        self._runner.collect(infos)
        if not self._is_auto():
            return frozenset()
        held = {it.alert.subject.process for it in alarms if it.alert and it.alert.kind == "held"}
        keys = {key for key in held if key is not None and key not in infos}
        autos = [rule for rule in self._state.settings.config.override if rule.act == "auto"]
        for holding in self._state.holdings:
            info = holding.process
            if info is None or info.foreign or holding.kind not in reap.FREED:
                continue
            if self.proposals.is_recorded(holding.device_uid):
                continue
            known, command = self._runner.classified(info), " ".join(info.argv)
            by_override = any(
                fits(rule.user, info.user or "") and fits(rule.command, command) for rule in autos
            )
            opted_in = info.key in held if known is None else known.opted_in
            if by_override or (opted_in and self._state.settings.config.act.mode == "auto"):
                keys.add(info.key)
        return frozenset(keys)

    def _is_auto(self) -> bool:
        config = self._state.settings.config
        return "auto" in (config.act.mode, *(rule.act for rule in config.override))

    def step(self, now_s: float, look: Callable[[float], None]) -> None:
        """Move every countdown on; ``now_s`` is on the clock of the alerts.

        ``look`` brings idle memory up to date, before a step is taken.
        """
        offset_s = self._runner.wall() - self._runner.mono()
        interval_s = float(self._state.settings.config.daemon.interval)
        gap_s = max(GAP_S, ladder.STALE_INTERVALS * interval_s)
        for target, countdown in [*self._countdowns.items()]:
            if abs(offset_s - countdown.offset_s) > CLOCK_STEP_S or now_s - self._now_s > gap_s:
                self._cancel(target, ActHold.CLOCK)
        alive = set()
        with self.proposals.at(now_s):
            self._offset_s, self._now_s = offset_s, now_s
            self.proposals.take_in_arrivals()
            for alarm in self._state.conditions.values():
                key = None if alarm.alert is None else alarm.alert.subject.process
                if alarm.alert and key and alarm.alert.kind == "held":
                    alive.add(key)
                    self._move(alarm, alarm.alert, key, look)
        for key in [key for key in self._countdowns if key not in alive]:
            self._cancel(key, ActHold.NOT_LISTED)
        is_auto = self._is_auto() or bool(self._runner.busy)
        self.may_act = is_auto or not self.proposals.knows_rules

    def press(
        self, alert: Alert, shown: Proposal | None, who: str, answer: Callable[[str, str], None]
    ) -> None:
        """Take the step that a button has shown, by the word of ``who`` pressed it."""
        proposal, info = self.proposals.proposal(alert), self.proposals.info(alert)
        is_shown = shown is not None and proposal is not None and proposal.command == shown.command
        if not is_shown or proposal is None or info is None or info.key in self._runner.busy:
            answer("Not done", "The step is not possible any more.")
            return
        self._cancel(info.key, ActHold.PROPOSE)
        self._begin(alert, info, proposal.step, who=who, answer=answer)

    # Countdowns.

    def _move(
        self, alarm: ConditionAlert, alert: Alert, key: ProcessKey, look: Callable[[float], None]
    ) -> None:
        """Move the countdown of one process on; begin it, or end it, as things are."""
        mono_s, info = self._runner.mono(), self.proposals.info(alert)
        act = self._state.settings.config.act
        step = self.proposals.next_step(key)
        hold = self.proposals.hold(alert, key, step)
        if hold is not None or step is None or info is None:
            self._cancel(key, hold or ActHold.NO_STEP)
            return
        if key in self._runner.busy or self._countdowns.resting.get(key, (mono_s,))[0] > mono_s:
            return
        self._countdowns.resting.pop(key, None)
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
            look(self._now_s)  # What it did since the last look counts, too.
            if (hold := self.proposals.hold(alert, key, step)) is not None:
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

    def _cancel(self, key: ProcessKey, hold: ActHold) -> None:
        countdown = self._countdowns.pop(key, None)
        if countdown is not None:
            result = "nobody could be notified" if hold is ActHold.NOT_DELIVERED else f"{hold}"
            self._runner.write(key, countdown.step, "refused", hold, f"not done: {result}")
            # No storm of reloads is to be one of messages.
            rest_s = AGAIN_S if hold is ActHold.NOT_DELIVERED else countdown.gap_s
            self._countdowns.resting[key] = self._runner.mono() + rest_s, hold

    def _begin(
        self,
        alert: Alert,
        info: ProcessInfo,
        step: ActStep,
        *,
        who: str = OWN,
        answer: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        key, act, self.may_act = info.key, self._state.settings.config.act, True
        manager = self._runner.manager_of(info)
        if manager is None:
            answer("Not done", "Who manages it cannot be read.")
            return
        by_override = policy.rules_for(alert, self._state.settings.rules).act == "auto"
        request = steps.Request(
            step=step,
            key=key,
            manager=manager,
            command=steps.command_for(step, manager, key, act.signal),
            kinds=frozenset(holding.kind for holding in self.proposals.holdings_of(key)),
            evidence={"alert": alert.key, "finding": msgspec.to_builtins(alert.finding.public)},
            has_checkpoint=self._state.checkpoints.newest(key) is not None,
            knows_ranks=(info.world or 1) > 1,
            by_consent=who == OWN and not by_override,
        )
        self.proposals.asked_anew()

        def subject_now() -> reap.Subject:
            subject = self.proposals.subject(info)
            return subject._replace(launcher=process_identity.launcher_of(info))

        why = alert.finding.reason
        if not self._runner.begin(request, act, subject_now, why=why, who=who, answer=answer):
            # Nobody is to be told again and again of what then does not happen.
            self._countdowns.resting[key] = self._runner.mono() + AGAIN_S, ActHold.NOT_WRITTEN
