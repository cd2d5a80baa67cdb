"""``history``: memory over time and what happened, as a table, CSV or NDJSON."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from gpuwatchd.cli import options, output
from gpuwatchd.core import text
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import DeviceRow, EventRow, HistoryQueries, ProcessRow
from gpuwatchd.view.queries import recorded_answers, state_location
from gpuwatchd.view.text import history_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.view.queries.recorded_answers import Recorded

_FORMATS = ["table", "csv", "ndjson"]


@click.command(
    "history", epilog=options.examples("history --since 6h", "history --format csv --since today")
)
@click.option("--since", type=options.PAST, metavar="TIME", help="From when on (24h).")
@click.option("--until", type=options.INSTANT, metavar="TIME", help="Until when (now).")
@click.option("--bucket", type=options.SPAN, metavar="TIME", help="Join samples, e.g. 5m.")
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

    Marks in the table show events of the device; --events lists it alone. The same as a chart, with
    fit and forecast: `plot`.
    """
    flags = options.current()
    try:
        asked = recorded_answers.History(
            flags, since_s=since, until_s=until, bucket_s=bucket, pids=pids, events=events
        )
    except recorded_answers.EmptySpan as error:
        raise click.UsageError(str(error)) from None
    fit = bucket is None and form == "table" and not flags.json
    if sql:
        queries = asked.queries(fit=fit)
        if flags.json:
            output.emit_answer(HistoryQueries, queries, source="database")
        else:
            click.echo("".join(f"{query};\n" for query in queries), nl=False)
        return 0
    if flags.json:
        output.emit_json(asked.answer().answer)
        return 0
    recorded = asked.read(fit=fit)
    of_processes = bool(asked.processes)
    if form != "table":
        _stream(form, recorded, events=events, of_processes=of_processes)
        return 0
    out = output.Out(flags)
    state_location.head(out)
    if events:
        history_table.events(out, recorded)
    else:
        history_table.show(out, recorded, of_processes=of_processes, wide=flags.wide)
    return 0


def _stream(form: str, recorded: Sequence[Recorded], *, events: bool, of_processes: bool) -> None:
    """Write CSV or NDJSON to stdout."""
    kind = EventRow if events else ProcessRow if of_processes else DeviceRow
    lines = (
        fill(EventRow, line, gpu=device.device.index, uid=device.device.uid) if events else line
        for device in recorded
        for line in (device.events if events else device.rows)
    )
    if form == "ndjson":
        for line in lines:
            output.emit_json(line)
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(kind.__struct_fields__)
    for line in lines:
        cells = ("" if cell is None else cell for cell in msgspec.structs.astuple(line))
        writer.writerow([text.for_csv(c) if isinstance(c, str) else c for c in cells])
