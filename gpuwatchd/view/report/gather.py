"""What a report is made of: the records of its period, its incidents and its charts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd import alerts as policy
from gpuwatchd.charts.chart_model import Forecast
from gpuwatchd.core.errors import GpuwatchdError, StoreError, StoreNewer
from gpuwatchd.core.model import ProcessInfo
from gpuwatchd.view.queries import (
    alert_query,
    charts,
    cost_entries,
    current_state,
    history_query,
    user_filter,
)
from gpuwatchd.view.report import document, incident
from gpuwatchd.view.report.incident import Channel, Incident
from gpuwatchd.view.report.period import (
    Charts,
    DeviceUse,
    Period,
    Usage,
    data_quality,
    holders,
    joined,
    of_device,
)
from gpuwatchd.view.text.alert_details import AlertRecord, record
from gpuwatchd.view.text.subject_facts import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Alert, Decision, Device, Finding, Silence
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query
    from gpuwatchd.view.report.period import Asked

_POINTS: Final = 240
_FEW_GPUS: Final = 8
_MOST_MARKS: Final = 60
_OF_THE_MACHINE: Final = frozenset({"event", "restart"})
"""Marks that tell of nobody's process."""
_BEFORE, _AFTER = 0.25, 0.1
"""A chart begins and ends so much of the incident's length before and after it."""
_LEAST_S: Final = 900.0
_LONGEST_S: Final = 30 * 86_400.0


def gather(query: Query, asked: Asked) -> Period:
    """Return everything that is known of a period.

    Raises
    ------
    GpuwatchdError
        When nothing is recorded at all, or not of what is asked for.
    """
    try:
        found = alert_query.gather(asked.since_s, only_open=False)
    except GpuwatchdError as error:
        if error.page != "errors#no-history":
            raise
        why = "no data to report: no history and no live state"
        raise GpuwatchdError(why, hint=error.hint, page=error.page) from error
    if query.user:
        found.keep_of(user_filter.People(query.user))
    bill = cost_entries.gather(query, asked.since_s, asked.until_s)
    found.alerts = [cost_entries.counted(bill, alert) for alert in found.alerts]
    # That no daemon runs is found by several, and said once.
    pairs: dict[str, tuple[str, str]] = {}
    for code, sentence in (*found.warnings, *bill.warnings):
        pairs.setdefault("daemon" if code.startswith("daemon") else sentence, (code, sentence))
    begun = Period(query, asked, found, bill, _view(query), warnings=list(pairs.values()))
    period = _with_alerts(begun)
    try:
        with history_query.reader() as history:
            return _from_history(period, history)
    except StoreNewer:
        raise  # What is there is not to be told without most of it.
    except StoreError:
        if found.trouble is None:
            raise
        # What the live state alone knows.
        devices = _asked_for(query, list(found.devices.values()))
        usage = Usage(devices=[DeviceUse(device) for device in in_order(devices)])
        return _whole(replace(period, devices=devices, usage=usage), None)


def _view(query: Query) -> View | None:
    """Return the live state; None where there is none (the GPUs themselves are not asked)."""
    state, _ = current_state.read_state()
    if state is None or not state.devices:
        return None
    try:
        return current_state.load_view(query, want_trend=True)
    except GpuwatchdError:
        if query.gpu:
            return None  # A GPU that is gone may be in the history.
        raise


def _with_alerts(period: Period) -> Period:
    """Return the period with its alerts, and those that stayed a suspicion; its bill is theirs."""
    asked, query, found = period.asked, period.query, period.found
    alerts: list[Alert] = []
    watched: list[Alert] = []
    for alert in found.alerts:
        if alert.opened_at_s >= asked.until_s or not found.wanted(query, alert):
            continue
        if (alert.resolved_at_s or asked.until_s) < asked.since_s:
            continue
        process = alert.subject.process
        if asked.pids and (process is None or process.pid not in asked.pids):
            continue
        if alert.firing_at_s is not None:
            alerts.append(alert)
        elif alert.watch_at_s is not None or alert.state == "watch":
            watched.append(alert)
    people = user_filter.People(query.user)
    entries = [entry for entry in period.bill.entries if people.has(entry.user)]
    keys = {alert.key for alert in [*alerts, *watched]}
    held = {holding.id for holding in period.holdings}
    period.bill.entries = [entry for entry in entries if entry.key in keys or entry.key in held]
    period.bill.acts[:] = [
        act
        for act in period.bill.acts
        if people.has(act.user)
        and (not asked.pids or (act.process is not None and act.process.pid in asked.pids))
    ]
    worth = incident.worth(period.bill.entries)
    return replace(period, alerts=incident.order(alerts, worth), watched=watched)


def _from_history(period: Period, history: Reader) -> Period:
    asked, query, bill = period.asked, period.query, period.bill
    devices = {device.uid: device for device in history.devices()} | period.found.devices
    chosen = _asked_for(query, list(devices.values()))
    every_holder = holders(history, chosen, period.found.infos, asked, bill)
    infos: list[ProcessInfo] = []
    if asked.pids:
        infos = _named_processes(period, [holder.info for holder in every_holder])
        keys = {info.key for info in infos}
        every_holder = [holder for holder in every_holder if holder.info.key in keys]
        here = {holder.device_uid for holder in every_holder}
        here |= {alert.subject.device_uid for alert in period.alerts}
        chosen = [device for device in chosen if device.uid in here] or chosen
    uses = [of_device(history, device, asked) for device in in_order(chosen)]
    people = user_filter.People(query.user)
    rest = [holder for holder in every_holder if not people.own(holder.info)]
    usage = Usage(
        devices=uses,
        holders=[holder for holder in every_holder if people.own(holder.info)],
        others=joined(rest) if rest else None,
        quality=data_quality(history, chosen, uses, asked),
    )
    return _whole(replace(period, devices=chosen, infos=infos, usage=usage), history)


def _named_processes(period: Period, infos: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Return the processes that --pid names; GpuwatchdError when none of them was seen."""
    pids = period.asked.pids
    people = user_filter.People(period.query.user)
    named = {info.key: info for info in infos if info.key.pid in pids and people.own(info)}
    processes = list(named.values())
    if not processes and not period.alerts:
        raise GpuwatchdError(
            f"pid {', '.join(map(str, pids))} was on no GPU in this period",
            hint="gpuwatchctl history --since 7d; or a longer --since",
            page="errors#no-such-process",
        )
    return processes


def _asked_for(query: Query, devices: Sequence[Device]) -> list[Device]:
    if not devices:
        raise GpuwatchdError(
            "no data recorded yet: no GPU was ever seen",
            hint="gpuwatchctl service install",
            page="errors#nothing-recorded",
        )
    current_state.require_gpus(query, devices)
    return [device for device in devices if query.wants(device)]


def _whole(period: Period, history: Reader | None) -> Period:
    """Return the period with its worst incidents in full, what was sent of all, and its charts."""
    asked = period.asked
    most = document.CARDS if asked.everything else min(asked.top, document.CARDS)
    made: dict[str, list[Decision]] = {}
    if history is not None:
        begun_s = min((alert.opened_at_s for alert in period.alerts), default=asked.since_s)
        for decision in history.decisions(None, min(begun_s, asked.since_s)):
            made.setdefault(decision.alert_key, []).append(decision)
    silences = history.silences(all_of_them=True) if history is not None else []
    seen: set[object] = set()
    channels: dict[str, Channel] = {}
    in_full: list[Incident] = []
    for position, alert in enumerate(period.alerts):
        story = _story(period, history, alert, made)
        for sent in story.deliveries or ():
            at = (sent.channel, sent.message.id)
            if at not in seen and asked.since_s <= sent.created_at_s < asked.until_s:
                seen.add(at)
                channels.setdefault(sent.channel, Channel(sent.channel)).add(sent)
        if position < most:
            charted = position < document.CHARTS
            in_full.append(_incident(period, history, story, silences, charted=charted))
    return replace(period, in_full=in_full, channels=channels, charts=_charts(period, history))


def _story(
    period: Period, history: Reader | None, alert: Alert, made: Mapping[str, list[Decision]]
) -> AlertRecord:
    if history is None:
        return AlertRecord(alert, period.found, None, None)
    story = record(alert, period.found, history, made.get(alert.key, ()))
    return _quiet(story) if period.query.user else story


def _quiet(story: AlertRecord) -> AlertRecord:
    """Return what was sent of an alert without the words of messages that it shared."""
    if not story.deliveries:
        return story
    own = [
        delivery
        if not delivery.message.also
        else msgspec.structs.replace(
            delivery, message=msgspec.structs.replace(delivery.message, subject=story.alert.title)
        )
        for delivery in story.deliveries
    ]
    return story._replace(deliveries=own)


def _incident(
    period: Period,
    history: Reader | None,
    story: AlertRecord,
    silences: Sequence[Silence],
    *,
    charted: bool,
) -> Incident:
    alert = story.alert
    key, uid = alert.subject.process, alert.subject.device_uid
    end_s = period.asked.until_s if alert.resolved_at_s is None else alert.resolved_at_s
    first = incident.first_notified(alert, story.deliveries or ())
    return Incident(
        alert=alert,
        story=story,
        first=first,
        info=None if key is None else period.found.infos.get(key),
        device=period.found.devices.get(uid),
        picture=_of_incident(period, history, alert, first) if charted else None,
        entries=tuple(entry for entry in period.bill.entries if entry.key == alert.key),
        silences=tuple(
            silence
            for silence in silences
            if silence.from_at_s < end_s
            and min(silence.until_at_s, silence.cleared_at_s or silence.until_at_s)
            > alert.opened_at_s
            and policy.matches(silence.matcher, alert)
        ),
    )


def _charts(period: Period, history: Reader | None) -> Charts:
    """Return the charts of GPUs, and of the processes that --pid names."""
    uses, view = period.usage.devices, period.shown_view()
    points = _POINTS if len(uses) <= _FEW_GPUS else _POINTS // 2
    span = charts.Asked(period.asked.since_s, period.asked.until_s, points=points)
    devices = {
        use.device.uid: _of_gpu(
            period, charts.of_device(history, view, period.item(use.device), span)
        )
        for use in uses[: document.GPU_CHARTS]
    }
    processes = [
        (info, picture)
        for info in period.infos[: document.CHARTS]
        for device in period.devices
        if (picture := _of_process(period, history, device, info, span)) is not None
        and not picture.empty
    ]
    return Charts(devices, processes)


def _of_process(
    period: Period,
    history: Reader | None,
    device: Device,
    info: ProcessInfo,
    span: charts.Asked,
) -> Picture | None:
    item, view = period.item(device), period.shown_view()
    for process in item.processes or ():
        if process.info.key == info.key:
            return charts.of_process(history, view, item, process, span)
    return None if history is None else charts.past_process(history, device, info, span)


def _of_incident(
    period: Period, history: Reader | None, alert: Alert, first: Finding
) -> Picture | None:
    """Return the chart of an incident: all of it, and somewhat more on both sides.

    What is over has the forecast as people were told it ``first``.
    """
    device, key = period.found.devices.get(alert.subject.device_uid), alert.subject.process
    if device is None:
        return None
    onset_s = alert.finding.onset_at_s
    begin_s = alert.opened_at_s if onset_s is None else min(onset_s, alert.opened_at_s)
    end_s = min(alert.resolved_at_s or period.asked.until_s, period.asked.until_s)
    begin_s = max(begin_s, end_s - max(period.asked.span_s, _LONGEST_S))
    length_s = max(end_s - begin_s, _LEAST_S)
    span = charts.Asked(
        begin_s - _BEFORE * length_s,
        min(end_s + _AFTER * length_s, period.asked.until_s),
        points=200,
    )
    if key is None:
        item = period.item(device)
        return _of_gpu(period, charts.of_device(history, period.shown_view(), item, span))
    info = period.found.infos.get(key) or ProcessInfo(key=key, name="?")
    picture = _of_process(period, history, device, info, span)
    live = {process.info.key for process in period.item(device).processes or ()}
    if picture is None or picture.forecast is not None or key in live:
        return picture
    return _with_forecast(picture, first)


def _with_forecast(picture: Picture, finding: Finding) -> Picture:
    known = [
        used
        for at, used in zip(picture.curve.at_s, picture.curve.used_bytes, strict=True)
        if used is not None and at <= finding.judged_at_s
    ]
    if finding.eta is None or finding.rate_bytes_per_s is None or not known:
        return picture
    forecast = Forecast.of(finding, known[-1], picture.limit_bytes)
    return msgspec.structs.replace(picture, forecast=forecast)


def _of_gpu(period: Period, picture: Picture) -> Picture:
    """Return the chart of a GPU, bounded; with --user without what is of others' processes."""
    marks = picture.marks
    if period.query.user:
        marks = tuple(mark for mark in marks if mark.kind in _OF_THE_MACHINE)
    notes = picture.notes
    if len(marks) > _MOST_MARKS:
        notes = (*notes, f"only the newest {_MOST_MARKS} of {len(marks)} marks are drawn")
        marks = marks[-_MOST_MARKS:]
    # Of a whole device over days the floor says nothing that the curve does not.
    return msgspec.structs.replace(picture, marks=marks, notes=notes, floor=None)
