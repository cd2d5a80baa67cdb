"""The charts of a report: of GPUs, of incidents, and of processes that are asked for by pid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.core.model import ProcessInfo
from gpuwatchd.view.report import document

if TYPE_CHECKING:
    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Alert, Device, Finding
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries import charts
    from gpuwatchd.view.report.period import Period

_POINTS: Final = 240
_FEW_GPUS: Final = 8
_MOST_MARKS: Final = 60
_OF_THE_MACHINE: Final = frozenset({"event", "restart"})
"""Marks that tell of nobody's process."""
_BEFORE, _AFTER = 0.25, 0.1
"""A chart begins and ends so much of the incident's length before and after it."""
_LEAST_S: Final = 900.0
_LONGEST_S: Final = 30 * 86_400.0


def draw(period: Period, history: Reader | None) -> None:
    """Add the charts to a period."""
    if not period.asked.charts:
        return
    from gpuwatchd.view.queries import charts  # noqa: PLC0415 - numpy comes with it

    few = len(period.uses) <= _FEW_GPUS
    points = _POINTS if few else _POINTS // 2
    span = charts.Asked(period.asked.since_s, period.asked.until_s, points=points)
    view = period.shown_view()
    for use in period.uses[: document.GPU_CHARTS]:
        picture = charts.of_device(history, view, period.item(use.device), span)
        period.pictures[use.device.uid] = of_gpu(period, picture)
    for info in period.infos[: document.CHARTS]:
        for device in period.devices:
            own = _of_process(period, history, device, info, span)
            if own is not None and not own.empty:
                period.process_pictures.append((info, own))


def _of_process(
    period: Period,
    history: Reader | None,
    device: Device,
    info: ProcessInfo,
    span: charts.Asked,
) -> Picture | None:
    from gpuwatchd.view.queries import charts  # noqa: PLC0415

    item, view = period.item(device), period.shown_view()
    for process in item.processes or ():
        if process.info.key == info.key:
            return charts.of_process(history, view, item, process, span)
    return None if history is None else charts.past_process(history, device, info, span)


def of_incident(
    period: Period, history: Reader | None, alert: Alert, first: Finding
) -> Picture | None:
    """Return the chart of an incident: all of it, and somewhat more on both sides.

    What is over has the forecast as people were told it ``first``.
    """
    from gpuwatchd.view.queries import charts  # noqa: PLC0415 - numpy comes with it

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
        return of_gpu(period, charts.of_device(history, period.shown_view(), item, span))
    info = period.found.infos.get(key) or ProcessInfo(key=key, name="?")
    picture = _of_process(period, history, device, info, span)
    live = {process.info.key for process in period.item(device).processes or ()}
    if picture is None or picture.forecast is not None or key in live:
        return picture
    return _with_forecast(picture, first)


def _with_forecast(picture: Picture, finding: Finding) -> Picture:
    from gpuwatchd.charts.chart_model import Forecast  # noqa: PLC0415

    known = [
        used
        for at, used in zip(picture.curve.at_s, picture.curve.used_bytes, strict=True)
        if used is not None and at <= finding.judged_at_s
    ]
    if finding.eta is None or finding.rate_bytes_per_s is None or not known:
        return picture
    forecast = Forecast.of(finding, known[-1], picture.limit_bytes)
    return msgspec.structs.replace(picture, forecast=forecast)


def of_gpu(period: Period, picture: Picture) -> Picture:
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
