"""The chart of one subject of a log."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuwatchd.charts import scales
from gpuwatchd.charts.chart_model import Curve, Forecast, Gap, Mark, Picture
from gpuwatchd.core.model import is_leak
from gpuwatchd.view.text import badges, log_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.model import FloatArray
    from gpuwatchd.pipeline.replay import SubjectResult

POINTS: Final = 300
_LEAST_FLOOR: Final = 4


def picture(log: LogFile, series: LogSeries, subject_result: SubjectResult) -> Picture:
    """Return the chart of a subject, with at most :data:`POINTS` points and one for each gap."""
    shift_s = 0.0 if log.epoch else -scales.ahead_s(0.0)
    t_s = series.t_s + shift_s
    width_s = _width(t_s)
    curve = _curve(t_s, series.used_bytes, series.breaks, width_s)
    badge = badges.badge(subject_result.finding, samples=subject_result.samples)
    limit = series.limit_bytes or series.total_bytes or series.device.memory_total_bytes
    end_s = float(t_s[-1])
    return Picture(
        key=series.subject.id,
        title=log_text.title(subject_result),
        kind=badge.kind,
        verdict=badge.words,
        begin_s=float(t_s[0]),
        end_s=end_s,
        now_s=end_s,
        curve=curve,
        floor=_floor(t_s, series, width_s) if is_leak(subject_result.finding) else None,
        limit_bytes=None if limit is None else float(limit),
        forecast=_forecast(series, subject_result, shift_s),
        marks=tuple(_marks(subject_result, shift_s)),
        gaps=tuple(
            Gap(begin_s=float(t_s[at - 1]), end_s=float(t_s[at]), why="the log has no data")
            for at in series.breaks
            if 0 < at < t_s.size
        ),
        notes=tuple(_notes(log, width_s)),
    )


def _width(t_s: FloatArray) -> float:
    """Return the length of one point; 0 where each sample is one."""
    return 0.0 if t_s.size <= POINTS else float(t_s[-1] - t_s[0]) / (POINTS - 1)


def _notes(log: LogFile, width_s: float) -> Iterator[str]:
    if width_s:
        yield f"one point is {_words(width_s)}, from the lowest to the highest within it"
    if not log.timed:
        yield "the log has no times: one sample is taken as one second"
    elif not log.epoch:
        yield "the log has no dates: times are relative to its start"


def _words(width_s: float) -> str:
    if width_s < 120:
        return f"{width_s:.0f} s" if width_s >= 10 else f"{width_s:.1f} s"
    return f"{width_s / 60:.0f} min" if width_s < 7200 else f"{width_s / 3600:.1f} h"


def _curve(t_s: FloatArray, used: FloatArray, breaks: tuple[int, ...], width_s: float) -> Curve:
    at_s: list[float] = []
    columns: tuple[list[float | None], ...] = ([], [], [])
    edges = [0, *(at for at in breaks if 0 < at < t_s.size), int(t_s.size)]
    for first, last in itertools.pairwise(edges):
        if at_s:
            at_s.append((at_s[-1] + float(t_s[first])) / 2)
            for column in columns:
                column.append(None)
        points = _points(t_s[first:last], used[first:last], width_s)
        at_s += points[0]
        for column, values in zip(columns, points[1:], strict=True):
            column.extend(values)
    mean, low, high = columns
    return Curve(
        at_s=tuple(at_s),
        used_bytes=tuple(mean),
        low_bytes=tuple(low),
        high_bytes=tuple(high),
        width_s=width_s,
    )


def _points(
    t_s: FloatArray, used: FloatArray, width_s: float
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return instants, means, lows and highs of one stretch."""
    if not width_s:
        values = used.tolist()
        return t_s.tolist(), values, values, values
    cells = ((t_s - t_s[0]) // width_s).astype(np.int64)
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    counts = np.diff(np.append(starts, t_s.size))
    return (
        (np.add.reduceat(t_s, starts) / counts).tolist(),
        np.round(np.add.reduceat(used, starts) / counts).tolist(),
        np.minimum.reduceat(used, starts).tolist(),
        np.maximum.reduceat(used, starts).tolist(),
    )


def _floor(t_s: FloatArray, series: LogSeries, width_s: float) -> Curve | None:
    """Return what was never given back, of the last stretch."""
    first = max((at for at in series.breaks if 0 < at < t_s.size), default=0)
    at_s, _, low, _ = _points(t_s[first:], series.used_bytes[first:], width_s)
    if len(at_s) < _LEAST_FLOOR:
        return None
    kept = tuple(np.minimum.accumulate(np.array(low)[::-1])[::-1].tolist())
    return Curve(
        at_s=tuple(at_s), used_bytes=kept, low_bytes=kept, high_bytes=kept, width_s=width_s
    )


def _forecast(series: LogSeries, subject_result: SubjectResult, shift_s: float) -> Forecast | None:
    """Return where a leak leads, as of the end of the log."""
    finding = subject_result.finding
    if finding is None or not is_leak(finding) or finding.rate_bytes_per_s is None:
        return None
    if finding.subject != series.subject:
        return None  # A device is shown with the verdict on a process.
    at = int(series.t_s.searchsorted(finding.judged_at_s, side="right")) - 1
    eta = finding.eta
    return Forecast(
        judged_at_s=finding.judged_at_s + shift_s,
        level_bytes=float(series.used_bytes[max(0, at)]),
        rate_bytes_per_s=finding.rate_bytes_per_s,
        onset_at_s=None if finding.onset_at_s is None else finding.onset_at_s + shift_s,
        limit_bytes=finding.limit_bytes if finding.limit_bytes is not None else series.limit_bytes,
        low_s=None if eta is None else eta.low_s,
        mid_s=None if eta is None else eta.mid_s,
        high_s=None if eta is None else eta.high_s,
    )


def _marks(subject_result: SubjectResult, shift_s: float) -> Iterator[Mark]:
    for kind, event in log_text.events(subject_result):
        over = event.state == "resolved"
        yield Mark(
            at_s=event.at_s + shift_s,
            kind="resolved" if over else "alert",
            text=f"{kind} {event.state}: {log_text.what(event)}",
            severity=event.alert.severity if kind == "alert" else "info",
        )
