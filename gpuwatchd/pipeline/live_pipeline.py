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
from gpuwatchd.pipeline.run_baselines import RunBaselines
from gpuwatchd.pipeline.source_workers import Sources
from gpuwatchd.pipeline.state import PREVIOUS_RUN, Settings, State
from gpuwatchd.pipeline.step_runner import StepRunner
from gpuwatchd.pipeline.tick import Pipeline, Stages
from gpuwatchd.pipeline.track import Track
from gpuwatchd.pipeline.track_evaluation import Evaluator
from gpuwatchd.pipeline.tracker import SampleIntake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Alert, Decision, ProcessInfo, ProcessUse
    from gpuwatchd.pipeline.alert_notifier import AlertHolder
    from gpuwatchd.pipeline.live_state import Inputs
    from gpuwatchd.pipeline.tick import Problem, SourceTick
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.store.profiles import ProfileStore

    _Uses = tuple[ProcessUse, ...] | None

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
    due: Callable[[], bool] | None = None
    """Says by a comparison or two whether there is anything to do; None: in each tick."""
    budget_s: float = 0.25
    """What takes longer is logged: the next sample waits for it."""


class Guard:
    """Runs parts and chores; what they raise is logged once a minute, and shown while it lasts."""

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
        return self.each(((where, work),), budget_s=budget_s)[0]

    def each(
        self, parts: Iterable[tuple[str, Callable[[], T]]], *, budget_s: float = math.inf
    ) -> list[T | None]:
        """Run parts one after the other and return what each returns; None where one fails."""
        results: list[T | None] = []
        for where, work in parts:
            begun_s = time.perf_counter()
            try:
                results.append(work())
            except Exception as error:  # noqa: BLE001 - whatever a part raises is its own fault
                self._note_failure(where, error)
                results.append(None)
                continue
            taken_s = time.perf_counter() - begun_s
            if taken_s > budget_s or self._failed:
                self._note_success(where, taken_s, budget_s)
        return results

    def add(self, chores: Iterable[Chore]) -> None:
        """Have chores done from now on, after those that are there."""
        for chore in chores:
            self._chores[chore.when].append(chore)

    def do(self, when: When, now_s: float) -> None:
        """Do the chores of one place of the tick, in order; one that fails costs no other."""
        for chore in self._chores[when]:
            begun_s = time.perf_counter()
            try:
                # What has failed is tried again: it may be well, or have left something undone.
                if chore.due is not None and not chore.due() and not self.fails(chore.name):
                    continue
                chore.run(now_s)
            except Exception as error:  # noqa: BLE001 - as of every part
                self._note_failure(chore.name, error)
                continue
            taken_s = time.perf_counter() - begun_s
            if taken_s > chore.budget_s or self._failed:
                self._note_success(chore.name, taken_s, chore.budget_s)

    def fails(self, where: str) -> bool:
        """Say whether a part failed when it was run last."""
        return where in self._failed

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
        *,
        host: Host | None,
        shelf: ProfileStore | None,
        clocks: Clocks,
    ) -> None:
        self._state = state
        self._guard = guard
        self._shelf = shelf
        self._clocks = clocks
        self._settings: Settings | None = None
        """Those of the last look at servers."""
        # ``State.infos.changes`` and the process lists at the last look, and who was there.
        self._present: tuple[int, list[_Uses], tuple[ProcessInfo, ...]] = (-1, [], ())
        self.serving = Serving(state, host)
        self.declared = DeclaredSizes(state, host)
        self.limits = MemoryLimits(state, host, clocks.mono)
        self.idle_memory = IdleMemory(state, host)
        self.checkpoints = CheckpointSearch(state, shelf)

    def chores(self) -> Iterator[Chore]:
        """Yield what keeps it up to date."""
        yield Chore("process context", When.CONDITIONS, self._refresh)
        yield Chore("idle memory", When.CONDITIONS, self.idle_memory.update)
        yield Chore("power", When.CONDITIONS, self._update_costs, due=self._may_change_costs)

    def _may_change_costs(self) -> bool:
        """Say whether a checkpoint may have been reported or found, or power has a price."""
        shelf, search, config = self._shelf, self.checkpoints, self._state.settings.config
        reported = shelf is not None and shelf.outside != search.outside
        priced = config.cost.electricity_per_kwh is not None
        waits = search.busy or self._guard.fails("checkpoints")
        return reported or priced or waits or bool(config.checkpoints.paths)

    def _update_costs(self, _: float) -> None:
        """Take in checkpoints and power, on which costs and steps depend; by people's clock."""
        now_s = self._clocks.wall()
        self._guard("checkpoints", partial(self.checkpoints.step, now_s))
        self._state.prices.measure(now_s)

    def _refresh(self, _: float) -> None:
        """Read servers, declared sizes and limits, where a process is new or they are due."""
        before, present = self._present[2], self._who_is_present()
        settings, tracks = self._state.settings, self._state.tracks
        news = present is not before or settings is not self._settings
        if self.serving.active or news or self._guard.fails("endpoints"):
            self._settings = settings
            self._guard("endpoints", lambda: self.serving.step(present))
        facts = (present, self._state.engines.readings, tracks.created)
        changed, new_sizes = bool(self.declared.waiting) or facts != self.declared.news, False
        if changed:
            new_sizes = bool(self._guard("declared sizes", lambda: self.declared.step(facts)))
        if changed or self._clocks.mono() >= self.limits.due_s:
            self._guard("memory limits", lambda: self.limits.step(new_sizes=new_sizes))

    def _who_is_present(self) -> tuple[ProcessInfo, ...]:
        """Return who is on a device now, the same tuple until there is anybody else.

        ``State.infos`` remembers those that have left, too.
        """
        infos, (changes, lists, who) = self._state.infos, self._present
        devices = self._state.devices.values()
        now = [device.reading.uses for device in devices if device.reading is not None]
        if infos.changes != changes or now != lists:
            keys = [use.key for uses in now for use in uses or ()]
            here = tuple([infos[key] for key in keys if key in infos])
            self._present = infos.changes, now, who if here == who else here
        return self._present[2]

    def problems(self) -> list[str]:
        """Return what is wrong now, one sentence each."""
        faults = [f"{path} {why}" for path, why in self.limits.faults.items()]
        stuck = [self.checkpoints.problem] if self.checkpoints.busy else []
        return [*self.serving.problems, *filter(None, stuck), *faults]

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
        self._alerted: dict[str, tuple[int, list[Track]]] = {}
        """Source -> its tracks that have an alert, and ``Track.changes`` when they were sought."""
        stages = Stages(
            self.sources.read, self._take, self._due, self._judge, self._notify,
            begin=partial(guard.do, When.BEFORE), conditions=self._conditions,
            send=partial(guard.do, When.AFTER), show=self._show,
            finish=partial(guard.do, When.LAST),
        )  # fmt: skip
        super().__init__(state, stages, clocks)
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
        self.run_baselines = None if shelf is None else RunBaselines(state, shelf)
        self.buttons = ActionHandler(state, shelf=shelf, booted_at_s=booted_at_s)
        self.live = LiveWriter(state, outputs, outbox=self.outbox, host=host, clocks=clocks)
        self.link = None if history is None else HistoryLink(history, state)
        guard.add(self._chores(Digests(state, self.outbox, history, costs, clocks.mono)))

    def _chores(self, digests: Digests) -> Iterator[Chore]:
        """Yield all chores, in order."""
        runs, link, silences = self.run_baselines, self.link, self.state.silences
        shelf = None if link is None else link.history.shelf
        if runs is not None and shelf is not None:
            yield Chore("other programs", When.BEFORE, lambda _: shelf.changed_elsewhere())
            yield Chore(
                "feedback",
                When.BEFORE,
                lambda _: runs.read_labels(),
                due=lambda: runs.outside != shelf.outside,
            )
        yield Chore(
            "silences",
            When.BEFORE,
            silences.refresh,
            due=lambda: bool(silences.active or (shelf and shelf.outside != silences.outside)),
        )
        press = partial(self.buttons.step, self.ladder.press)
        yield Chore("buttons", When.BEFORE, press, due=lambda: self.buttons.busy)
        yield from self.context.chores()
        yield Chore("digest", When.AFTER, digests.step, due=lambda: self._may_be_due(digests))
        # The time is read again: a digest that took long is no step of the wall clock.
        yield Chore("outbox", When.AFTER, lambda _: self.outbox.collect(self._clocks.wall()))
        if link is not None:
            yield Chore("history", When.AFTER, link.history.flush_due, budget_s=1.0)
        if runs is not None:
            yield Chore(
                "run baselines",
                When.LAST,
                lambda _: runs.step(self._clocks.mono()),
                due=self._has_runs,
            )

    def _has_runs(self) -> bool:
        """Say whether a run is to be looked up, or to be learned from."""
        runs, tracks = self.run_baselines, self.state.tracks
        if runs is None:
            return False
        wanted = runs.unapplied or runs.requested or runs.served != tracks.created
        waiting = wanted or tracks.renamed or tracks.ended
        return bool(waiting) or self._clocks.mono() >= runs.scan_mono_s

    def _may_be_due(self, digests: Digests) -> bool:
        settings = self.state.settings.config.policy
        return self._clocks.mono() >= digests.due_mono_s or digests.section is not settings

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
            ahead_s = now_s - self._clocks.mono()
            self.sources.expect(ahead_s)
            last = Last.of(before, self.live.boot_id, now_s, ahead_s)
            prepared = self.intake.prepared
            self.guard("mailboxes", lambda: prepared.resume(link.allocators(now_s, last)))
            self.guard(
                "history",
                lambda: link.resume(self.outbox, self.conditions, self.alert_notifier, now_s, last),
            )
        self.guard("idle memory", lambda: self.context.idle_memory.resume(before))
        self.guard("events", lambda: self.state.events.resume(before))

    def _take(self, source: SourceTick) -> list[Alert]:
        """Take in a sample and note what it tells; return the alerts that it ended."""
        label, sample, now_s, state = source.label, source.sample, source.now_s, self.state
        if source.absent is not None:
            self.intake.mark_unread(label, source.absent)
        if sample is None:
            return []
        if source.step_s is not None:
            self.guard("clock", partial(self._step_clock, label, source.step_s))
        devices = tuple(self.guard(f"{label} devices", source.devices) or ())
        intake, link, runs = self.intake, self.link, self.run_baselines
        parts: list[tuple[str, Callable[[], list[Alert] | None]]] = [
            (f"{label} intake", partial(intake.take, label, sample, devices, now_s)),
            ("mailboxes", partial(intake.prepared.feed, label, now_s, self._clocks.wall())),
            ("events", partial(state.events.take, label, sample, state.devices, state.infos)),
        ]
        if link is not None:
            record = partial(link.record, sample, devices, source.step_s, intake.prepared.news)
            parts.append(("history", record))
        ended = self.guard.each(parts)[0] or []
        if runs is not None and (runs.unapplied or runs.served != state.tracks.created):
            ended += self.guard("feedback", partial(runs.apply_labels, label, now_s)) or []
        return ended

    def _step_clock(self, label: str, step_s: float) -> None:
        """Move what is remembered of a source in time: its wall clock was stepped."""
        notifier, state = self.alert_notifier, self.state
        notifier.move(label, self.intake.move(label, step_s), step_s)
        self.evaluator.turns[label].move(step_s)
        if label == next(iter(self.sources.workers)):  # by whose clock conditions go
            moved = self.conditions.move(step_s) + state.restored.move(step_s)
            notifier.move(CONDITIONS, moved, step_s)
            notifier.deaths.move(step_s)
            self.intake.host_memory.headroom.move(step_s)

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
        at, alerted = self._alerted.get(label, (-1, []))
        if at != Track.changes:
            alerted = self.state.alerted(label)
            self._alerted[label] = Track.changes, alerted
        return self._notify_of(label, alerted, changed, now_s)

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
        look = partial(self._live_state, now_s, problems)
        live_state = self.guard("snapshot", look) or self.live.last
        self.guard("live state", partial(self.live.write, live_state))
        return live_state

    def _live_state(
        self, now_s: float, extra: Sequence[Problem], *, stopped: bool = False
    ) -> LiveState:
        problems, deaths = [*self.problems(), *extra], self.alert_notifier.deaths.to_show(now_s)
        return self.live.snapshot(now_s, problems, deaths, stopped=stopped)

    def problems(self) -> list[Problem]:
        """Return what is missing or broken now, one sentence each with its code."""
        texts = [*self.guard.problems, *self.state.tracks.unjudged.values()]
        texts += self.alert_notifier.failing.values()
        if self.link is not None:
            texts += self.link.history.problems
        texts += self.context.problems()
        return [
            *self.sources.problems,
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
        last = partial(self._live_state, self._clocks.wall(), problems, stopped=True)
        self.guard("live state", lambda: self.live.write(last()))
        if self.run_baselines is not None:
            self.guard("run baselines", self.run_baselines.close)
        if self.link is not None:
            self.guard("history", self.link.history.close)
        for worker in self.sources.workers.values():
            self.guard("close", worker.close)
