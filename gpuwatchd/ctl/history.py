"""``history``: memory over time, as a table, CSV or NDJSON."""

from __future__ import annotations

import csv
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd import text, units
from gpuwatchd.ctl import envelope, options, output
from gpuwatchd.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.model import Device, ProcessInfo
    from gpuwatchd.store.reader import DeviceRow, ProcessRow, Reader

_DAY_S = 86400.0
_TABLE_ROWS = 48
_NICE_S = (60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800)
_DEVICE_COLUMNS = (
    "at", "gpu", "uid", "width_s", "samples", "used_min_bytes", "used_mean_bytes",
    "used_max_bytes", "used_last_bytes", "util_pct", "temp_max_c", "energy_j",
)  # fmt: skip
_PROCESS_COLUMNS = (
    "at", "gpu", "uid", "width_s", "pid", "started_at", "name", "user",
    "used_max_bytes", "used_last_bytes",
)  # fmt: skip
_FORMATS = ["table", "csv", "ndjson"]
Record = dict[str, Any]


@click.command(
    "history", epilog=options.examples("history --since 6h", "history --format csv --since today")
)
@click.option("--since", type=options.Instant(), metavar="TIME", help="From when on (24h).")
@click.option("--until", type=options.Instant(), metavar="TIME", help="Until when (now).")
@click.option("--bucket", type=options.Span(), metavar="TIME", help="Join samples, e.g. 5m.")
@options.pid_option
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True,
    help="How to write it.",
)  # fmt: skip
@click.option("--sql", is_flag=True, help="Print the query instead of its result.")
def command(  # noqa: PLR0917 - one argument per flag
    since: float | None,
    until: float | None,
    bucket: float | None,
    pids: tuple[int, ...],
    form: str,
    sql: bool,  # noqa: FBT001
) -> int:
    """Show memory over time; TIME is 2h (ago), today, yesterday or 2026-11-21T08:00."""
    flags = options.current()
    until_s = until if until is not None else time.time() + 1.0
    since_s = since if since is not None else until_s - _DAY_S
    if since_s >= until_s:
        raise click.UsageError("--since is not before --until")
    if bucket is None and form == "table" and not flags.json:
        bucket = _nice_bucket(until_s - since_s)
    from gpuwatchd.ctl import past  # noqa: PLC0415 - SQLite comes with it

    with past.reader() as history:
        devices = [device for device in history.devices() if flags.wants(device)]
        if sql:
            return _sql(flags, history, devices, (since_s, until_s, bucket), pids)
        found = [
            (device, _records(history, device, (since_s, until_s, bucket), pids))
            for device in devices
        ]
    if not any(records for _, records in found):
        span = f"{units.clock(since_s)} and {units.clock(until_s)}"
        raise GpuwatchdError(f"nothing is recorded between {span}", hint="gpuwatchctl status")
    if flags.json:
        data = [
            {"device": envelope.device_json(device), "rows": records} for device, records in found
        ]
        output.emit_json(envelope.answer("history", data, source="database"))
    elif form == "table":
        _tables(output.Out(flags), found, pids)
    else:
        _stream(form, found, _PROCESS_COLUMNS if pids else _DEVICE_COLUMNS)
    return 0


def _nice_bucket(span_s: float) -> float:
    return next((float(s) for s in _NICE_S if span_s / s <= _TABLE_ROWS), float(_NICE_S[-1]))


def _records(
    history: Reader, device: Device, span: tuple[float, float, float | None], pids: Sequence[int]
) -> list[Record]:
    since_s, until_s, bucket_s = span
    if not pids:
        rows = history.device_rows(device.uid, since_s, until_s, bucket_s)
        return [_device_record(device, row) for row in rows]
    infos = {info.key: info for info in history.processes(since_s)}
    used = history.process_rows(device.uid, since_s, until_s)
    return [
        _process_record(device, row, infos.get(row.process))
        for row in _joined(used, bucket_s)
        if row.process.pid in pids
    ]


def _joined(rows: Sequence[ProcessRow], bucket_s: float | None) -> list[ProcessRow]:
    """Return one row per process and bucket: its highest and its last value."""
    if not bucket_s:
        return list(rows)
    import msgspec  # noqa: PLC0415

    joined: dict[tuple[object, float], ProcessRow] = {}
    for row in rows:
        start_s = row.at_s // bucket_s * bucket_s
        known = joined.get((row.process, start_s))
        amounts = [
            r.used_max_bytes for r in (known, row) if r is not None and r.used_max_bytes is not None
        ]
        joined[row.process, start_s] = msgspec.structs.replace(
            row, at_s=start_s, width_s=bucket_s, used_max_bytes=max(amounts, default=None)
        )
    return list(joined.values())


def _device_record(device: Device, row: DeviceRow) -> Record:
    return {
        "at": units.instant(row.at_s),
        "gpu": device.index,
        "uid": device.uid,
        "width_s": row.width_s,
        "samples": row.n,
        "used_min_bytes": row.used_min_bytes,
        "used_mean_bytes": row.used_mean_bytes,
        "used_max_bytes": row.used_max_bytes,
        "used_last_bytes": row.used_last_bytes,
        "util_pct": row.util_pct,
        "temp_max_c": row.temp_max_c,
        "energy_j": row.energy_j,
    }


def _process_record(device: Device, row: ProcessRow, info: ProcessInfo | None) -> Record:
    return {
        "at": units.instant(row.at_s),
        "gpu": device.index,
        "uid": device.uid,
        "width_s": row.width_s,
        "pid": row.process.pid,
        "started_at": units.instant(row.process.started_at_s),
        "name": text.clean(info.name) if info is not None else None,
        "user": text.clean(info.user) if info is not None and info.user else None,
        "used_max_bytes": row.used_max_bytes,
        "used_last_bytes": row.used_last_bytes,
    }


def _stream(
    form: str, found: Sequence[tuple[Device, list[Record]]], columns: Sequence[str]
) -> None:
    records = (record for _, records in found for record in records)
    if form == "ndjson":
        for record in records:
            output.emit_json(record)
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        cells = ("" if record[name] is None else record[name] for name in columns)
        writer.writerow([text.for_csv(c) if isinstance(c, str) else c for c in cells])


def _tables(
    out: output.Out, found: Sequence[tuple[Device, list[Record]]], pids: Sequence[int]
) -> None:
    for device, records in found:
        if not records:
            continue
        values = [record["used_last_bytes"] for record in records]
        known = [value for value in values if value is not None]
        marks = ""
        if not pids and known:
            low, high = float(min(known)), float(max(known))
            marks = units.spark(values[-_TABLE_ROWS:], low=low, high=high, ascii_only=out.ascii)
        out.flow([(f"{device.label}  {device.name}", "bold"), (marks, "cyan")], rest="  ")
        if pids:
            out.table(
                ["time", "process", "used", "highest"],
                (_process_cells(record) for record in records),
                right=frozenset({2, 3}),
            )
        else:
            out.table(
                ["time", "used", "lowest", "highest", "change", "util"],
                _device_cells(records),
                right=frozenset({1, 2, 3, 4, 5}),
            )


def _local(record: Record) -> str:
    at_s = units.parse_instant(record["at"], now_s=0.0)
    return units.clock(at_s)


def _device_cells(records: Sequence[Record]) -> list[list[str]]:
    rows: list[list[str]] = []
    before: int | None = None
    for record in records:
        last = record["used_last_bytes"]
        change = last - before if last is not None and before is not None else None
        util = record["util_pct"]
        rows.append(
            [
                _local(record),
                units.size(record["used_mean_bytes"]),
                units.size(record["used_min_bytes"]),
                units.size(record["used_max_bytes"]),
                "" if change is None else f"{'+' if change > 0 else ''}{units.size(change)}",
                "?" if util is None else f"{util:.0f}%",
            ]
        )
        before = last if last is not None else before
    return rows


def _process_cells(record: Record) -> list[str]:
    owner = f" of {record['user']}" if record["user"] else ""
    return [
        _local(record),
        f"{record['name'] or '?'}[{record['pid']}]{owner}",
        units.size(record["used_last_bytes"]),
        units.size(record["used_max_bytes"]),
    ]


def _sql(
    flags: Globals,
    history: Reader,
    devices: Sequence[Device],
    span: tuple[float, float, float | None],
    pids: Sequence[int],
) -> int:
    """Print what is asked of the file, for those who go on with sqlite3 themselves."""
    queries = []
    for device in devices:
        if pids:
            history.process_rows(device.uid, span[0], span[1])
        else:
            history.device_rows(device.uid, *span)
        queries.append(history.last_query)
    if flags.json:
        output.emit_json(envelope.answer("history", queries, source="database"))
    else:
        for query in queries:
            click.echo(f"{query};")
    return 0
