"""What people are told: every wording of an alert, in one place.

Facts first, then the judgement with its strength, then what to do, then the command. Plain text;
each channel escapes for its own sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import text, units
from gpuwatchd.model import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.model import Alert, Button, Chart, EtaRange, Finding, NoticeKind

SUBJECT_CHARS = 78
_LEADS: dict[NoticeKind, str] = {
    "firing": "",
    "escalated": "Worse: ",
    "repeat": "Still: ",
    "resolved": "Over: ",
    "test": "Test: ",
}


def eta_words(eta: EtaRange | None) -> str:
    """Return the time to out-of-memory with its interval, "unknown" without one.

    Examples
    --------
    >>> from gpuwatchd.model import EtaRange
    >>> eta_words(EtaRange(low_s=2340, mid_s=2820, high_s=3720))
    '0h 47m (0h 39m - 1h 02m)'
    """
    if eta is None:
        return "unknown"
    return units.band(eta.low_s, eta.mid_s, eta.high_s)


def growth_line(finding: Finding) -> str:
    """Return "grows 12.4 MB/min (gradual, likely, 91%)"."""
    rate = units.rate(finding.rate_bytes_per_s)
    sure = f"{units.strength(finding.confidence)}, {units.percent(finding.confidence)}"
    return f"grows {rate} ({finding.pattern}, {sure})"


def message_id(alert: Alert, notice: NoticeKind, number: int) -> str:
    """Return an id that is the same however often the same message is tried."""
    import hashlib  # noqa: PLC0415 - brings the whole of OpenSSL into a daemon that has no alert

    seed = f"{alert.key}|{alert.opened_at_s:.3f}|{notice}|{number}"
    return f"{hashlib.sha256(seed.encode()).hexdigest()[:24]}@gpuwatchd"


def compose(
    alert: Alert,
    notice: NoticeKind,
    *,
    now_s: float,
    also: Sequence[Alert] = (),
    chart: Chart | None = None,
    buttons: Sequence[Button] = (),
    host: str | None = None,  # noqa: ARG001
) -> Message:
    """Return the message of one notice.

    Parameters
    ----------
    alert
        With its notice already booked (``notices`` counts it).
    now_s
        For clock times.
    also
        Others of one cause that share this notice.
    chart, buttons
        What channels may show of them.
    host
        Name of this machine; by default as it calls itself.
    """
    finding = alert.finding
    what = _recovered(alert) if notice == "resolved" else growth_line(finding)
    target = finding.subject.process
    about = target.pid if target else finding.subject.device_uid
    command = f"gpuwatchctl explain {about}"
    if notice == "resolved":
        command = "gpuwatchctl alerts --all"
    full_in = "Host out of memory in" if finding.subject.host else "Full in"
    full_in = "" if notice == "resolved" else f"{full_in} {eta_words(finding.eta)}."
    body = f"{alert.title} {what}. {full_in}".strip()
    if finding.reason and notice != "resolved":
        body = f"{body}\n{finding.reason[:1].upper()}{finding.reason[1:]}."
    first = message_id(alert, "firing", 1)
    own = message_id(alert, notice, alert.notices)
    return Message(
        id=own,
        notice=notice,
        severity="info" if notice == "resolved" else alert.severity,
        subject=_subject(alert, notice),
        body=body.replace("..", "."),
        facts=_facts(alert, now_s),
        command=command,
        thread=first if own != first else None,
        finding=finding,
        alert_key=alert.key,
        also=tuple(one.key for one in also),
        buttons=tuple(buttons),
        chart=chart,
    )


def _recovered(alert: Alert) -> str:
    lasted = units.duration(
        (alert.resolved_at_s or alert.changed_at_s) - (alert.firing_at_s or alert.opened_at_s)
    )
    return f"no longer grows: {alert.ended or 'it is over'} (alert lasted {lasted})"


def _subject(alert: Alert, notice: NoticeKind) -> str:
    finding = alert.finding
    if notice == "resolved":
        tail = "recovered"
    else:
        # Of the host's memory the title says whose it is.
        what = "leak" if finding.subject.host else "memory leak"
        left = finding.eta and units.duration(finding.eta.mid_s)
        full = "out of memory" if finding.subject.host else "full"
        tail = f"{what}, {full} in {left}" if left else f"{what}, "
        tail += "" if left else units.rate(finding.rate_bytes_per_s)
    room = SUBJECT_CHARS - len(tail) - len(_LEADS[notice]) - 2
    return f"{_LEADS[notice]}{text.cut(alert.title, room)}: {tail}"


def _facts(alert: Alert, now_s: float) -> dict[str, str]:
    finding = alert.finding
    facts = {
        "Who": alert.title,
        "Pattern": finding.pattern,
        "Growth": units.rate(finding.rate_bytes_per_s),
        "Confidence": f"{units.percent(finding.confidence)} ({units.strength(finding.confidence)})",
    }
    if finding.r_squared is not None:
        facts["R²"] = f"{finding.r_squared:.3f}"
    if finding.onset_at_s is not None:
        facts["Since"] = units.clock(finding.onset_at_s, now_s=now_s)
    if finding.growth_bytes is not None:
        facts["Grown by"] = units.size(finding.growth_bytes)
    if finding.eta is not None and alert.state != "resolved":
        full = "Host out of memory" if finding.subject.host else "Full"
        facts[f"{full} in"] = eta_words(finding.eta)
        facts[f"{full} at"] = units.clock(finding.judged_at_s + finding.eta.mid_s, now_s=now_s)
    if finding.framework:
        facts["Framework"] = finding.framework
    if finding.blame and alert.state != "resolved":
        facts["Who grew"] = ", ".join(
            f"{one.name} {units.percent(one.share)}" for one in finding.blame[:3]
        )
    if finding.advice and alert.state != "resolved":
        facts["To check"] = " ".join(finding.advice)
    if alert.state == "resolved":
        facts["Over"] = alert.ended or "it is over"
    return facts
