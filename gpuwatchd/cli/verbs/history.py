"""``history``: memory over time and what happened, as a table, CSV or NDJSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import click

from gpuwatchd.cli import history_tables, options, output
from gpuwatchd.cli.history_tables import Record, RecordedDevice
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store import legacy_text
from gpuwatchd.view.answers import envelope
from gpuwatchd.view.queries import state_location, user_filter
from gpuwatchd.view.text import device_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey
    from gpuwatchd.store.actions import ActionEvent
    from gpuwatchd.store.reader import DeviceRow, Event, ProcessRow, Reader, Segment

_DAY_S = 86400.0
_NICE_S = (60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800)
_FORMATS = ["table", "csv", "ndjson"]


@click.command(
    "history", epilog=options.examples("history --since 6h", "history --format csv --since today")
)
@click.option("--since", type=options.Instant(), metavar="TIME", help="From when on (24h).")
@click.option("--until", type=options.Instant(), metavar="TIME", help="Until when (now).")
@click.option("--bucket", type=options.Span(), metavar="TIME", help="Join samples, e.g. 5m.")
@options.pid_option
@options.user_option
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True,
    help="How to write it.",
)  # fmt: skip
@click.option("--events", is_flag=True, help="What happened, instead of memory.")
@options.wide_option
@click.option("--sql", is_flag=True, help="Print the query instead of its result.")
def command(  # noqa: PLR0917 - one argument per flag
    since: float | None,
    until: float | None,
    bucket: float | None,
    pids: tuple[int, ...],
    form: str,
    events: bool,  # noqa: FBT001
    sql: bool,  # noqa: FBT001
) -> int:
    """Show memory over time; TIME is 2h (ago), today, yesterday or 2026-11-21T08:00.

    Marks in the table show events of the device; --events lists it alone.
    """
    flags = options.current()
    until_s = until if until is not None else time.time() + 1.0
    since_s = since if since is not None else until_s - _DAY_S
    if since_s >= until_s:
        raise click.UsageError("--since is not before --until")
    fits = bucket is None and form == "table" and not flags.json
    if fits:
        bucket = _nice_bucket(until_s - since_s)
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - SQLite comes with it

    whom = Whom(pids, user_filter.People(flags.user) if flags.user else None)
    with history_query.reader() as history:
        devices = [
            device for device in device_facts.in_order(history.devices()) if flags.wants(device)
        ]
        if sql:
            return _sql(flags, history, devices, (since_s, until_s, bucket), whom)
        rows = {
            device.uid: (
                [] if events else _records(history, device, (since_s, until_s, bucket), whom)
            )
            for device in devices
        }
        first = min((row["at"] for some in rows.values() for row in some), default=None)
        if fits and first is not None:
            # What began a moment ago would be one row of a table for a day.
            finer = _nice_bucket(until_s - max(since_s, units.parse_instant(first, now_s=0.0)))
            if finer < (bucket or 0.0):
                rows = {
                    device.uid: _records(history, device, (since_s, until_s, finer), whom)
                    for device in devices
                }
        recorded_devices = [
            RecordedDevice(
                device,
                rows[device.uid],
                _happened(history, device, (since_s, until_s), whom, jobs=events),
                _infos(history, since_s, whom),
            )
            for device in devices
        ]
    if not any(
        recorded_device.events if events else recorded_device.records
        for recorded_device in recorded_devices
    ):
        span = f"{units.clock(since_s)} and {units.clock(until_s)}"
        what = "no event" if events else "nothing"
        hint = "the daemon writes once a minute; what is now: gpuwatchctl status"
        raise GpuwatchdError(
            f"{what} is recorded between {span}", hint=hint, page="errors#nothing-recorded"
        )
    if flags.json:
        data = [
            {
                "device": envelope.device_json(recorded_device.device),
                "rows": recorded_device.records,
                "events": recorded_device.events,
            }
            for recorded_device in recorded_devices
        ]
        output.emit("history", data, source="database", warnings=state_location.service_warnings())
    elif form != "table":
        history_tables.stream(form, recorded_devices, events=events, of_processes=bool(whom))
    else:
        out = output.Out(flags)
        state_location.head(out)
        if events:
            history_tables.events(out, recorded_devices)
        else:
            history_tables.show(out, recorded_devices, of_processes=bool(whom), wide=flags.wide)
    return 0


class Whom(NamedTuple):
    """Whose memory is shown instead of the devices', by pid or by user; false for nobody's."""

    pids: Sequence[int]
    people: user_filter.People | None

    def __bool__(self) -> bool:
        return bool(self.pids) or self.people is not None

    def has(self, key: ProcessKey, info: ProcessInfo | None) -> bool:
        """Say whether a process is meant."""
        if self.pids and key.pid not in self.pids:
            return False
        return self.people is None or self.people.own(info)


def _infos(history: Reader, since_s: float, whom: Whom) -> list[ProcessInfo]:
    """Return who the chosen processes are."""
    return [info for info in history.processes(since_s) if whom.has(info.key, info)] if whom else []


def _happened(
    history: Reader,
    device: Device,
    span: tuple[float, float],
    whom: Whom,
    *,
    jobs: bool,
) -> list[Record]:
    """Return what happened to a device, to its card, to time and, if asked, to its jobs' work."""
    since_s, until_s = span
    here = {device.uid, device.parent_uid, None}
    happened = [_event(event) for event in history.events(since_s) if event.device_uid in here]
    happened += [_segment(segment) for segment in history.segments(since_s)]
    if jobs:
        infos = {info.key: info for info in history.processes()} if whom else {}
        happened += [
            _deed(deed)
            for deed in history.action_events(since_s)
            if (not deed.device_uids or device.uid in deed.device_uids)
            and (
                not whom
                or (deed.process is not None and whom.has(deed.process, infos.get(deed.process)))
            )
        ]
    end = units.instant(until_s) or ""
    return sorted((one for one in happened if one["at"] < end), key=lambda one: one["at"])


def _event(event: Event) -> Record:
    return {
        "at": units.instant(event.at_s),
        "kind": text.clean(event.kind),
        "text": text.clean(event.detail),
    }


def _segment(segment: Segment) -> Record:
    return {
        "at": units.instant(segment.at_s),
        "kind": text.clean(segment.reason),
        "text": device_facts.segment_words(segment),
    }


def _named(name: str, pid: int) -> str:
    return name if legacy_text.is_stand_in(name, pid) else f"{name}[{pid}]"


def _deed(event: ActionEvent) -> Record:
    """Return what was asked of a job, or that it saved: with who it is, and who did or said it."""
    key, name = event.process, text.clean(event.name)
    whom = "a process" if key is None else _named(name, key.pid) if name else f"pid {key.pid}"
    by = f" by {text.clean(event.who)}" if event.who else ""
    value = f": {text.clean(event.result)}" if event.result else ""
    return {
        "at": units.instant(event.at_s),
        "kind": event.kind,
        "text": f"{whom}{by}{value}",
        "pid": None if key is None else key.pid,
        "started_at": None if key is None else units.instant(key.started_at_s),
        "by": text.clean(event.who) or None,
    }


def _nice_bucket(span_s: float) -> float:
    return next(
        (float(s) for s in _NICE_S if span_s / s <= history_tables.MOST_ROWS), float(_NICE_S[-1])
    )


def _records(
    history: Reader, device: Device, span: tuple[float, float, float | None], whom: Whom
) -> list[Record]:
    since_s, until_s, bucket_s = span
    if not whom:
        rows = history.device_rows(device.uid, since_s, until_s, bucket_s)
        return [_device_record(device, row) for row in rows]
    infos = {info.key: info for info in history.processes(since_s)}
    used = history.process_rows(device.uid, since_s, until_s)
    return [
        _process_record(device, row, infos.get(row.process))
        for row in _joined(used, bucket_s)
        if whom.has(row.process, infos.get(row.process))
    ]


def _joined(rows: Sequence[ProcessRow], bucket_s: float | None) -> list[ProcessRow]:
    """Return one row per process and bucket: its highest and its last value."""
    if not bucket_s:
        return list(rows)
    import msgspec  # noqa: PLC0415

    joined: dict[tuple[object, float], ProcessRow] = {}
    for row in rows:
        start_s = row.at_s // bucket_s * bucket_s
        process_row = joined.get((row.process, start_s))
        amounts = [
            r.used_max_bytes
            for r in (process_row, row)
            if r is not None and r.used_max_bytes is not None
        ]
        host = row.host_last_bytes
        if host is None and process_row is not None:
            host = process_row.host_last_bytes
        joined[row.process, start_s] = msgspec.structs.replace(
            row, at_s=start_s, width_s=bucket_s, used_max_bytes=max(amounts, default=None),
            host_last_bytes=host,
        )  # fmt: skip
    return list(joined.values())


def _device_record(device: Device, row: DeviceRow) -> Record:
    return {
        "at": units.instant(row.at_s),
        "gpu": device.index,
        "uid": device.uid,
        "width_s": row.width_s,
        "samples": row.n,
        **envelope.fields(
            row,
            "used_min_bytes used_mean_bytes used_max_bytes used_last_bytes util_pct temp_max_c "
            "energy_j",
        ),
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
        **envelope.fields(row, "used_max_bytes used_last_bytes host_last_bytes"),
    }


def _sql(
    flags: Globals,
    history: Reader,
    devices: Sequence[Device],
    span: tuple[float, float, float | None],
    whom: Whom,
) -> int:
    """Print what is asked of the file, for those who go on with sqlite3 themselves."""
    queries = []
    for device in devices:
        if whom:
            history.process_rows(device.uid, span[0], span[1])
        else:
            history.device_rows(device.uid, *span)
        queries.append(history.last_query)
    if flags.json:
        output.emit("history", queries, source="database")
    else:
        for query in queries:
            click.echo(f"{query};")
    return 0
