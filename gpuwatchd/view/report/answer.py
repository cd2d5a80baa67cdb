"""A report as JSON: the same numbers as the page, under the shape of ``report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.analysis import cost
from gpuwatchd.core import text, units
from gpuwatchd.view.answers import charts, costs, envelope, payload
from gpuwatchd.view.answers.base import finite
from gpuwatchd.view.queries.incidents import OPEN
from gpuwatchd.view.report import advice, compose, incident, usage
from gpuwatchd.view.text import alert_details

if TYPE_CHECKING:
    from gpuwatchd.view.report.advice import Item, Score
    from gpuwatchd.view.report.incident import Channel, Incident
    from gpuwatchd.view.report.period import Period
    from gpuwatchd.view.report.usage import DeviceUse, Holder


def report_json(period: Period) -> dict[str, Any]:
    """Return the answer of ``report --json``."""
    source = "database" if period.quality.watched_share is not None else period.found.source
    return envelope.answer("report", data(period), source=source, warnings=period.warnings)


def data(period: Period) -> dict[str, Any]:
    """Return the payload."""
    told = {id(one.alert) for one in period.told}
    rest = [alert for alert in period.alerts if id(alert) not in told]
    items = advice.items(period)
    prices = period.bill.prices
    return {
        "since_at": units.instant(period.asked.since_s),
        "until_at": units.instant(period.asked.until_s),
        "users": [text.clean(value) for value in period.query.user],
        "processes": [payload.info_json(process) for process in period.infos],
        "summary": _summary(period),
        "score": _score(advice.score(period)),
        "advice": [_item(item) for item in items],
        "findings": [_finding(one) for one in period.told],
        "further": [alert_details.as_json(alert, period.found) for alert in rest],
        "watched": [alert_details.as_json(alert, period.found) for alert in period.watched],
        "gpus": [_gpu(period, use) for use in period.uses],
        "who": [_holder(holder) for holder in period.holders],
        "others": None if period.others is None else _sum(period.others),
        "users_sum": [
            {"name": text.clean(label), **_sum(holder)}
            for label, holder in usage.grouped(
                period.holders, lambda info: info.user or "(unknown)"
            )
        ],
        "cost": {
            "currency": prices.currency,
            "per_usd": prices.per_usd,
            "entries": [costs.paid(entry, prices) for entry in period.bill.entries],
            "sums": costs.sums(period.bill.entries, prices),
            "prices": costs.prices_used(period.bill),
        },
        "holdings": [payload.holding_json(holding) for holding in period.holdings],
        "channels": [_channel(channel) for channel in period.channels.values()],
        "quality": _quality(period),
        "pictures": [charts.picture(picture) for _, picture in period.process_pictures],
    }


def _summary(period: Period) -> dict[str, Any]:
    alerts = period.alerts
    held, known = advice.true_of(period.told)
    busy = cost.total(use.busy_hours for use in period.uses) if period.uses else None
    return {
        "text": compose.sentence(period),
        "incidents": len(alerts),
        "open": sum(alert.state in OPEN for alert in alerts),
        "leaks": sum(alert.kind == "leak" for alert in alerts),
        "gpu_troubles": sum(alert.kind == "gpu" for alert in alerts),
        "idle": sum(alert.kind == "held" for alert in alerts),
        "suspicions": len(period.watched),
        "ended_full": advice.ends(alerts),
        "forecasts_held": held,
        "forecasts_known": known,
        "gpu_hours": finite(advice.watched_hours(period)),
        "busy_gpu_hours": finite(busy),
        "watched_share": finite(period.quality.watched_share),
    }


def _score(score: Score) -> dict[str, Any]:
    return {
        "value": score.value,
        "grade": score.grade,
        "reason": None if score.value is not None else advice.NOT_ENOUGH,
        "formula": advice.FORMULA,
        **envelope.fields(score, "waste_share less_waste less_ends less_open"),
    }


def _item(item: Item) -> dict[str, Any]:
    return {
        "text": text.clean(item.text, limit=1024),
        "why": text.clean(item.why, limit=1024),
        "command": item.command,
        "stake_usd": finite(item.usd),
        "eta_s": finite(item.eta_s),
    }


def _finding(one: Incident) -> dict[str, Any]:
    hours, usd = incident.spent(one)
    return {
        "alert": alert_details.as_json(one.alert, one.story.found, one.story),
        "who": text.clean(incident.who(one), limit=1024) or None,
        "first": envelope.verdict_json(one.first),
        "first_at": units.instant(one.first.judged_at_s),
        "forecast_held": incident.held_true(one),
        "gpu_hours": finite(hours),
        "cost_usd": finite(usd),
        "silences": [payload.silence_json(each, [one.alert]) for each in one.silences],
        "picture": None if one.picture is None else charts.picture(one.picture),
    }


def _gpu(period: Period, device_use: DeviceUse) -> dict[str, Any]:
    picture = period.pictures.get(device_use.device.uid)
    return {
        "device": envelope.device_json(device_use.device),
        "watched_s": device_use.watched_s,
        "mean_bytes": None if device_use.mean_bytes is None else round(device_use.mean_bytes),
        **envelope.fields(device_use, "peak_bytes peak_at util_pct busy_hours energy_kwh"),
        "picture": None if picture is None else charts.picture(picture),
    }


def _sum(holder: Holder) -> dict[str, Any]:
    return {
        "processes": holder.many,
        "gib_hours": finite(holder.gib_hours),
        "gpu_hours": finite(holder.gpu_hours),
        "cost_usd": finite(holder.usd),
        "peak_bytes": holder.peak_bytes,
    }


def _holder(holder: Holder) -> dict[str, Any]:
    info = holder.info
    return {
        "device_uid": text.clean(holder.device_uid),
        "pid": info.key.pid,
        "started_at": units.instant(info.key.started_at_s),
        "name": text.clean(info.label),
        "user": envelope.maybe(info.user),
        "job": envelope.maybe(info.place or info.group),
        "gib_hours": finite(holder.gib_hours),
        "gpu_hours": finite(holder.gpu_hours),
        "cost_usd": finite(holder.usd),
        **envelope.fields(holder, "peak_bytes first_at last_at"),
    }


def _channel(channel: Channel) -> dict[str, Any]:
    return {
        **envelope.fields(channel, "name sent failed waiting"),
        "dry_runs": channel.dry,
        "last_sent_at": units.instant(channel.last_sent_s),
        "why": text.clean(channel.why, limit=1024) or None,
    }


def _quality(period: Period) -> dict[str, Any]:
    quality = period.quality
    return {
        "watched_share": finite(quality.watched_share),
        "record_begins_at": units.instant(quality.begun_s),
        "restarts": quality.restarts,
        "boots": quality.boots,
        "clock_steps": [
            {"at": units.instant(clock_step.at_s), "step_s": finite(clock_step.wall_step_s)}
            for clock_step in quality.clock_steps
        ],
        "unreadable": [
            {"at": units.instant(at_s), "gpu": label, "text": text.clean(value)}
            for at_s, label, value in quality.faults
        ],
        "gaps": [
            {
                "begin_at": units.instant(missing.begin_s),
                "end_at": units.instant(missing.end_s),
                "why": missing.why or None,
                "gpus": list(missing.labels),
            }
            for missing in quality.missing
        ],
    }
