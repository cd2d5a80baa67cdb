"""``reap``: end one process that holds memory without work."""

from __future__ import annotations

import sys

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import reaping
from gpuwatchd.view.queries.direct_holdings import NOBODY
from gpuwatchd.view.text import idle_memory


@click.command(
    "reap", epilog=options.examples("reap 4711", "reap 4711 --yes", "reap 4711 --yes --grace 5m")
)
@options.pid_argument
@click.option("--yes", is_flag=True, help="Do it; without this only show what would be sent.")
@click.option("--kill", is_flag=True, help="KILL it where nothing else ends it; a terminal asks.")
@click.option(
    "--grace",
    type=options.SPAN,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="How long each signal is given, up to 1h.",
)
def command(pid: int, yes: bool, kill: bool, grace: float) -> int:  # noqa: FBT001
    """End a process of yours that `zombies` lists: its memory is idle.

    Only one that is listed now as idle, hung-rank, orphaned-runner, no-model or leaked-kv. By TERM
    where it has a handler for it, else by INT, then TERM. What a manager has started is left to it,
    and its command is printed.

    Exit 0: ended, or could be; 1: refused, or it still runs; 3: ended, but its memory is held.
    """
    if grace > reaping.LONGEST_GRACE_S:
        raise click.BadParameter("at most 1h", param_hint="--grace")
    may_kill = _may_kill if kill else None
    with reaping.candidate(
        options.current(), pid, grace_s=grace, may_kill=may_kill, asked=yes
    ) as candidate:
        _show(candidate, f"{'sends' if yes else 'would send'} {candidate.plan}")
        outcome = reaping.ReapOutcome(text="dry run; --yes does it")
        if yes:
            outcome = reaping.end(candidate, [])
        return _answer(candidate, outcome)


def _may_kill(name: str) -> bool:
    if not sys.stdin.isatty():
        return True
    try:
        return click.confirm(f"{name} still runs. KILL it, so that it can save nothing?", err=True)
    except click.Abort:
        raise KeyboardInterrupt from None


def _show(candidate: reaping.Candidate, plan: str) -> None:
    flags = options.current()
    if flags.json or flags.quiet:
        return
    out = output.Out(flags)
    idle_memory.show(out, flags, candidate.view, NOBODY)
    out.prose(plan, rest="  ")
    out.flush()


def _answer(candidate: reaping.Candidate, outcome: reaping.ReapOutcome) -> int:
    flags = options.current()
    if flags.json:
        return output.emit_answered(reaping.answered(candidate, outcome), exit_code=True)
    out = output.Out(flags)
    out.prose(outcome.text, rest="  ")
    out.warn(outcome.warnings)
    return outcome.exit_code
