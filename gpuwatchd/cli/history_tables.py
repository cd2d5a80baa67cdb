"""The recorded past as people and programs read it: tables with marks, CSV, NDJSON."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuwatchd.cli import output
from gpuwatchd.core import text, units
from gpuwatchd.view import blocks
from gpuwatchd.view.text import device_facts, process_facts, verdict_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.model import Device, ProcessInfo
    from gpuwatchd.view.blocks import Part

MOST_ROWS = 48
_DEVICE_COLUMNS = (
    "at", "gpu", "uid", "width_s", "samples", "used_min_bytes", "used_mean_bytes",
    "used_max_bytes", "used_last_bytes", "util_pct", "temp_max_c", "energy_j",
)  # fmt: skip
_PROCESS_COLUMNS = (
    "at", "gpu", "uid", "width_s", "pid", "started_at", "name", "user",
    "used_max_bytes", "used_last_bytes", "host_last_bytes",
)  # fmt: skip
_EVENT_COLUMNS = ("at", "gpu", "uid", "kind", "text")
_MINUTE_S = 60.0
_MARK_CHARS, _TEXT_CHARS = 28, 256
Record = dict[str, Any]


class RecordedDevice(NamedTuple):
    """What is recorded of one device."""

    device: Device
    records: list[Record]
    events: list[Record]
    """``at``, ``kind``, ``text``; oldest first."""
    infos: list[ProcessInfo]
    """Who the processes are, where it is about processes."""


def stream(
    form: str, devices: Sequence[RecordedDevice], *, events: bool, of_processes: bool
) -> None:
    """Write CSV or NDJSON to stdout."""
    columns = _EVENT_COLUMNS if events else _PROCESS_COLUMNS if of_processes else _DEVICE_COLUMNS
    records: Iterator[Record] = (
        {"gpu": device.device.index, "uid": device.device.uid, **record}
        for device in devices
        for record in (device.events if events else device.records)
    )
    if form == "ndjson":
        for record in records:
            output.emit_json({name: record[name] for name in columns})
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        cells = ("" if record[name] is None else record[name] for name in columns)
        writer.writerow([text.for_csv(c) if isinstance(c, str) else c for c in cells])


def events(out: blocks.Page, devices: Sequence[RecordedDevice]) -> None:
    """List what happened: once what happened to every device, then device by device."""
    first, *others = devices
    common = [e for e in first.events if others and all(e in other.events for other in others)]
    _list(out, "every GPU", common)
    for device in devices:
        own = [event for event in device.events if event not in common]
        _list(out, f"{device.device.label}  {device.device.name}", own)


def _list(out: blocks.Page, title: str, happened: Sequence[Record]) -> None:
    if happened:
        out.line((title, "bold"))
    for event in happened:
        at = units.clock(_at_s(event), seconds=True)
        sort = device_facts.sort_of(event["kind"], event["text"])
        parts: list[Part] = [(sort, "yellow"), *blocks.sentence(event["text"])]
        out.flow(parts, first=f"  {at}  ", rest=" " * 23, gap=" ")


def show(
    out: blocks.Page, devices: Sequence[RecordedDevice], *, of_processes: bool, wide: bool
) -> None:
    """Write a table per device; what happened stands beside the time at which it did."""
    for device in devices:
        if device.records:
            _table(out, device, of_processes=of_processes, wide=wide)


def _table(out: blocks.Page, device: RecordedDevice, *, of_processes: bool, wide: bool) -> None:
    values = [record["used_last_bytes"] for record in device.records]
    known = [value for value in values if value is not None]
    marks = ""
    if not of_processes and known:
        low, high = float(min(known)), float(max(known))
        marks = units.spark(values[-MOST_ROWS:], low=low, high=high, ascii_only=out.ascii)
    out.flow([(f"{device.device.label}  {device.device.name}", "bold"), (marks, "cyan")], rest="  ")
    here = {(record["pid"], record["started_at"]) for record in device.records if of_processes}
    infos = [i for i in device.infos if (i.key.pid, units.instant(i.key.started_at_s)) in here]
    for info in infos:
        facts = [process_facts.runs(info), *process_facts.where(info)]
        more = [f"from {' < '.join(info.parents)}"] if wide and info.parents else []
        more += [f"command: {' '.join(info.argv)}"] if wide and len(info.argv) > 1 else []
        out.flow([verdict_text.who(info), *((fact, "dim") for fact in [*facts, *more])], rest="  ")
    headers = (
        ["time", "process", "used", "highest"]
        if of_processes
        else ["time", "used", "lowest", "highest", "change", "util"]
    )
    columns = [_process_cells(device) if of_processes else _device_cells(device)]
    if of_processes and len({row[1] for row in columns[0]}) == 1 and len(infos) == 1:
        headers.remove("process")  # It is named above the table.
        columns = [[[row[0], *row[2:]] for row in columns[0]]]
    numbers = frozenset(range(1 + headers.count("process"), len(headers)))
    if of_processes and (wide or any(r["host_last_bytes"] is not None for r in device.records)):
        headers.append("host")
        numbers |= {len(headers) - 1}
        columns.append([[units.size(r["host_last_bytes"])] for r in device.records])
    happened = _marks(device, whole=wide)
    if any(happened):
        headers.append("what happened")
        columns.append([[mark] for mark in happened])
    rows = ([cell for part in parts for cell in part] for parts in zip(*columns, strict=True))
    out.table(headers, rows, right=numbers)


def _marks(device: RecordedDevice, *, whole: bool) -> list[str]:
    """Return for each row what happened in its time."""
    starts = [_at_s(record) for record in device.records]
    out = []
    for position, begun_s in enumerate(starts):
        end_s = starts[position + 1] if position + 1 < len(starts) else float("inf")
        if device.records[position]["width_s"]:
            end_s = begun_s + device.records[position]["width_s"]
        # A process has rows of its own beside those of others: what is earlier is not its.
        own = [e for e in device.events if begun_s <= _at_s(e) < end_s]
        said = dict.fromkeys(e["text" if whole else "kind"] for e in own)
        out.append(
            text.cut(("; " if whole else ", ").join(said), _TEXT_CHARS if whole else _MARK_CHARS)
        )
    return out


def _at_s(record: Record) -> float:
    return units.parse_instant(record["at"], now_s=0.0)


def _time(record: Record) -> str:
    """Return local time; with seconds where rows are closer than a minute."""
    return units.clock(_at_s(record), seconds=record["width_s"] < _MINUTE_S)


def _device_cells(device: RecordedDevice) -> list[list[str]]:
    rows: list[list[str]] = []
    before: int | None = None
    for record in device.records:
        last = record["used_last_bytes"]
        change = last - before if last is not None and before is not None else None
        util = record["util_pct"]
        rows.append(
            [
                _time(record),
                units.size(record["used_mean_bytes"]),
                units.size(record["used_min_bytes"]),
                units.size(record["used_max_bytes"]),
                "" if change is None else f"{'+' if change > 0 else ''}{units.size(change)}",
                "?" if util is None else f"{util:.0f} %",
            ]
        )
        before = last if last is not None else before
    return rows


def _process_cells(device: RecordedDevice) -> list[list[str]]:
    values = {
        (info.key.pid, units.instant(info.key.started_at_s)): verdict_text.who(info)
        for info in device.infos
    }
    return [
        [
            _time(record),
            values.get((record["pid"], record["started_at"]), f"pid {record['pid']}"),
            units.size(record["used_last_bytes"]),
            units.size(record["used_max_bytes"]),
        ]
        for record in device.records
    ]
