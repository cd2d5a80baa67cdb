"""The sentences of alerts: every wording that people are told is here. Pure.

Facts first, then the judgement with its strength. Times are local and say their zone once; an
interval holds nine of ten (5 to 95 %); what is not known is said as not known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.core.codes import OUT_OF_MEMORY, Ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert, EtaRange, Finding, NoticeKind

SUBJECT_CHARS = 78
STALE_S = 600.0
"""Figures that are older than this are said to be."""
_WHY_CHARS = 44
_LEAST_NAME = 12
_HOST_CHARS = 16
_EVIDENCE_CHARS = 240
_REASON_CHARS = 310
LEAST_FLAPS = 2
"""That it came and went so often within the hour before is worth a line."""

_LEADS: dict[NoticeKind, str] = {
    "firing": "",
    "escalated": "Now",
    "repeat": "Still",
    "resolved": "Over",
    "test": "Test",
    "digest": "",
}
"""Why it is over, on a lock screen."""
_KINDS = {
    "gradual": "a gradual leak",
    "step": "a leak in steps",
    "cyclic": "a leak from cycle to cycle",
}

_MODEL = re.compile(r"^((?:GPU|MIG) [\w:]+) \([^()]*\)")
_RUNS = re.compile(r"^(\d+ ranks of [^()]+) \([^()]*\)")
_OWNER = re.compile(r"(?<=\]) of \S+$|(?<=\S) of \S+(?= on (?:GPU|MIG) )")
_INTERPRETER = re.compile(r"\bpython[\d.]* (?=\S+\[)")
_PID = re.compile(r"\[\d+\]$")
_MANY = re.compile(r"(?:host memory of )?\d+ ranks ")
_TOGETHER = re.compile(r" leak alike, together [\d.,]+ MB/min")
_ELSEWHERE = (
    (
        re.compile(
            r"\b(?:grows|rises)( steadily)? by \S+ MB/min for [^,;]+, \S+ [KMGT]iB so far,? ?"
        ),
        lambda found: "steady, " if found[1] else "",
    ),
    (re.compile(r", full in [^;]*$"), ""),
    (re.compile(r"^host memory "), ""),
    (re.compile(r" creeps up by \S+ MB/min"), " creeps up"),
    (_TOGETHER, " leak alike"),
    (re.compile(r"\bup in (\d+) of (\d+) parts"), r"rising in \1 of \2 parts of that time"),
)
"""What a reason says that stands elsewhere in a message: rate, duration, amount, time left."""


def brief(title: str) -> str:
    """Return a title without the model of its device, or what ranks run.

    Examples
    --------
    >>> brief("GPU 0 (A100-SXM4-80GB): python train.py[4711] of alice")
    'GPU 0: python train.py[4711] of alice'
    >>> brief("4 ranks of torchrun 7f3a (python train.py) of alice on GPU 0-3")
    '4 ranks of torchrun 7f3a of alice on GPU 0-3'
    """
    short = _RUNS.sub(r"\1", _MODEL.sub(r"\1", text.clean(title).strip()))
    return short.replace("memory that no listed process owns", "memory that nobody owns")


def fitted(title: str, room: int) -> str:
    """Return a title in at most ``room`` characters: the owner goes first, the pid last.

    Examples
    --------
    >>> fitted("GPU 0: python train.py[4711] of alice", 30)
    'GPU 0: python train.py[4711]'
    >>> fitted("GPU 0: python train.py[4711] of alice", 22)
    'GPU 0: train.py[4711]'
    >>> fitted("GPU 0: python train.py[4711] of alice", 16)
    'GPU 0: tr…[4711]'
    """
    if len(title) > room:
        title = _OWNER.sub("", title)
    if len(title) > room:
        title = _INTERPRETER.sub("", title)
    pid = _PID.search(title)
    if len(title) > room and pid is not None and len(pid[0]) < room:
        return text.cut(title[: pid.start()], room - len(pid[0])) + pid[0]
    return text.cut(title, room)


def crashed(alert: Alert) -> bool:
    """Say whether an alert is over because its subject probably ran out of memory."""
    return alert.state == "resolved" and alert.ended_code in OUT_OF_MEMORY


def left(finding: Finding, now_s: float) -> EtaRange | None:
    """Return the time that is left now: the judgement may be some minutes old."""
    eta = finding.eta
    if eta is None:
        return None
    age_s = max(0.0, now_s - finding.judged_at_s)
    return type(eta)(
        low_s=max(0.0, eta.low_s - age_s),
        mid_s=max(0.0, eta.mid_s - age_s),
        high_s=None if eta.high_s is None else max(0.0, eta.high_s - age_s),
    )


def sure(finding: Finding) -> str:
    """Return how sure a leak is, as an adverb; "" of one that is as good as certain."""
    strength = units.strength(finding.confidence)
    return {"confirmed": "", "likely": "probably "}.get(strength, "possibly ")


def calm_since_s(alert: Alert) -> float | None:
    """Return since when an open alert has not grown; None when it does, or is over."""
    return None if alert.state == "resolved" else alert.clear_since_s


def subject(
    alert: Alert,
    notice: NoticeKind,
    *,
    now_s: float,
    also: Sequence[Alert] = (),
    host: str = "",
) -> str:
    """Return the line that must be enough on a lock screen, at most 78 characters."""
    lead, who, on = _lead(alert, notice), brief(_who(alert)), on_host(host)
    beside = SUBJECT_CHARS - len(lead) - len(on) - len(_INTERPRETER.sub("", _OWNER.sub("", who)))
    end = tail(alert, notice, now_s=now_s, also=also, room=max(_WHY_CHARS, beside)) + on
    room = max(SUBJECT_CHARS - len(lead) - len(end), _LEAST_NAME)
    return text.cut(f"{lead}{fitted(who, room)}{end}", SUBJECT_CHARS)


def on_host(host: str) -> str:
    """Return " (lab3)"; "" where the name is not known."""
    return f" ({text.cut(host, _HOST_CHARS)})" if host else ""


def _who(alert: Alert) -> str:
    return alert.title or alert.subject.id


def _lead(alert: Alert, notice: NoticeKind) -> str:
    word = _LEADS[notice]
    if crashed(alert):
        return "Probably out of memory: "
    if notice == "escalated" and alert.severity != "critical":
        word = "Worse"
    elif alert.severity == "critical" and notice not in {"resolved", "test"}:
        word = f"{word} CRITICAL".strip()
    if alert.told_flapping and notice in {"firing", "repeat"}:
        word = f"{word}, on and off" if word else "On and off"
    return f"{word}: " if word else ""


def tail(
    alert: Alert,
    notice: NoticeKind,
    *,
    now_s: float,
    also: Sequence[Alert] = (),
    room: int = _WHY_CHARS,
) -> str:
    """Return what a line says of its subject, and how soon it matters.

    Parameters
    ----------
    also
        Others that the line stands for.
    room
        Characters for a reason.
    """
    more = f" and {len(also)} more" if also else ""
    if crashed(alert):
        return more
    if alert.state == "resolved" or notice == "resolved" or alert.kind != "leak":
        over = alert.state == "resolved" or notice == "resolved"
        stopped = alert.ended_code is Ending.STOPPED_GROWING
        why = (
            ("no longer grows" if stopped else alert.ended or "it is over")
            if over
            else _first(alert)
        )
        return f"{more}: {text.cut(text.clean(why), room - len(more) - 2)}"
    since_s = calm_since_s(alert)
    if since_s is not None:
        return f"{more} has not grown since {units.moment(since_s, now_s=now_s)}"
    if is_stale(alert, now_s):
        return f"{more}: no news for {units.duration(now_s - alert.finding.judged_at_s)}"
    many = bool(also) or _MANY.match(alert.title) is not None
    value = f"{more} {sure(alert.finding)}leak{'' if many else 's'}"
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


def _first(alert: Alert) -> str:
    """Return the first part of a reason."""
    return text.clean(alert.finding.reason).partition(";")[0].strip() or alert.kind


def is_stale(alert: Alert, now_s: float) -> bool:
    """Say whether the figures of an open alert are old."""
    return alert.state != "resolved" and now_s - alert.finding.judged_at_s > STALE_S


def pace(finding: Finding) -> float | None:
    """Return how fast it grows in bytes/s: of ranks that leak alike, all of them together."""
    if finding.blame and _TOGETHER.search(finding.reason):
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
    value = f"Grows {units.rate(rate)}" if rate else "Grows" if rate is None else "Stands still"
    if onset_s is not None:
        lasted = units.duration(max(0.0, now_s - onset_s))
        value += f" since {units.moment(onset_s, now_s=now_s, zone=True)} ({lasted})"
    return f"{value}, {amount} so far." if amount else f"{value}."


def crash(finding: Finding, *, now_s: float, zone: bool) -> str:
    """Return when memory runs out: how long it is and what the clock says then, with 5-95 %."""
    full = "Out of memory" if finding.subject.host else "Full"
    eta = left(finding, now_s)
    if eta is None:
        why = " its limit is not known" if finding.limit_bytes is None else " no time is foreseen"
        return f"When it is full is not known:{why}."
    if eta.mid_s <= 0.0:
        return f"{full} at any moment: {_due(finding, now_s)} was the middle of what was expected."
    mid_at_s = now_s + eta.mid_s
    clock = units.moment(mid_at_s, now_s=now_s, zone=zone)
    # The day is said once: again only where an end of the interval is on another one.
    low = units.moment(now_s + eta.low_s, now_s=mid_at_s)
    band = f"{full} in {units.band(eta.low_s, eta.mid_s, eta.high_s)}, at {clock}"
    if eta.high_s is None:
        return f"{band} ({low} - open): it may level off before."
    high = units.moment(now_s + eta.high_s, now_s=mid_at_s)
    return f"{band} ({low} - {high}), 90% sure."


def _due(finding: Finding, now_s: float) -> str:
    mid_s = finding.eta.mid_s if finding.eta is not None else 0.0
    return units.moment(finding.judged_at_s + mid_s, now_s=now_s)


def judgement(finding: Finding) -> str:
    """Return the judgement with its strength, then what it rests on."""
    kind, word = _KINDS.get(finding.pattern, "a leak"), sure(finding).strip().capitalize()
    percent = units.percent(finding.confidence)
    value = f"{word} {kind} ({percent})"
    if not word:
        value = f"{kind.capitalize()}, as good as certain ({percent})"
    because = evidence(finding.reason)
    return f"{value}: {because}." if because else f"{value}."


def evidence(reason: str) -> str:
    """Return a reason without what is said elsewhere.

    Examples
    --------
    >>> evidence("grows steadily by 12.4 MB/min for 0h 17m, 206 MiB so far, none given back, up in "
    ...          "14 of 16 parts; 46% of its room is gone, 20.0 GiB left, full in 0h 47m (0h 39m - "
    ...          "1h 02m)")[:70]
    'steady, none given back, rising in 14 of 16 parts of that time; 46% of'
    """
    value = text.clean(reason, limit=600).strip().rstrip(".")
    for pattern, instead in _ELSEWHERE:
        value = pattern.sub(instead, value)
    return text.cut(value.strip(" ,;"), _EVIDENCE_CHARS)


def body(alert: Alert, *, now_s: float, others: bool = False) -> list[str]:
    """Return the two to five lines that a pop-up shows below the subject.

    With ``others`` it is said that the figures are those of the first.
    """
    lines = _body(alert, now_s)
    if others:
        lines[0] = f"The first: {lines[0][:1].lower()}{lines[0][1:]}"
    return lines


def _body(alert: Alert, now_s: float) -> list[str]:
    if alert.state == "resolved":
        grew = [growth(alert, now_s=now_s)] if alert.kind == "leak" else []
        return [_ending(alert, now_s), *grew]
    lines = []
    if is_stale(alert, now_s):
        judged_s = alert.finding.judged_at_s
        age, at = units.duration(now_s - judged_s), units.moment(judged_s, now_s=now_s)
        lines.append(f"No news for {age}: the figures are of {at}.")
    if alert.kind != "leak":
        value = sentence(text.cut(alert.finding.reason, _REASON_CHARS))
        return [*lines, value, *_since(alert, now_s)]
    lines.append(growth(alert, now_s=now_s))
    if calm_since_s(alert) is None:
        lines.append(crash(alert.finding, now_s=now_s, zone=alert.finding.onset_at_s is None))
        lines.append(judgement(alert.finding))
    else:
        lines.append("Not over yet: a leak in steps stands still in between.")
    if alert.flaps >= LEAST_FLAPS or (alert.flaps and alert.told_flapping):
        times = "once" if alert.flaps == 1 else f"{alert.flaps} times"
        lines.append(f"It came and went {times} within the hour before.")
    return lines


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
    why = text.clean(alert.ended).strip().rstrip(".") or "it is over"
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
