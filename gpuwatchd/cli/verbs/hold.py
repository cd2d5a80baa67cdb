"""``hold``: the daemon takes no step by itself on a process for a while.

A row that this program writes into the history (see :mod:`gpuwatchd.store.tables`): it is kept
whether the daemon runs or not.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import click

from gpuwatchd.act.target import refuse_first
from gpuwatchd.cli import options, output
from gpuwatchd.collect.host import BootAnchor, Host
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError, TargetChanged
from gpuwatchd.store import checked_connection, tables
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.program import Held, ProcessHolds
from gpuwatchd.view.queries import current_state, history_query, state_location, user_filter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import ProcessInfo, ProcessKey

_LONGEST: Final = "7d"


def _length_s(words: str) -> float:
    seconds = units.parse_duration(words, bare=False)
    if not 0 < seconds <= units.parse_duration(_LONGEST):
        raise ValueError(f"must be more than zero, and at most {_LONGEST}")
    return seconds


class _HoldGroup(click.Group):
    """A group whose verb "set" may be left out: ``hold 4711 4h``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["set", *args]
        return super().resolve_command(ctx, args)


@click.group(
    "hold",
    cls=_HoldGroup,
    invoke_without_command=True,
    subcommand_metavar="[PID [TIME] | VERB ...]",
    epilog=options.examples("hold 4711", "hold 4711 2d", "hold", "hold clear 4711"),
)
@click.pass_context
def command(ctx: click.Context) -> int | None:
    """Take no automatic step on a process for TIME; without PID list what is held.

    Steps are taken with mode = "auto" of [act] only; alerts still come. TIME is 4h unless given,
    at most 7d. Of a job or a unit with several processes one that is held keeps the step off all.
    Only for processes of your own, except for root.
    """
    if ctx.invoked_subcommand is not None:
        return None
    return _answer(_in_force(), cleared=False)


@command.command("set", epilog=options.examples("hold set 4711 4h", "hold 4711 2d"))
@options.pid_argument
@click.argument(
    "length",
    metavar="[TIME]",
    required=False,
    default="4h",
    type=options.Parsed("duration", _length_s),
    shell_complete=options.complete_from(lambda: ("1h", "4h", "1d", _LONGEST)),
)
def set_(pid: int, length: float) -> int:
    """Set it; `hold PID TIME` is the same. It replaces an older one of the process."""
    refuse_first(pid)
    info = user_filter.own_process(pid, "hold", "hold it")
    if info.key.started_at_s is None:
        raise TargetChanged(f"it is not known when pid {pid} was started, nor who it is")
    until_s = state_location.now_s() + length
    with state_location.writing() as place:
        checked_connection.transaction(place.state_dir, tables.save_hold, info.key, until_s)
    result = f"{info.attribution}: no automatic step until {units.instant(until_s)}"
    doubts = user_filter.write_action("hold", info.key, "done", result)
    return _answer({info.key: until_s}, cleared=False, doubts=doubts)


@command.command("clear", epilog=options.examples("hold clear 4711"))
@options.pid_argument
def clear(pid: int) -> int:
    """Take the hold of a process back."""
    holds = {key: until_s for key, until_s in _in_force().items() if key.pid == pid}
    if not holds:
        raise GpuwatchdError(f"{pid} is not held", hint="gpuwatchctl hold", page="errors#not-held")
    doubts = []
    for key in holds:
        with state_location.writing() as place:
            checked_connection.transaction(place.state_dir, tables.clear_hold, key)
        doubts += user_filter.write_action("clear-hold", key, "done", f"pid {pid}: hold cleared")
    return _answer(holds, cleared=True, doubts=doubts)


def _in_force() -> dict[ProcessKey, float]:
    with history_query.reader() as history:
        return history.holds(state_location.now_s())


def _running(holds: Mapping[ProcessKey, float]) -> dict[ProcessKey, ProcessInfo]:
    """Return who the processes are that still run."""
    anchor = BootAnchor(state_location.state_dir() / current_state.BOOT, writes=False)
    with closing(Host(anchor=anchor)) as host:
        infos = host.processes([key.pid for key in holds])
    return {
        key: infos[key.pid]
        for key in holds
        if key.pid in infos and tables.same_process(key, infos[key.pid].key)
    }


def _answer(
    holds: Mapping[ProcessKey, float],
    *,
    cleared: bool,
    doubts: list[tuple[str, str]] | None = None,
) -> int:
    flags, infos = options.current(), _running(holds)
    if flags.json:
        data = [
            fill(
                Held,
                (),
                process=key,
                name=infos[key].name if key in infos else None,
                until_at=until_s,
                cleared=cleared,
            )
            for key, until_s in holds.items()
        ]
        output.emit_answer(ProcessHolds, data, source="database", warnings=doubts or ())
        return 0
    out, now_s = output.Out(flags), state_location.now_s()
    if not holds:
        out.line("no process is held")
    for key, until_s in holds.items():
        who = text.clean(infos[key].attribution) if key in infos else f"pid {key.pid} (has ended)"
        until = units.moment(until_s, now_s=now_s, zone=True)
        left = units.duration(max(0.0, until_s - now_s))
        when = "hold cleared" if cleared else f"no automatic step until {until} (for {left})"
        out.flow([(who, "bold"), when], rest="  ")
    out.warn(doubts or ())
    return 0
