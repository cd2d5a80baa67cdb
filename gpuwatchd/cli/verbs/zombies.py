"""``zombies``: idle memory, since when, what it costs, what would free it."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import direct_holdings, live_answers
from gpuwatchd.view.text import idle_memory


@click.command(
    "zombies",
    epilog=options.examples("zombies", "zombies --wide", "zombies --json", "zombies --slurm"),
)
@options.user_option
@options.wide_option
@click.option("--slurm", is_flag=True, help="Also jobs of this node without a process on a GPU.")
@click.option(
    "--grace",
    "grace_s",
    type=options.SPAN,
    default="10m",
    metavar="TIME",
    help="With --slurm: only jobs that have run for so long (10m).",
)
@click.option("--exit-code", is_flag=True, help="Exit 3 when something is listed.")
def command(slurm: bool, grace_s: float, exit_code: bool) -> int:  # noqa: FBT001
    """List idle memory, and what would free it.

    Owners that are gone, defunct or wait in the driver; memory without an owner; servers with
    nothing loaded; hung ranks; processes that have long been idle. Then who has device files open
    without being listed by the driver. With --slurm also the jobs that hold GPUs of this node
    although none of their processes is there; exit 1 where Slurm does not answer. No process is
    ever signalled, and no job ended.
    """
    flags = options.current()
    slurm_s = grace_s if slurm else None
    if flags.json:
        return output.emit_answered(live_answers.idle_memory(flags, slurm_s), exit_code=exit_code)
    view, loose = direct_holdings.idle_memory(flags, slurm_s)
    idle_memory.show(output.Out(flags), flags, view, loose)
    return 3 if exit_code and (view.holdings or view.jobs) else 0
