"""``backtest --act``: which steps on leaks the bar would have allowed, and what came of them.

The same countdown as live, over the judgements of a replay. Nothing is done to anything: steps on a
leak are proposed in every mode, and this is what tells how good they would have been. Assumed is
what no record tells: notices arrive, targets opted in, and where checkpoints are not known a job
has one.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from gpuwatchd import alerts as policy
from gpuwatchd.alerts import ladder
from gpuwatchd.core.codes import ActHold
from gpuwatchd.core.model import Alert, Severity, Value
from gpuwatchd.pipeline import (
    backtest,
    history_log,
    proposals,
    recorded_ledger,
    recorded_runs,
    replay,
)
from gpuwatchd.pipeline import track_evaluation as evaluation
from gpuwatchd.store import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.config import ActSection, Config
    from gpuwatchd.core.model import ActMode, ActStep, Device, Silence, Subject
    from gpuwatchd.pipeline.backtest import BacktestCase, DeviceReport
    from gpuwatchd.pipeline.recorded_runs import Busy
    from gpuwatchd.pipeline.track import Track
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import Checkpoint, UserLabel

Outcome = Literal["died", "full", "ended", "released", "stopped", "running"]
_OUTCOMES: dict[str, Outcome] = {
    "filled": "full", "given-back": "released", "plateaued": "stopped", "ended": "ended",
    "open": "running",
}  # fmt: skip
_LAST: frozenset[ActStep] = frozenset({"restart", "requeue", "end"})


def is_last(taken: Sequence[ActStep]) -> bool:
    """Say whether after these steps there is no run that another one could be for."""
    return not _LAST.isdisjoint(taken)


class ActCase(Value, frozen=True, kw_only=True):
    """One step that the evidence would have allowed, or one alert for which there was none."""

    case: BacktestCase
    step: ActStep | None = None
    at_s: float | None = None
    """When its minute came; None where the evidence never was enough for so long."""
    hold: ActHold | None = None
    """Why it would not have been taken; None where it would."""

    @property
    def outcome(self) -> Outcome:
        """What became of the run."""
        fate = self.case.fate
        return "died" if fate.came == "filled" and fate.ended else _OUTCOMES[fate.came]

    @property
    def right(self) -> bool | None:
        """Whether the run ended near its limit: the user's word, else the record; else None.

        One that ended elsewhere did not, whoever ended it. One that is full and goes on may end.
        """
        if self.case.word is not None:
            return self.case.word == "leak"
        return {"died": True, "full": None, "running": None}.get(self.outcome, False)

    @property
    def left_s(self) -> float | None:
        """Time from the step to the end, or to the full memory; None when there was neither."""
        if self.at_s is None or self.outcome not in {"died", "full", "ended"}:
            return None
        return self.case.fate.at_s - self.at_s


class ActTally(Value, frozen=True, kw_only=True):
    """What all steps came to."""

    alerts: int
    """On memory that grows; of each it is told whether a step would have followed."""
    taken: int
    right: int
    wrong: int
    unknown: int
    held: int
    """Steps for which the evidence was enough, and that something else held back."""
    gpu_hours: float
    cases: tuple[ActCase, ...]

    @property
    def taken_per_day(self) -> float | None:
        """Steps a GPU and day; None where nothing is recorded."""
        return self.taken / (self.gpu_hours / 24.0) if self.gpu_hours else None


class Rule(Value, frozen=True, kw_only=True):
    """One rule that would act on idle memory, as the daemon keeps when it began."""

    by_override: bool
    since_at_s: float | None
    """None: no daemon has run with it yet."""

    @property
    def acts_from_at_s(self) -> float | None:
        """Until then it proposes only."""
        return None if self.since_at_s is None else self.since_at_s + ladder.NEW_RULE_S


class Circumstances(Value, frozen=True, kw_only=True):
    """What a history tells that may hold a step back; of a log nothing is known."""

    labels: tuple[UserLabel, ...] = ()
    silences: tuple[Silence, ...] = ()
    faults: tuple[Alert, ...] = ()
    """Alerts about the hardware."""
    cuts_at_s: tuple[float, ...] = ()
    """When time went on differently: each ends every countdown."""
    saved: tuple[Checkpoint, ...] | None = None

    def moment(
        self, alert: Alert, now_s: float, *, sample_age_s: float, interval_s: float,
        is_held: bool = False,
    ) -> ladder.Moment:  # fmt: skip
        """Return what kept a step from being taken then."""
        subject = alert.subject
        silences = [
            replace(silence, cleared_at_s=None)
            for silence in self.silences
            if silence.from_at_s <= now_s < (silence.cleared_at_s or math.inf)
        ]
        return ladder.Moment(
            sample_age_s=sample_age_s,
            interval_s=interval_s,
            has_fault=any(
                fault.subject.device_uid == subject.device_uid
                and (fault.firing_at_s or math.inf) <= now_s < (fault.resolved_at_s or math.inf)
                for fault in self.faults
            ),
            is_silenced=policy.silenced(alert, silences, now_s) is not None,
            is_normal=any(
                label.word == "normal"
                and label.given_at_s <= now_s
                and is_same(label.subject, subject)
                for label in self.labels
            ),
            is_held=is_held,
        )

    def is_cut(self, since_s: float, until_s: float) -> bool:
        """Say whether time went on differently in between."""
        return any(since_s < at_s <= until_s for at_s in self.cuts_at_s)


class _Judgement(msgspec.Struct, frozen=True):
    at_s: float
    hold: ActHold | None
    left_s: float | None
    severity: Severity


class _Watcher(recorded_runs.LearningEvaluator):
    """Keeps what the bar for a leak says of each judgement while an alert fires."""

    def __init__(
        self, config: Config, log: LogFile, *, labels: Sequence[UserLabel], busy: Busy | None
    ) -> None:
        super().__init__(config, log, labels=labels, busy=busy)
        self.judgements: dict[str, list[_Judgement]] = {}
        self._in_a_row: dict[str, int] = {}

    def judge_each(self, tracks: Iterable[Track], now_s: float) -> list[Alert]:
        """Judge each of these tracks by itself; return the alerts whose state changed."""
        tracks = [*tracks]
        before = [track.judged_s for track in tracks]
        changed = super().judge_each(tracks, now_s)
        for track, judged_s in zip(tracks, before, strict=True):
            finding, alert, subject = track.finding, track.alert, track.subject.id
            if finding is None or track.judged_s == judged_s:
                continue
            row = self._in_a_row.get(subject, 0) + 1 if finding.tier == "alert" else 0
            self._in_a_row[subject] = row
            if alert is not None and alert.state == "firing":
                hold = ladder.leak_hold(
                    finding, row, float(self.state.settings.config.detection.eta_horizon)
                )
                left_s = None if finding.eta is None else finding.eta.mid_s
                self.judgements.setdefault(subject, []).append(
                    _Judgement(now_s, hold, left_s, alert.severity)
                )
        return changed


def circumstances(history: Reader, since_s: float) -> Circumstances:
    """Return what a history tells of a time that may hold a step back."""
    return Circumstances(
        labels=tuple(history.user_labels()),
        silences=tuple(history.silences(all_of_them=True)),
        faults=tuple(alert for alert in history.alerts(since_s) if alert.kind == "gpu"),
        cuts_at_s=tuple(segment.at_s for segment in history.segments(since_s)),
        saved=tuple(history.checkpoints()),
    )


def rules(history: Reader, config: Config) -> tuple[Rule, ...]:
    """Return since when the rules that would act on idle memory have been in force."""
    modes = {False: config.act.mode == "auto", True: any(o.act == "auto" for o in config.override)}
    return tuple(
        Rule(by_override=one, since_at_s=history.ask(tables.load_instant, name))
        for one, name in proposals.rule_names(config).items()
        if modes[one]
    )


def nothing_to_do(config: Config, steps: Sequence[ActStep] | None = None) -> ActHold | None:
    """Return why none of ``steps`` (those on a leak) would be taken, whatever is recorded."""
    if not (config.act.leak_steps if steps is None else steps):
        return ActHold.NO_STEP
    modes = {config.act.mode, *(rule.act for rule in config.override if rule.act is not None)}
    return ActHold.OBSERVE if modes == {"observe"} else None


def play(
    history: Reader,
    device: Device,
    span: tuple[float, float],
    config: Config,
    *,
    passed: Callable[[float], None] | None = None,
) -> tuple[DeviceReport, list[ActCase]]:
    """Return the alerts of one device's history, and the steps that would have followed."""
    return play_log(
        history_log.load(history, device, *span),
        device,
        config,
        circumstances(history, span[0]),
        words=backtest.user_labels(history),
        busy=partial(backtest.busy_in, history),
        passed=passed,
    )


def play_log(
    log: LogFile,
    device: Device,
    config: Config,
    beside: Circumstances,
    *,
    words: dict[str, list[tuple[float, str]]] | None = None,
    busy: Busy | None = None,
    passed: Callable[[float], None] | None = None,
) -> tuple[DeviceReport, list[ActCase]]:
    """Return the alerts of one device of a log, and the steps that would have followed."""
    log = _part_of(log, device)
    if not log.series:
        return backtest.report_of(log, device), []
    evaluator = _Watcher(config, log, labels=beside.labels, busy=busy)
    results = replay.analyze(log, config, evaluator=evaluator, passed=passed)
    played = backtest.played("as it is", results, log, words or {}, backtest.deaths(log))
    out = []
    for case in played.cases:
        if case.alert_at_s is not None:
            judged = evaluator.judgements.get(case.subject.id, [])
            out += _Walk(case, log, config, evaluator.state.settings.rules, beside).steps(judged)
    return backtest.report_of(log, device, [played]), out


def _part_of(log: LogFile, device: Device) -> LogFile:
    """Return a log with the series of one device alone."""
    part = type(log)(path=log.path, format=log.format, devices=[device], processes=log.processes)
    part.series = [one for one in log.series if one.device.uid == device.uid and one.t_s.size]
    return part


class _Walk:
    """The countdowns of one alert."""

    def __init__(
        self,
        case: BacktestCase,
        log: LogFile,
        config: Config,
        policy_rules: policy.Rules,
        beside: Circumstances,
    ) -> None:
        self._case, self._act, self._beside = case, config.act, beside
        self._own = _series_of(case, log)
        diffs = np.diff(self._own.t_s)
        self._interval_s = max(1.0, float(np.median(diffs))) if diffs.size else 1.0
        info = self._own.process
        finding = case.finding
        self._alert = Alert(
            key=f"leak:{case.subject.id}", kind="leak", subject=case.subject, state="firing",
            severity=policy.grade(finding), finding=finding, opened_at_s=case.alert_at_s or 0.0,
            changed_at_s=case.alert_at_s or 0.0,
            about=evaluation.subject_facts(
                self._own.device, info, finding.subject, finding.framework
            ),
        )  # fmt: skip
        effective = policy.rules_for(self._alert, policy_rules)
        mode: ActMode = effective.act or config.act.mode
        self._target: ActHold | None = None
        lists = any(one.process is not None for one in log.series)
        if mode == "observe":
            self._target = ActHold.OBSERVE
        elif case.subject.process is None and (lists or log.format == history_log.HISTORY):
            # There is no process that a step could be for.
            self._target = ActHold.NO_STEP
        elif info is not None and (info.world or 1) > 1 and info.rank != 0:
            self._target = ActHold.RANK

    def steps(self, judgements: Sequence[_Judgement]) -> list[ActCase]:
        """Return the steps in their order; where there is none, why."""
        case, act = self._case, self._act
        over_s = math.inf if case.over_at_s is None else case.over_at_s
        mine = [it for it in judgements if (case.alert_at_s or 0.0) <= it.at_s <= over_s]
        ends_s = [it.at_s for it in mine[1:]] + [min(over_s, float(self._own.t_s[-1]))]
        out: list[ActCase] = []
        countdown: ladder.Countdown | None = None
        last, free_s = ActHold.FEW_JUDGEMENTS, -math.inf
        before_s = -math.inf
        for judgement, until_s in zip(mine, ends_s, strict=True):
            now_s = judgement.at_s
            while now_s < until_s or now_s == judgement.at_s:
                hold = self._hold(judgement, now_s, free_s)
                if hold is not None or self._beside.is_cut(before_s, now_s):
                    countdown, last = None, hold or last
                before_s = now_s
                if hold is not None:
                    break
                step = ladder.next_step(act.leak_steps, len(out))
                if step is None:
                    return out
                if countdown is None:
                    countdown = _begun(step, act, judgement, now_s)
                    last = ActHold.NOTICES
                if countdown.move(now_s) == "act":
                    out.append(self._case_of(step, now_s, [it.step for it in out]))
                    if is_last([step]):
                        return out
                    countdown, free_s = None, now_s + ladder.TARGET_S
                    continue
                now_s = _next_s(countdown, now_s)
        return out or [ActCase(case=case, hold=last)]

    def _case_of(self, step: ActStep, at_s: float, taken: Sequence[ActStep | None]) -> ActCase:
        process, saved = self._case.subject.process, self._beside.saved
        hold = None
        if step in {"restart", "requeue"} and "checkpoint" not in taken and saved is not None:
            has_saved = process is not None and any(
                row.saved_at_s <= at_s and tables.same_process(row.process, process)
                for row in saved
            )
            hold = None if has_saved else ActHold.NO_CHECKPOINT
        return ActCase(case=self._case, step=step, at_s=at_s, hold=hold)

    def _hold(self, judgement: _Judgement, now_s: float, free_s: float) -> ActHold | None:
        t_s = self._own.t_s
        newest = max(int(t_s.searchsorted(now_s, side="right")) - 1, 0)
        alert = replace(self._alert, severity=judgement.severity)
        moment = self._beside.moment(
            alert, now_s, sample_age_s=now_s - float(t_s[newest]), interval_s=self._interval_s
        )
        budget = ActHold.BUDGET_TARGET if now_s < free_s else None
        return self._target or judgement.hold or ladder.moment_hold(moment) or budget


def _series_of(case: BacktestCase, log: LogFile) -> LogSeries:
    every = (*log.series, *recorded_ledger.unowned(log.series))
    at_s = case.alert_at_s or 0.0
    mine = [one for one in every if one.subject.id == case.subject.id]
    return next((it for it in mine if it.t_s[0] <= at_s <= it.t_s[-1] + 600.0), mine[0])


def _begun(step: ActStep, act: ActSection, judgement: _Judgement, now_s: float) -> ladder.Countdown:
    """Return a countdown whose first notice is this one: half of what is left, at most the gap."""
    gap_s = float(act.notice_gap)
    if judgement.left_s is not None:
        gap_s = min(gap_s, judgement.left_s / 2.0)
    countdown = ladder.Countdown(step=step, wanted=act.notices, gap_s=gap_s)
    notify(countdown, now_s)
    return countdown


def notify(countdown: ladder.Countdown, now_s: float) -> None:
    """Let a notice arrive now."""
    countdown.named("", now_s, -(now_s + countdown.gap_s) % 60.0)
    countdown.notices[-1].sent_mono_s = now_s


def _next_s(countdown: ladder.Countdown, now_s: float) -> float:
    """Return when a countdown moves next; a notice that is due now is sent."""
    if countdown.move(now_s) == "notify":
        notify(countdown, now_s)
    due_s = countdown.due_mono_s
    next_s = countdown.notices[-1].named_mono_s + countdown.gap_s if due_s is None else due_s
    # A sum that is rounded down must not be waited for without end.
    return max(next_s, now_s + 1.0)


# All devices together: what one host may do in a day.


def budgeted(cases: Iterable[ActCase]) -> list[ActCase]:
    """Return the cases of one host in the order of time, those beyond a budget held."""
    out: list[ActCase] = []
    taken: list[tuple[float, ActCase]] = []
    for it in sorted(
        cases, key=lambda it: it.case.alert_at_s or 0.0 if it.at_s is None else it.at_s
    ):
        held = it
        if it.at_s is not None and it.hold is None:
            mine = [at_s for at_s, other in taken if is_same(other.case.subject, it.case.subject)]
            hold = ladder.budget_hold(mine, [at_s for at_s, _ in taken], it.at_s)
            held = replace(it, hold=hold)
            if hold is None:
                taken.append((it.at_s, it))
        out.append(held)
    return out


def is_same(one: Subject, other: Subject) -> bool:
    """Say whether two subjects are of one process, or the same where they are of none."""
    if one.process is None or other.process is None:
        return one == other
    return tables.same_process(one.process, other.process)


def tally(reports: Iterable[DeviceReport], cases: Sequence[ActCase]) -> ActTally:
    """Return what all steps came to, on all devices."""
    taken = [it for it in cases if it.at_s is not None and it.hold is None]
    reports = [*reports]
    alerts = sum(
        case.alert_at_s is not None
        for report in reports
        for played in report.played
        for case in played.cases
    )
    spans = [(it.ended_at_s or 0.0) - (it.begun_at_s or 0.0) for it in reports]
    return ActTally(
        alerts=alerts,
        taken=len(taken),
        right=sum(it.right is True for it in taken),
        wrong=sum(it.right is False for it in taken),
        unknown=sum(it.right is None for it in taken),
        held=sum(it.at_s is not None and it.hold is not None for it in cases),
        gpu_hours=sum(spans) / 3600.0,
        cases=tuple(cases),
    )
