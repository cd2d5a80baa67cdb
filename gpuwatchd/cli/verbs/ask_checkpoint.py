"""``ask-checkpoint``: ask a job to save its work, in the way that [act] sets up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpuwatchd.act import ACTIONS
from gpuwatchd.cli import options, output
from gpuwatchd.core.errors import ActionError, TargetGone
from gpuwatchd.core.registry import load
from gpuwatchd.view.answers.base import ProcessId, fill
from gpuwatchd.view.answers.program import AskCheckpoint, Asked
from gpuwatchd.view.queries import state_location, user_filter

if TYPE_CHECKING:
    from gpuwatchd.core.model import ProcessKey


@click.command(
    "ask-checkpoint", epilog=options.examples("ask-checkpoint 4711", "ask-checkpoint 4711 --yes")
)
@options.pid_argument
@click.option("--yes", is_flag=True, help="Ask it; without this only print what would be done.")
def command(pid: int, yes: bool) -> int:  # noqa: FBT001
    """Ask a job of yours to save its work, as set in [act] checkpoint.

    The job itself, once it has saved, says so with `checkpointed`.

    By a signal only a job that has a handler for it is asked: others would be ended by it. What is
    certain afterwards is that it was asked; that it has saved shows when there is a newer file of
    [checkpoints] paths. Exit 0: asked, or could be; 1: not, and why.
    """
    from gpuwatchd.collect.host import BootAnchor, Host  # noqa: PLC0415 - not before it is needed

    act = options.current().load_config().config.act
    anchor = BootAnchor(state_location.state_dir() / "boot.json", writes=False)
    host = Host(anchor=anchor, maps_per_look=0)
    try:
        info = host.processes([pid]).get(pid)
        if info is None:
            raise TargetGone(f"pid {pid}: there is no such process")
        ask = load(ACTIONS, "checkpoint")(
            checkpoint=act.checkpoint,
            signal=act.signal,
            argv=act.argv,
            booted_at_s=host.booted_at_s,
        )
        facts = _facts(info.key)
        if not yes:
            return _answer(info.key, ask.ask(info.key, facts, dry_run=True), done=False)
        doubts = user_filter.write_action("checkpoint", info.key, "asked", "by gpuwatchctl")
        try:
            said = ask.ask(info.key, facts, dry_run=False)
        except ActionError as error:
            user_filter.write_action("checkpoint", info.key, "refused", error.message)
            raise
        user_filter.write_action("checkpoint", info.key, "done", said)
    finally:
        host.close()
    return _answer(info.key, said, done=True, doubts=doubts)


def _facts(key: ProcessKey) -> dict[str, Any]:
    """Return what a program of the user's is told besides: the newest open finding, if any."""
    from gpuwatchd.store import live  # noqa: PLC0415

    state = live.read(state_location.runtime_dir())
    findings = [
        alert.finding
        for alert in (state.alerts if state is not None else ())
        if alert.subject.process == key
    ]
    return {"finding": msgspec.to_builtins(findings[-1].public)} if findings else {}


def _answer(
    key: ProcessKey, value: str, *, done: bool, doubts: list[tuple[str, str]] | None = None
) -> int:
    flags = options.current()
    if flags.json:
        asked = Asked(process=fill(ProcessId, key), asked=done, result=value)
        output.emit_answer(AskCheckpoint, asked, source="process", warnings=doubts or ())
        return 0
    out = output.Out(flags)
    if not flags.quiet:
        out.line(value)
        if not done:
            out.line("dry run; --yes does it")
    out.warn(doubts or ())
    return 0
