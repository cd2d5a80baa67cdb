"""The parts of a report with a chart: one for each finding, one for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.design import LOOKS
from gpuwatchd.view.queries.alert_query import OPEN
from gpuwatchd.view.report import document, incident, tables
from gpuwatchd.view.report.document import Card, Facts, Says, Shown
from gpuwatchd.view.text import alert_details, badges, cost_text, delivery_text, verdict_text
from gpuwatchd.view.text.process_facts import where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.view.report.document import Block
    from gpuwatchd.view.report.incident import Incident
    from gpuwatchd.view.report.period import Period
    from gpuwatchd.view.report.usage import Holder

_LEFT_OUT = frozenset(alert_details.Label)
"""What stands elsewhere on a card, or in other words."""
_MOST_LINES = 8
"""Decisions and deliveries on one card, each."""


def finding(period: Period, one: Incident) -> Card:
    """Return an incident in full."""
    alert = one.alert
    badge = badges.raised(alert)
    over = "" if alert.state in OPEN else ", resolved"
    text = verdict_text.verdict(alert.finding)[0] if alert.kind == "leak" else alert.finding.reason
    picture = one.picture
    chart = () if picture is None or picture.empty else (Shown(picture=picture),)
    return Card(
        key=f"alert-{alert.code}",
        title=alert.title or alert.key,
        kind=badge.kind,
        word=f"{badge.word}{over}",
        said=text,
        blocks=(*chart, Facts(rows=tuple(_rows(period, one)))),
    )


def _rows(period: Period, one: Incident) -> Iterator[tuple[str, str]]:
    alert, now_s = one.alert, period.now_s
    facts = [
        ("because", verdict_text.because(alert) if alert.kind == "leak" else ""),
        verdict_text.growth_since(alert, now_s=now_s),
        ("who", incident.who(one)),
        ("rate", _rate(alert, now_s)),
        ("foreseen", "" if _is_newest(one) else incident.foreseen(one, now_s=now_s)),
        ("what came", incident.outcome(one, now_s=now_s)),
        _left(one, now_s),
        ("cost", _cost(period, one)),
    ]
    facts += [("advice", line) for line in alert.finding.advice]
    facts += [
        ("your label" if not (word := period.found.user_label(alert)) or not word.who else "said",
         verdict_text.user_label(period.found.user_label(alert))),
        *(("snoozed", _snoozed(silence, now_s)) for silence in one.silences),
    ]  # fmt: skip
    before = ""
    for label, value in [*facts, *_story(one)]:
        if value:
            yield "" if label == before else label, value
            before = label
    yield "more", f"gpuwatchctl alerts show {alert.code}"


def _is_newest(one: Incident) -> bool:
    """Say whether the forecast on record is the one that is shown as of now."""
    # A message keeps what others may see of a finding.
    return one.alert.state in OPEN and one.first.public == one.alert.finding.public


def _snoozed(silence: Silence, now_s: float) -> str:
    text = delivery_text.silence_end(silence, now_s=now_s)
    if silence.cleared_at_s is None:
        return text
    return f"{text}; cleared at {units.moment(silence.cleared_at_s, now_s=now_s)}"


def _story(one: Incident) -> Iterator[tuple[str, str]]:
    """Yield what `alerts show` tells, without what is said already; long lists are cut."""
    rows = [
        (label, value)
        for label, value in _named(alert_details.lines(one.story))
        if label not in _LEFT_OUT
    ]
    for label, value in rows:
        same = [row for row in rows if row[0] == label]
        if len(same) > _MOST_LINES:
            if same.index((label, value)) == len(same) - _MOST_LINES:
                yield label, f"({len(same) - _MOST_LINES} earlier ones are left out)"
            if same.index((label, value)) < len(same) - _MOST_LINES:
                continue
        yield label, value


def _named(lines: Iterator[alert_details.Line]) -> Iterator[tuple[str, str]]:
    label = ""
    for name, value, _ in lines:
        label = name or label
        yield label, value


def _rate(alert: Alert, now_s: float) -> str:
    if alert.kind != "leak":
        return ""
    return verdict_text.calmed(alert, now_s=now_s) or verdict_text.growth(
        alert.finding.rate_bytes_per_s
    )


def _left(one: Incident, now_s: float) -> tuple[str, str]:
    """Return the time that is left, of what is open; of an old judgement the instant it meant."""
    alert = one.alert
    if alert.kind != "leak" or alert.state not in OPEN:
        return "full in", ""
    if incident.is_old(alert.finding, now_s=now_s):
        newest = incident.foreseen(one._replace(first=alert.finding), now_s=now_s)
        return "last forecast", newest or "?"
    return "full in", verdict_text.eta(alert.finding.eta) or "?"


def _cost(period: Period, one: Incident) -> str:
    """Return what it cost, as `cost` counts; else the line that went out with its notices."""
    if not one.entries:
        return cost.line(one.alert.cost)
    found = cost.summed(one.entries)
    what = cost_text.SHORT[one.entries[0].what]
    money = cost_text.partly(period.bill, found.usd, found.known_usd)
    text = f"{money} {what}, {cost.in_hours(found.gpu_hours)} GPU-hours"
    if found.ahead_usd is not None:
        text += f"; {cost_text.money(period.bill, found.ahead_usd)} more until memory is full"
    basis = "; ".join(dict.fromkeys(entry.basis for entry in one.entries if entry.basis))
    return f"{text} ({basis})" if basis else f"{text} (no price known)"


# ---- GPUs ---------------------------------------------------------------------------------------


def gpus(period: Period) -> Iterator[Block]:
    """Yield the charts of processes that were asked for, then the table and charts of GPUs."""
    yield from processes(period)
    if period.uses:
        yield tables.gpus(period)
    for use in period.uses:
        picture, item = period.pictures.get(use.device.uid), period.item(use.device)
        if picture is None or picture.empty:
            continue
        badge = None if item.reading is None else badges.device(item)
        yield Card(
            key=f"gpu-{use.device.label.replace(' ', '-').replace(':', '-').lower()}",
            title=f"{use.device.label}  {use.device.name}",
            kind="unknown" if badge is None else badge.kind,
            word="recorded" if badge is None else badge.word,
            said="" if badge is None else badge.rest,
            blocks=(Shown(picture=picture),),
        )
    left = len(period.uses) - document.GPU_CHARTS
    if left > 0:
        yield Says(text=f"{left} more GPUs have no chart here: --gpu chooses.", tone="note")


def _had(period: Period, holder: Holder) -> str:
    return (
        f"{tables.label_of(period, holder.device_uid)}: "
        f"{cost.in_hours(holder.gib_hours)} GiB hours, "
        f"{cost.in_hours(holder.gpu_hours)} GPU-hours, at most {units.size(holder.peak_bytes)}"
    )


def processes(period: Period) -> Iterator[Card]:
    """Yield a card of each process that --pid names."""
    for info, picture in period.process_pictures:
        own = [holder for holder in period.holders if holder.info.key == info.key]
        rows = [("who", ", ".join([verdict_text.who(info), *where(info)]))]
        rows += [("on", _had(period, holder)) for holder in own]
        yield Card(
            key=f"pid-{info.key.pid}",
            title=verdict_text.who(info),
            kind=picture.kind,
            word=LOOKS[picture.kind].word,
            said=picture.verdict,
            blocks=(Shown(picture=picture), Facts(rows=tuple(rows))),
        )
