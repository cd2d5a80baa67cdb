"""``watch``: status again every interval."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, status_output


@click.command("watch", epilog=options.examples("watch -i 2s", "watch --json -n 10"))
@click.option(
    "-i", "--interval", type=options.SPAN, default="5s", metavar="TIME",
    help="Refresh interval (5s).",
)  # fmt: skip
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="Stop after this many refreshes.",
)
@options.pid_option
@options.user_option
@options.wide_option
@options.every_option
def command(interval: float, count: int | None, pids: tuple[int, ...]) -> int:
    """Show the status again every interval; with --json one object per line."""
    return status_output.run_repeated(options.current(), pids, every_s=interval, count=count)
