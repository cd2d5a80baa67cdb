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
from gpuwatchd.analysis.verdict import pattern
from gpuwatchd.core.errors import StoreError
from gpuwatchd.view.queries import history_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.analysis.forecast.eta import Pace
    from gpuwatchd.analysis.numerics import SeriesWindow
    from gpuwatchd.analysis.verdict.growth import Growth
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import Device, Finding, ProcessInfo, Series, Signal, Subject
    from gpuwatchd.store.reader import DeviceRow, Reader

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


class Wanted(NamedTuple):
    """Whose series is wanted, and what the live state knows about it."""

    subject: Subject
    device: Device
    info: ProcessInfo | None
    until_s: float
    """Nothing later is looked at."""
    limit_bytes: float | None
    others_bytes_per_s: float


def gather(wanted: Wanted, settings: DetectionSection) -> Evidence | str:
    """Return the evidence, or in one sentence why there is none."""
    try:
        with history_query.reader() as history:
            series = _series(history, wanted)
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


def _series(history: Reader, wanted: Wanted) -> Series | None:
    """Return the recorded series of a subject up to an instant; None when there is none."""
    device, subject = wanted.device, wanted.subject
    until_s = wanted.until_s + _AFTER_S
    rows = history_query.last_rows(history, device, until_s, history_query.begun_s(history))
    rows = [row for row in rows if row.at_s <= until_s]
    if not rows:
        return None
    points = _points(history, subject, rows)
    if points is None:
        return None
    total = device.memory_total_bytes
    last = rows[-1].used_last_bytes or 0
    free = None if total is None else total - last
    framework = wanted.info.framework if wanted.info is not None else None
    series = history_query.series_of(subject, points, free, total, framework)
    if subject.host:
        return msgspec.structs.replace(series, limit_bytes=wanted.limit_bytes, total_bytes=None)
    limit = wanted.limit_bytes if wanted.limit_bytes is not None else series.limit_bytes
    series = msgspec.structs.replace(
        series, limit_bytes=limit, others_bytes_per_s=wanted.others_bytes_per_s
    )
    if wanted.info is None or subject.process is None:
        return series
    infos = {subject.process: wanted.info}
    runs, _ = history_query.DeviceContext(history, device, infos, history.user_labels()).of(
        wanted.info
    )
    begun_s = subject.process.started_at_s
    age_s = None if begun_s is None else float(series.t_s[-1]) - begun_s
    return msgspec.structs.replace(series, history=runs, age_s=age_s)


def _points(
    history: Reader, subject: Subject, rows: Sequence[DeviceRow]
) -> history_query.Track | None:
    ticks = [row.at_s for row in rows]
    whole = [(row.at_s, row.used_last_bytes or 0) for row in rows]
    if subject.process is None and not subject.unattributed:
        return history_query.track(whole)
    span = (rows[0].at_s, rows[-1].at_s + max(rows[-1].width_s, 1.0))
    owned: dict[object, list[tuple[float, int]]] = {}
    for row in history.process_rows(subject.device_uid, *span):
        value = row.host_last_bytes if subject.host else row.used_last_bytes
        if value is not None:
            owned.setdefault(row.process, []).append((row.at_s, value))
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
