"""The recorded past as people read it: a table per device, and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.view import blocks
from gpuwatchd.view.answers.history import DeviceRow, ProcessRow
from gpuwatchd.view.queries.recorded_answers import MOST_ROWS
from gpuwatchd.view.text import subject_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.view.answers.history import Event
    from gpuwatchd.view.blocks import Part
    from gpuwatchd.view.queries.recorded_answers import Recorded

_MINUTE_S = 60.0
_MARK_CHARS, _TEXT_CHARS = 28, 256
_OUTCOMES = {"died", "resolved"}


def events(out: blocks.Page, devices: Sequence[Recorded]) -> None:
    """List what happened: once what happened to every device, then device by device."""
    first, *others = devices
    common = [e for e in first.events if others and all(e in other.events for other in others)]
    _list(out, "every GPU", common)
    for device in devices:
        own = [event for event in device.events if event not in common]
        _list(out, f"{device.device.label}  {device.device.name}", own)


def _list(out: blocks.Page, title: str, happened: Sequence[Event]) -> None:
    if happened:
        out.line((title, "bold"))
    for event in happened:
        at = units.clock(_at_s(event), seconds=True)
        sort = subject_facts.sort_of(event.kind, event.text)
        parts: list[Part] = [(sort, "yellow"), *blocks.sentence(event.text)]
        out.flow(parts, first=f"  {at}  ", rest=" " * 23, gap=" ")


def show(out: blocks.Page, devices: Sequence[Recorded], *, of_processes: bool, wide: bool) -> None:
    """Write a table per device; what happened stands beside the time at which it did."""
    for device in devices:
        if device.rows:
            _table(out, device, of_processes=of_processes, wide=wide)


def _table(out: blocks.Page, device: Recorded, *, of_processes: bool, wide: bool) -> None:
    values: list[float | None] = [row.used_last_bytes for row in device.rows]
    known = [value for value in values if value is not None]
    marks = ""
    if not of_processes and known:
        low, high = float(min(known)), float(max(known))
        marks = units.spark(values[-MOST_ROWS:], low=low, high=high, ascii_only=out.ascii)
    out.flow([(f"{device.device.label}  {device.device.name}", "bold"), (marks, "cyan")], rest="  ")
    used = [row for row in device.rows if isinstance(row, ProcessRow)]
    here = {(row.pid, row.started_at) for row in used}
    infos = [i for i in device.infos if (i.key.pid, units.instant(i.key.started_at_s)) in here]
    for info in infos:
        facts = [subject_facts.runs(info), *subject_facts.where(info)]
        more = [f"from {' < '.join(info.parents)}"] if wide and info.parents else []
        more += [f"command: {' '.join(info.argv)}"] if wide and len(info.argv) > 1 else []
        out.flow([verdict_text.who(info), *((fact, "dim") for fact in [*facts, *more])], rest="  ")
    headers = (
        ["time", "process", "used", "highest"]
        if of_processes
        else ["time", "used", "lowest", "highest", "change", "util"]
    )
    columns = [_process_cells(device, used) if of_processes else _device_cells(device)]
    if of_processes and len({row[1] for row in columns[0]}) == 1 and len(infos) == 1:
        headers.remove("process")  # It is named above the table.
        columns = [[[row[0], *row[2:]] for row in columns[0]]]
    numbers = frozenset(range(1 + headers.count("process"), len(headers)))
    for name in ("allocated_bytes", "reserved_bytes", "host_last_bytes"):
        title, amounts = name.partition("_")[0], [getattr(row, name) for row in used]
        if used and ((wide and title == "host") or any(each is not None for each in amounts)):
            headers.append(title)
            numbers |= {len(headers) - 1}
            columns.append([[units.size(each)] for each in amounts])
    happened = _marks(device, whole=wide)
    if any(happened):
        headers.append("what happened")
        columns.append([[mark] for mark in happened])
    rows = ([cell for part in parts for cell in part] for parts in zip(*columns, strict=True))
    out.table(headers, rows, right=numbers)


def _marks(device: Recorded, *, whole: bool) -> list[str]:
    """Return for each row what happened in its time."""
    starts = [_at_s(row) for row in device.rows]
    ends = [*starts[1:], float("inf")]
    ends = [
        begun + row.width_s if row.width_s else end
        for begun, row, end in zip(starts, device.rows, ends, strict=True)
    ]
    # A process that has died has no rows any more: what it came to stands at its last one.
    late = [e for e in device.events if e.kind in _OUTCOMES and _at_s(e) >= max(ends)]
    latest_s = max(starts)
    out = []
    for begun_s, end_s in zip(starts, ends, strict=True):
        # A process has rows of its own beside those of others: what is earlier is not its.
        own = [e for e in device.events if begun_s <= _at_s(e) < end_s]
        own += late if begun_s == latest_s else []
        said = dict.fromkeys(e.text if whole else e.kind for e in own)
        out.append(
            text.cut(("; " if whole else ", ").join(said), _TEXT_CHARS if whole else _MARK_CHARS)
        )
    return out


def _at_s(row: DeviceRow | ProcessRow | Event) -> float:
    return units.parse_instant(row.at, now_s=0.0)


def _time(row: DeviceRow | ProcessRow) -> str:
    """Return local time; with seconds where rows are closer than a minute."""
    return units.clock(_at_s(row), seconds=row.width_s < _MINUTE_S)


def _device_cells(device: Recorded) -> list[list[str]]:
    rows: list[list[str]] = []
    before: int | None = None
    for row in (row for row in device.rows if isinstance(row, DeviceRow)):
        last = row.used_last_bytes
        change = last - before if last is not None and before is not None else None
        util = row.util_pct
        rows.append(
            [
                _time(row),
                units.size(row.used_mean_bytes),
                units.size(row.used_min_bytes),
                units.size(row.used_max_bytes),
                "" if change is None else f"{'+' if change > 0 else ''}{units.size(change)}",
                "?" if util is None else f"{util:.0f} %",
            ]
        )
        before = last if last is not None else before
    return rows


def _process_cells(device: Recorded, used: Sequence[ProcessRow]) -> list[list[str]]:
    values = {
        (info.key.pid, units.instant(info.key.started_at_s)): verdict_text.who(info)
        for info in device.infos
    }
    return [
        [
            _time(row),
            values.get((row.pid, row.started_at), f"pid {row.pid}"),
            units.size(row.used_last_bytes),
            units.size(row.used_max_bytes),
        ]
        for row in used
    ]
