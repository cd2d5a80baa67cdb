"""``checkpointed``: report that a job has just saved its work, so that losses count from there.

One row that this program writes into the history itself (see :mod:`store.tables`); a running
daemon notices it within a tick, one that is stopped when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.program import Checkpointed, Saved
from gpuwatchd.view.queries import current_state, state_location, user_filter

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessInfo
    from gpuwatchd.view import blocks

_AHEAD_S = 60.0


@click.command(
    "checkpointed", epilog=options.examples("checkpointed 4711", "checkpointed train.py --at 5m")
)
@options.pid_argument
@click.option(
    "--at", "at_s", type=options.INSTANT, metavar="TIME", help="When (now); 5m is 5 minutes ago."
)
def command(pid: int, at_s: float | None) -> int:
    """Report that the job of PID has saved its work (to ask it to: `ask-checkpoint`).

    What a crash would lose counts from there, in alerts and in `cost`. For the end of a job's own
    checkpoint code; only for processes of your own, except for root. Without it, file patterns
    under [checkpoints] paths are checked; without both, losses count from the job's start.
    """
    from gpuwatchd.store import tables  # noqa: PLC0415 - SQLite comes with it

    flags = options.current()
    now_s = state_location.now_s()
    info = _whose(pid)
    saved_at_s = now_s if at_s is None else at_s
    started_at_s = info.key.started_at_s
    if saved_at_s > now_s + _AHEAD_S:
        raise click.BadParameter("it is in the future", param_hint="'--at'")
    if started_at_s is not None and saved_at_s < started_at_s - tables.SAME_S:
        begun = units.clock(started_at_s, now_s=now_s)
        raise click.BadParameter(f"process {pid} started later, at {begun}", param_hint="'--at'")
    checkpoint = user_filter.write_checkpoint(info.key, saved_at_s)
    if flags.json:
        saved = fill(Saved, checkpoint, daemon_running=current_state.running())
        output.emit_answer(Checkpointed, (saved,), source="database")
    else:
        parts: list[blocks.Part] = [
            (text.clean(info.attribution), "bold"),
            f"saved its work at {units.clock(checkpoint.saved_at_s, now_s=now_s, seconds=True)}",
        ]
        output.Out(flags).flow(parts, rest="  ")
    return 0


def _whose(pid: int) -> ProcessInfo:
    """Return who a process is; GpuwatchdError when there is none or it is somebody else's."""
    info = user_filter.own_process(pid, "checkpointed", "report that it saved")
    if not _holds(info):
        raise GpuwatchdError(
            f"process {pid} holds no GPU memory, as far as the daemon knows",
            hint="gpuwatchctl status lists those that do; a shell is not the job that it starts",
            page="errors#no-such-process",
        )
    return info


def _holds(info: ProcessInfo) -> bool:
    """Say whether a process holds GPU memory, has held some, or may: not all can be seen."""
    from gpuwatchd.store import tables  # noqa: PLC0415 - 87 ms: SQLite comes with it
    from gpuwatchd.view.queries import alert_query  # noqa: PLC0415 - 117 ms

    state, _ = current_state.read_state()
    if state is None or not current_state.alive(state):
        return True
    unlisted = any(item.processes is None for item in state.devices)
    if unlisted or (info.key.started_at_s or 0.0) > state.taken_at_s - state.interval_s:
        return True
    known = alert_query.gather(0.0, only_open=False).infos
    return any(tables.same_process(key, info.key) for key in known)
