"""A report as it is answered: the same numbers as the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.view.answers import alerts, base, current, history, report
from gpuwatchd.view.answers.base import LONGEST, answer_of, fill, finite, maybe
from gpuwatchd.view.queries.alert_query import OPEN
from gpuwatchd.view.report import advice, compose, incident
from gpuwatchd.view.report.period import grouped

if TYPE_CHECKING:
    from gpuwatchd.view.report.incident import Incident
    from gpuwatchd.view.report.period import DeviceUse, Holder, Period, Quality


def answer(period: Period) -> base.Answer:
    """Return the answer of ``report --json``."""
    source = "database" if period.quality.watched_share is not None else period.found.source
    return answer_of(report.Report, _data(period), source=source, warnings=period.warnings)


def _data(period: Period) -> report.ReportData:
    in_full = {id(one.alert) for one in period.told}
    score = advice.score(period)
    prices = period.bill.prices
    by_user = grouped(period.holders, lambda info: info.user or "(unknown)")
    return report.ReportData(
        since_at=units.instant(period.asked.since_s) or "",
        until_at=units.instant(period.asked.until_s) or "",
        users=tuple(text.clean(value) for value in period.query.user),
        processes=tuple(fill(base.Info, process) for process in period.infos),
        summary=_summary(period),
        score=fill(
            report.Score,
            score,
            reason=None if score.value is not None else advice.NOT_ENOUGH,
            formula=advice.FORMULA,
        ),
        advice=tuple(
            fill(
                report.Advice,
                item,
                text=text.clean(item.text, limit=LONGEST),
                why=text.clean(item.why, limit=LONGEST),
                stake_usd=finite(item.usd),
            )
            for item in advice.items(period)
        ),
        findings=tuple(_finding(one) for one in period.told),
        further=tuple(
            alerts.alert(alert, period.found) for alert in period.alerts if id(alert) not in in_full
        ),
        watched=tuple(alerts.alert(alert, period.found) for alert in period.watched),
        gpus=tuple(_gpu(period, use) for use in period.uses),
        who=tuple(_holder(holder) for holder in period.holders),
        others=None if period.others is None else _held(report.Held, period.others),
        users_sum=tuple(
            _held(report.HeldBy, holder, name=text.clean(label)) for label, holder in by_user
        ),
        cost=report.ReportCost(
            currency=prices.currency,
            per_usd=prices.per_usd,
            entries=tuple(report.paid(entry, prices) for entry in period.bill.entries),
            sums=report.sums(period.bill.entries, prices),
            prices=report.prices_used(period.bill),
        ),
        holdings=tuple(fill(base.HoldingShape, holding) for holding in period.holdings),
        channels=tuple(
            fill(
                report.ReportChannel,
                channel,
                dry_runs=channel.dry,
                last_sent_at=units.instant(channel.last_sent_s),
                why=text.clean(channel.why, limit=LONGEST) or None,
            )
            for channel in period.channels.values()
        ),
        quality=_quality(period.quality),
        pictures=tuple(history.picture(picture) for _, picture in period.process_pictures),
    )


def _summary(period: Period) -> report.Summary:
    listed = period.alerts
    held, known = advice.true_of(period.told)
    busy = cost.total(use.busy_hours for use in period.uses) if period.uses else None
    return report.Summary(
        text=compose.sentence(period),
        incidents=len(listed),
        open=sum(alert.state in OPEN for alert in listed),
        leaks=sum(alert.kind == "leak" for alert in listed),
        gpu_troubles=sum(alert.kind == "gpu" for alert in listed),
        idle=sum(alert.kind == "held" for alert in listed),
        suspicions=len(period.watched),
        ended_full=advice.ends(listed),
        forecasts_held=held,
        forecasts_known=known,
        gpu_hours=finite(advice.watched_hours(period)),
        busy_gpu_hours=finite(busy),
        watched_share=finite(period.quality.watched_share),
    )


def _finding(one: Incident) -> report.ReportFinding:
    hours, usd = incident.spent(one)
    return report.ReportFinding(
        alert=alerts.alert(one.alert, one.story.found, one.story),
        who=text.clean(incident.who(one), limit=LONGEST) or None,
        first=fill(base.Verdict, one.first),
        first_at=units.instant(one.first.judged_at_s) or "",
        forecast_held=incident.held_true(one),
        gpu_hours=finite(hours),
        cost_usd=finite(usd),
        silences=tuple(current.silent(silence, [one.alert]) for silence in one.silences),
        picture=None if one.picture is None else history.picture(one.picture),
    )


def _gpu(period: Period, use: DeviceUse) -> report.ReportGpu:
    picture = period.pictures.get(use.device.uid)
    return fill(
        report.ReportGpu,
        use,
        device=fill(base.DeviceId, use.device),
        mean_bytes=None if use.mean_bytes is None else round(use.mean_bytes),
        picture=None if picture is None else history.picture(picture),
    )


def _held(kind: type[base.Filled], holder: Holder, **given: str) -> base.Filled:
    return fill(kind, holder, processes=holder.many, cost_usd=finite(holder.usd), **given)


def _holder(holder: Holder) -> report.ReportHolder:
    info = holder.info
    return fill(
        report.ReportHolder,
        holder,
        pid=info.key.pid,
        started_at=units.instant(info.key.started_at_s),
        name=text.clean(info.label),
        user=maybe(info.user),
        job=maybe(info.place or info.group),
        cost_usd=finite(holder.usd),
    )


def _quality(quality: Quality) -> report.Quality:
    return fill(
        report.Quality,
        quality,
        record_begins_at=units.instant(quality.begun_s),
        clock_steps=tuple(
            fill(report.ClockStep, segment, step_s=finite(segment.wall_step_s))
            for segment in quality.clock_steps
        ),
        unreadable=tuple(
            report.Unreadable(at=units.instant(at_s) or "", gpu=label, text=text.clean(words))
            for at_s, label, words in quality.faults
        ),
        gaps=tuple(
            report.MissingTime(
                begin_at=units.instant(missing.begin_s) or "",
                end_at=units.instant(missing.end_s) or "",
                why=missing.why or None,
                gpus=missing.labels,
            )
            for missing in quality.missing
        ),
    )
