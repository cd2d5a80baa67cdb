"""``status`` and ``watch``: the state once, or again every interval; as JSON one line per look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.cli import output
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.text import status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.view.queries.current_view import View


def run(flags: Globals, pids: Sequence[int], *, exit_code: bool) -> int:
    """Show the state once, as ``status`` does, and return the exit code.

    1 when no GPU could be read; 3 for a leak where ``exit_code`` asks for it.
    """
    view = _show(flags, pids, again=False)
    return output.code_of(current_state.exit_code(view, flags, pids), findings=exit_code)


def run_brief(flags: Globals) -> int:
    """Show in a few lines how things are, then where the rest is; exit code as of :func:`run`."""
    if flags.json:
        return run(flags, (), exit_code=False)
    out = output.Out(flags)
    view = current_state.load_view(flags)
    status.brief(out, view)
    out.line(("gpuwatchctl status shows each GPU, gpuwatchctl --help what else there is", "dim"))
    out.flush()
    return output.code_of(current_state.exit_code(view, flags, ()), findings=False)


def run_repeated(flags: Globals, pids: Sequence[int], *, every_s: float, count: int | None) -> int:
    """Look ``count`` times (None: until interrupted) and return the exit code.

    The first look may fail (no GPU: 1); after it a failure is said and the next look is awaited.
    """
    done = 0
    next_at_s = time.monotonic()
    while True:
        try:
            _show(flags, pids, again=True)
        except GpuwatchdError as error:
            if done == 0:
                raise
            output.Out(flags).line(f"! {error.message}")
        done += 1
        if count is not None and done >= count:
            return 0
        next_at_s = max(next_at_s + every_s, time.monotonic())
        time.sleep(max(0.0, next_at_s - time.monotonic()))


def _show(flags: Globals, pids: Sequence[int], *, again: bool) -> View:
    view = current_state.load_view(flags)
    current_state.narrow(view, pids)
    if flags.json:
        from gpuwatchd.view.answers.current import Status, Watch, observed  # noqa: PLC0415 - Structs come with it

        output.emit_json(observed(Watch if again else Status, view))
        return view
    out = output.Out(flags)
    if again:
        if out.terminal and out.colour:
            out.raw("\x1b[H\x1b[2J")  # home, and clear
        out.line(time.strftime("%H:%M:%S"))
    whole = not pids and not flags.user
    status.show(out, view, whole=whole, verbose=flags.verbose, wide=flags.wide, every=flags.every)
    out.flush()
    return view
