"""The parts of a report that are tables: GPUs, who, cost, idle memory, deliveries, data quality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis import cost
from gpuwatchd.core import units
from gpuwatchd.view.queries.alert_query import OPEN
from gpuwatchd.view.report.document import FEW, ROWS, Facts, Says, Table, table
from gpuwatchd.view.report.period import MOST_GAPS, grouped, percent, sentences
from gpuwatchd.view.text import badges, cost_text, delivery_text, verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.core.model import Alert, ProcessInfo
    from gpuwatchd.view.report.document import Plain
    from gpuwatchd.view.report.period import Holder, Period

_STAKE: Final = ("at-risk", "lost", "held")


def label_of(period: Period, uid: str) -> str:
    """Return the name of a device."""
    device = next((one for one in period.devices if one.uid == uid), None)
    return uid if device is None else device.label


def alerts(period: Period, found: Sequence[Alert], caption: str) -> Table:
    """Return incidents as rows."""
    rows = (
        (
            alert.title or alert.key,
            alert.code,
            f"{alert.severity}, open" if alert.state in OPEN else alert.severity,
            units.clock(alert.opened_at_s, now_s=period.now_s),
            units.duration((alert.resolved_at_s or period.asked.until_s) - alert.opened_at_s),
            alert.finding.pattern if alert.kind == "leak" else alert.kind,
            alert.ended,
        )
        for alert in found
    )
    heads = ("who", "id", "severity", "since", "for", "what", "what came")
    return table(caption, heads, rows, most=ROWS, what="incidents")


def gpus(period: Period) -> Table:
    """Return devices with their use."""
    rows = []
    for use in period.usage.devices:
        item = period.item(use.device)
        at = "" if use.peak_at_s is None else units.moment(use.peak_at_s, now_s=period.now_s)
        rows.append(
            (
                f"{use.device.label} {use.device.name}",
                units.size(use.device.memory_total_bytes),
                units.size(use.mean_bytes),
                f"{units.size(use.peak_bytes)} {at}".strip(),
                "?" if use.util_pct is None else f"{use.util_pct:.0f} %",
                cost.in_hours(use.busy_hours),
                "?"
                if period.usage.quality.watched_share is None
                else units.duration(use.watched_s),
                "" if item.reading is None else badges.device(item).word,
            )
        )
    heads = ("GPU", "memory", "mean", "peak", "util", "busy h", "watched", "now")
    return table("Memory and utilisation", heads, rows, right=(1, 2, 4, 5, 6))


_BY: Final[tuple[tuple[str, Callable[[ProcessInfo], str]], ...]] = (
    ("user", lambda info: info.user or "(unknown)"),
    ("job", lambda info: info.place or info.group or "(no job)"),
    ("program", lambda info: info.label or "(unknown)"),
)


def who(period: Period) -> Iterator[Plain]:
    """Yield who held memory for how long, and what these hours cost."""
    if not period.usage.holders and period.usage.others is None:
        return
    yield Says(
        text="GiB hours are memory times time. GPU-hours share the time of a GPU among those who "
        "held its memory, by how much; money is these hours at the price below.",
        tone="note",
    )
    for what, name in _BY:
        groups = grouped(period.usage.holders, name)
        if what != "user" and {label for label, _ in groups} <= {"(no job)", "(unknown)"}:
            continue
        rows = (_holder(period, label, holder) for label, holder in groups)
        heads = (what, "processes", "GiB hours", "GPU-hours", "money", "peak")
        most = ROWS if period.asked.everything else FEW
        by = table(f"By {what}", heads, rows, right=range(1, 6), most=most, what=f"{what}s")
        if what == "user" and period.usage.others is not None:
            others = _holder(period, "(others together)", period.usage.others)
            by = msgspec.structs.replace(by, rows=(*by.rows, others))
        yield by


def _holder(period: Period, label: str, holder: Holder) -> tuple[str, ...]:
    return (
        label,
        f"{holder.many:,}",
        cost.in_hours(holder.gib_hours),
        cost.in_hours(holder.gpu_hours),
        cost_text.money(period.bill, holder.usd),
        units.size(holder.peak_bytes),
    )


def costs(period: Period) -> Iterator[Plain]:
    """Yield what the incidents of the period cost, as `cost` counts, and the prices."""
    bill = period.bill
    if bill.prices.off:
        return
    sums = [row for what in cost.WHATS for row in cost_text.sum_rows(bill, what)]
    rows = [(label.strip(), *cells) for label, *cells in [*sums, *cost_text.act_rows(bill)]]
    heads = ("what", "incidents", "GPU-hours", "money")
    yield table("What leaks and idle memory cost", heads, rows, right=(1, 2, 3))
    if bill.acts:
        yield Says(text=f"{cost_text.act_facts(bill)}.")
    people, amount = bill.engineer()
    if people:
        text = units.money(amount, currency=bill.prices.currency)
        yield Says(text=f"And people, an hour for each of {people} lost runs: {text}.")
    if bill.entries:
        yield Says(
            text="Counted as gpuwatchctl cost does: a job's hours from its start or its last known "
            "checkpoint, also where that was before the period.",
            tone="note",
        )
    prices = tuple(cost_text.prices(bill))
    if prices:
        yield Says(text="Prices", tone="note")
        yield Facts(rows=prices)
    for _, sentence in bill.old_prices():
        yield Says(text=f"Note: {sentence}.", tone="warn")


def at_stake(period: Period) -> tuple[str, bool]:
    """Return what is at risk, lost and held idle, in money, and whether some of it is unknown."""
    parts, partial = [], False
    for what in _STAKE:
        entries = period.bill.of(what)
        if entries:
            found = cost.summed(entries)
            partial |= found.usd is None and bool(found.known_usd)
            parts.append(f"{_worth(period, entries, 'GPU-hours')} {cost_text.SHORT[what]}")
    return ", ".join(parts), partial


def _worth(period: Period, entries: Sequence[cost.Entry], unit: str) -> str:
    found = cost.summed(entries)
    if found.usd is None and not found.known_usd:
        return f"{cost.in_hours(found.gpu_hours)} {unit}"
    return cost_text.partly(period.bill, found.usd, found.known_usd)


def lost_or_at_risk(period: Period) -> str:
    """Return these together, in money or else hours; "" where there is nothing."""
    entries = [entry for what in _STAKE for entry in period.bill.of(what)]
    return _worth(period, entries, "h") if entries else ""


def held(period: Period) -> Iterator[Plain]:
    """Yield idle memory now, and was."""
    rows = [
        (
            "nobody" if holding.process is None else verdict_text.who(holding.process),
            label_of(period, holding.device_uid),
            holding.kind,
            units.size(holding.held_bytes),
            "?" if holding.since_s is None else units.clock(holding.since_s, now_s=period.now_s),
            cost.in_hours(holding.gib_hours),
            cost_text.money(period.bill, holding.cost_usd),
        )
        for holding in period.holdings
    ]
    if rows:
        heads = ("who", "GPU", "what", "held", "since", "GiB hours", "cost")
        yield table("Now", heads, rows, right=(3, 5, 6), most=ROWS, what="holders")
    elif period.present and period.view is not None:
        yield Says(text="There is no idle memory now.", tone="good")
    past = [alert for alert in period.alerts if alert.kind == "held"]
    if past:
        yield alerts(period, past, "In the period")
    elif period.usage.quality.watched_share:
        yield Says(text="No idle memory was held long enough for a message.", tone="note")


def deliveries(period: Period) -> Iterator[Plain]:
    """Yield what became of messages, channel by channel, and what was kept back."""
    rows = [
        (
            channel.name,
            str(channel.sent),
            str(channel.failed),
            str(channel.waiting),
            "-"
            if channel.last_sent_s is None
            else units.moment(channel.last_sent_s, now_s=period.now_s),
            channel.why,
        )
        for channel in sorted(period.channels.values(), key=lambda channel: channel.name)
    ]
    if rows:
        heads = ("channel", "sent", "failed", "waiting", "last sent", "why")
        yield table("Messages about the incidents", heads, rows, right=(1, 2, 3))
    elif period.alerts:
        yield Says(text="No message about these incidents is on record.", tone="warn")
    quiet = [alert for alert in period.alerts if not alert.notices]
    if quiet:
        many = f"{len(quiet)} incidents were" if len(quiet) > 1 else "1 incident was"
        yield Says(text=f"{many} not sent:", tone="note")
        yield Facts(rows=tuple((one.code, _why(period, one)) for one in quiet[:FEW]))
    if period.view is not None and period.present:
        for line in delivery_text.failing(period.view.channels, now_s=period.now_s):
            yield Says(text=f"Now: {line}.", tone="bad")


def _why(period: Period, alert: Alert) -> str:
    silence = period.found.silence(alert, period.now_s)
    if silence is not None:
        return f"{alert.title or alert.key}: {delivery_text.silent(silence, now_s=period.now_s)}"
    why = alert.held_back or ("inhibited by another alert" if alert.inhibited_by else "")
    return f"{alert.title or alert.key}: {why or 'no reason is on record'}"


def quality(period: Period) -> Iterator[Plain]:
    """Yield how well the period is known, and what cannot be said therefore."""
    found, now_s = period.usage.quality, period.now_s
    for sentence in sentences(found, now_s=now_s):
        yield Says(text=sentence, tone="warn")
    rows = []
    if found.watched_share is not None:
        each = ", ".join(f"{device.label} {percent(share)}" for device, share in found.per_device)
        whole = percent(found.watched_share)
        rows.append(("watched", f"{whole} of {units.duration(period.asked.span_s)}"))
        rows.append(("of each", each if len(found.per_device) > 1 else ""))
        rows.append(("restarts", f"{found.restarts}, of them {found.boots} of the machine"))
    rows += [
        (
            "clock",
            f"{units.moment(step.at_s, now_s=now_s)} set by {step.wall_step_s or 0.0:+.0f} s",
        )
        for step in found.clock_steps[:FEW]
    ]
    rows += [
        ("unreadable", f"{units.moment(at_s, now_s=now_s)} {label}: {text}")
        for at_s, label, text in found.faults[-FEW:]
    ]
    if period.view is not None and period.present and not period.query.user:
        rows += [("problem", problem) for problem in period.view.daemon.problems]
    rows = [row for row in rows if row[1]]
    if rows:
        yield Facts(rows=tuple(rows))
    if found.missing:
        yield _gaps(period)
    elif found.watched_share is not None and found.begun_s is None:
        yield Says(text="No data is missing.", tone="good")


def _gaps(period: Period) -> Table:
    rows = (
        (
            units.moment(missing.begin_s, now_s=period.now_s),
            units.moment(missing.end_s, now_s=period.now_s),
            units.duration(missing.end_s - missing.begin_s),
            ", ".join(missing.labels) or "all",
            missing.why or "not known",
        )
        for missing in sorted(
            period.usage.quality.missing, key=lambda missing: missing.begin_s - missing.end_s
        )
    )
    most = ROWS if period.asked.everything else MOST_GAPS
    heads = ("from", "to", "for", "GPU", "why")
    return table("Gaps, longest first", heads, rows, most=most, what="gaps")
