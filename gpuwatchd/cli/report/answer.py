"""A report as JSON: the same numbers as the page, under the shape of ``report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.analysis import cost
from gpuwatchd.charts import as_json
from gpuwatchd.cli import alert_details, cost_text, envelope, payload
from gpuwatchd.cli.envelope import finite
from gpuwatchd.cli.incidents import OPEN
from gpuwatchd.cli.report import advice, compose, incident, usage
from gpuwatchd.core import text, units

if TYPE_CHECKING:
    from gpuwatchd.charts.drawing import Picture
    from gpuwatchd.cli.report.advice import Item, Score
    from gpuwatchd.cli.report.incident import Channel, Incident
    from gpuwatchd.cli.report.period import Period
    from gpuwatchd.cli.report.usage import DeviceUse, Holder


def of(period: Period) -> dict[str, Any]:
    """Return the answer of ``report --json``."""
    source = "database" if period.quality.watched_share is not None else period.found.source
    return envelope.answer("report", data(period), source=source, warnings=period.warnings)


def data(period: Period) -> dict[str, Any]:
    """Return the payload."""
    told = {id(one.alert) for one in period.told}
    rest = [one for one in period.alerts if id(one) not in told]
    items = advice.items(period)
    prices = period.bill.prices
    return {
        "since_at": units.instant(period.asked.since_s),
        "until_at": units.instant(period.asked.until_s),
        "users": [text.clean(one) for one in period.flags.user],
        "processes": [payload.info_json(one) for one in period.infos],
        "summary": _summary(period),
        "score": _score(advice.score(period)),
        "advice": [_item(one) for one in items],
        "findings": [_finding(one) for one in period.told],
        "further": [alert_details.as_json(one, period.found) for one in rest],
        "watched": [alert_details.as_json(one, period.found) for one in period.watched],
        "gpus": [_gpu(period, one) for one in period.uses],
        "who": [_holder(one) for one in period.holders],
        "others": None if period.others is None else _sum(period.others),
        "users_sum": [
            {"name": text.clean(label), **_sum(one)}
            for label, one in usage.grouped(period.holders, lambda info: info.user or "(unknown)")
        ],
        "cost": {
            "currency": prices.currency,
            "per_usd": prices.per_usd,
            "entries": [cost_text.entry_json(one, prices) for one in period.bill.entries],
            "sums": cost_text.sums_json(period.bill.entries, prices),
            "prices": cost_text.prices_json(period.bill),
        },
        "holdings": [payload.holding_json(one) for one in period.holdings],
        "channels": [_channel(one) for one in period.channels.values()],
        "quality": _quality(period),
        "pictures": [_picture(one) for _, one in period.process_pictures],
    }


def _summary(period: Period) -> dict[str, Any]:
    alerts = period.alerts
    held, known = advice.true_of(period.told)
    busy = cost.total(one.busy_hours for one in period.uses) if period.uses else None
    return {
        "text": compose.sentence(period),
        "incidents": len(alerts),
        "open": sum(one.state in OPEN for one in alerts),
        "leaks": sum(one.kind == "leak" for one in alerts),
        "gpu_troubles": sum(one.kind == "gpu" for one in alerts),
        "idle": sum(one.kind == "held" for one in alerts),
        "suspicions": len(period.watched),
        "ended_full": advice.ends(alerts),
        "forecasts_held": held,
        "forecasts_known": known,
        "gpu_hours": finite(advice.watched_hours(period)),
        "busy_gpu_hours": finite(busy),
        "watched_share": finite(period.quality.watched_share),
    }


def _score(found: Score) -> dict[str, Any]:
    return {
        "value": found.value,
        "grade": found.grade,
        "reason": None if found.value is not None else advice.NOT_ENOUGH,
        "formula": advice.FORMULA,
        "waste_share": finite(found.waste_share),
        "less_waste": found.less_waste,
        "less_ends": found.less_ends,
        "less_open": found.less_open,
    }


def _item(one: Item) -> dict[str, Any]:
    return {
        "text": text.clean(one.text, limit=1024),
        "why": text.clean(one.why, limit=1024),
        "command": one.command,
        "stake_usd": finite(one.usd),
        "eta_s": finite(one.eta_s),
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
        "silences": [payload.silence_json(each) for each in one.silences],
        "picture": None if one.picture is None else _picture(one.picture),
    }


def _picture(one: Picture) -> dict[str, Any]:
    return as_json.to_json(one)


def _gpu(period: Period, one: DeviceUse) -> dict[str, Any]:
    picture = period.pictures.get(one.device.uid)
    return {
        "device": envelope.device_json(one.device),
        "watched_s": one.watched_s,
        "mean_bytes": None if one.mean_bytes is None else round(one.mean_bytes),
        "peak_bytes": one.peak_bytes,
        "peak_at": units.instant(one.peak_at_s),
        "util_pct": finite(one.util_pct),
        "busy_hours": finite(one.busy_hours),
        "energy_kwh": finite(one.energy_kwh),
        "picture": None if picture is None else _picture(picture),
    }


def _sum(one: Holder) -> dict[str, Any]:
    return {
        "processes": one.many,
        "gib_hours": finite(one.gib_hours),
        "gpu_hours": finite(one.gpu_hours),
        "cost_usd": finite(one.usd),
        "peak_bytes": one.peak_bytes,
    }


def _holder(one: Holder) -> dict[str, Any]:
    info = one.info
    return {
        "device_uid": text.clean(one.device_uid),
        "pid": info.key.pid,
        "started_at": units.instant(info.key.started_at_s),
        "name": text.clean(info.label),
        "user": envelope.maybe(info.user),
        "job": envelope.maybe(info.place or info.group),
        "gib_hours": finite(one.gib_hours),
        "gpu_hours": finite(one.gpu_hours),
        "cost_usd": finite(one.usd),
        "peak_bytes": one.peak_bytes,
        "first_at": units.instant(one.first_at_s),
        "last_at": units.instant(one.last_at_s),
    }


def _channel(one: Channel) -> dict[str, Any]:
    return {
        "name": text.clean(one.name),
        "sent": one.sent,
        "failed": one.failed,
        "waiting": one.waiting,
        "dry_runs": one.dry,
        "last_sent_at": units.instant(one.last_sent_s),
        "why": text.clean(one.why, limit=1024) or None,
    }


def _quality(period: Period) -> dict[str, Any]:
    found = period.quality
    return {
        "watched_share": finite(found.watched_share),
        "record_begins_at": units.instant(found.begun_s),
        "restarts": found.restarts,
        "boots": found.boots,
        "clock_steps": [
            {"at": units.instant(one.at_s), "step_s": finite(one.wall_step_s)}
            for one in found.clock_steps
        ],
        "unreadable": [
            {"at": units.instant(at_s), "gpu": label, "text": text.clean(said)}
            for at_s, label, said in found.faults
        ],
        "gaps": [
            {
                "begin_at": units.instant(one.begin_s),
                "end_at": units.instant(one.end_s),
                "why": one.why or None,
                "gpus": list(one.labels),
            }
            for one in found.missing
        ],
    }
