"""What is foreseen of a device and its processes: figures, each with its label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.alerts import wording
from gpuwatchd.core import units
from gpuwatchd.core.model import LEAK_PATTERNS, is_leak
from gpuwatchd.view.text import status, subject_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Finding
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_view import View


_LABEL_WIDTH = 14
_BEFORE_S = 600.0
"""What happened to the hardware this long before the onset may be the reason."""
_TOLD_IN_FULL = LEAK_PATTERNS | {"spike"}


def subjects(item: LiveDevice, *, whole: bool) -> Iterator[tuple[str, Finding, LiveProcess | None]]:
    """Yield (who, judgement, process) per subject, the device first."""
    finding = item.finding
    own = finding is not None and finding.subject.process is None
    if finding is not None and own and whole:
        rest = f" (memory {subject_facts.UNOWNED})" if finding.subject.unattributed else ""
        yield f"the whole device{rest}", finding, None
    seen = False
    for process in item.processes or ():
        if process.finding is not None:
            seen = seen or process.finding.subject == (finding.subject if finding else None)
            yield verdict_text.who(process.info), process.finding, process
        if process.host_finding is not None and is_leak(process.host_finding):
            yield f"{verdict_text.who(process.info)}, host memory", process.host_finding, process
    key = finding.subject.process if finding is not None else None
    if finding is not None and key is not None and not seen and whole:
        yield f"pid {key.pid}", finding, None


def write_device(out: Page, view: View, item: LiveDevice, *, whole: bool, of_users: bool) -> None:
    """Write everything that is foreseen of one device; without ``whole`` of its processes."""
    judged = list(subjects(item, whole=whole))
    note = subject_facts.memory_note(item.device)
    out.line(
        (f"{item.device.label}  {item.device.name}", "bold"), (f"  {note}" if note else "", "dim")
    )
    state = subject_facts.state(item, now_s=view.taken_at_s, released_until_s=view.released_until_s)
    if state:
        out.flow(state, first="  ", rest="  ")
    elif not judged and not of_users:
        instead = subject_facts.judged_instead(item, view.devices)
        none = verdict_text.verdict(None, samples=item.samples)
        out.flow([(instead, "dim") if instead else none], first="  ", rest="  ")
    unknown = subject_facts.processes(item)
    if unknown:
        out.prose(unknown, "yellow", first="  ", rest="    ")
    status.rest(out, view, item, indent="  ")
    # What leaks stands first, the rest as it comes.
    for who, finding, process in sorted(judged, key=lambda subject: not is_leak(subject[1])):
        chief = verdict_text.part_of(finding, process.info if process is not None else None)
        if chief and not (out.verbose or out.wide):
            _part(out, who, finding, chief)
        elif out.verbose or out.wide or told_in_full(finding):
            _full(out, item, who, finding, process, wide=out.wide)
        else:
            out.flow([who, *calm(finding, process)], first="  ", rest="    ")


def calm(finding: Finding, process: LiveProcess | None) -> list[Part]:
    """Return what is said of what has no figures that are worth a line each."""
    reason = "" if verdict_text.collecting(finding) else finding.reason
    text = verdict_text.baseline_text(process.history) if process is not None else ""
    return [verdict_text.verdict(finding), (reason, "dim"), (text, "dim")]


def _part(out: Page, who: str, finding: Finding, chief: str) -> None:
    """Write the figures of a rank for which another one's advice holds as well."""
    parts: list[Part] = [
        who,
        (f"leaks too, {chief}", "yellow"),
        f"{_rate(finding)} {finding.pattern}",
        f"{out.safe('R²')} {_r_squared(finding)}",
        f"confidence {_confidence(finding)}",
        f"full in {_eta(finding)}",
    ]
    out.flow(parts, first="  ", rest="    ")


def _full(
    out: Page,
    item: LiveDevice,
    who: str,
    finding: Finding,
    process: LiveProcess | None,
    *,
    wide: bool,
) -> None:
    out.flow([who, verdict_text.verdict(finding)], first="  ", rest="    ")
    pairs = facts(item, finding, process)
    if wide and process is not None:
        known = subject_facts.wide(process, now_s=finding.judged_at_s)
        pairs.append(("who", ", ".join(text for text, _ in known)))
    for label, value in pairs:
        head = f"    {out.safe(label):<{_LABEL_WIDTH}}"
        out.prose(value, first=head, rest=" " * (4 + _LABEL_WIDTH))


def told_in_full(finding: Finding) -> bool:
    """Say whether the figures of a judgement are worth a line each."""
    return finding.pattern in _TOLD_IN_FULL


def facts(item: LiveDevice, finding: Finding, process: LiveProcess | None) -> list[tuple[str, str]]:
    """Return the figures of a judgement, each with its label."""
    info = process.info if process is not None else None
    now_s = finding.judged_at_s
    pairs = [
        ("suspect", status.suspect(item, finding) or "?"),
        ("growth rate", _rate(finding)),
        ("R²", _r_squared(finding)),
        ("confidence", _confidence(finding)),
        ("full in", _eta(finding)),
        ("detector", finding.detector or "?"),
        ("pattern", finding.pattern),
        ("framework", verdict_text.framework(finding, info)),
    ]
    if len(finding.blame) > 1:
        pairs.append(("shares", shares(finding)))
    if finding.onset_at_s is not None:
        pairs.append(("growth since", units.clock(finding.onset_at_s, now_s=now_s)))
    if finding.reason:
        pairs.append(("because", finding.reason))
    pairs += [(label.lower(), line) for label, line in wording.inside(finding).items()]
    if process is not None and process.history is not None:
        pairs.append(("known", verdict_text.baseline_text(process.history) or "its first run"))
    since_s = finding.onset_at_s or 0.0
    told = {(e.kind, e.code) for e in item.events if e.at_s in (finding.hardware_at_s or ())}
    pairs += [
        ("hardware", f"{units.clock(event.at_s, now_s=now_s)} {event.text}")
        for event in item.events
        if event.hardware
        and event.at_s >= since_s - _BEFORE_S
        and (event.kind, event.code) not in told
    ][-1:]
    pairs += [("advice", advice) for advice in finding.advice]
    return pairs


def shares(finding: Finding) -> str:
    """Return whose growth it is, each with its share."""
    ranked = sorted(finding.blame, key=lambda blame: -blame.share)
    return ", ".join(verdict_text.share(blame) for blame in ranked)


def _r_squared(finding: Finding) -> str:
    if finding.r_squared is None:
        return "?"
    return f"{finding.r_squared:.3f} ({verdict_text.fit(finding.r_squared)})"


def _confidence(finding: Finding) -> str:
    if finding.pattern == "unknown":
        return "?"
    if finding.tier == "watch":
        return verdict_text.SUSPICION
    return f"{units.percent(finding.confidence)} ({units.strength(finding.confidence)})"


def _rate(finding: Finding) -> str:
    return verdict_text.stopped(finding) or verdict_text.rate(finding) or "levels off"


def _eta(finding: Finding) -> str:
    if verdict_text.stopped(finding):
        return "no forecast"
    if finding.eta is not None:
        return verdict_text.eta(finding.eta)
    return "?" if is_leak(finding) else "stable" if finding.pattern == "stable" else "no forecast"
