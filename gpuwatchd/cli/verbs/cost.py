"""``cost``: what leaks and idle memory cost: at risk now, lost, held, and saved by a warning."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import cost_entries, recorded_answers
from gpuwatchd.view.text import cost_text


@click.command(
    "cost",
    epilog=options.examples("cost", "cost --since 7d --by user", "cost --by incident --json"),
)
@click.option("--since", type=options.PAST, metavar="TIME", help="Not older than this (30d).")
@click.option(
    "--by",
    type=click.Choice(list(cost_entries.BY)),
    default="gpu",
    show_default=True,
    help="Group totals by.",
)
@options.user_option
def command(since: float | None, by: str) -> int:
    """Show what leaks and idle memory cost, in GPU-hours and money.

    \b
    at risk   open leaks: since the job's start, or its last known
              checkpoint, and on until memory is full (middle of the
              forecast)
    lost      jobs that ended near the limit, probably out of memory:
              from the last checkpoint, or the start, to the end
    held      idle memory, as its share of the device
    saved     jobs that ended after a message had been sent, at least 10
              minutes before the earliest forecast crash: only
              the hours from that end to that crash, which would have
              been lost too; nothing of what the job had cost before

    Where processes were ended, restarted or requeued, what that freed and what work it lost is
    counted apart.

    A GPU that several processes hold is shared by what each holds over time. Hours without data
    are not counted. Prices are yours ([cost]) or a dated table's, per GPU; without one
    hours are counted alone.
    """  # noqa: D301 - click's own mark for text that keeps its lines
    flags = options.current()
    if flags.json:
        output.emit_json(recorded_answers.cost(flags, since_s=since, by=by).answer)
    else:
        cost_text.show(output.Out(flags), recorded_answers.bill(flags, since), by)
    return 0
