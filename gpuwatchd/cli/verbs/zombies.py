"""``zombies``: idle memory, since when, what it costs, what would free it."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import direct_holdings, live_answers
from gpuwatchd.view.text import idle_memory


@click.command("zombies", epilog=options.examples("zombies", "zombies --wide", "zombies --json"))
@options.user_option
@options.wide_option
@click.option("--exit-code", is_flag=True, help="Exit 3 when there is idle memory.")
def command(exit_code: bool) -> int:  # noqa: FBT001
    """List idle memory, and what would free it.

    Owners that are gone, defunct or wait in the driver; memory without an owner; servers with
    nothing loaded; hung ranks; processes that have long been idle. Then who has device files open
    without being listed by the driver. No process is ever signalled.
    """
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.idle_memory(flags), exit_code=exit_code)
    view, loose = direct_holdings.idle_memory(flags)
    idle_memory.show(output.Out(flags), flags, view, loose)
    return 3 if exit_code and view.holdings else 0
