"""The screen again every interval; as JSON one line per look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.cli import current_state, output, panel
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.flags import Globals

_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def run(flags: Globals, pids: Sequence[int], *, every_s: float, count: int | None) -> int:
    """Look ``count`` times (None: until interrupted) and return the exit code.

    The first look may fail (no GPU: 1); after it a failure is said and the next look is awaited.
    """
    done = 0
    next_at_s = time.monotonic()
    while True:
        try:
            view = current_state.see(flags)
            panel.narrow(view, pids)
            _show(flags, view, whole=not pids and not flags.user)
        except GpuwatchdError as error:
            if done == 0:
                raise
            output.Out(flags).line(f"! {error.message}")
        done += 1
        if count is not None and done >= count:
            return 0
        next_at_s = max(next_at_s + every_s, time.monotonic())
        time.sleep(max(0.0, next_at_s - time.monotonic()))


def _show(flags: Globals, view: current_state.View, *, whole: bool) -> None:
    if flags.json:
        output.emit_json(panel.answer("watch", view))
        return
    out = output.Out(flags)
    if out.terminal and out.colour:
        out.raw(_HOME_AND_CLEAR)
    out.line(time.strftime("%H:%M:%S"))
    panel.show(out, view, whole=whole, verbose=flags.verbose, wide=flags.wide)
    out.flush()
