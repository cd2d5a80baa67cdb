"""The charts of a report: of GPUs, and of processes that are asked for by their pid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.view.report import document

if TYPE_CHECKING:
    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.core.model import Device, ProcessInfo
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries import charts
    from gpuwatchd.view.report.period import Period

_POINTS: Final = 240
_FEW_GPUS: Final = 8
_MOST_MARKS: Final = 60
_OF_THE_MACHINE: Final = frozenset({"event", "restart"})
"""Marks that tell of nobody's process."""


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
