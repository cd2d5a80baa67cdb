"""``top``: the live screen."""

from __future__ import annotations

import os
import sys

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import registry
from gpuwatchd.view.queries import current_state

_NO_TERMINAL = "top needs a terminal; gpuwatchctl status shows the same once"
_DUMB = "TERM is dumb, and top must move the cursor; gpuwatchctl status shows the same once"
_NO_JSON = "top is a screen for people; gpuwatchctl watch --json gives the same as a stream"
_LEAST_S = 0.2
_SCREEN = {"top": "gpuwatchd.tui.app:TopApp"}
"""Textual comes with it."""


@click.command("top", epilog=options.examples("top", "top --gpu 0 --user me"))
@click.option(
    "-i", "--interval", type=options.SPAN, default="1s", metavar="TIME",
    help="Refresh interval (1s).",
)  # fmt: skip
@options.user_option
def command(interval: float) -> int:
    """Show the live screen: GPUs, processes, alerts; ? lists its keys."""
    flags = options.current()
    if flags.json:
        raise click.UsageError(_NO_JSON, click.get_current_context())
    # A stream that was closed before the start is None.
    if not all(one is not None and one.isatty() for one in (sys.stdin, sys.stdout)):
        raise click.UsageError(_NO_TERMINAL, click.get_current_context())
    if os.environ.get("TERM") == "dumb":
        raise click.UsageError(_DUMB, click.get_current_context())
    first = current_state.load_view(flags)
    app = registry.load(_SCREEN, "top")(
        flags,
        color=flags.color,
        ascii_only=output.Out(flags).ascii,
        every_s=max(_LEAST_S, interval),
        first=first,
    )
    code = app.run()
    if app.broken is not None:
        raise app.broken
    return int(code or 0)
