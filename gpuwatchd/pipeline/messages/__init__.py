"""The messages of alerts, in one place.

Facts first, then the judgement with its strength, then what to do, then the command. Plain text;
each channel escapes for its own sink. The subject is enough on a lock screen, the body on a
pop-up; the facts say the rest, each thing once. All of it fits on a screen of 24 lines of 80.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.model import Message
from gpuwatchd.pipeline.messages import facts, sentences
from gpuwatchd.pipeline.messages.facts import digest
from gpuwatchd.pipeline.messages.sentences import SUBJECT_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert, Button, Chart, EtaRange, Finding, NoticeKind

__all__ = ["SUBJECT_CHARS", "compose", "digest", "eta_words", "growth_line", "message_id"]


def eta_words(eta: EtaRange | None) -> str:
    """Return the time to out-of-memory with its interval, "unknown" without one.

    Examples
    --------
    >>> from gpuwatchd.core.model import EtaRange
    >>> eta_words(EtaRange(low_s=2340, mid_s=2820, high_s=3720))
    '47 min (39 to 62 min)'
    """
    if eta is None:
        return "unknown"
    return units.band(eta.low_s, eta.mid_s, eta.high_s)


def growth_line(finding: Finding) -> str:
    """Return "grows 12.4 MB/min (gradual, likely, 91 %)"."""
    rate = units.rate(finding.rate_bytes_per_s)
    sure = f"{units.strength(finding.confidence)}, {units.percent(finding.confidence)}"
    return f"grows {rate} ({finding.pattern}, {sure})"


def message_id(alert: Alert, notice: NoticeKind, number: int) -> str:
    """Return an id that is the same however often the same message is tried."""
    import hashlib  # noqa: PLC0415 - brings the whole of OpenSSL into a daemon that has no alert

    seed = f"{alert.key}|{alert.opened_at_s:.3f}|{notice}|{number}"
    return f"{hashlib.sha256(seed.encode('utf-8', 'replace')).hexdigest()[:24]}@gpuwatchd"


def compose(
    alert: Alert,
    notice: NoticeKind,
    *,
    now_s: float,
    also: Sequence[Alert] = (),
    chart: Chart | None = None,
    buttons: Sequence[Button] = (),
    host: str | None = None,
) -> Message:
    """Return the message of one notice.

    Parameters
    ----------
    alert
        With its notice already booked (``notices`` counts it).
    also
        Others of one cause that share this notice.
    chart, buttons
        What channels may show of them.
    host
        Name of this machine; by default as it calls itself.
    """
    first = alert.first_message or message_id(alert, "firing", 1)
    own = message_id(alert, notice, alert.notices)
    crashed = sentences.crashed(alert)
    name = facts.machine_name(host)
    return Message(
        id=own,
        notice=notice,
        # What probably ran out of memory has not recovered.
        severity="info" if notice == "resolved" and not crashed else alert.severity,
        subject=sentences.subject(alert, notice, now_s=now_s, also=also, host=name),
        body="\n".join(sentences.body(alert, now_s=now_s, others=bool(also))),
        facts=facts.facts(alert, notice, now_s=now_s, also=also, host=name),
        command=facts.command(alert, notice),
        thread=first if own != first else None,
        finding=alert.finding.public,
        alert_key=alert.key,
        also=tuple(one.key for one in also),
        cost=_money(alert),
        buttons=tuple(buttons),
        chart=chart,
    )


def _money(alert: Alert) -> str:
    """Return the line on money; of what is over only what a crash has cost."""
    if alert.cost is None or (alert.state == "resolved" and not sentences.crashed(alert)):
        return ""
    if alert.state != "resolved" and sentences.calm_since_s(alert) is None:
        return cost.line(alert.cost)
    # Nothing is added until memory is full where it is over, or does not grow.
    spent = msgspec.structs.replace(alert.cost, at_risk_usd=None, at_risk_gpu_hours=None)
    return cost.line(spent)
