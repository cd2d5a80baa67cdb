"""What logs were found to have in them, in words, and the report of it with charts."""

from __future__ import annotations

import itertools
import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gpuwatchd import __version__
from gpuwatchd.charts import chart_model
from gpuwatchd.charts.chart_model import Curve, Forecast, Gap, Mark, Picture
from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.core.model.alerts import UNOWNED, device_title, process_title
from gpuwatchd.view import blocks
from gpuwatchd.view.report.document import (
    CARDS,
    CHARTS,
    ROWS,
    Card,
    Document,
    Facts,
    Figure,
    Figures,
    Says,
    Section,
    Table,
    table,
)
from gpuwatchd.view.text import badges, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.charts.chart_model import MarkKind
    from gpuwatchd.collect.logs.log_types import LogFile, LogSeries
    from gpuwatchd.core.model import Alert, FloatArray
    from gpuwatchd.pipeline.replay import Event, SubjectResult
    from gpuwatchd.view.report.document import Block, Plain, Tone


def show(out: blocks.Page, log: LogFile, results: list[SubjectResult], *, show_all: bool) -> None:
    """Write what one log has in it."""
    facts = [log.format or "", rows_read(log)]
    if out.terminal and blocks.width_of(f"{log.path}  {'  '.join(facts)}") > out.width:
        out.line((log.path, "bold"))
        out.flow(facts, first="  ", rest="  ")
    else:
        out.line((log.path, "bold"), "  " + "  ".join(facts))
    for warning in log.warnings:
        out.line("  note: ", warning)
    if log.error is not None:
        out.line("  ", (f"no verdict: {log.error}", "yellow"))
        return
    results = told_subjects(results)
    subject_results = [
        subject_result for subject_result in results if show_all or notable(subject_result)
    ]
    for subject_result in subject_results:
        _show_subject(out, subject_result, epoch=log.epoch)
    quiet: dict[str, int] = {}
    for subject_result in results:
        if subject_result not in subject_results:
            finding, why = subject_result.finding, "not analysed"
            if finding is not None:
                why = finding.reason if finding.pattern == "unknown" else finding.pattern
            quiet[why] = quiet.get(why, 0) + 1
    for why, count in quiet.items():
        out.line(f"  {count} {'subject' if count == 1 else 'subjects'} without a finding: {why}")
    if not results:
        out.line("  no usable data in this log")


def notable(subject_result: SubjectResult) -> bool:
    """Say whether a subject is worth more than a count."""
    finding = subject_result.finding
    growing = finding is not None and finding.pattern in LEAK_PATTERNS
    return bool(subject_result.alerts or subject_result.watches) or growing


def subject_title(subject_result: SubjectResult) -> str:
    """Return what a subject is called."""
    if subject_result.subject.unattributed:
        return str(device_title(subject_result.device, UNOWNED))
    if subject_result.process is not None:
        return str(process_title(subject_result.device, subject_result.process))
    return str(device_title(subject_result.device))


def _show_subject(out: blocks.Page, subject_result: SubjectResult, *, epoch: bool) -> None:
    finding = subject_result.finding
    span = units.duration(subject_result.ended_at_s - subject_result.started_at_s)
    out.line(
        "  ",
        (subject_title(subject_result), "bold"),
        f"  {subject_result.samples:,} samples over {span}",
    )
    if finding is not None:
        verdict = verdict_text.verdict(finding, samples=finding.samples)
        tail = "" if verdict_text.collecting(finding) else f" - {finding.reason}"
        if out.terminal:
            parts = ["at the end:", verdict, *blocks.sentence(tail.strip())]
            out.flow(parts, first="    ", rest="      ", gap=" ")
        else:
            out.line("    at the end: ", verdict, tail)
    for kind, event in events_in_order(subject_result):
        line = f"{kind} {event.state}: {event_words(event)}"
        when = instant(event.at_s, epoch=epoch)
        if out.terminal:
            out.prose(line, first=f"    {when}  ", rest="      ")
        else:
            out.line(f"    {when}  {line}")


def _mark_kind(what: str, alert: Alert) -> MarkKind:
    if alert.state == "resolved":
        return "died" if alert.died else "resolved"
    if what == "watch":
        return "watch"
    return "critical" if alert.severity == "critical" else "alert"


def events_in_order(subject_result: SubjectResult) -> list[tuple[str, Event]]:
    """Return watches and alerts of a subject in order, each with what it is."""
    # What ends an alert ends its watch too: one line says it.
    ends = {event.at_s for event in subject_result.alerts if event.state == "resolved"}
    watches = [e for e in subject_result.watches if e.state != "resolved" or e.at_s not in ends]
    every = [("watch", e) for e in watches] + [("alert", e) for e in subject_result.alerts]
    return sorted(every, key=lambda pair: pair[1].at_s)


def event_words(event: Event) -> str:
    """Return what an event says."""
    if event.state == "resolved":
        return event.alert.ended
    now = event.alert.finding
    pace = now.shown_rate_bytes_per_s
    rate = "" if pace is None else f"{units.rate(pace)}, "
    return f"{rate}full in {verdict_text.eta(now.eta) or '?'}"


def instant(at_s: float, *, epoch: bool) -> str:
    """Return an instant of a log; of one whose clock is unknown the time since its begin."""
    return (units.instant(at_s) or "?") if epoch else f"+{units.duration(at_s)}"


def rows_read(log: LogFile) -> str:
    """Return how much of a log was read and what was skipped."""
    skipped = ", ".join(f"{count} {why}" for why, count in log.skipped.items())
    text = f"rows: {log.rows - log.bad_rows:,} read, {log.bad_rows:,} skipped"
    return f"{text} ({skipped})" if skipped else text


def told_subjects(results: Sequence[SubjectResult]) -> list[SubjectResult]:
    """Return the subjects that are told of.

    A device whose processes are judged has the verdict of one of them: that says it.
    """
    findings = [
        subject_result.finding
        for subject_result in results
        if subject_result.process is not None and subject_result.finding is not None
    ]
    return [
        subject_result
        for subject_result in results
        if subject_result.process is not None or subject_result.finding not in findings
    ]


_RANK = {"critical": 0, "leak": 1, "watch": 2}
_MOST_EVENTS = 12
POINTS: Final = 300
_LEAST_FLOOR: Final = 4


class Log(NamedTuple):
    """One log, what was found in it, and a chart for each subject by its id."""

    log: LogFile
    found: list[SubjectResult]
    pictures: dict[str, Picture]
    notes: Sequence[str] = ()
    """Beside the warnings of the log."""


class _Judgement(NamedTuple):
    log: Log
    one: SubjectResult


def document(logs: Sequence[Log], *, everything: bool) -> Document:
    """Return the report; with ``everything`` harmless subjects have a part of their own, too."""
    names = [item.log.path for item in logs]
    # A path would fill the heading; the table of what was read has all of it.
    only = (PurePath(names[0]).name or names[0]) if len(names) == 1 else ""
    title = f"GPU memory in {only or f'{len(names)} logs'}"
    every = [_Judgement(log, subject) for log in logs for subject in told_subjects(log.found)]
    every.sort(key=_order)
    judgements = [judgement for judgement in every if everything or notable(judgement.one)]
    if not judgements and len(every) == 1:
        judgements = every  # The one curve of a log is what people want to see.
    sections = (
        Section(key="summary", title="Summary", blocks=tuple(_summary(logs, every))),
        Section(key="findings", title="Findings", blocks=tuple(_findings(judgements, every))),
        Section(key="logs", title="What was read", blocks=(_read(logs),)),
    )
    written = units.clock(time.time())
    return Document(
        title=title,
        about=f"Replayed at the log's own clock; written {written} by gpuwatchctl {__version__}",
        sections=sections,
        foot=(
            f"Times are local ({units.zone(time.time())}). Alerts are what the daemon would have "
            "raised live, from what had been recorded by then. gpuwatchctl docs analyse-a-log."
        ),
    )


def _order(judgement: _Judgement) -> tuple[int, float, float]:
    """Return what subjects are sorted by: alerts first, worst first, largest growth first."""
    finding = judgement.one.finding
    rate = 0.0 if finding is None else finding.rate_bytes_per_s or 0.0
    rank = _RANK.get(badges.kind(finding), 3) if judgement.one.alerts or is_leak(finding) else 4
    return rank, -len(judgement.one.alerts), -rate


def _summary(logs: Sequence[Log], every: Sequence[_Judgement]) -> Iterator[Plain]:
    alerts = sum(judgement.one.alert_count > 0 for judgement in every)
    watches = sum(bool(judgement.one.watches) and not judgement.one.alerts for judgement in every)
    at_end = sum(is_leak(judgement.one.finding) for judgement in every)
    broken = sum(item.log.error is not None for item in logs)
    yield Says(text=_sentence(logs, every, alerts, watches), tone=_tone(alerts, watches, every))
    rows = sum(item.log.rows for item in logs)
    bad = sum(item.log.bad_rows for item in logs)
    figures = [
        Figure(
            value=str(len(logs)),
            label="log" if len(logs) == 1 else "logs",
            note=f"{broken} unreadable" if broken else "",
        ),
        Figure(value=f"{len(every):,}", label="subject" if len(every) == 1 else "subjects"),
        Figure(value=str(alerts), label="with an alert"),
        Figure(value=str(watches), label="watched only"),
        Figure(value=str(at_end), label="leaking at the end"),
        Figure(value=f"{rows - bad:,}", label="rows read", note=f"{bad:,} skipped" if bad else ""),
    ]
    yield Figures(figures=tuple(figures))


def _tone(alerts: int, watches: int, every: Sequence[_Judgement]) -> Tone:
    if alerts:
        return "bad"
    return "warn" if watches else "good" if every else "note"


def _sentence(logs: Sequence[Log], every: Sequence[_Judgement], alerts: int, watches: int) -> str:
    many = units.count(len(logs), "log")
    if not every:
        return f"Nothing in {many} can be judged."
    of = f"{len(every):,} subject{'s' if len(every) != 1 else ''} of {many}"
    if not alerts and not watches:
        return f"No leak in {of}."
    text = f"{alerts or 'No'} alert{'s' if alerts != 1 else ''} in {of}"
    worst = every[0]
    if alerts:
        text += f", the worst: {subject_title(worst.one)}"
        if worst.one.finding is not None:
            text += f" ({verdict_text.verdict(worst.one.finding, samples=worst.one.samples)[0]})"
    return f"{text}{f'; {watches} watched' if watches else ''}."


def _findings(judgements: Sequence[_Judgement], every: Sequence[_Judgement]) -> Iterator[Block]:
    if not any(notable(judgement.one) for judgement in every):
        yield Says(text="No leak found.", tone="good")
    for position, judgement in enumerate(judgements[:CARDS]):
        yield _card(judgement, position, drawn=position < CHARTS)
    chosen = {id(judgement.one) for judgement in judgements}
    rest = [
        *judgements[CARDS:],
        *(judgement for judgement in every if id(judgement.one) not in chosen),
    ]
    if rest:
        yield _table(rest)


def _card(judgement: _Judgement, position: int, *, drawn: bool) -> Card:
    subject_result = judgement.one
    badge = badges.badge(subject_result.finding, samples=subject_result.samples)
    picture = judgement.log.pictures.get(subject_result.subject.id) if drawn else None
    blocks: list[Plain] = [] if picture is None else [picture]
    return Card(
        key=f"subject-{position + 1}",
        title=subject_title(subject_result),
        kind=badge.kind,
        word=badge.word,
        said=badge.rest,
        blocks=(*blocks, Facts(rows=tuple(_rows(judgement)))),
    )


def _rows(judgement: _Judgement) -> Iterator[tuple[str, str]]:
    subject_result, epoch = judgement.one, judgement.log.log.epoch
    finding = subject_result.finding
    yield "log", judgement.log.log.path
    span = units.duration(subject_result.ended_at_s - subject_result.started_at_s)
    first, last = (
        instant(at, epoch=epoch) for at in (subject_result.started_at_s, subject_result.ended_at_s)
    )
    yield "seen", f"{first} to {last}, {subject_result.samples:,} samples over {span}"
    if finding is not None:
        yield "because", finding.reason
        if is_leak(finding):
            yield (
                "rate",
                verdict_text.stopped(finding) or verdict_text.growth(finding.rate_bytes_per_s),
            )
            yield "full in", verdict_text.eta(finding.eta) or "?"
        if finding.r_squared is not None:
            yield "R²", f"{finding.r_squared:.3f} ({verdict_text.fit(finding.r_squared)})"
        if finding.detector:
            yield "detector", finding.detector
    events = events_in_order(subject_result)
    for number, (kind, event) in enumerate(events[:_MOST_EVENTS]):
        said = f"{instant(event.at_s, epoch=epoch)} {kind} {event.state}: {event_words(event)}"
        yield "" if number else "would have shown", said
    if len(events) > _MOST_EVENTS:
        yield "", f"and {len(events) - _MOST_EVENTS} more"
    for number, line in enumerate(finding.advice if finding is not None else ()):
        yield "" if number else "advice", line


def _table(rest: Sequence[_Judgement]) -> Table:
    rows = []
    for judgement in rest:
        subject_result = judgement.one
        badge = badges.badge(subject_result.finding, samples=subject_result.samples)
        title, samples = subject_title(subject_result), f"{subject_result.samples:,}"
        rows.append((title, badge.word, samples, judgement.log.log.path, badge.rest))
    heads = ("subject", "verdict", "samples", "log", "in words")
    return table("Other subjects", heads, rows, right=(2,), most=ROWS)


def _read(logs: Sequence[Log]) -> Table:
    rows = []
    for log, found, _, own_notes in logs:
        text = f"no verdict: {log.error}" if log.error is not None else rows_read(log)
        notes = "; ".join([text, *log.warnings, *own_notes])
        rows.append((log.path, log.format or "?", str(len(told_subjects(found))), notes))
    heads = ("log", "format", "subjects", "what was read and skipped")
    return table("Logs", heads, rows, right=(2,), most=ROWS)


def picture(log: LogFile, series: LogSeries, subject_result: SubjectResult) -> Picture:
    """Return the chart of a subject, with at most :data:`POINTS` points and one for each gap."""
    shift_s = 0.0 if log.epoch else -chart_model.ahead_s(0.0)
    t_s = series.t_s + shift_s
    # Of one point; 0 where each sample is one.
    width_s = 0.0 if t_s.size <= POINTS else float(t_s[-1] - t_s[0]) / (POINTS - 1)
    badge = badges.badge(subject_result.finding, samples=subject_result.samples)
    limit = series.limit_bytes or series.total_bytes or series.device.memory_total_bytes
    end_s = float(t_s[-1])
    return Picture(
        key=series.subject.id,
        title=subject_title(subject_result),
        kind=badge.kind,
        verdict=badge.words,
        begin_s=float(t_s[0]),
        end_s=end_s,
        now_s=end_s,
        curve=_curve(t_s, series.used_bytes, series.breaks, width_s),
        floor=_level_kept(t_s, series, width_s) if is_leak(subject_result.finding) else None,
        limit_bytes=None if limit is None else float(limit),
        forecast=_forecast(series, subject_result, shift_s),
        marks=tuple(_marks(subject_result, shift_s)),
        gaps=tuple(
            Gap(begin_s=float(t_s[at - 1]), end_s=float(t_s[at]), why="the log has no data")
            for at in series.breaks
            if 0 < at < t_s.size
        ),
        notes=tuple(_chart_notes(log, width_s)),
    )


def _chart_notes(log: LogFile, width_s: float) -> Iterator[str]:
    if width_s:
        yield f"one point is {_length(width_s)}, from the lowest to the highest within it"
    if not log.timed:
        yield "the log has no times: one sample is taken as one second"
    elif not log.epoch:
        yield "the log has no dates: times are relative to its start"


def _length(width_s: float) -> str:
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


def _level_kept(t_s: FloatArray, series: LogSeries, width_s: float) -> Curve | None:
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
    limit = finding.limit_bytes if finding.limit_bytes is not None else series.limit_bytes
    return Forecast.of(finding, float(series.used_bytes[max(0, at)]), limit, ahead_s=shift_s)


def _marks(subject_result: SubjectResult, shift_s: float) -> Iterator[Mark]:
    for kind, event in events_in_order(subject_result):
        yield Mark(
            at_s=event.at_s + shift_s,
            kind=_mark_kind(kind, event.alert),
            text=f"{kind} {event.state}: {event_words(event)}",
            severity=event.alert.severity if kind == "alert" else "info",
        )
