"""What a log was found to have in it, in words: for people at a terminal, and for its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS
from gpuwatchd.view import blocks
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.log_types import LogFile
    from gpuwatchd.pipeline.replay import Event, SubjectResult


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
            why = in_short(subject_result)
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


def in_short(subject_result: SubjectResult) -> str:
    """Return why there is nothing to tell of a subject."""
    finding = subject_result.finding
    if finding is None:
        return "not analysed"
    return finding.reason if finding.pattern == "unknown" else finding.pattern


def subject_title(subject_result: SubjectResult) -> str:
    """Return what a subject is called."""
    from gpuwatchd.pipeline.track import device_title, process_title  # noqa: PLC0415

    if subject_result.process is not None:
        return process_title(subject_result.device, subject_result.process)
    return device_title(subject_result.device)


def _show_subject(out: blocks.Page, subject_result: SubjectResult, *, epoch: bool) -> None:
    finding = subject_result.finding
    span = units.duration(subject_result.ended_at_s - subject_result.started_at_s)
    out.line(
        "  ", (subject_title(subject_result), "bold"), f"  {subject_result.samples:,} samples over {span}"
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
            out.flow(blocks.sentence(line), first=f"    {when}  ", rest="      ", gap=" ")
        else:
            out.line(f"    {when}  {line}")


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
    return f"{units.rate(now.rate_bytes_per_s)}, full in {verdict_text.eta(now.eta) or '?'}"


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
