"""One tick: every source read, every subject that is due judged, everybody told who must be."""

from __future__ import annotations

import enum
import logging
import math
import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from gpuwatchd import __version__
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Alert, Decision, Fault, Finding, Sample
from gpuwatchd.notify.outbox.outbox import Dispatcher, Outbox
from gpuwatchd.pipeline import alert_notifier, event_log, restored_state
from gpuwatchd.pipeline.act_ladder import ActLadder
from gpuwatchd.pipeline.action_handler import ActionHandler
from gpuwatchd.pipeline.active_silences import ActiveSilences
from gpuwatchd.pipeline.alert_cost import Costing
from gpuwatchd.pipeline.alert_notifier import AlertNotifier, MessageBuilder
from gpuwatchd.pipeline.clock import Clock
from gpuwatchd.pipeline.condition_alerts import SOURCE as ALARMS
from gpuwatchd.pipeline.condition_alerts import ConditionAlerts
from gpuwatchd.pipeline.declared_sizes import DeclaredSizes
from gpuwatchd.pipeline.digests import Digests
from gpuwatchd.pipeline.engine_readings import Serving
from gpuwatchd.pipeline.event_log import DeviceLog, EventLog
from gpuwatchd.pipeline.history_exchange import HistoryLink, Last
from gpuwatchd.pipeline.idle_memory import IdleMemory
from gpuwatchd.pipeline.live_state import LiveDevices, UndeliveredAlerts
from gpuwatchd.pipeline.memory_limits import MemoryLimits
from gpuwatchd.pipeline.prepared_processes import PreparedProcesses
from gpuwatchd.pipeline.restored_state import EARLIER
from gpuwatchd.pipeline.run_baselines import RunBaselines
from gpuwatchd.pipeline.source_workers import SourceWorker, labelled
from gpuwatchd.pipeline.state import Settings
from gpuwatchd.pipeline.step_runner import StepRunner
from gpuwatchd.pipeline.track_evaluation import Watcher
from gpuwatchd.pipeline.tracker import SampleIntake
from gpuwatchd.store import live
from gpuwatchd.store.live import LiveState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gpuwatchd.collect.host import Host
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.ports import Source
    from gpuwatchd.pipeline.alert_notifier import AlertHolder
    from gpuwatchd.store.writer import History

T = TypeVar("T")
_LOG_AGAIN_S = 60.0

log = logging.getLogger("gpuwatchd")


class When(enum.Enum):
    """At which place of a tick a chore is done."""

    BEFORE = enum.auto()
    """Before anything is sampled: what people have said meanwhile."""
    BESIDE = enum.auto()
    """After the judgements: what no curve tells, for the alerts on it."""
    AFTER = enum.auto()
    """When all alerts stand: what is sent and written."""
    LAST = enum.auto()
    """When everybody knows."""


class Chore(NamedTuple):
    """What a tick does beside samples and alerts, on its own thread.

    What may block gets a thread of its own, and a chore that looks after it.
    """

    name: str
    when: When
    run: Callable[[float], object]
    """Gets the time: of people, beside the judgements that of the first sample; epoch seconds."""
    budget_s: float = 0.25
    """What takes longer is logged: the next sample waits for it."""


class Guard:
    """Runs parts; what they raise is logged once a minute and remembered while it lasts."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._failed: dict[str, tuple[str, float]] = {}
        self._slow: dict[str, float] = {}

    @property
    def whys(self) -> list[str]:
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
        except Exception as error:
            why = f"{where}: {error}" if str(error) else f"{where}: {type(error).__name__}"
            at_s = self._mono()
            if self._failed.get(where, ("", -_LOG_AGAIN_S))[1] <= at_s - _LOG_AGAIN_S:
                known = isinstance(error, GpuwatchdError)
                log.log(
                    logging.ERROR, "failed part=%s error=%r", where, str(error), exc_info=not known
                )
                self._failed[where] = (why, at_s)
            return None
        taken_s = time.perf_counter() - begun_s
        if taken_s > budget_s and self._slow.get(where, -_LOG_AGAIN_S) <= begun_s - _LOG_AGAIN_S:
            self._slow[where] = begun_s
            log.warning("slow part=%s took_s=%.2f budget_s=%g", where, taken_s, budget_s)
        if self._failed:
            self._failed.pop(where, None)
        return result


_RSS_EVERY_TICKS = 12
_LAST_MESSAGES_S = 1.5
"""How long the end waits for messages that are being sent."""


Problem = tuple[str, ProblemCode]


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
    """The main job.

    Parameters
    ----------
    sources
        Read every tick, each in its own thread.
    host
        Looks processes up; None where the sources know them themselves.
    history
        Where samples and alerts are kept; None keeps nothing.
    runtime_dir
        Where the live state is written each tick; None writes none.
    message_dispatcher
        Carries messages; None tells nobody.
    fresh
        Makes the source at a position anew: for one whose thread is stuck in a driver.
    absences
        Makes sentences of why each source gives nothing (None: it does not); None tells them all.
    wall, mono
        Clocks, for what has no sample to take its time from.
    """

    def __init__(  # noqa: PLR0913, PLR0915 - the one place where everything meets
        self,
        *,
        config: Config,
        sources: Sequence[Source],
        host: Host | None = None,
        history: History | None = None,
        runtime_dir: Path | None = None,
        message_dispatcher: Dispatcher | None = None,
        fresh: Callable[[int], Source] | None = None,
        absences: Callable[[list[Fault | None]], list[Problem]] | None = None,
        wall: Callable[[], float] = time.time,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings = Settings(config)
        self.watcher = Watcher(settings)
        self.intake = SampleIntake(self.watcher, host)
        self.prepared = PreparedProcesses(self.intake)
        self._guard = Guard(mono)
        self._device_log = DeviceLog(mono)
        self._history_link = None if history is None else HistoryLink(history, self.intake)
        self._absences = absences
        self.workers = {
            label: SourceWorker(
                source,
                deadline_s=config.daemon.source_deadline,
                fresh=partial(fresh, position) if fresh is not None else None,
            )
            for position, (label, source) in enumerate(labelled(sources))
        }
        self.history = history
        self.runtime_dir = runtime_dir
        self.run_baselines = (
            None if history is None else RunBaselines(self.watcher, self.intake, history.shelf)
        )
        self.outbox = Outbox(
            message_dispatcher, history, policy=config.policy, wall=wall, mono=mono
        )
        self._undelivered = UndeliveredAlerts(history, self.outbox.reach)
        self.event_log = EventLog(history)
        self.serving = Serving(settings, host)
        self.declared = DeclaredSizes(self.intake, self.serving, host)
        self.limits = MemoryLimits(self.intake, host, mono)
        self.holdings = IdleMemory(settings, self.intake, self.serving, host)
        self.silencing = ActiveSilences(None if history is None else history.shelf, mono)
        self.alarms = ConditionAlerts(settings, self.intake, self.holdings)
        self.costing = Costing(settings, self.intake, history)
        self.holdings.price, self.costing.holdings = self.costing.price, self.holdings
        booted_at_s = None if host is None else host.booted_at_s
        shelf = None if history is None else history.shelf
        self.ladder = ActLadder(
            settings, self.intake, self.holdings, self.outbox,
            runner=StepRunner(
                shelf, self.costing.saved, wall=wall, mono=mono, booted_at_s=booted_at_s
            ),
            silencing=self.silencing,
        )  # fmt: skip
        self.action_handler = ActionHandler(
            settings, silencing=self.silencing, shelf=shelf,
            booted_at_s=booted_at_s, ladder=self.ladder,
        )  # fmt: skip
        self.message_builder = MessageBuilder(
            settings, self.intake, self.costing, ladder=self.ladder, booted_at_s=booted_at_s
        )
        self.alert_notifier = AlertNotifier(
            self.watcher, self.outbox, history,
            message_builder=self.message_builder, silencing=self.silencing, wall=wall, mono=mono,
        )  # fmt: skip
        self.digests = Digests(
            self.outbox, history, self.holdings, self.costing.of, self.alert_notifier.sent
        )
        self.extra_problems: tuple[Problem, ...] = ()
        """What the daemon wants shown beside our own (a refused configuration, a late chore)."""
        self.answered = 0
        """Sources that answered in the last tick."""
        self._host = host
        self._wall = wall
        self._mono = mono
        self._started_at_s = wall()
        self._ticks = 0
        self._rss_bytes: int | None = None
        self._clock, self._scene = Clock(), LiveDevices()
        self._judged: tuple[int, dict[str, Finding]] = (-1, {})
        self._pieces = live.Pieces()
        chores = tuple(self._all_chores())
        self._chores = {when: [it for it in chores if it.when is when] for when in When}

    def reconfigure(self, config: Config) -> None:
        """Take over new settings; sources stay as they are."""
        self.settings.replace(config)
        self.ladder.reloaded()
        self.outbox.policy = config.policy
        self.intake.look_back(config.detection.analysis_window_hours * 3600.0)
        for worker in self.workers.values():
            worker.deadline_s = config.daemon.source_deadline

    def resume(self) -> None:
        """Take up what the history and the live state know: points, alerts, unsent messages."""
        directory = self.runtime_dir
        before = None
        if directory is not None:
            before = self._guard("live state", lambda: live.read(directory))
        if self._history_link is not None:
            link, now_s = self._history_link, self._wall()
            last = Last.of(before, self._boot_id(), now_s, now_s - self._mono())
            self._guard("mailboxes", lambda: self.prepared.resume(link.allocators(now_s, last)))
            self._guard(
                "history",
                lambda: link.resume(self.outbox, self.alarms, self.alert_notifier, now_s, last),
            )
        if directory is not None:
            self._guard("holdings", lambda: self.holdings.resume(before))
            self._guard("events", lambda: self.event_log.resume(before))

    def tick(self) -> Tick:
        """Do the whole job once. Never raises: what fails is a fault, logged and shown."""
        samples: list[Sample] = []
        changes: list[Alert] = []
        decisions: list[Decision] = []
        taken_at_s: float | None = None
        self._do(When.BEFORE, self._wall())
        for label, worker in self.workers.items():
            answer = self._ask(label, worker)
            if isinstance(answer, Sample):
                samples.append(answer)
                now_s, changed = self._take(label, worker.source, answer)
                taken_at_s = now_s if taken_at_s is None else taken_at_s
                changed += self._judge(label, now_s)
            else:
                self.intake.silent(label, worker.absent or Fault(where="", why="no answer"))
                silent_s, changed = self._clock.now(label, self._mono()), []
                if silent_s is None:
                    continue
                now_s = silent_s
            decisions += self._notify(label, self.intake.alerted(label), changed, now_s)
            changes += changed
        self.answered = len(samples)
        shown_s = self._wall() if taken_at_s is None else taken_at_s
        self._do(When.BESIDE, shown_s)
        beside, held = self._conditions(shown_s)
        changes, decisions = changes + beside, decisions + held
        self._do(When.AFTER, self._wall())
        self._ticks += 1
        state = self._state(shown_s)
        if self.runtime_dir is not None:
            directory = self.runtime_dir
            self._guard("live state", lambda: live.write(directory, state, self._pieces))
        self._do(When.LAST, self._wall())
        return Tick(
            samples=tuple(samples), findings=self._findings(), alerts=state.alerts,
            changes=tuple(changes), decisions=tuple(decisions), state=state,
        )  # fmt: skip

    def _all_chores(self) -> Iterator[Chore]:
        """Yield all that is done beside samples and alerts, in order."""
        if self.run_baselines is not None:
            listen = self.run_baselines.listen
            yield Chore("feedback", When.BEFORE, lambda _: listen())
        yield Chore("silences", When.BEFORE, self.silencing.refresh)
        yield Chore("buttons", When.BEFORE, partial(self.action_handler.step, self._open_alerts))
        yield Chore("beside the curve", When.BESIDE, self._look_beside)
        yield Chore("holdings", When.BESIDE, self.holdings.update)
        yield Chore("checkpoints", When.BESIDE, lambda _: self.costing.step(self._wall()))
        yield Chore("digest", When.AFTER, self.digests.step)
        # Asked anew: a digest that takes long is no step of the wall clock.
        yield Chore("outbox", When.AFTER, lambda _: self.outbox.collect(self._wall()))
        if self.history is not None:
            yield Chore("history", When.AFTER, self.history.flush_due, budget_s=1.0)
        if self.run_baselines is not None:
            step = self.run_baselines.step
            # Now that everybody knows: this may take some milliseconds.
            yield Chore("knowledge", When.LAST, lambda _: step())

    def _do(self, when: When, now_s: float) -> None:
        for chore in self._chores[when]:
            self._guard(chore.name, partial(chore.run, now_s), budget_s=chore.budget_s)

    def _look_beside(self, _: float) -> None:
        """Let what no curve tells be read, where somebody is new or its time has come."""
        present = self.intake.people.present(self.intake.devices.values())
        self._guard("endpoints", lambda: self.serving.step(present))
        news = (present, self.serving.readings, self.intake.created)
        told = bool(self.declared.waiting) or news != self.declared.news
        if told:
            self._guard("declared sizes", lambda: self.declared.step(news))
        if told or self._mono() >= self.limits.due_s:
            self._guard("memory limits", lambda: self.limits.step(told=told))

    def _conditions(self, now_s: float) -> tuple[list[Alert], list[Decision]]:
        """Raise and end alerts on what no curve tells; return changes, and who is told."""
        alarms, ladder = self.alarms, self.ladder
        if ladder.may_act:
            self._guard("act", lambda: alarms.include(ladder.acted_on(alarms.alarms.values())))
        changed = self._guard("alarms", lambda: alarms.step(now_s)) or []
        if ladder.may_act:
            self._guard("steps", lambda: ladder.step(alarms.alarms.values(), now_s))
        decisions = self._notify(ALARMS, list(self.alarms.alarms.values()), changed, now_s)
        return changed, decisions + self._notify(
            EARLIER, self.intake.restored.unseen(now_s), [], now_s
        )

    def _findings(self) -> dict[str, Finding]:
        """Return every newest judgement; the same dictionary until there is a newer one."""
        looks, findings = self._judged
        if looks != self.watcher.looks:
            findings = {
                key: track.finding
                for key, track in self.watcher.tracks.items()
                if track.finding is not None
            }
            self._judged = (self.watcher.looks, findings)
        return findings

    def _ask(self, label: str, worker: SourceWorker) -> Sample | Fault | None:
        try:
            return worker.read(self._mono())
        except Exception as error:
            # Making a source anew may fail in any way; the tick goes on without it.
            log.debug("failed part=%s", label, exc_info=True)
            return Fault(where=label, why=str(error) or type(error).__name__)

    def _take(self, label: str, source: Source, sample: Sample) -> tuple[float, list[Alert]]:
        """Feed one sample; return its time on the detectors' clock and the alerts it ended."""
        now_s, step_s = self._clock.stamp(label, sample, self._mono())
        if step_s is not None:
            log.warning("clock stepped source=%s by_s=%.1f", label, step_s)
            self.alert_notifier.move(label, self.intake.move(label, step_s), step_s)
            if label == next(iter(self.workers)):  # by whose clock alarms go
                moved = self.alarms.move(step_s) + self.intake.restored.move(step_s)
                self.alert_notifier.move(ALARMS, moved, step_s)
                self.alert_notifier.deaths.move(step_s)
        devices = self._guard(f"{label} devices", lambda: tuple(source.devices())) or ()
        ended = self._guard(
            f"{label} intake", lambda: self.intake.take(label, sample, devices, now_s)
        )
        inside = self._guard("mailboxes", lambda: self.prepared.feed(label, now_s, self._wall()))
        self._guard("device log", lambda: self._device_log.update(label, self.intake.devices))
        named = partial(
            event_log.with_process_names, sample, self.intake.devices, self.intake.infos
        )
        self._guard("events", lambda: self.event_log.take(named()))
        if self._history_link is not None:
            link = self._history_link
            self._guard("history", lambda: link.record(sample, devices, step_s, inside or ()))
        return now_s, ended or []

    def _judge(self, label: str, now_s: float) -> list[Alert]:
        """Do what the user said of a source's subjects, then judge what is due, at its own time."""
        ended: list[Alert] = []
        if self.run_baselines is not None:
            obey = partial(self.run_baselines.obey, self.intake.tracks(label), now_s)
            ended = self._guard("feedback", obey) or []
        due = self.intake.due(label, now_s)
        if not due:
            return ended

        def work() -> list[Alert]:
            changed = self.watcher.judge(due, now_s)
            changed = restored_state.take_over(self.watcher, self.intake.devices, changed, now_s)
            alerts = [self._blame(alert) for alert in changed]
            self.event_log.accompany(due, self.watcher.tracks)
            return alerts

        return ended + (self._guard("detectors", work) or [])

    def _blame(self, alert: Alert) -> Alert:
        device = self.intake.devices.get(alert.subject.device_uid)
        if device is None:
            return alert
        told = alert_notifier.with_attribution(
            alert, device, self.intake.infos, self.watcher.tracks
        )
        return self.event_log.advised(told, device.device, self.watcher.tracks)

    def _notify(
        self, label: str, bearers: Sequence[AlertHolder], changed: list[Alert], now_s: float
    ) -> list[Decision]:
        if not (bearers or changed or self.alert_notifier.is_busy(label)):
            return []  # As in most ticks.
        told = partial(self.alert_notifier.notify, label, bearers, changed, now_s)
        return self._guard("policy", told) or []

    def problems(self) -> list[Problem]:
        """Return what is missing or broken now, one sentence each with its code."""
        faults = [worker.absent for worker in self.workers.values()]
        other = ProblemCode.OTHER
        told = (
            self._absences(faults) if self._absences else [(it.text, other) for it in faults if it]
        )
        texts = self._guard.whys
        texts += [*self.watcher.unjudged.values(), *self.alert_notifier.failing.values()]
        if self.history is not None:
            texts += self.history.problems
        texts += [*self.serving.problems, *self.costing.problems]
        texts += [f"{path} {why}" for path, why in self.limits.faults.items()]
        return [
            *told,
            *((text, other) for text in texts),
            *((text, ProblemCode.CHANNEL) for text in self.outbox.problems()),
            *self.extra_problems,
        ]

    def _open_alerts(self) -> list[Alert]:
        alerts = [track.alert for track in self.watcher.tracks.values()]
        alerts += [alarm.alert for alarm in self.alarms.alarms.values()]
        return [alert for alert in alerts if alert and alert.state in {"watch", "firing"}]

    def _pending(self) -> Iterator[Alert]:
        """Yield the alerts that are not open yet; those of a rank that another stands for never."""
        for track in self.watcher.tracks.values():
            alert = track.alert
            if alert is not None and alert.state == "pending" and track.lead is None:
                yield alert

    def _boot_id(self) -> str:
        return "" if self.history is None else self.history.boot_id

    def _state(self, now_s: float) -> LiveState:
        if self._host is not None and self._ticks % _RSS_EVERY_TICKS == 1:
            self._rss_bytes = self._host.own_rss_bytes()
        infos = self.serving.with_models(self.intake.infos)
        pair = (self.intake.infos.changes, self.serving.named)
        devices = [
            self._scene.device(
                device,
                spark=self._scene.spark(uid, position, self._ticks, self.watcher.tracks),
                infos=infos,
                known=pair,
                events=self.event_log.recent(uid),
            )
            for position, (uid, device) in enumerate(self.intake.devices.items())
        ]
        problems = self.problems()
        return LiveState(
            pid=os.getpid(),
            version=__version__,
            coded=True,
            started_at_s=self._started_at_s,
            taken_at_s=now_s,
            interval_s=float(self.settings.config.daemon.interval),
            ticks=self._ticks,
            devices=tuple(devices),
            boot_id=self._boot_id(),
            clock_ahead_s=self._wall() - self._mono(),
            alerts=(*self._open_alerts(), *self.intake.restored.alerts.values()),
            pending=tuple(self._pending()),
            problems=tuple([text for text, _ in problems]),
            problem_codes=tuple([code for _, code in problems]),
            rss_bytes=self._rss_bytes,
            holdings=self.holdings.found,
            silences=self.silencing.active,
            channels=self.outbox.channel_health(),
            untold=self.outbox.reach.untold(), lost=self._undelivered.lost(now_s),
            deaths=self.alert_notifier.deaths.unseen(now_s),
            servers=self.serving.readings,
        )  # fmt: skip

    def close(self) -> None:
        """Write what is left, leave a last live state that says so, and stop reading.

        In this order: a driver that hangs while it is let go must cost nothing that is written.
        """
        self._guard("buttons", self.action_handler.close)
        self._guard("endpoints", self.serving.close)
        self._guard("declared sizes", self.declared.close)
        self._guard("outbox", lambda: self.outbox.close(timeout_s=_LAST_MESSAGES_S))
        if self.runtime_dir is not None:
            directory = self.runtime_dir
            last = msgspec.structs.replace(self._state(self._wall()), stopped=True)
            self._guard("live state", lambda: live.write(directory, last))
        if self.history is not None:
            if self.run_baselines is not None:
                self._guard("knowledge", self.run_baselines.close)
            self._guard("history", self.history.close)
        for worker in self.workers.values():
            self._guard("close", worker.close)
