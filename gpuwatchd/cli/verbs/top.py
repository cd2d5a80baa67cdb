"""``top``: the live screen."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import registry
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.text import status

if TYPE_CHECKING:
    from gpuwatchd.cli.global_flags import Globals

_NO_TERMINAL = "top needs a terminal; gpuwatchctl status shows the same once"
_DUMB = "TERM is dumb, and top must move the cursor; gpuwatchctl status shows the same once"
_NO_JSON = "top is a screen for people; gpuwatchctl watch --json gives the same as a stream"
_LEAST_S = 0.2
_SCREEN = {"top": "gpuwatchd.tui.app:TopApp"}
"""Textual comes with it."""


class _FirstPaint(output.Out):
    """What is known, as far as it fits: the screen's libraries take four times as long to load."""

    def __init__(self, flags: Globals) -> None:
        super().__init__(flags)
        self._rows: list[str] = []

    def raw(self, line: str) -> None:
        """Keep a line."""
        self._rows.append(line)

    def flush(self) -> None:
        """Draw as many lines as there is room for, where textual will draw afterwards."""
        with contextlib.suppress(OSError):
            self._rows = self._rows[: os.get_terminal_size(self._stream.fileno()).lines]
        self._write("\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J" + "\r\n".join(self._rows))

    def end(self) -> None:
        """Give the terminal back as it was."""
        self._write("\x1b[?25h\x1b[?1049l")

    def _write(self, text: str) -> None:
        # Past the stream: what a terminal that is gone has not taken would fail again at the end.
        with contextlib.suppress(OSError):
            os.write(self._stream.fileno(), text.encode(self._stream.encoding, "replace"))


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
    out = _FirstPaint(flags)
    try:
        status.show(out, first, wide=True, every=True)
        out.flush()
        app = registry.load(_SCREEN, "top")(
            flags,
            color=flags.color,
            ascii_only=out.ascii,
            every_s=max(_LEAST_S, interval),
            first=first,
        )
    except BaseException:
        out.end()
        raise
    code = app.run()
    if app.broken is not None:
        raise app.broken
    return int(code or 0)
