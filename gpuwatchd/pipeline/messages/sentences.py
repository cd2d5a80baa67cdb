"""The sentences of alerts: the texts of messages. Pure.

Facts first, then the judgement with its strength. Times are local and say their zone once; an
interval holds nine of ten (5 to 95 %); what is unknown is named as unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from gpuwatchd.core import text, units
from gpuwatchd.core.codes import ActHold, Ending, Reason, TitleRole
from gpuwatchd.core.model import outdated_s
from gpuwatchd.core.model.alerts import TitlePart
from gpuwatchd.core.model.findings import STALE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert, EtaRange, Finding, NoticeKind, Proposal

SUBJECT_CHARS = 78
_WHY_CHARS = 44
_LEAST_NAME = 12
_HOST_CHARS = 16
_EVIDENCE_CHARS = 240
_REASON_CHARS = 310
_COMMAND_CHARS = 250
LEAST_FLAPS = 2
"""That it came and went so often within the hour before is worth a line."""

_LEADS: dict[NoticeKind, str] = {
    "firing": "",
    "escalated": "Now",
    "repeat": "Still",
    "resolved": "Resolved",
    "test": "Test",
    "digest": "",
}
"""How a subject begins, on a lock screen."""
_KINDS = {
    "gradual": "a gradual leak",
    "step": "a leak in steps",
    "cyclic": "a leak from cycle to cycle",
}


class Case(NamedTuple):
    """A notice of an alert, at the instant at which it is put into words."""

    alert: Alert
    notice: NoticeKind
    now_s: float
    ran_out: bool
    """Its subject has probably run out of memory: :attr:`.Alert.ran_out`."""
    also: Sequence[Alert] = ()
    """Others of one cause that share it."""
    host: str = ""

    @property
    def resolved(self) -> bool:
        """Whether it says that its alert is over."""
        return self.alert.state == "resolved" or self.notice == "resolved"


def brief(alert: Alert) -> tuple[TitlePart, ...]:
    """Return whom an alert is about without the model of the device, or what ranks run."""
    return tuple(
        [
            replace(part, text=text.clean(part.text if part.short is None else part.short))
            for part in alert.title_parts or (TitlePart(text=alert.title or alert.subject.id),)
            if part.role is not TitleRole.MODEL
        ]
    )


def _joined(parts: Sequence[TitlePart], *without: TitleRole) -> str:
    return "".join([part.text for part in parts if part.role not in without])


def fitted(parts: Sequence[TitlePart], room: int) -> str:
    """Return a title in at most ``room`` characters: the owner goes first, the pid last.

    Examples
    --------
    >>> words = (("GPU 0: ", ""), ("python ", "interpreter"), ("train.py", ""), ("[4711]", "pid"),
    ...          (" of alice", "owner"))
    >>> parts = [TitlePart(text=text, role=TitleRole(role)) for text, role in words]
    >>> fitted(parts, 30), fitted(parts, 22), fitted(parts, 16)
    ('GPU 0: python train.py[4711]', 'GPU 0: train.py[4711]', 'GPU 0: tr…[4711]')
    """
    title = _joined(parts)
    if len(title) > room:
        title = _joined(parts, TitleRole.OWNER)
    if len(title) > room:
        title = _joined(parts, TitleRole.OWNER, TitleRole.INTERPRETER)
    if len(title) <= room:
        return title
    pid = next((part.text for part in parts if part.role is TitleRole.PID), "")
    if pid and room > len(pid):
        return text.cut(title.removesuffix(pid), room - len(pid)) + pid
    return text.cut(title, room)


def left(finding: Finding, now_s: float) -> EtaRange | None:
    """Return the time that is left: of an old judgement, what is left of it now."""
    eta = finding.eta
    if eta is None:
        return None
    age_s = outdated_s(finding.judged_at_s, eta.mid_s, now_s)
    return type(eta)(
        low_s=max(0.0, eta.low_s - age_s),
        mid_s=max(0.0, eta.mid_s - age_s),
        high_s=None if eta.high_s is None else max(0.0, eta.high_s - age_s),
    )


def confidence_text(finding: Finding) -> str:
    """Return how sure a leak is, as an adverb; "" of one that is as good as certain."""
    strength = units.strength(finding.confidence)
    return {"confirmed": "", "likely": "probably "}.get(strength, "possibly ")


def calm_since_s(alert: Alert) -> float | None:
    """Return since when an open alert has not grown; None when it does, or is over."""
    return None if alert.state == "resolved" else alert.clear_since_s


def subject(case: Case) -> str:
    """Return the line that must be enough on a lock screen, at most 78 characters."""
    lead = "Probably out of memory: " if case.ran_out else _lead(case.alert, case.notice)
    on, who = on_host(case.host), brief(case.alert)
    least = _joined(who, TitleRole.OWNER, TitleRole.INTERPRETER)
    beside = SUBJECT_CHARS - len(lead) - len(on) - len(least)
    end = tail(case, room=max(_WHY_CHARS, beside)) + on
    room = SUBJECT_CHARS - len(lead) - len(end)
    if case.also and room < len(least):
        # Of several the name says more than the pid of one, and where need be than the host.
        who = tuple([part for part in who if part.role is not TitleRole.PID])
        device = sum(len(part.text) for part in who if part.role is TitleRole.DEVICE)
        if room < device + _LEAST_NAME:
            end, room = end.removesuffix(on), room + len(on)
    room = max(room, _LEAST_NAME)
    return text.cut(f"{lead}{fitted(who, room)}{end}", SUBJECT_CHARS)


def on_host(host: str) -> str:
    """Return " (lab3)"; "" where the name is not known."""
    return f" ({text.cut(host, _HOST_CHARS)})" if host else ""


def _lead(alert: Alert, notice: NoticeKind) -> str:
    word = _LEADS[notice]
    if notice == "escalated" and alert.severity != "critical":
        word = "Worse"
    elif alert.severity == "critical" and notice not in {"resolved", "test"}:
        word = f"{word} CRITICAL".strip()
    if alert.told_flapping and notice in {"firing", "repeat"}:
        word = f"{word}, on and off" if word else "On and off"
    return f"{word}: " if word else ""


def critical_lead(alert: Alert, notice: NoticeKind) -> str:
    """Return how a subject begins that says of news only that it is critical; else ""."""
    plain = alert.severity == "critical" and notice in {"firing", "escalated"}
    return _lead(alert, notice) if plain and not (alert.told_flapping or alert.ran_out) else ""


def tail(case: Case, *, room: int = _WHY_CHARS) -> str:
    """Return what a line says of its subject, and how soon it matters."""
    alert, also, now_s = case.alert, case.also, case.now_s
    more = f" and {len(also)} more" if also else ""
    if case.ran_out:
        return more
    if case.resolved or alert.kind != "leak":
        if case.resolved:
            stopped = alert.ended_code is Ending.STOPPED_GROWING
            why = "no longer grows" if stopped else alert.ended or "it is resolved"
        else:
            parts = alert.finding.parts
            why = parts[0].whole if parts else alert.kind
        return f"{more}: {text.fit(why, room - len(more) - 2)}"
    since_s = calm_since_s(alert)
    if since_s is not None:
        return f"{more} has not grown since {units.moment(since_s, now_s=now_s)}"
    if is_stale(alert, now_s):
        return f"{more}: no new data for {units.duration(now_s - alert.finding.judged_at_s)}"
    many = bool(also) or any(part.role is TitleRole.RANKS for part in alert.title_parts or ())
    value = f"{more} {confidence_text(alert.finding)}leak{'' if many else 's'}"
    return f"{value}{_soon((alert, *also), now_s)}"


def _soon(alerts: Sequence[Alert], now_s: float) -> str:
    """Return when the first of these is full; how fast it grows where that is not known."""
    pairs = [
        (eta.mid_s, alert.subject.host) for alert in alerts if (eta := left(alert.finding, now_s))
    ]
    if not pairs:
        return f" {units.rate(pace(alerts[0].finding))}"
    mid_s, on_host = min(pairs)
    full = "out of memory" if on_host else "full"
    # Not "first": the body tells of the worst one first, which may be full later.
    soonest = "soonest " if len(alerts) > 1 else ""
    return f", {soonest}{full} {'any moment' if mid_s <= 0.0 else f'in {units.duration(mid_s)}'}"


def is_stale(alert: Alert, now_s: float) -> bool:
    """Say whether the figures of an open alert are old."""
    return alert.state != "resolved" and now_s - alert.finding.judged_at_s > STALE_S


def pace(finding: Finding) -> float | None:
    """Return how fast it grows in bytes/s: of ranks that leak alike, all of them together."""
    if finding.blame and finding.code is Reason.JOB:
        return sum(blame.rate_bytes_per_s for blame in finding.blame)
    return finding.rate_bytes_per_s


def growth(alert: Alert, *, now_s: float) -> str:
    """Return how fast, since when, for how long and how much it has grown."""
    finding, rate = alert.finding, pace(alert.finding)
    alone = rate == finding.rate_bytes_per_s  # what ranks have grown together is not kept
    amount = units.size(finding.growth_bytes) if finding.growth_bytes is not None and alone else ""
    since_s, onset_s = alert.clear_since_s, finding.onset_at_s
    if alert.state == "resolved" or since_s is not None:
        end_s = finding.judged_at_s if since_s is None else since_s
        value = f"Grew {amount}".strip()
        value += f" {units.rate(rate)}" if not amount else ""
        if onset_s is None:
            return f"{value}."
        span = units.duration(max(0.0, end_s - onset_s))
        return f"{value} in {span} from {units.moment(onset_s, now_s=now_s, zone=True)} on."
    value = f"Grows {units.rate(rate)}" if rate else "Grows" if rate is None else "Not growing"
    if onset_s is not None:
        lasted = units.duration(max(0.0, finding.judged_at_s - onset_s))
        value += f" since {units.moment(onset_s, now_s=now_s, zone=True)} ({lasted})"
    return f"{value}, {amount} so far." if amount else f"{value}."


def crash(finding: Finding, *, now_s: float, zone: bool) -> str:
    """Return when memory runs out: how long it is and what the clock says then, with 5-95 %."""
    full = "Out of memory" if finding.subject.host else "Full"
    eta = left(finding, now_s)
    if eta is None:
        why = " its limit is not known" if finding.limit_bytes is None else " there is no forecast"
        return f"Time to full unknown:{why}."
    if eta.mid_s <= 0.0:
        return f"{full} at any moment: it was expected for {_due(finding, now_s)}."
    begin_s = min(now_s, finding.judged_at_s) if eta == finding.eta else now_s
    mid_at_s = begin_s + eta.mid_s
    clock = units.moment(mid_at_s, now_s=now_s, zone=zone)
    # The day is said once: again only where an end of the interval is on another one.
    low = units.moment(begin_s + eta.low_s, now_s=mid_at_s)
    band = f"{full} in {units.band(eta.low_s, eta.mid_s, eta.high_s)}, at {clock}"
    if eta.high_s is None:
        return f"{band} ({low} or later): it may level off before."
    high = units.moment(begin_s + eta.high_s, now_s=mid_at_s)
    return f"{band} ({low} to {high}), 90 % sure."


def _due(finding: Finding, now_s: float) -> str:
    mid_s = finding.eta.mid_s if finding.eta is not None else 0.0
    return units.moment(finding.judged_at_s + mid_s, now_s=now_s)


def judgement(finding: Finding) -> str:
    """Return the judgement with its strength, then what it rests on."""
    kind = _KINDS.get(finding.pattern, "a leak")
    word = confidence_text(finding).strip().capitalize()
    percent = units.percent(finding.confidence)
    value = f"{word} {kind} ({percent})"
    if not word:
        value = f"{kind.capitalize()}, almost certain ({percent})"
    because = evidence(finding)
    return f"{value}: {because}." if because else f"{value}."


def evidence(finding: Finding) -> str:
    """Return a reason without what stands elsewhere: rate, duration, amount and time left."""
    texts: list[str] = []
    for part in finding.parts:
        # A forecast is repeated elsewhere as it is; with more behind it, it stays whole.
        whole = part.short is None or (part.forecast and part is not finding.parts[-1])
        words = part.text if whole or part.short is None else part.short
        texts.append(f"{part.about}{words}" if texts or not part.verb else words)
    value = text.clean("; ".join(texts), limit=600).strip().rstrip(".")
    return text.cut(value.strip(" ,;"), _EVIDENCE_CHARS)


def body(alert: Alert, *, now_s: float, others: bool = False) -> list[str]:
    """Return the two to five lines that a pop-up shows below the subject.

    With ``others`` the text says that the figures are those of the first.
    """
    lines = _body(alert, now_s)
    if others:
        lines[0] = f"First alert: {lines[0][:1].lower()}{lines[0][1:]}"
    return lines


def _body(alert: Alert, now_s: float) -> list[str]:
    if alert.state == "resolved":
        grew = [growth(alert, now_s=now_s)] if alert.kind == "leak" else []
        return [_ending(alert, now_s), *grew]
    lines = []
    if is_stale(alert, now_s):
        judged_s = alert.finding.judged_at_s
        age, at = units.duration(now_s - judged_s), units.moment(judged_s, now_s=now_s)
        lines.append(f"No new data for {age}: the figures are from {at}.")
    if alert.kind != "leak":
        value = sentence(text.cut(alert.finding.reason, _REASON_CHARS))
        return [*lines, value, *_since(alert, now_s)]
    lines.append(growth(alert, now_s=now_s))
    if calm_since_s(alert) is None:
        lines.append(crash(alert.finding, now_s=now_s, zone=alert.finding.onset_at_s is None))
        lines.append(judgement(alert.finding))
    else:
        lines.append("Not resolved yet: a leak in steps pauses between its steps.")
    if alert.flaps >= LEAST_FLAPS or (alert.flaps and alert.told_flapping):
        times = "once" if alert.flaps == 1 else f"{alert.flaps} times"
        lines.append(f"It came and went {times} within the hour before.")
    return lines


def proposal(step: Proposal, pid: int, now_s: float) -> str:
    """Return the line that says which step could be taken, or will be, and how to stop it."""
    command = text.clean(step.command, limit=_COMMAND_CHARS)
    stop = f"to stop it: gpuwatchctl hold {pid} 4h"
    does = f"gpuwatchd hands over to {step.runner}" if step.runner else "gpuwatchd runs"
    if step.at_s is not None:
        return f"At {units.moment(step.at_s, now_s=now_s)} {does}: {command} ({stop})"
    if step.notices_left:
        more = "1 more notice" if step.notices_left == 1 else f"{step.notices_left} more notices"
        return f"After {more} {does}: {command} ({stop})"
    if step.hold is ActHold.NOT_DELIVERED:
        return f"Not done, since nobody could be notified: {command}"
    if step.hold is ActHold.NEW_RULE:
        return f"Proposed, while its rule is new: {command}"
    return f"Proposed: {command}"


def _since(alert: Alert, now_s: float) -> list[str]:
    """Return since when; of what is held, only where that was seen: the alert came later."""
    begun_s = alert.finding.onset_at_s
    if begun_s is None and alert.kind == "gpu":
        begun_s = alert.opened_at_s
    if begun_s is None:
        return []
    lasted = units.duration(max(0.0, now_s - begun_s))
    return [f"Since {units.moment(begun_s, now_s=now_s, zone=True)} ({lasted})."]


def _ending(alert: Alert, now_s: float) -> str:
    why = alert.ended.strip().rstrip(".") or "it is resolved"
    if alert.ended_code is Ending.STOPPED_GROWING and alert.clear_since_s is not None:
        why += f" at {units.moment(alert.clear_since_s, now_s=now_s)}"
    return sentence(why)


def sentence(words: str) -> str:
    """Return words as a sentence: with a capital, and one full stop.

    Examples
    --------
    >>> sentence("it stopped growing"), sentence("")
    ('It stopped growing.', '')
    """
    clean = text.clean(words, limit=600).strip().rstrip(".")
    return f"{clean[:1].upper()}{clean[1:]}." if clean else ""
