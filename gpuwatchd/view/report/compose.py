"""What is known of a period, as a document of summary, advice, findings ..., and as an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import __version__
from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.core.design import LOOKS
from gpuwatchd.view.answers import alerts, base, current, report
from gpuwatchd.view.answers.base import answer_of, fill, finite
from gpuwatchd.view.queries.alert_query import OPEN
from gpuwatchd.view.report import advice, incident, tables
from gpuwatchd.view.report.document import (
    GPU_CHARTS,
    Card,
    Document,
    Facts,
    Figure,
    Figures,
    Says,
    Section,
    Step,
    Steps,
)
from gpuwatchd.view.report.period import grouped, percent
from gpuwatchd.view.text import alert_details, badges, cost_text, delivery_text, verdict_text
from gpuwatchd.view.text.subject_facts import where

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.view.report.document import Block, Plain, Tone
    from gpuwatchd.view.report.incident import Incident
    from gpuwatchd.view.report.period import Holder, Period


_LEFT_OUT = frozenset(alert_details.Label)
"""What stands elsewhere on a card, or in other words."""
_MOST_LINES = 8
"""Decisions and deliveries on one card, each."""


def document(period: Period) -> Document:
    """Return the report of a period."""
    asked, now_s = period.asked, period.now_s
    since, until = (units.clock(at) for at in (asked.since_s, asked.until_s))
    host = base.host()
    about = [
        f"{since} to {until} {units.zone(asked.until_s)} ({units.duration(asked.span_s)})",
        f"machine {host}",
        f"written {units.clock(now_s)} by gpuwatchctl {__version__}",
    ]
    sections = (
        Section(key="summary", title="Summary", blocks=tuple(_summary(period))),
        Section(key="advice", title="What to do first", blocks=tuple(_advice(period))),
        Section(key="findings", title="Findings", blocks=tuple(_findings(period))),
        Section(key="gpus", title="GPUs", blocks=tuple(_gpus(period))),
        Section(key="who", title="Who", blocks=tuple(tables.who(period))),
        Section(key="cost", title="Cost", blocks=tuple(tables.costs(period))),
        Section(key="held", title="Idle memory", blocks=tuple(tables.held(period))),
        Section(key="told", title="Deliveries", blocks=tuple(tables.deliveries(period))),
        Section(key="quality", title="Data quality", blocks=tuple(tables.quality(period))),
    )
    only = "Only of the users that are named: others are sums. " if period.query.user else ""
    foot = (
        f"{only}Times are local ({units.zone(period.asked.until_s)}). Verdicts are estimates with "
        "their confidence; forecasts are 90 % intervals. gpuwatchctl docs report says how each "
        "number is made."
    )
    return Document(
        title=_title(period, host), about="; ".join(about), sections=sections, foot=foot
    )


def _title(period: Period, host: str) -> str:
    what = f"GPU report of {host}"
    if period.infos:
        named = ", ".join(verdict_text.who(info) for info in period.infos[:3])
        more = len(period.infos) - 3
        what = f"GPU report on {named}{f' and {more} more' if more > 0 else ''}"
    users = period.query.user
    return f"{what} for {', '.join(users)}" if users else what


def _summary(period: Period) -> Iterator[Plain]:
    yield Says(text=sentence(period), tone=_tone(period))
    yield Figures(figures=tuple(_figures(period)))
    yield Says(text=f"Score: {advice.score(period).account}", tone="note")
    for _, warning in period.warnings:
        yield Says(text=f"Note: {warning}.", tone="note")


def _tone(period: Period) -> Tone:
    still = [alert for alert in period.alerts if alert.state in OPEN]
    if any(alert.severity == "critical" for alert in still) or advice.ends(period.alerts):
        return "bad"
    return "warn" if still else "good" if period.usage.quality.watched_share else "note"


def sentence(period: Period) -> str:
    """Return what happened, in one paragraph."""
    parts = [_happened(period), _ended(period), _forecasts(period), _idle(period), _money(period)]
    share = period.usage.quality.watched_share
    if share is not None:
        parts.append(f"{percent(share)} of the {units.duration(period.asked.span_s)} was watched.")
    return " ".join(part for part in parts if part)


def count(number: int, text: str, many: str = "") -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "leak"), count(0, "leak"), count(2, "process", "processes")
    ('1 leak', 'no leak', '2 processes')
    """
    if number == 1:
        return f"1 {text}"
    return f"no {text}" if number == 0 else f"{number:,} {many or text + 's'}"


def _happened(period: Period) -> str:
    alerts = period.alerts
    gpus = count(len(period.devices), "GPU")
    if not alerts:
        if not period.usage.devices or not any(use.stretches for use in period.usage.devices):
            return f"No data for {gpus} in this period."
        pending = sum(alert.state in OPEN for alert in period.watched)
        harmless = len(period.watched) - pending
        parts = [f"No incident on {gpus}"]
        if harmless:
            parts.append(f"{count(harmless, 'suspicion')} resolved without an alert")
        if pending:
            parts.append(f"{count(pending, 'suspicion')} not decided yet")
        return f"{'; '.join(parts)}."
    kinds = {
        "leak": count(_of(alerts, "leak"), "leak"),
        "gpu": count(_of(alerts, "gpu"), "trouble with a GPU", "troubles with GPUs"),
        "held": count(_of(alerts, "held"), "case of idle memory", "cases of idle memory"),
    }
    named = [text for kind, text in kinds.items() if _of(alerts, kind)]
    still = sum(alert.state in OPEN for alert in alerts)
    over = "it is resolved" if len(alerts) == 1 else "all are resolved"
    now = f"{still} still open" if still else over
    what = ", ".join(named)
    return f"{count(len(alerts), 'incident')} on {gpus}: {what}; {now}."


def _of(alerts: Sequence[Alert], kind: str) -> int:
    return sum(alert.kind == kind for alert in alerts)


def _ended(period: Period) -> str:
    ends = advice.ends(period.alerts)
    if not ends:
        return "No process ended near the limit." if period.alerts else ""
    return f"{count(ends, 'process', 'processes')} probably ran out of memory."


def _forecasts(period: Period) -> str:
    held, known = advice.true_of(period.in_full)
    if not known:
        return ""
    if known == 1:
        return f"That was {'within' if held else 'outside'} the forecast interval."
    return f"The forecast interval contained {held} of {known} of these ends."


def _idle(period: Period) -> str:
    if not period.holdings:
        return ""
    known = [holding.held_bytes for holding in period.holdings if holding.held_bytes is not None]
    least = "at least " if len(known) < len(period.holdings) else ""
    return f"{least.capitalize()}{units.size(sum(known))} is idle now."


def _money(period: Period) -> str:
    text, partial = tables.at_stake(period)
    unknown = ' "+ ?" stands for GPUs whose price is unknown.' if partial else ""
    return f"At stake: {text}.{unknown}" if text else ""


def _figures(period: Period) -> Iterator[Figure]:
    alerts = period.alerts
    still = sum(alert.state in OPEN for alert in alerts)
    score = advice.score(period)
    yield Figure(value=score.words, label="for a score" if score.value is None else "score")
    leaks, ends = _of(alerts, "leak"), advice.ends(alerts)
    note = f"{still} open" if still else ""
    yield Figure(value=str(len(alerts)), label=_plural(len(alerts), "incident"), note=note)
    causes = ", ".join(f"{cause} {n}" for cause, n in advice.by_allocator(alerts).items())
    yield Figure(value=str(leaks), label=_plural(leaks, "leak"), note=causes)
    yield Figure(value=str(ends), label=f"{_plural(ends, 'end')} near the limit")
    held = [holding.held_bytes for holding in period.holdings if holding.held_bytes is not None]
    yield Figure(value=units.size(sum(held)), label="held idle now")
    hours = advice.watched_hours(period) if period.usage.quality.watched_share is not None else None
    yield Figure(value=cost.in_hours(hours), label="GPU-hours watched", note=_busy(period))
    money = tables.lost_or_at_risk(period)
    if money:
        yield Figure(value=money, label="at risk, lost or idle")
    yield Figure(value=percent(period.usage.quality.watched_share), label="of the period watched")


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def _busy(period: Period) -> str:
    known = [use.busy_hours for use in period.usage.devices]
    total = cost.total(known) if known else None
    return "" if total is None else f"{cost.in_hours(total)} busy"


def _advice(period: Period) -> Iterator[Plain]:
    items = advice.items(period)
    if not items:
        yield Says(text="No action needed.", tone="good")
        return
    most = len(items) if period.asked.everything else period.asked.top
    steps = [Step(text=item.text, why=item.why, command=item.command) for item in items[:most]]
    if steps:
        yield Says(text=advice.ORDER, tone="note")
        yield Steps(steps=tuple(steps))
    if len(items) > most:
        yield Says(text=f"{len(items) - most} more: --all has them.", tone="note")


def _findings(period: Period) -> Iterator[Block]:
    if not period.alerts:
        yield Says(text="No incident in this period.", tone="good")
    for one in period.in_full:
        yield _finding(period, one)
    told = {id(one.alert) for one in period.in_full}
    rest = [alert for alert in period.alerts if id(alert) not in told]
    if rest:
        yield tables.alerts(period, rest, "Further incidents")
    still = [alert for alert in period.watched if alert.state in OPEN]
    if still:
        yield tables.alerts(period, still, "Suspicions that are not decided yet")
    over = [alert for alert in period.watched if alert.state not in OPEN]
    if over:
        yield tables.alerts(period, over, "Suspicions that were not confirmed")


def _finding(period: Period, one: Incident) -> Card:
    """Return an incident in full."""
    alert = one.alert
    badge = badges.raised(alert)
    over = "" if alert.state in OPEN else ", resolved"
    text = verdict_text.verdict(alert.finding)[0] if alert.kind == "leak" else alert.finding.reason
    picture = one.picture
    chart = () if picture is None or picture.empty else (picture,)
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
    # The forecast on record is the one that is shown as of now; a message keeps what is public.
    newest = alert.state in OPEN and one.first.public == alert.finding.public
    facts = [
        ("because", verdict_text.because(alert) if alert.kind == "leak" else ""),
        ("who", incident.who(one)),
        ("rate", _rate(alert, now_s)),
        ("foreseen", "" if newest else incident.foreseen(one, now_s=now_s)),
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
    return verdict_text.calmed(alert, now_s=now_s) or verdict_text.rate(alert.finding)


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


def _gpus(period: Period) -> Iterator[Block]:
    """Yield the charts of processes that were asked for, then the table and charts of GPUs."""
    yield from _processes(period)
    if period.usage.devices:
        yield tables.gpus(period)
    for use in period.usage.devices:
        picture, item = period.charts.devices.get(use.device.uid), period.item(use.device)
        if picture is None or picture.empty:
            continue
        badge = None if item.reading is None else badges.device(item)
        yield Card(
            key=f"gpu-{use.device.label.replace(' ', '-').replace(':', '-').lower()}",
            title=f"{use.device.label}  {use.device.name}",
            kind="unknown" if badge is None else badge.kind,
            word="recorded" if badge is None else badge.word,
            said="" if badge is None else badge.rest,
            blocks=(picture,),
        )
    left = len(period.usage.devices) - GPU_CHARTS
    if left > 0:
        yield Says(text=f"{left} more GPUs have no chart here: --gpu chooses.", tone="note")


def _had(period: Period, holder: Holder) -> str:
    return (
        f"{tables.label_of(period, holder.device_uid)}: "
        f"{cost.in_hours(holder.gib_hours)} GiB hours, "
        f"{cost.in_hours(holder.gpu_hours)} GPU-hours, at most {units.size(holder.peak_bytes)}"
    )


def _processes(period: Period) -> Iterator[Card]:
    """Yield a card of each process that --pid names."""
    for info, picture in period.charts.processes:
        own = [holder for holder in period.usage.holders if holder.info.key == info.key]
        rows = [("who", ", ".join([verdict_text.who(info), *where(info)]))]
        rows += [("on", _had(period, holder)) for holder in own]
        yield Card(
            key=f"pid-{info.key.pid}",
            title=verdict_text.who(info),
            kind=picture.kind,
            word=LOOKS[picture.kind].word,
            said=picture.verdict,
            blocks=(picture, Facts(rows=tuple(rows))),
        )


# The same numbers as an answer.


def answer(period: Period) -> base.Answer:
    """Return the answer of ``report --json``."""
    source = "database" if period.usage.quality.watched_share is not None else period.found.source
    return answer_of(report.Report, _data(period), source=source, warnings=period.warnings)


def _data(period: Period) -> report.ReportData:
    in_full = {id(one.alert) for one in period.in_full}
    score = advice.score(period)
    prices = period.bill.prices
    by_user = grouped(period.usage.holders, lambda info: info.user or "(unknown)")
    return fill(
        report.ReportData,
        period,
        summary=_figures_of(period),
        score=fill(
            report.Score,
            score,
            reason=None if score.value is not None else advice.NOT_ENOUGH,
            formula=advice.FORMULA,
        ),
        advice=advice.items(period),
        findings=map(_incident, period.in_full),
        further=[
            alerts.alert(alert, period.found) for alert in period.alerts if id(alert) not in in_full
        ],
        watched=[alerts.alert(alert, period.found) for alert in period.watched],
        gpus=[
            fill(report.ReportGpu, use, picture=period.charts.devices.get(use.device.uid))
            for use in period.usage.devices
        ],
        users_sum=[fill(report.HeldBy, holder, name=label) for label, holder in by_user],
        cost=report.ReportCost(
            currency=prices.currency,
            per_usd=prices.per_usd,
            entries=tuple(report.paid(entry, prices) for entry in period.bill.entries),
            sums=report.sums(period.bill.entries, prices),
            acts=report.acts(period.bill),
            prices=report.prices_used(period.bill),
        ),
        channels=period.channels.values(),
        pictures=[picture for _, picture in period.charts.processes],
    )


def _figures_of(period: Period) -> report.Summary:
    listed = period.alerts
    held, known = advice.true_of(period.in_full)
    busy = (
        cost.total(use.busy_hours for use in period.usage.devices) if period.usage.devices else None
    )
    return report.Summary(
        text=sentence(period),
        incidents=len(listed),
        open=sum(alert.state in OPEN for alert in listed),
        leaks=_of(listed, "leak"),
        by_allocator=advice.by_allocator(listed),
        gpu_troubles=_of(listed, "gpu"),
        idle=_of(listed, "held"),
        suspicions=len(period.watched),
        ended_full=advice.ends(listed),
        forecasts_held=held,
        forecasts_known=known,
        gpu_hours=finite(advice.watched_hours(period)),
        busy_gpu_hours=finite(busy),
        watched_share=finite(period.usage.quality.watched_share),
    )


def _incident(one: Incident) -> report.ReportFinding:
    hours, usd = incident.spent(one)
    return fill(
        report.ReportFinding,
        one,
        alert=alerts.alert(one.alert, one.story.found, one.story),
        who=incident.who(one),
        forecast_held=incident.held_true(one),
        gpu_hours=hours,
        cost_usd=usd,
        silences=[current.silent(silence, [one.alert]) for silence in one.silences],
    )
