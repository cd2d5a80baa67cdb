"""``reap``: end one process that holds memory without work."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gpuwatchd.act import reap
from gpuwatchd.cli import options, output
from gpuwatchd.collect.host.procfs import Holders
from gpuwatchd.core import units
from gpuwatchd.core.codes import ReapResult
from gpuwatchd.core.errors import FAILED, FINDINGS, INTERRUPTED, OK, ActionError
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.current import Reap, Reaping
from gpuwatchd.view.queries import reaping, user_filter
from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners
from gpuwatchd.view.text import idle_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_S: Final = 3600.0
_CODES: Final = {
    ReapResult.ENDED: OK,
    ReapResult.RUNS: FAILED,
    ReapResult.WAITS: FAILED,
    ReapResult.INTERRUPTED: INTERRUPTED,
}


class ReapOutcome(NamedTuple):
    """What came of it; without ``result`` nothing was done."""

    text: str
    result: ReapResult | None = None
    sent: tuple[str, ...] = ()
    still_held_bytes: int | None = None


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
    if grace > _LONGEST_S:
        raise click.BadParameter("at most 1h", param_hint="--grace")
    flags, key = options.current(), ProcessKey(pid=pid, started_at_s=None)
    try:
        with reaping.candidate(flags, pid) as candidate:
            key = candidate.target.key
            names = [number.name for number in candidate.signals] + ["SIGKILL"] * kill
            plan = f"{', then '.join(names)}; {units.duration(grace)} for each"
            _show(candidate, f"{'sends' if yes else 'would send'} {plan}")
            if not yes:
                return _answer(candidate, names, ReapOutcome(text="dry run; --yes does it"))
            kinds = ",".join(sorted({holding.kind for holding in candidate.view.holdings}))
            request = f"{candidate.target.name}, {plan}; {candidate.evidence}"
            doubts = user_filter.write_action("reap", key, "asked", request, code=kinds)
            outcome = _end(candidate, grace, kill=kill)
            code = f"{ReapResult.STILL_HELD if outcome.still_held_bytes else outcome.result}"
            doubts += user_filter.write_action("reap", key, "done", outcome.text, code=code)
    except ActionError as error:
        if yes:
            page = error.page.partition("#")[2]
            user_filter.write_action("reap", key, "refused", error.message, code=page)
        raise
    return _answer(candidate, names, outcome, doubts)


def _end(candidate: reaping.Candidate, grace_s: float, *, kill: bool) -> ReapOutcome:
    """End it, and wait for its memory; Ctrl-C ends the waiting alone."""
    target, sent, held = candidate.target, list[str](), None
    result = ReapResult.INTERRUPTED

    def may_kill() -> bool:
        question = f"{target.name} still runs. KILL it, so that it can save nothing?"
        return kill and (not sys.stdin.isatty() or click.confirm(question, err=True))

    with contextlib.suppress(KeyboardInterrupt, click.Abort):
        result = reap.end(target, candidate.signals, grace_s, may_kill, sent)
        if result is ReapResult.ENDED:
            held = reaping.still_held_bytes(candidate, time.time())
    after = f"after {', '.join(sent) or 'nothing was sent'}"
    if result is ReapResult.ENDED:
        memory = "its memory is back"
        if held is None:
            memory = "whether its memory is back is not known"
        elif held:
            memory = f"{units.size(held)} still held by nobody: zombies"
        words = f"{target.name} ended {after}, {memory}"
    elif result is ReapResult.RUNS:
        words = f"{target.name} still runs {after}; --kill ends it without letting it save"
    elif result is ReapResult.WAITS:
        channel = reap.wait_channel(target) or "?"
        words = f"{target.name} waits in the kernel, in {channel}, {after}: no signal helps"
    else:
        words = f"{target.name} was not waited for {after}"
    return ReapOutcome(words, result, tuple(sent), held)


def _show(candidate: reaping.Candidate, plan: str) -> None:
    flags = options.current()
    if flags.json or flags.quiet:
        return
    out = output.Out(flags)
    nobody = UnlistedOpeners(found=(), seen=Holders(possible=False))
    idle_memory.show(out, flags, candidate.view, nobody)
    out.prose(plan, rest="  ")
    out.flush()


def _answer(
    candidate: reaping.Candidate,
    names: list[str],
    outcome: ReapOutcome,
    doubts: Sequence[tuple[str, str]] = (),
) -> int:
    flags, key = options.current(), candidate.target.key
    if flags.json:
        held = candidate.view.holdings
        data = fill(Reaping, outcome, process=key, holdings=held, signals=names)
        output.emit_answer(Reap, data, view=candidate.view, warnings=doubts)
    else:
        out = output.Out(flags)
        out.prose(outcome.text, rest="  ")
        for _, words in doubts:
            out.prose(f"! {words}", "yellow", rest="  ")
    if outcome.result is None:
        return OK
    return FINDINGS if outcome.still_held_bytes else _CODES[outcome.result]
