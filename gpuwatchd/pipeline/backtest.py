"""The user's own history, replayed: what would have been raised, what came of it, what if.

The same replay as :mod:`gpuwatchd.pipeline.replay`, over the record of one device at a time. Other
settings are tried on those subjects only that grew at all: the rest is silent under each of them.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from gpuwatchd.alerts import FAST_S
from gpuwatchd.analysis import verdict
from gpuwatchd.core.model import EtaRange, Finding, Subject, Value
from gpuwatchd.core.model.alerts import device_title, process_title
from gpuwatchd.pipeline import history_log, recorded_ledger, replay
from gpuwatchd.pipeline.recorded_runs import LearningEvaluator
from gpuwatchd.pipeline.state import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.config import Config, DetectionSection
    from gpuwatchd.core.model import Device, FloatArray, Profile, Series
    from gpuwatchd.pipeline.recorded_runs import Busy
    from gpuwatchd.pipeline.replay import Event, SubjectResult
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import UserLabel

    _Moment = tuple[str, float, float | None, tuple[float, ...], tuple[Profile, ...]]
    Findings = dict[_Moment, Finding | None]

# What came of an alert, judged by what followed, never by what the detectors thought: so it can be
# held against them.

Came = Literal["filled", "given-back", "plateaued", "ended", "open"]
FULL = 0.95
"""From this share of the device's memory on, a subject has reached the limit."""
BRIM = 0.98
ENDED_S = 150.0
"""A process without a row for so long, while its device has some, has ended."""
TEARDOWN_S = 60.0
"""Memory that comes back in the last minute comes back because the process ends."""
BACK_S = 300.0
STAND_S = 1800.0
"""Standing still for half an hour, and for half of the time that it grew, is a stop."""
CREPT_S = 300.0
GREW_SHARE = 0.05
"""A process that gained less of the device than this did not die of its own growth."""
_MIB = float(1 << 20)


class LaterOutcome(Value, frozen=True, kw_only=True):
    """What came of one alert."""

    came: Came
    at_s: float
    """When that could be seen."""
    share: float | None
    """Of the device's memory in use then (the most of it, where it filled)."""
    ended: bool
    """Whether the process ended in the time that is recorded."""

    @property
    def true(self) -> bool | None:
        """Whether the alert came true; None when the record does not tell."""
        return {"filled": True, "given-back": False, "plateaued": False}.get(self.came)


def later_outcome(
    own: LogSeries, device: LogSeries | None, *, from_s: float, onset_s: float, growth: float
) -> LaterOutcome:
    """Return what came of ``growth`` bytes since ``onset_s`` that an alert told at ``from_s``.

    ``own`` reaches to the end of the record; ``device`` is None when it was not recorded.
    """
    t, x = own.t_s, own.used_bytes
    ended = own.process is not None and _ended(own, device)
    first = min(int(t.searchsorted(from_s)), t.size - 1)
    begin = max(int(t.searchsorted(onset_s)), 0)
    level = float(x[max(first - 1, 0)])
    growth = max(growth, 16.0 * _MIB)
    after_t, after = t[first:], x[first:]
    end_s = float(t[-1])
    lived = after_t <= end_s - TEARDOWN_S if ended else np.ones(after_t.size, dtype=bool)
    back_s = _since_below(after_t[lived], after[lived], level - 0.5 * growth)
    when, share = _fullness(own, device, from_s, back_s if back_s is not None else end_s)
    grew_on = float(after[: max(int(after_t.searchsorted(when, side="right")), 1)].max()) - level
    news = (_share_at(own, device, from_s) or 0.0) < FULL or ended
    if share is not None and share >= FULL and grew_on >= 0.1 * growth and news:
        return LaterOutcome(came="filled", at_s=when, share=share, ended=ended)
    at_end = _share_at(own, device, end_s)
    if back_s is not None:
        return LaterOutcome(came="given-back", at_s=back_s, share=at_end, ended=ended)
    stood_s = _stands_since(t[begin:], x[begin:], growth, end_s)
    grew_s = max(stood_s - onset_s, 0.0)
    if end_s - stood_s >= max(STAND_S, 0.5 * grew_s):
        return LaterOutcome(came="plateaued", at_s=max(stood_s, from_s), share=at_end, ended=ended)
    return LaterOutcome(came="ended" if ended else "open", at_s=end_s, share=at_end, ended=ended)


def band_held(
    eta: EtaRange | None, lived: LaterOutcome, *, from_s: float, end_s: float
) -> bool | None:
    """Say whether the limit was reached when the forecast said; None when it cannot be known."""
    if eta is None:
        return None
    high_s = np.inf if eta.high_s is None else eta.high_s
    if lived.came == "filled":
        return bool(eta.low_s <= lived.at_s - from_s <= high_s)
    return False if end_s - from_s > high_s else None


def deaths(log: LogFile) -> dict[str, float]:
    """Return subject id -> when a process ended (or a device was emptied) near the limit.

    Of its own growth, and not at once: what allocates the whole card when it starts is no death.
    """
    device = next((log_series for log_series in log.series if log_series.process is None), None)
    out = {}
    for own in log.series:
        if own.process is None or not _ended(own, device):
            continue
        end_s = float(own.t_s[-1])
        _, share = _fullness(own, device, end_s - 2 * BACK_S, end_s)
        if share is not None and share >= FULL and _crept(own, device):
            out[own.subject.id] = end_s
    if device is not None and len(log.series) == 1:
        out |= _emptied(device)
    return out


def _ended(own: LogSeries, device: LogSeries | None) -> bool:
    last_s = float(device.t_s[-1]) if device is not None and device.t_s.size else 0.0
    return float(own.t_s[-1]) < last_s - ENDED_S


def _total(own: LogSeries) -> float | None:
    return own.total_bytes or own.device.memory_total_bytes or own.limit_bytes


def _fullness(
    own: LogSeries, device: LogSeries | None, from_s: float, until_s: float
) -> tuple[float, float | None]:
    """Return when the device was fullest (or full) in a span, and to which share of it."""
    log_series = own if device is None else device
    total = _total(log_series)
    first, last = log_series.t_s.searchsorted((from_s, until_s + TEARDOWN_S)).tolist()
    if total is None or first >= last:
        return until_s, None
    share = log_series.used_bytes[first:last] / total
    top = float(share.max())
    at = int(np.argmax(share >= min(BRIM, top)))
    return min(float(log_series.t_s[first + at]), until_s), top


def _share_at(own: LogSeries, device: LogSeries | None, at_s: float) -> float | None:
    """Return the most that the device held in the minute before."""
    log_series = own if device is None else device
    total = _total(log_series)
    last = int(log_series.t_s.searchsorted(at_s, side="right"))
    first = min(int(log_series.t_s.searchsorted(at_s - TEARDOWN_S)), last - 1)
    return (
        None
        if total is None or last < 1
        else float(log_series.used_bytes[first:last].max()) / total
    )


def _since_below(t: FloatArray, x: FloatArray, level: float) -> float | None:
    """Return when it first went below ``level`` and stayed there for five minutes."""
    below = x < level
    if not below.any():
        return None
    edge = np.flatnonzero(np.diff(below.astype(np.int8), prepend=0, append=0))
    for begin, end in edge.reshape(-1, 2).tolist():
        until_s = t[end] if end < t.size else t[-1]
        if until_s - t[begin] >= BACK_S:
            return float(t[begin])
    return None


def _stands_since(t: FloatArray, x: FloatArray, growth: float, end_s: float) -> float:
    """Return since when it had (nearly) reached the highest level that it ever reached."""
    if not t.size:
        return end_s
    return float(t[int(np.argmax(x >= float(x.max()) - 0.1 * growth))])


def _crept(own: LogSeries, device: LogSeries | None) -> bool:
    """Say whether a process grew by a twentieth of the device, after its first minutes."""
    total = _total(own if device is None else device)
    t, x = own.t_s, own.used_bytes
    late = x[t.searchsorted(t[0] + CREPT_S) :]
    if total is None or not late.size:
        return False
    return float(late.max() - late[0]) >= GREW_SHARE * total


def _emptied(device: LogSeries) -> dict[str, float]:
    """Return the last time that a full device lost a tenth of its memory within half an hour."""
    total = _total(device)
    if total is None:
        return {}
    t, share = device.t_s, device.used_bytes / total
    full = share >= FULL
    for at in np.flatnonzero(full[:-1] & ~full[1:])[::-1].tolist():
        later = share[at : int(t.searchsorted(t[at] + STAND_S))]
        before = share[int(t.searchsorted(t[at] - CREPT_S)) : at + 1]
        if float(later.min()) <= share[at] - 0.1 and float(before.min()) >= FULL - GREW_SHARE:
            return {device.subject.id: float(t[at])}
    return {}


_THRESHOLD_STEPS = (-0.2, -0.1, 0.1, 0.2)
_HIGHEST = 0.98
_CONFIRM_FACTORS = (2, 5)
_READ_SHARE, _SCOUT_SHARE = 0.1, 0.5
_NEAR_S = 6 * 3600.0
"""The daemon, which saw every sample, may have opened an alert so much sooner or later."""


class Trial(Value, frozen=True, kw_only=True):
    """One set of settings that the history is played under."""

    name: str
    config: Config
    whole: bool = False
    """Play every subject: the settings may wake one that the others leave asleep."""


class BacktestCase(Value, frozen=True, kw_only=True):
    """One alert, or one watch, that would have been raised."""

    subject: Subject
    title: str
    finding: Finding
    """As it was told."""
    watch_at_s: float | None
    alert_at_s: float | None
    """None for a watch that never became an alert."""
    over_at_s: float | None
    fate: LaterOutcome
    word: str | None = None
    """What the user said of it: "normal" or "leak"."""
    band_held: bool | None = None
    """Whether the limit was reached within the interval told; None when it cannot be known."""

    @property
    def true(self) -> bool | None:
        """Whether it came true: the user's word, else the record; None when neither tells."""
        return self.word == "leak" if self.word is not None else self.fate.true

    @property
    def lead_s(self) -> float | None:
        """Time from the alert to the full memory; None when it was never full."""
        if self.alert_at_s is None or self.fate.came != "filled":
            return None
        return self.fate.at_s - self.alert_at_s


class Played(Value, frozen=True, kw_only=True):
    """What one device's history says under one trial."""

    trial: str
    cases: tuple[BacktestCase, ...]
    deaths: int
    """Subjects that ended near the limit of their own growth."""
    missed: int
    """Those of them that no alert came before."""


class DeviceReport(Value, frozen=True, kw_only=True):
    """What one device's history says."""

    device: Device
    subjects: int
    samples: int
    begun_at_s: float | None
    """None when nothing is recorded."""
    ended_at_s: float | None
    played: tuple[Played, ...]


class Tally(Value, frozen=True, kw_only=True):
    """The figures of one trial over all devices."""

    trial: str
    watches: int
    """Watches that never became an alert."""
    alerts: int
    true: int
    false: int
    unknown: int
    deaths: int
    missed: int
    leads_s: tuple[float, ...]
    """Times from the alert to the full memory, of the alerts after which it was full."""
    held: int
    """Forecasts whose interval held the time at which the memory was full."""
    foretold: int
    """Forecasts of which that is known."""
    stopped: int
    """Those of them that named a time for growth which ended by itself."""

    @property
    def lead_s(self) -> float | None:
        """Median time from the alert to the full memory."""
        return statistics.median(self.leads_s) if self.leads_s else None

    @property
    def filled(self) -> int:
        """Times that memory was full: after an alert, or at a death that no alert came before."""
        return len(self.leads_s) + self.missed

    def share_left(self, least_min: float) -> float | None:
        """Return the share of :attr:`filled` with an alert at least ``least_min`` minutes before.

        A death without an alert counts as none left. None when memory was never full.
        """
        early = sum(lead_s >= 60.0 * least_min for lead_s in self.leads_s)
        return early / self.filled if self.filled else None


def trials(config: Config, changed: Config | None = None, name: str = "") -> list[Trial]:
    """Return the present settings, thresholds and holds around them, and the user's ``changed``."""
    out = [Trial(name="as it is", config=config)]
    now = config.detection.confidence_threshold
    levels = {round(min(max(now + step, 0.3), _HIGHEST), 2) for step in _THRESHOLD_STEPS} - {now}
    for level in sorted(levels):
        detection = msgspec.structs.replace(config.detection, confidence_threshold=level)
        over = msgspec.structs.replace(config, detection=detection)
        out.append(Trial(name=f"detection.confidence-threshold={level:g}", config=over))
    for factor in _CONFIRM_FACTORS:
        policy = msgspec.structs.replace(config.policy, confirm=config.policy.confirm * factor)
        over = msgspec.structs.replace(config, policy=policy)
        out.append(Trial(name=f"policy.confirm={policy.confirm}", config=over))
    if changed is not None:
        plain = msgspec.structs.replace(
            changed.detection, confidence_threshold=config.detection.confidence_threshold
        )
        out.append(Trial(name=name, config=changed, whole=plain != config.detection))
    return out


def play(
    history: Reader,
    device: Device,
    span: tuple[float, float],
    tried: Sequence[Trial],
    *,
    passed: Callable[[float], None] | None = None,
) -> DeviceReport:
    """Return what would have been raised on one device in a span of epoch seconds.

    Under each of the settings that are ``tried``, the present ones first.
    """
    tell = passed or (lambda _share: None)
    read = _share_of(tell, 0.0, _READ_SHARE)
    log = history_log.load(history, device, *span, passed=read)
    if not log.series:
        return report_of(log, device)
    words, labels = user_labels(history), history.user_labels()
    died = deaths(log)
    busy = partial(busy_in, history)
    scout = LearningEvaluator(_scout(tried), log, labels=labels, busy=busy)
    stirred = _stirred(log, scout, _share_of(tell, _READ_SHARE, _SCOUT_SHARE))
    plays = []
    recall: dict[DetectionSection, Findings] = {}
    each = (1.0 - _READ_SHARE - _SCOUT_SHARE) / len(tried)
    for position, trial in enumerate(tried):
        begin = _READ_SHARE + _SCOUT_SHARE + each * position
        results = replay.analyze(
            log,
            trial.config,
            only=None if trial.whole else stirred,
            evaluator=RecallingEvaluator(trial.config, recall, log, labels=labels, busy=busy),
            passed=_share_of(tell, begin, each),
        )
        plays.append(played(trial.name, results, log, words, died))
    return report_of(log, device, plays)


def played(
    trial: str,
    results: Iterable[SubjectResult],
    log: LogFile,
    words: dict[str, list[tuple[float, str]]],
    died: dict[str, float],
) -> Played:
    """Return what a replay of one device raised, and what came of it."""
    cases = tuple(_cases(results, log, words))
    alerted = [case for case in cases if case.alert_at_s is not None]
    missed = sum(not _warned(subject, at_s, alerted) for subject, at_s in died.items())
    return Played(trial=trial, cases=cases, deaths=len(died), missed=missed)


def report_of(log: LogFile, device: Device, plays: Iterable[Played] = ()) -> DeviceReport:
    """Return what was played of one device's log."""
    return DeviceReport(
        device=device,
        subjects=len(log.series),
        samples=sum(int(log_series.t_s.size) for log_series in log.series),
        begun_at_s=min((float(series.t_s[0]) for series in log.series), default=None),
        ended_at_s=max((float(series.t_s[-1]) for series in log.series), default=None),
        played=tuple(plays),
    )


def tally(reports: Iterable[DeviceReport], tried: Sequence[Trial]) -> list[Tally]:
    """Return the figures of each trial over all devices."""
    played = [one for report in reports for one in report.played]
    return [_tally(trial.name, [p for p in played if p.trial == trial.name]) for trial in tried]


def user_labels(history: Reader) -> dict[str, list[tuple[float, str]]]:
    """Return what the user said: subject id -> when its alert had opened, and the word."""
    out: dict[str, list[tuple[float, str]]] = {}
    for word in history.user_labels():
        out.setdefault(word.subject.id, []).append((word.opened_at_s, word.word))
    return out


def _share_of(tell: Callable[[float], None], begin: float, width: float) -> Callable[[float], None]:
    return lambda share: tell(begin + width * share)


def busy_in(history: Reader, series: LogSeries) -> FloatArray | None:
    """Return the utilisation of a device at each sample of a process, as far as it is recorded."""
    span = (float(series.t_s[0]), float(series.t_s[-1]) + 1.0)
    rows = [
        row for row in history.device_rows(series.device.uid, *span) if row.util_pct is not None
    ]
    if not rows:
        return None
    at_s, pct = [row.at_s for row in rows], [row.util_pct or 0.0 for row in rows]
    out: FloatArray = np.interp(series.t_s, at_s, pct)
    return out


def _scout(tried: Sequence[Trial]) -> Config:
    """Return the settings that raise whatever any of the trials could raise.

    The lowest threshold of all and a single confirmation: what does not open even a watch then
    opens nothing under a stricter rule.
    """
    first = tried[0].config
    lowest = min(trial.config.detection.confidence_threshold for trial in tried)
    return msgspec.structs.replace(
        first,
        detection=msgspec.structs.replace(first.detection, confidence_threshold=lowest),
        policy=msgspec.structs.replace(first.policy, confirm=1),
    )


def _stirred(log: LogFile, scout: LearningEvaluator, tell: Callable[[float], None]) -> set[str]:
    results = replay.analyze(log, scout.state.settings.config, evaluator=scout, passed=tell)
    return {result.subject.id for result in results if result.watches or result.alerts}


class RecallingEvaluator(LearningEvaluator):
    """Judges each series once for all trials that differ in the threshold or in policy alone.

    Above the level of a watch the threshold decides between watch and alert alone: it is judged
    with that level, and lowered to a watch where the trial asks more.
    """

    def __init__(
        self,
        config: Config,
        recall: dict[DetectionSection, Findings],
        log: LogFile,
        *,
        labels: Sequence[UserLabel] = (),
        busy: Busy | None = None,
    ) -> None:
        super().__init__(config, log, labels=labels, busy=busy)
        self._threshold = config.detection.confidence_threshold
        level = min(self._threshold, verdict.WATCH_CONFIDENCE)
        shared = msgspec.structs.replace(config.detection, confidence_threshold=level)
        judged_by = msgspec.structs.replace(config, detection=shared)
        self.state.settings = Settings(judged_by, self.state.settings.rules)
        self._recall = recall.setdefault(shared, {})

    def _findings(self, batch: list[Series]) -> list[Finding | None]:
        keys = [
            (
                series.subject.id,
                float(series.t_s[-1]),
                series.limit_bytes,
                series.neighbours_bytes_per_s,
                self.history_of(series.subject.id),
            )
            for series in batch
        ]
        new = [k for k, key in enumerate(keys) if key not in self._recall]
        judged = super()._findings([batch[k] for k in new]) if new else []
        for k, finding in zip(new, judged, strict=True):
            if finding is not None:
                finding = msgspec.structs.replace(finding, signals=())  # noqa: PLW2901 - smaller
            self._recall[keys[k]] = finding
        return [self._lowered(self._recall[key]) for key in keys]

    def _lowered(self, finding: Finding | None) -> Finding | None:
        if finding is None or finding.tier != "alert" or finding.confidence >= self._threshold:
            return finding
        severity = "warning" if finding.severity == "critical" else finding.severity
        return msgspec.structs.replace(finding, tier="watch", severity=severity)


def _cases(
    results: Iterable[SubjectResult], log: LogFile, words: dict[str, list[tuple[float, str]]]
) -> Iterable[BacktestCase]:
    device = next((log_series for log_series in log.series if log_series.process is None), None)
    every = (*log.series, *recorded_ledger.unowned(log.series))
    series = {(it.subject.id, float(it.t_s[0])): it for it in every if it.t_s.size}
    for result in results:
        lives: dict[float, list[Event]] = {}
        for event in (*result.watches, *result.alerts):
            lives.setdefault(event.alert.opened_at_s, []).append(event)
        for opened_s, events in sorted(lives.items()):
            own = series[result.subject.id, result.started_at_s]
            near = [(abs(at_s - opened_s), word) for at_s, word in words.get(result.subject.id, ())]
            text = min(near)[1] if near and min(near)[0] <= _NEAR_S else None
            yield _case(result, events, own, device, text)


def _case(
    result: SubjectResult,
    events: list[Event],
    own: LogSeries,
    device: LogSeries | None,
    word: str | None,
) -> BacktestCase:
    # What goes on for another subject was told of that one.
    told = next((e for e in events if e.state == "firing" and e.code is None), None)
    first = told or min(events, key=lambda event: event.at_s)
    over = next((e.at_s for e in events if e.state == "resolved"), None)
    finding = first.alert.finding
    process = result.process
    title = process_title(result.device, process) if process else device_title(result.device)
    lived = later_outcome(
        own,
        device if own.process is not None else None,
        from_s=first.at_s,
        onset_s=first.at_s if finding.onset_at_s is None else finding.onset_at_s,
        growth=finding.growth_bytes or 0.0,
    )
    return BacktestCase(
        subject=result.subject,
        title=str(title),
        finding=finding,
        watch_at_s=first.alert.watch_at_s,
        alert_at_s=None if told is None else told.at_s,
        over_at_s=over,
        fate=lived,
        word=word,
        band_held=None
        if told is None
        else band_held(finding.eta, lived, from_s=told.at_s, end_s=float(own.t_s[-1])),
    )


def _warned(subject: str, died_s: float, alerted: Iterable[BacktestCase]) -> bool:
    return any(
        case.subject.id == subject
        and case.alert_at_s is not None
        and case.alert_at_s < died_s
        and (case.over_at_s is None or case.over_at_s >= died_s - FAST_S)
        for case in alerted
    )


def _tally(name: str, played: Sequence[Played]) -> Tally:
    cases = [case for one in played for case in one.cases]
    alerts = [case for case in cases if case.alert_at_s is not None]
    known = [case.true for case in alerts if case.true is not None]
    told = [case for case in alerts if case.band_held is not None]
    return Tally(
        trial=name,
        watches=len(cases) - len(alerts),
        alerts=len(alerts),
        true=sum(known),
        false=len(known) - sum(known),
        unknown=len(alerts) - len(known),
        deaths=sum(one.deaths for one in played),
        missed=sum(one.missed for one in played),
        leads_s=tuple(case.lead_s for case in alerts if case.lead_s is not None),
        held=sum(case.band_held is True for case in told),
        foretold=len(told),
        stopped=sum(case.fate.true is False for case in told),
    )
