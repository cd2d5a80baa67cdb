"""``top``: the live screen."""

from __future__ import annotations

import sys

import click

from gpuwatchd.ctl import look, options

_NO_TERMINAL = "top needs a terminal; gpuwatchctl status shows the same once"
_NO_JSON = "top is a screen for people; gpuwatchctl watch --json gives the same as a stream"
_LEAST_S = 0.2


@click.command("top", epilog=options.examples("top", "top --gpu 0 --user me"))
@click.option(
    "-i", "--interval", type=options.Span(), default="1s", metavar="TIME",
    help="Time between two looks (1s).",
)  # fmt: skip
@options.user_option
def command(interval: float) -> int:
    """Show the live screen: GPUs, processes, alerts; ? lists its keys."""
    flags = options.current()
    if flags.json:
        raise click.UsageError(_NO_JSON, click.get_current_context())
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(_NO_TERMINAL, click.get_current_context())
    first = look.see(flags)
    from gpuwatchd.tui.app import TopApp  # noqa: PLC0415 - textual comes with it

    app = TopApp(flags, every_s=max(_LEAST_S, interval), first=first)
    code = app.run()
    if app.broken is not None:
        raise app.broken
    return code or 0
