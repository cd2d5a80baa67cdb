"""The pipeline of the daemon and the demo: samples, chores, notices, history and live state."""

from __future__ import annotations

import enum
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.notify.outbox.outbox import Outbox
from gpuwatchd.pipeline import track_evaluation
from gpuwatchd.pipeline.act_ladder import ActLadder
from gpuwatchd.pipeline.action_handler import ActionHandler
from gpuwatchd.pipeline.alert_cost import AlertCosts, CheckpointSearch
from gpuwatchd.pipeline.alert_notifier import AlertNotifier, MessageBuilder
from gpuwatchd.pipeline.clock import Clocks
from gpuwatchd.pipeline.condition_alerts import SOURCE as CONDITIONS
from gpuwatchd.pipeline.condition_alerts import ConditionAlerts
from gpuwatchd.pipeline.digests import Digests
from gpuwatchd.pipeline.engine_readings import DeclaredSizes, Serving
from gpuwatchd.pipeline.history_exchange import HistoryLink, Last
from gpuwatchd.pipeline.idle_memory import IdleMemory
from gpuwatchd.pipeline.live_state import LiveWriter, Outputs
from gpuwatchd.pipeline.memory_limits import MemoryLimits
from gpuwatchd.pipeline.proposals import Proposals
from gpuwatchd.pipeline.restored_state import PREVIOUS_RUN
from gpuwatchd.pipeline.run_baselines import RunBaselines
from gpuwatchd.pipeline.source_workers import Sources
from gpuwatchd.pipeline.state import Settings, State
from gpuwatchd.pipeline.step_runner import StepRunner
from gpuwatchd.pipeline.tick import Pipeline, Stages
from gpuwatchd.pipeline.track_evaluation import Evaluator
from gpuwatchd.pipeline.tracker import SampleIntake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, Decision
    from gpuwatchd.pipeline.alert_notifier import AlertHolder
    from gpuwatchd.pipeline.live_state import Inputs
    from gpuwatchd.pipeline.process_names import ProcessNames
    from gpuwatchd.pipeline.tick import Problem, SourceTick
    from gpuwatchd.pipeline.track import Track
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.store.profiles import ProfileStore

_LAST_MESSAGES_S = 1.5
"""How long the end waits for messages that are being sent."""
_LOG_AGAIN_S = 60.0

T = TypeVar("T")
log = logging.getLogger("gpuwatchd")


class When(enum.Enum):
    """At which place of a tick a chore is done."""

    BEFORE = enum.auto()
    """Before anything is sampled: what users have entered meanwhile."""
    CONDITIONS = enum.auto()
    """After the judgements: what condition alerts are about."""
    AFTER = enum.auto()
    """After all alerts: what is sent and written."""
    LAST = enum.auto()
    """After the live state is written: what may take some milliseconds."""


class Chore(NamedTuple):
    """What a tick does beside samples and alerts, on its own thread.

    What may block gets a thread of its own, and a chore that looks after it.
    """

    name: str
    when: When
    run: Callable[[float], object]
    """Gets epoch seconds: of the wall clock, for ``CONDITIONS`` of the first sample."""
    budget_s: float = 0.25
    """What takes longer is logged: the next sample waits for it."""


class Guard:
    """Runs parts; what they raise is logged once a minute and remembered while it lasts."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._chores: dict[When, list[Chore]] = {when: [] for when in When}
        self._failed: dict[str, tuple[str, float]] = {}
        self._slow: dict[str, float] = {}

    @property
    def problems(self) -> list[str]:
        """What fails now, one sentence each."""
        return [why for why, _ in self._failed.values()]

    def __call__(
        self, where: str, work: Callable[[], T], *, budget_s: float = math.inf
    ) -> T | None:
        """Run one part and return what it returns; None when it fails.

        One that takes longer than its budget is logged, once a minute at most.
        """
        begun_s = time.perf_counter()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever a part raises is its own fault
            self._note_failure(where, error)
            return None
        taken_s = time.perf_counter() - begun_s
        if taken_s > budget_s or self._failed:
            self._note_success(where, taken_s, budget_s)
        return result

    def add(self, chores: Iterable[Chore]) -> None:
        """Have chores done from now on, after those that are there."""
        for chore in chores:
            self._chores[chore.when].append(chore)

    def do(self, when: When, now_s: float) -> None:
        """Do the chores of one place of the tick, in order; one that fails costs no other."""
        for chore in self._chores[when]:
            self(chore.name, partial(chore.run, now_s), budget_s=chore.budget_s)

    def _note_failure(self, where: str, error: Exception) -> None:
        why = f"{where}: {error}" if str(error) else f"{where}: {type(error).__name__}"
        at_s = self._mono()
        if self._failed.get(where, ("", -_LOG_AGAIN_S))[1] <= at_s - _LOG_AGAIN_S:
            exc_info = None if isinstance(error, GpuwatchdError) else error
            log.error("failed part=%s error=%r", where, str(error), exc_info=exc_info)
            self._failed[where] = (why, at_s)

    def _note_success(self, where: str, taken_s: float, budget_s: float) -> None:
        """Take note of a part that went well: it fails no more, and may have been slow."""
        self._failed.pop(where, None)
        at_s = self._mono()
        if taken_s > budget_s and self._slow.get(where, -_LOG_AGAIN_S) <= at_s - _LOG_AGAIN_S:
            self._slow[where] = at_s
            log.warning("slow part=%s took_s=%.2f budget_s=%g", where, taken_s, budget_s)


class ProcessContext:
    """Reads what no curve tells: serving engines, sizes, limits, idle memory, checkpoints."""

    def __init__(
        self,
        state: State,
        guard: Guard,
        process_names: ProcessNames,
        *,
        host: Host | None,
        shelf: ProfileStore | None,
        clocks: Clocks,
    ) -> None:
        self._state = state
        self._guard = guard
        self._process_names = process_names
        self._clocks = clocks
        self.serving = Serving(state, host)
        self.declared = DeclaredSizes(state, host)
        self.limits = MemoryLimits(state, host, clocks.mono)
        self.idle_memory = IdleMemory(state, host)
        self.checkpoints = CheckpointSearch(state, shelf)

    def chores(self) -> Iterator[Chore]:
        """Yield what is done each tick."""
        yield Chore("process context", When.CONDITIONS, self._refresh)
        yield Chore("idle memory", When.CONDITIONS, self.idle_memory.update)
        yield Chore("power", When.CONDITIONS, self._update_costs)

    def _update_costs(self, _: float) -> None:
        """Take in checkpoints and power, on which costs and steps depend; by people's clock."""
        now_s = self._clocks.wall()
        self._guard("checkpoints", partial(self.checkpoints.step, now_s))
        self._state.prices.measure(now_s)

    def _refresh(self, _: float) -> None:
        """Read servers, declared sizes and limits, where a process is new or they are due."""
        present = self._process_names.present(self._state.devices.values())
        self._guard("endpoints", partial(self.serving.step, present))
        news = (present, self._state.engines.readings, self._state.tracks.created)
        changed, told = bool(self.declared.waiting) or news != self.declared.news, False
        if changed:
            told = bool(self._guard("declared sizes", partial(self.declared.step, news)))
        if changed or self._clocks.mono() >= self.limits.due_s:
            self._guard("memory limits", partial(self.limits.step, told=told))

    def problems(self) -> list[str]:
        """Return what is wrong now, one sentence each."""
        faults = [f"{path} {why}" for path, why in self.limits.faults.items()]
        stuck = [self.checkpoints.problem] if self.checkpoints.problem else []
        return [*self.serving.problems, *stuck, *faults]

    def close(self) -> None:
        """Ask and read nothing any more."""
        self._guard("endpoints", self.serving.close)
        self._guard("declared sizes", self.declared.close)


class LivePipeline(Pipeline):
    """All stages; what fails in one is a fault, logged and shown: its tick never raises."""

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
        state = State(config, history, clocks.mono)
        self.guard = guard = Guard(clocks.mono)
        self.sources = Sources(inputs, clocks.mono, config.daemon.source_deadline)
        self.intake, self.evaluator = SampleIntake(state, host), Evaluator(state)
        stages = Stages(
            self.sources.read, self._take, self._due, self._judge, self._notify,
            begin=partial(guard.do, When.BEFORE), conditions=self._conditions,
            send=partial(guard.do, When.AFTER), show=self._show,
            finish=partial(guard.do, When.LAST),
        )  # fmt: skip
        super().__init__(state, stages, clocks)
        self.context = ProcessContext(
            state, guard, self.intake.process_names, host=host, shelf=shelf, clocks=clocks
        )
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
        self.run_baselines = None if shelf is None else RunBaselines(state, shelf)
        self.buttons = ActionHandler(state, shelf=shelf, booted_at_s=booted_at_s)
        self.live = LiveWriter(state, outputs, outbox=self.outbox, host=host, clocks=clocks)
        self.link = None if history is None else HistoryLink(history, state)
        guard.add(self._chores(Digests(state, self.outbox, history, costs, clocks.mono)))

    def _chores(self, digests: Digests) -> Iterator[Chore]:
        """Yield all chores, in order."""
        runs, link = self.run_baselines, self.link
        if runs is not None:
            yield Chore("feedback", When.BEFORE, lambda _: runs.read_labels())
        yield Chore("silences", When.BEFORE, self.state.silences.refresh)
        yield Chore("buttons", When.BEFORE, partial(self.buttons.step, self.ladder.press))
        yield from self.context.chores()
        yield Chore("digest", When.AFTER, digests.step)
        # The time is read again: a digest that took long is no step of the wall clock.
        yield Chore("outbox", When.AFTER, lambda _: self.outbox.collect(self._clocks.wall()))
        if link is not None:
            yield Chore("history", When.AFTER, link.history.flush_due, budget_s=1.0)
        if runs is not None:
            # Now that everybody knows: this may take some milliseconds.
            yield Chore("run baselines", When.LAST, lambda _: runs.step())

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

    def _take(self, read: SourceTick) -> list[Alert]:
        """Take in a sample and note what it tells; return the alerts that it ended."""
        label, sample, now_s, state = read.label, read.sample, read.now_s, self.state
        if read.absent is not None:
            self.intake.mark_unread(label, read.absent)
        if sample is None:
            return []
        if read.step_s is not None:
            self.guard("clock", partial(self._step_clock, label, read.step_s))
        devices = self.guard(f"{label} devices", lambda: tuple(read.devices())) or ()
        intake = partial(self.intake.take, label, sample, devices, now_s)
        ended = self.guard(f"{label} intake", intake)
        wall_s = self._clocks.wall()
        figures = self.guard("mailboxes", partial(self.intake.prepared.feed, label, now_s, wall_s))
        self.guard("device log", partial(state.events.log_devices, label, state.devices))
        self.guard("events", partial(state.events.take, sample, state.devices, state.infos))
        if self.link is not None:
            record = partial(self.link.record, sample, devices, read.step_s, figures or ())
            self.guard("history", record)
        if self.run_baselines is None:
            return ended or []
        apply_labels = partial(self.run_baselines.apply_labels, label, now_s)
        return (ended or []) + (self.guard("feedback", apply_labels) or [])

    def _step_clock(self, label: str, step_s: float) -> None:
        """Move what is remembered of a source in time: its wall clock was stepped."""
        notifier, state = self.alert_notifier, self.state
        notifier.move(label, self.intake.move(label, step_s), step_s)
        if label == next(iter(self.sources.workers)):  # by whose clock conditions go
            moved = self.conditions.move(step_s) + state.restored.move(step_s)
            notifier.move(CONDITIONS, moved, step_s)
            notifier.deaths.move(step_s)

    def _due(self, label: str, now_s: float) -> list[Track]:
        return self.guard("windows", partial(self.evaluator.in_turns, label, now_s)) or []

    def _judge(self, due: list[Track], now_s: float) -> list[Alert]:
        """Judge these tracks; say of alerts that change who caused them, and what broke."""

        def work() -> list[Alert]:
            changed = self.evaluator.judge(due, now_s)
            alerts = [track_evaluation.with_causes(alert, self.state) for alert in changed]
            self.state.events.update_advice(due, self.state.tracks)
            return alerts

        return self.guard("detectors", work) or []

    def _conditions(self, now_s: float) -> tuple[list[Alert], list[Decision]]:
        """Open and resolve condition alerts, take steps of ``[act]``, and send notices of them."""
        self.guard.do(When.CONDITIONS, now_s)
        conditions = self.conditions
        if self.ladder.may_act:
            self.guard("act", lambda: conditions.include(self.ladder.acted_on()))
        changed = self.guard("condition alerts", partial(conditions.step, now_s)) or []
        if self.ladder.may_act:
            look = self.context.idle_memory.refresh
            self.guard("steps", partial(self.ladder.step, now_s, look))
        holders = [*self.state.conditions.values()]
        decisions = self._notify_of(CONDITIONS, holders, changed, now_s)
        restored = self.state.restored
        unclaimed = restored.unclaimed(now_s) if restored.alerts else []
        return changed, decisions + self._notify_of(PREVIOUS_RUN, unclaimed, [], now_s)

    def _notify(self, label: str, changed: list[Alert], now_s: float) -> list[Decision]:
        return self._notify_of(label, self.state.alerted(label), changed, now_s)

    def _notify_of(
        self, label: str, holders: Sequence[AlertHolder], changed: list[Alert], now_s: float
    ) -> list[Decision]:
        notifier = self.alert_notifier
        waiting = label in notifier.open_alerts or notifier.resolved.pending_resolved
        if not (holders or changed or waiting):
            return []  # As in most ticks.
        notify = partial(notifier.notify, label, holders, changed, now_s)
        return self.guard("policy", notify) or []

    def _show(self, now_s: float, problems: Sequence[Problem]) -> LiveState:
        self.live.count_tick()
        look = partial(self._live_state, now_s, problems)
        live_state = self.guard("snapshot", look) or self.live.last
        self.guard("live state", partial(self.live.write, live_state))
        return live_state

    def _live_state(self, now_s: float, extra: Sequence[Problem]) -> LiveState:
        problems = [*self.problems(), *extra]
        return self.live.snapshot(now_s, problems, self.alert_notifier.deaths.to_show(now_s))

    def problems(self) -> list[Problem]:
        """Return what is missing or broken now, one sentence each with its code."""
        texts = [*self.guard.problems, *self.state.tracks.unjudged.values()]
        texts += self.alert_notifier.failing.values()
        if self.link is not None:
            texts += self.link.history.problems
        texts += self.context.problems()
        return [
            *self.sources.problems(),
            *[(text, ProblemCode.OTHER) for text in texts],
            *[(text, ProblemCode.CHANNEL) for text in self.outbox.problems()],
        ]

    def close(self, problems: Sequence[Problem] = ()) -> None:
        """Write what is left, leave a last live state that says so, and stop reading.

        In this order: a driver that hangs while it is let go must cost nothing that is written.
        """
        self.guard("buttons", self.buttons.close)
        self.context.close()
        self.guard("outbox", lambda: self.outbox.close(timeout_s=_LAST_MESSAGES_S))
        last = partial(self._live_state, self._clocks.wall(), problems)
        self.guard("live state", lambda: self.live.write_last(last()))
        if self.run_baselines is not None:
            self.guard("run baselines", self.run_baselines.close)
        if self.link is not None:
            self.guard("history", self.link.history.close)
        for worker in self.sources.workers.values():
            self.guard("close", worker.close)
