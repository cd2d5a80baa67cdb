"""One tick: read each source, update its tracks, judge what is due, send notices, show it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.model import Alert, Decision, Finding, Sample  # noqa: TC001 - fields
from gpuwatchd.notify.outbox.outbox import Outbox
from gpuwatchd.pipeline import track_evaluation
from gpuwatchd.pipeline.act_ladder import ActLadder
from gpuwatchd.pipeline.alert_cost import AlertCosts
from gpuwatchd.pipeline.alert_notifier import AlertNotifier, MessageBuilder
from gpuwatchd.pipeline.chores import Chore, Guard, ProcessContext, UserInput, When
from gpuwatchd.pipeline.clock import Clocks
from gpuwatchd.pipeline.condition_alerts import SOURCE as CONDITIONS
from gpuwatchd.pipeline.condition_alerts import ConditionAlerts
from gpuwatchd.pipeline.digests import Digests
from gpuwatchd.pipeline.history_exchange import HistoryLink, Last
from gpuwatchd.pipeline.live_state import LiveWriter, Outputs
from gpuwatchd.pipeline.proposals import Proposals
from gpuwatchd.pipeline.restored_state import PREVIOUS_RUN
from gpuwatchd.pipeline.source_workers import Problem, Sources
from gpuwatchd.pipeline.state import Settings, State
from gpuwatchd.pipeline.step_runner import StepRunner
from gpuwatchd.pipeline.track_evaluation import Evaluator
from gpuwatchd.pipeline.tracker import SampleIntake
from gpuwatchd.store.live import LiveState  # noqa: TC001 - a field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Fault
    from gpuwatchd.core.ports import Source
    from gpuwatchd.pipeline.alert_notifier import AlertHolder
    from gpuwatchd.pipeline.source_workers import SourceTick

_LAST_MESSAGES_S = 1.5
"""How long the end waits for messages that are being sent."""


class Inputs(NamedTuple):
    """What a pipeline reads; ``fresh`` and ``absences``: see :class:`.source_workers.Sources`."""

    sources: Sequence[Source]
    """Read every tick, each in its own thread."""
    host: Host | None = None
    """Looks processes up by pid; None where the samples name them (logs, simulation)."""
    fresh: Callable[[int], Source] | None = None
    absences: Callable[[list[Fault | None]], list[Problem]] | None = None


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """What one tick saw and did."""

    samples: tuple[Sample, ...]
    findings: dict[str, Finding]
    """Subject id -> its newest judgement, before hysteresis."""
    alerts: tuple[Alert, ...]
    """All alerts that are open now (watch and firing)."""
    changes: tuple[Alert, ...]
    """Alerts whose state changed in this tick."""
    decisions: tuple[Decision, ...]
    state: LiveState

    @property
    def sample(self) -> Sample | None:
        """The first source's sample."""
        return self.samples[0] if self.samples else None


class Pipeline:
    """The stages that share one :class:`State`; :meth:`tick` is their order."""

    def __init__(
        self,
        config: Config,
        inputs: Inputs,
        outputs: Outputs | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        outputs, clocks = outputs or Outputs(), clocks or Clocks()
        host, history = inputs.host, outputs.history
        shelf = None if history is None else history.shelf
        booted_at_s = None if host is None else host.booted_at_s
        self.state = state = State(config, history, clocks.mono)
        self.guard = guard = Guard(clocks.mono)
        self._clocks = clocks
        self.sources = Sources(
            inputs.sources, guard=guard, mono=clocks.mono,
            deadline_s=config.daemon.source_deadline, fresh=inputs.fresh, absences=inputs.absences,
        )  # fmt: skip
        self.intake = SampleIntake(state, host)
        self.evaluator = Evaluator(state)
        self.context = ProcessContext(state, guard, host=host, shelf=shelf, clocks=clocks)
        self.conditions = ConditionAlerts(state)
        self.outbox = Outbox(
            outputs.message_dispatcher, history,
            policy=config.policy, wall=clocks.wall, mono=clocks.mono,
        )  # fmt: skip
        runner = StepRunner(shelf, wall=clocks.wall, mono=clocks.mono, booted_at_s=booted_at_s)
        proposals = Proposals(state, self.outbox, runner)
        self.ladder = ActLadder(state, proposals, runner)
        costs = AlertCosts(state, history)
        builder = MessageBuilder(state, costs, proposals=proposals, booted_at_s=booted_at_s)
        self.alert_notifier = AlertNotifier(
            state, self.outbox, history, message_builder=builder, clocks=clocks
        )
        self.user_input = UserInput(
            state, guard, shelf=shelf, booted_at_s=booted_at_s, take_step=self.ladder.press
        )
        self.live = LiveWriter(state, outputs, outbox=self.outbox, host=host, clocks=clocks)
        self.link = None if history is None else HistoryLink(history, state)
        digests = Digests(state, self.outbox, history, costs, clocks.mono)
        guard.add(self._all_chores(digests))

    def _all_chores(self, digests: Digests) -> Iterator[Chore]:
        """Yield all chores, in order."""
        yield from self.user_input.chores()
        yield from self.context.chores()
        yield Chore("digest", When.AFTER, digests.step)
        # The time is read again: a digest that took long is no step of the wall clock.
        yield Chore("outbox", When.AFTER, lambda _: self.outbox.collect(self._clocks.wall()))
        if self.link is not None:
            yield Chore("history", When.AFTER, self.link.history.flush_due, budget_s=1.0)

    def reconfigure(self, config: Config) -> None:
        """Take over new settings; sources stay as they are."""
        self.state.settings = Settings(config)
        self.ladder.reloaded()
        self.outbox.take_rules(config.policy)
        self.intake.reloaded()
        self.sources.set_deadline(config.daemon.source_deadline)

    def resume(self) -> None:
        """Restore points, alerts and unsent messages from the history and the live state."""
        before = self.guard("live state", self.live.read_previous)
        if self.link is not None:
            link, now_s = self.link, self._clocks.wall()
            last = Last.of(before, self.live.boot_id, now_s, now_s - self._clocks.mono())
            prepared = self.intake.prepared
            self.guard("mailboxes", lambda: prepared.resume(link.allocators(now_s, last)))
            self.guard(
                "history",
                lambda: link.resume(self.outbox, self.conditions, self.alert_notifier, now_s, last),
            )
        self.guard("idle memory", lambda: self.context.idle_memory.resume(before))
        self.guard("events", lambda: self.state.events.resume(before))

    def tick(self, problems: Sequence[Problem] = ()) -> Tick:
        """Do every stage once. Never raises: what fails is a fault, logged and shown.

        ``problems`` are the caller's, shown beside those of the stages.
        """
        samples: list[Sample] = []
        changes: list[Alert] = []
        decisions: list[Decision] = []
        # Conditions and the live state go by the clock of the first source that answers.
        shown_s: float | None = None
        self.guard.do(When.BEFORE, self._clocks.wall())
        for read in self.sources.read():
            if read.sample is not None:
                samples.append(read.sample)
                shown_s = read.now_s if shown_s is None else shown_s
            changed = self._track(read) + self._judge(read)
            decisions += self._notify(
                read.label, self.state.alerted(read.label), changed, read.now_s
            )
            changes += changed
        shown_s = self._clocks.wall() if shown_s is None else shown_s
        self.guard.do(When.CONDITIONS, shown_s)
        changed = self._conditions(shown_s)
        decisions += self._notify(CONDITIONS, [*self.state.conditions.values()], changed, shown_s)
        restored = self.state.restored
        unclaimed = restored.unclaimed(shown_s) if restored.alerts else []
        decisions += self._notify(PREVIOUS_RUN, unclaimed, [], shown_s)
        self.guard.do(When.AFTER, self._clocks.wall())
        look = partial(self._live_state, shown_s, problems)
        live_state = self.guard("snapshot", look) or self.live.last
        self.guard("live state", partial(self.live.write, live_state))
        self.guard.do(When.LAST, self._clocks.wall())
        return Tick(
            samples=tuple(samples), findings=self.state.tracks.findings(),
            alerts=live_state.alerts, changes=(*changes, *changed), decisions=tuple(decisions),
            state=live_state,
        )  # fmt: skip

    def _track(self, read: SourceTick) -> list[Alert]:
        """Update the tracks of a source; return the alerts that ended: their subject has gone."""
        label, sample, now_s, state = read.label, read.sample, read.now_s, self.state
        if sample is None:
            self.intake.mark_unread(label, self.sources.absent(label))
            return []
        if read.step_s is not None:
            self.guard("clock", partial(self._step_clock, label, read.step_s))
        intake = partial(self.intake.take, label, sample, read.devices, now_s)
        ended = self.guard(f"{label} intake", intake)
        wall_s = self._clocks.wall()
        figures = self.guard("mailboxes", partial(self.intake.prepared.feed, label, now_s, wall_s))
        events = partial(state.events.take, label, sample, state.devices, state.infos)
        self.guard("events", events)
        if self.link is not None:
            record = partial(self.link.record, sample, read.devices, read.step_s, figures or ())
            self.guard("history", record)
        return ended or []

    def _step_clock(self, label: str, step_s: float) -> None:
        """Move what is remembered of a source in time: its wall clock was stepped."""
        notifier, state = self.alert_notifier, self.state
        notifier.move(label, self.intake.move(label, step_s), step_s)
        if label == next(iter(self.sources.workers)):  # by whose clock conditions go
            moved = self.conditions.move(step_s) + state.restored.move(step_s)
            notifier.move(CONDITIONS, moved, step_s)
            notifier.deaths.move(step_s)

    def _judge(self, read: SourceTick) -> list[Alert]:
        """Apply the user's labels to a source's subjects, then judge those that are due."""
        if read.sample is None:
            return []
        state, now_s = self.state, read.now_s
        ended = self.user_input.apply_labels(read.label, now_s)
        due = self.guard("windows", partial(self.evaluator.in_turns, read.label, now_s))
        if not due:
            return ended

        def work() -> list[Alert]:
            changed = self.evaluator.judge(due, now_s)
            alerts = [track_evaluation.with_causes(alert, state) for alert in changed]
            state.events.update_advice(due, state.tracks)
            return alerts

        return ended + (self.guard("detectors", work) or [])

    def _conditions(self, now_s: float) -> list[Alert]:
        """Open and resolve condition alerts, take steps of ``[act]``; return the changed alerts."""
        if self.ladder.may_act:
            self.guard("act", lambda: self.conditions.include(self.ladder.acted_on()))
        changed = self.guard("condition alerts", partial(self.conditions.step, now_s)) or []
        if self.ladder.may_act:
            look = self.context.idle_memory.refresh
            self.guard("steps", partial(self.ladder.step, now_s, look))
        return changed

    def _notify(
        self, label: str, holders: Sequence[AlertHolder], changed: list[Alert], now_s: float
    ) -> list[Decision]:
        notifier = self.alert_notifier
        waiting = label in notifier.open_alerts or notifier.resolved.pending_resolved
        if not (holders or changed or waiting):
            return []  # As in most ticks.
        notify = partial(notifier.notify, label, holders, changed, now_s)
        return self.guard("policy", notify) or []

    def _live_state(
        self, now_s: float, extra: Sequence[Problem], *, stopped: bool = False
    ) -> LiveState:
        problems, deaths = [*self.problems(), *extra], self.alert_notifier.deaths.to_show(now_s)
        return self.live.snapshot(now_s, problems, deaths, stopped=stopped)

    def _write_last(self, problems: Sequence[Problem]) -> None:
        self.live.write(self._live_state(self._clocks.wall(), problems, stopped=True))

    def problems(self) -> list[Problem]:
        """Return what is missing or broken now, one sentence each with its code."""
        texts = [*self.guard.problems, *self.state.tracks.unjudged.values()]
        texts += self.alert_notifier.failing.values()
        if self.link is not None:
            texts += self.link.history.problems
        texts += self.context.problems()
        return [
            *self.sources.problems(),
            *((text, ProblemCode.OTHER) for text in texts),
            *((text, ProblemCode.CHANNEL) for text in self.outbox.problems()),
        ]

    def close(self, problems: Sequence[Problem] = ()) -> None:
        """Write what is left, leave a last live state that says so, and stop reading.

        In this order: a driver that hangs while it is let go must cost nothing that is written.
        """
        self.guard("buttons", self.user_input.buttons.close)
        self.context.close()
        self.guard("outbox", lambda: self.outbox.close(timeout_s=_LAST_MESSAGES_S))
        self.guard("live state", partial(self._write_last, problems))
        if self.link is not None:
            self.user_input.close()
            self.guard("history", self.link.history.close)
        self.sources.close()
