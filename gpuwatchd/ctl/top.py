"""``top``: the live screen."""

from __future__ import annotations

import sys

import click

from gpuwatchd.ctl import look, options


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
        raise click.UsageError(
            "top is a screen for people; watch --json is the same state as a stream of objects"
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top needs a terminal; status shows the same once")
    first = look.see(flags)
    from gpuwatchd.tui.app import TopApp  # noqa: PLC0415 - textual comes with it

    app = TopApp(flags, every_s=max(0.2, interval), first=first)
    code = app.run()
    if app.broken is not None:
        raise app.broken
    return code or 0
