"""``status``: one screen, from the daemon's live state."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, status_output


@click.command("status", epilog=options.examples("status", "status --gpu 0 --json"))
@options.pid_option
@options.user_option
@options.wide_option
@options.every_option
@options.exit_code_option
@click.option(
    "--watch",
    "watch_s",
    type=options.SPAN,
    is_flag=False,
    flag_value="2s",
    metavar="[SECONDS]",
    help="Repeat every so many seconds (2).",
)
def command(pids: tuple[int, ...], exit_code: bool, watch_s: float | None) -> int:  # noqa: FBT001
    """Show every GPU: used, growth, time left, who; open alerts; the daemon's health."""
    flags = options.current()
    if watch_s is not None:
        return status_output.run_repeated(flags, pids, every_s=watch_s, count=None)
    return status_output.run(flags, pids, exit_code=exit_code)
