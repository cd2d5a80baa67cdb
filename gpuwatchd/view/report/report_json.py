"""A report as it is answered: the same numbers as the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import cost
from gpuwatchd.view.answers import alerts, base, current, report
from gpuwatchd.view.answers.base import answer_of, fill, finite
from gpuwatchd.view.queries.alert_query import OPEN
from gpuwatchd.view.report import advice, compose, incident
from gpuwatchd.view.report.usage import grouped

if TYPE_CHECKING:
    from gpuwatchd.view.report.incident import Incident
    from gpuwatchd.view.report.period import Period


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
        summary=_summary(period),
        score=fill(
            report.Score,
            score,
            reason=None if score.value is not None else advice.NOT_ENOUGH,
            formula=advice.FORMULA,
        ),
        advice=advice.items(period),
        findings=map(_finding, period.in_full),
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


def _summary(period: Period) -> report.Summary:
    listed = period.alerts
    held, known = advice.true_of(period.in_full)
    busy = (
        cost.total(use.busy_hours for use in period.usage.devices) if period.usage.devices else None
    )
    return report.Summary(
        text=compose.sentence(period),
        incidents=len(listed),
        open=sum(alert.state in OPEN for alert in listed),
        leaks=sum(alert.kind == "leak" for alert in listed),
        by_allocator=advice.by_allocator(listed),
        gpu_troubles=sum(alert.kind == "gpu" for alert in listed),
        idle=sum(alert.kind == "held" for alert in listed),
        suspicions=len(period.watched),
        ended_full=advice.ends(listed),
        forecasts_held=held,
        forecasts_known=known,
        gpu_hours=finite(advice.watched_hours(period)),
        busy_gpu_hours=finite(busy),
        watched_share=finite(period.usage.quality.watched_share),
    )


def _finding(one: Incident) -> report.ReportFinding:
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
