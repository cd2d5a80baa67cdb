"""What a log was found to have in it, in words: for people at a terminal, and for its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.cli import output, verdict_text
from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.logs.log import LogFile
    from gpuwatchd.pipeline.replay import Event, SubjectResult


def show(out: output.Out, log: LogFile, found: list[SubjectResult], *, show_all: bool) -> None:
    """Write what one log has in it."""
    facts = [log.format or "", rows(log)]
    if out.terminal and output.width_of(f"{log.path}  {'  '.join(facts)}") > out.width:
        out.line((log.path, "bold"))
        out.flow(facts, first="  ", rest="  ")
    else:
        out.line((log.path, "bold"), "  " + "  ".join(facts))
    for warning in log.warnings:
        out.line("  note: ", warning)
    if log.error is not None:
        out.line("  ", (f"no verdict: {log.error}", "yellow"))
        return
    found = subjects(found)
    shown = [one for one in found if show_all or notable(one)]
    for one in shown:
        _show_subject(out, one, epoch=log.epoch)
    quiet: dict[str, int] = {}
    for one in found:
        if one not in shown:
            why = in_short(one)
            quiet[why] = quiet.get(why, 0) + 1
    for why, count in quiet.items():
        out.line(f"  {count} {'subject' if count == 1 else 'subjects'} without a finding: {why}")
    if not found:
        out.line("  nothing to judge in this log")


def notable(found: SubjectResult) -> bool:
    """Say whether a subject is worth more than a count."""
    finding = found.finding
    growing = finding is not None and finding.pattern in LEAK_PATTERNS
    return bool(found.alerts or found.watches) or growing


def in_short(found: SubjectResult) -> str:
    """Return why there is nothing to tell of a subject."""
    finding = found.finding
    if finding is None:
        return "not judged"
    return finding.reason if finding.pattern == "unknown" else finding.pattern


def title(found: SubjectResult) -> str:
    """Return what a subject is called."""
    from gpuwatchd.pipeline.titles import device_title, process_title  # noqa: PLC0415

    if found.process is not None:
        return process_title(found.device, found.process)
    return device_title(found.device)


def _show_subject(out: output.Out, found: SubjectResult, *, epoch: bool) -> None:
    finding = found.finding
    span = units.duration(found.ended_at_s - found.started_at_s)
    out.line("  ", (title(found), "bold"), f"  {found.samples:,} samples over {span}")
    if finding is not None:
        verdict = verdict_text.verdict(finding, samples=finding.samples)
        tail = "" if finding.reason == verdict[0] else f" - {finding.reason}"
        if out.terminal:
            parts = ["at the end:", verdict, *output.sentence(tail.strip())]
            out.flow(parts, first="    ", rest="      ", gap=" ")
        else:
            out.line("    at the end: ", verdict, tail)
    for kind, event in events(found):
        line = f"{kind} {event.state}: {what(event)}"
        when = instant(event.at_s, epoch=epoch)
        if out.terminal:
            out.flow(output.sentence(line), first=f"    {when}  ", rest="      ", gap=" ")
        else:
            out.line(f"    {when}  {line}")


def events(found: SubjectResult) -> list[tuple[str, Event]]:
    """Return watches and alerts of a subject in order, each with what it is."""
    # What ends an alert ends its watch too: one line says it.
    ends = {event.at_s for event in found.alerts if event.state == "resolved"}
    watches = [e for e in found.watches if e.state != "resolved" or e.at_s not in ends]
    every = [("watch", e) for e in watches] + [("alert", e) for e in found.alerts]
    return sorted(every, key=lambda pair: pair[1].at_s)


def what(event: Event) -> str:
    """Return what an event says."""
    if event.state == "resolved":
        return event.alert.ended
    now = event.alert.finding
    return f"{units.rate(now.rate_bytes_per_s)}, full in {verdict_text.eta(now.eta) or '?'}"


def instant(at_s: float, *, epoch: bool) -> str:
    """Return an instant of a log; of one whose clock is unknown the time since its begin."""
    return (units.instant(at_s) or "?") if epoch else f"+{units.duration(at_s)}"


def rows(log: LogFile) -> str:
    """Return how much of a log was read and what was skipped."""
    skipped = ", ".join(f"{count} {why}" for why, count in log.skipped.items())
    said = f"rows: {log.rows - log.bad_rows:,} read, {log.bad_rows:,} skipped"
    return f"{said} ({skipped})" if skipped else said


def subjects(found: Sequence[SubjectResult]) -> list[SubjectResult]:
    """Return the subjects that are told of.

    A device whose processes are judged has the verdict of one of them: that says it.
    """
    told = [one.finding for one in found if one.process is not None and one.finding is not None]
    return [one for one in found if one.process is not None or one.finding not in told]
