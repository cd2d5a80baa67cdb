"""The recorded series of one subject, measured again: what a verdict rests on, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd.analysis import numerics, verdict
from gpuwatchd.analysis.detectors.cycle import Cycle
from gpuwatchd.analysis.detectors.plateau import Plateau
from gpuwatchd.analysis.detectors.spike import Spike
from gpuwatchd.analysis.detectors.step import Step
from gpuwatchd.analysis.detectors.trend import Trend
from gpuwatchd.analysis.forecast.eta import pace
from gpuwatchd.analysis.verdict import growth as growing
from gpuwatchd.analysis.verdict import growth as pattern
from gpuwatchd.core import units
from gpuwatchd.core.codes import EARLIER
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import is_leak
from gpuwatchd.view.queries import history_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.analysis.forecast.eta import Pace
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.verdict.growth import Growth
    from gpuwatchd.core.config import Config, DetectionSection
    from gpuwatchd.core.model import (
        Alert,
        Delivery,
        Finding,
        GrowthFact,
        ProcessInfo,
        Profile,
        Series,
        Signal,
        Subject,
    )
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.store.reader import DeviceRow, Reader
    from gpuwatchd.store.tables import Checkpoint, UserLabel
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.subjects import NamedSubject

LEAST_POINTS = 4
_AFTER_S = 1.0


class Evidence(NamedTuple):
    """What the recorded series of a subject gives; measured with the settings in force."""

    series: Series
    view: SeriesWindow
    """The last stretch without a gap."""
    finding: Finding
    """What is judged of it by itself, before anything has been confirmed."""
    signals: tuple[tuple[str, Signal | None], ...]
    """Every detector and what it sees."""
    growth: Growth | None
    """The growth that most deserves a verdict."""
    pace: Pace | None
    least_bytes: float
    """Growth below this is none."""


class ExplanationInput(NamedTuple):
    """Everything that one explanation is made of."""

    view: View
    item: LiveDevice
    process: LiveProcess | None
    subject: Subject
    finding: Finding | None
    """As people are shown it: with the tier that has been opened."""
    alert: Alert | None
    evidence: Evidence | str
    """The recorded series measured again, or why that cannot be done."""
    config: Config
    now_s: float
    word: UserLabel | None = None
    """What the user said of the alert."""
    deliveries: tuple[Delivery, ...] = ()
    """Where notices of the alert went, oldest first."""
    known: ProcessInfo | None = None
    """Who the process was, where it has ended."""
    saved: Checkpoint | None = None
    """When it has saved its work last."""

    @property
    def measured(self) -> Evidence | None:
        """The evidence, where there is any."""
        return None if isinstance(self.evidence, str) else self.evidence

    @property
    def leaks(self) -> bool:
        """Whether people are told of a leak."""
        return is_leak(self.finding)

    @property
    def held_bytes(self) -> int | None:
        """What the subject holds now."""
        if self.process is not None:
            return self.process.host_bytes if self.subject.host else self.process.used_bytes
        if self.subject.unattributed:
            return self.item.unattributed_bytes
        return self.item.used_bytes if self.subject.process is None else None

    def ago(self, at_s: float) -> str:
        """Return "10:02 (58 min ago)"."""
        since = units.clock(at_s, now_s=self.now_s)
        return f"{since} ({units.duration(max(0.0, self.now_s - at_s))} ago)"


def with_own_thresholds(config: Config, meant: NamedSubject) -> Config:
    """Return the settings with the thresholds that overrides have for a subject."""
    if not config.override:
        return config
    from gpuwatchd.pipeline.state import Settings  # noqa: PLC0415 - 34 ms, few have overrides
    from gpuwatchd.pipeline.track_evaluation import subject_facts  # noqa: PLC0415 - in these 34 ms

    settings = Settings(config)
    info = meant.known if meant.process is None else meant.process.info
    framework = None if meant.finding is None else meant.finding.framework
    about = subject_facts(meant.item.device, info, meant.subject, framework)
    own = settings.detection_of(about, meant.subject.device_uid)
    return msgspec.structs.replace(config, detection=own)


def gather(meant: NamedSubject, until_s: float, settings: DetectionSection) -> Evidence | str:
    """Return the evidence until an instant, or in one sentence why there is none."""
    try:
        with history_query.reader() as history:
            series = _series(history, meant, until_s)
    except StoreError as error:
        return f"the recorded series cannot be read: {error.message}"
    if series is None or series.t_s.size < LEAST_POINTS:
        return "too little of it is recorded yet to be measured again"
    return measure(series, settings)


def measure(series: Series, settings: DetectionSection) -> Evidence:
    """Return what one series gives."""
    view = numerics.prepare(series, settings.analysis_window_hours * 3600.0)
    least = verdict.minimum_growth(series, settings)
    finding = verdict.judge(series, settings)
    growth = growing.find(series, view, least) if view.samples >= LEAST_POINTS else None
    onset_s = 0.0
    if growth is not None:
        onset_s = growth.onset_s
        if finding.onset_at_s is not None and finding.growth_bytes is not None:
            onset_s = min(onset_s, finding.onset_at_s - view.now_s)
    enough = growth is not None and onset_s < -4.0 * view.step_s
    return Evidence(
        series=series,
        view=view,
        finding=finding,
        signals=_signals(view, growth, settings) if view.samples >= LEAST_POINTS else (),
        growth=growth,
        pace=pace(growth.found.view, onset_s) if enough and growth is not None else None,
        least_bytes=least,
    )


def _signals(
    view: SeriesWindow, growth: Growth | None, settings: DetectionSection
) -> tuple[tuple[str, Signal | None], ...]:
    """Ask every detector; the trend is asked about the growth that is judged."""
    spike = Spike(settings.spike_percent, settings.spike_window)
    own = (view, None) if growth is None else (growth.found.view, growth.onset_s)
    asked: dict[str, Signal | None] = {
        "trend": Trend().look_at(*own),
        "step": Step().look_at(view),
        "cycle": Cycle().look_at(view),
        "spike": spike.look_at(view),
        "plateau": Plateau().look_at(view),
    }
    return tuple(asked.items())


def slows(evidence: Evidence) -> bool:
    """Say whether the growth provably slows down before the limit."""
    growth = evidence.growth
    return growth is not None and pattern.decelerates(evidence.view, growth) is not None


def kept(evidence: Evidence, onset_at_s: float) -> tuple[float, float, float]:
    """Return level before, level now, and the largest fall since, of what is never given back.

    Bytes; the floor of the series at the onset and now, and the drawdown of its mean since.
    """
    view = evidence.view
    first = min(int(view.t_s.searchsorted(onset_at_s - view.now_s - 1e-6)), view.t_s.size - 1)
    fall = numerics.drawdown(view.mean[first:])
    return float(view.floor[first]), float(view.floor[-1]), max(0.0, fall)


def _series(history: Reader, meant: NamedSubject, until_s: float) -> Series | None:
    """Return the recorded series of a subject up to an instant; None when there is none."""
    device, subject = meant.item.device, meant.subject
    info = None if meant.process is None else meant.process.info
    until_s += _AFTER_S
    rows = history_query.last_rows(history, device, until_s, history_query.begun_s(history))
    rows = [row for row in rows if row.at_s <= until_s]
    points = _points(history, subject, rows) if rows else None
    if points is None:
        return None
    total = device.memory_total_bytes
    free = None if total is None else total - (rows[-1].used_last_bytes or 0)
    runs: tuple[Profile, ...] = ()
    if info is not None and subject.process is not None and not subject.host:
        infos, words = {subject.process: info}, history.user_labels()
        runs, _ = history_query.DeviceContext(history, device, infos, words).of(info)
    series = history_query.series_of(subject, points, free, total, info=info, runs=runs)
    limit = None
    if meant.finding is not None:
        limit = meant.finding.limit_bytes
        # What counted then is not looked up again: the process may have ended.
        series = msgspec.structs.replace(series, facts=_told(meant.finding))
    if subject.host:
        return msgspec.structs.replace(series, limit_bytes=limit, total_bytes=None)
    others = tuple(
        process.finding.rate_bytes_per_s or 0.0
        for process in meant.item.processes or ()
        if process.finding is not None
        and is_leak(process.finding)
        and process.info.key != subject.process
    )
    return msgspec.structs.replace(
        series,
        limit_bytes=series.limit_bytes if limit is None else limit,
        neighbours_bytes_per_s=others if subject.process is not None else (),
    )


def _points(
    history: Reader, subject: Subject, rows: Sequence[DeviceRow]
) -> history_query.Track | None:
    ticks = [row.at_s for row in rows]
    whole = [(row.at_s, row.used_last_bytes or 0) for row in rows]
    if subject.process is None and not subject.unattributed:
        return history_query.track(whole)
    span = (rows[0].at_s, rows[-1].at_s + max(rows[-1].width_s, 1.0))
    used = history.process_rows(subject.device_uid, *span)
    owned = history_query.by_process(used, host=subject.host)
    if subject.process is not None:
        own = owned.get(subject.process)
        return history_query.filled(own, ticks) if own else None
    rest = dict(whole)
    for points in owned.values():
        held = history_query.filled(points, ticks)
        for at_s, value in zip(held.at_s.tolist(), held.used_bytes.tolist(), strict=True):
            if at_s in rest:
                rest[at_s] -= int(value)
    return history_query.track(sorted(rest.items()))


def _told(finding: Finding) -> tuple[GrowthFact, ...]:
    """Return the facts that a judgement was given; what earlier runs say is made from these."""
    return tuple(fact for fact in finding.facts or () if fact.name not in EARLIER)
