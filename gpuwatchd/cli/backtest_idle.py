"""``backtest --act`` of idle memory: what is replayed, and how it is shown."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpuwatchd.cli import output, parallel
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import ActHold
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import IdleReplay
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device
    from gpuwatchd.pipeline.idle_replay import IdleCase, IdleTally

    Job = tuple[Config, Path, list[Device], frozenset[str], tuple[float, float]]

SHOWN = 40
HOLDS = {
    ActHold.OBSERVE: "mode is observe",
    ActHold.NO_STEP: "there was no step for it",
    ActHold.RANK: "another rank decides for its job",
    ActHold.FEW_JUDGEMENTS: "too few judgements in a row were an alert",
    ActHold.BEYOND_HORIZON: "the upper end of its forecast was beyond eta-horizon, or open",
    ActHold.LIMIT_UNKNOWN: "its limit was not known",
    ActHold.STALE: "its newest sample was too old",
    ActHold.HARDWARE: "an alert on the hardware of its GPU was open",
    ActHold.SILENCED: "it was snoozed",
    ActHold.NORMAL: "you had said that it is normal",
    ActHold.BUDGET_TARGET: "one step on it within 6 h",
    ActHold.BUDGET_HOST: "three steps on this host within a day",
    ActHold.NOTICES: "it was over, or not recorded, before all notices could have been read",
    ActHold.NO_CHECKPOINT: "it never saved a checkpoint",
    ActHold.PROPOSE: "an override says so",
    ActHold.MACHINE: "the machine's daemon acts by a runner only",
    ActHold.NOT_OWN: "it was another user's, and there is no runner",
    ActHold.MANAGED: "it was a container's, and there is no runner",
    ActHold.HELD: "it was on hold",
}
_BECAME = {
    "ended": "it ended without having worked again", "worked": "it worked again",
    "acted": "it was ended by a step or by reap", "running": "it was idle to the end of the record",
    "unknown": "whether it worked again is not known",
}  # fmt: skip
_NOT_OF_LOGS = "Idle memory is not judged in logs: they do not tell what its steps rest on."


def replayed(job: Job, *, shown: bool) -> IdleTally:
    """Return what would have been done to idle memory of a history; ``shown``: with a bar.

    Raises
    ------
    GpuwatchdError
        It could not be replayed.
    """
    (tally,) = parallel.spread(_replayed, [job], lambda _: "idle memory", shown=shown)
    if isinstance(tally, parallel.Lost):
        raise tally.error("the idle memory of the history")
    return tally


def _replayed(job: Job, tell: Callable[[float], None]) -> IdleTally:
    from gpuwatchd.pipeline import idle_replay  # noqa: PLC0415
    from gpuwatchd.store.reader import Reader  # noqa: PLC0415

    config, directory, devices, of, span = job
    uid = directory.stat().st_uid
    owner = None if uid == 0 else state_location.name_of(uid)
    with Reader.open(directory) as history:
        return idle_replay.play(history, devices, span, config, owner, of=of, passed=tell)


def answer(tally: IdleTally | None, config: Config) -> IdleReplay | None:
    """Return it for programs; None where it was not replayed."""
    return fill(IdleReplay, tally, steps=config.act.idle_steps)


def show(out: output.Out, tally: IdleTally | None, config: Config, *, show_all: bool) -> None:
    """Show it."""
    if tally is None:
        out.line(_NOT_OF_LOGS)
        return
    if tally.hold is not None:
        why = "mode is observe" if tally.hold is ActHold.OBSERVE else "idle-steps is empty"
        out.line(f"Nothing would be done to idle memory: [act] {why}.")
        return
    cases = [it for it in tally.cases if show_all or it.at_s is not None]
    for it in cases[-SHOWN:]:
        _show_case(out, it)
    if len(cases) > SHOWN:
        out.line(f"  and {len(cases) - SHOWN} older ones; --json has them all")
    out.line(
        f"Idle memory: {units.count(tally.taken, 'step')}: {tally.right} right (the process never "
        f"worked again), {tally.wrong} wrong, {tally.unknown} not known"
    )
    held = Counter(it.hold for it in tally.cases if it.hold is not None)
    if held:
        whys = (f"{number}: {HOLDS.get(hold, hold)}" for hold, number in held.most_common())
        out.line(f"no step, times of idleness: {'; '.join(whys)} (--verbose lists them)")
    if tally.not_judged:
        out.line(
            f"not judged: {tally.not_judged} of {units.count(tally.processes, 'process')} that "
            "held memory for long enough; whether they worked is not recorded"
        )
    out.line(
        f"Steps on idle memory ({', '.join(config.act.idle_steps)}): assumed here are mode auto, "
        "a rule that is seven days old, notices that arrive, and that every process has opted in."
    )


def _show_case(out: output.Out, it: IdleCase) -> None:
    at_s = it.idle_since_at_s if it.at_s is None else it.at_s
    size = "" if it.held_bytes is None else units.size(it.held_bytes)
    since = f"idle since {units.clock(it.idle_since_at_s)}"
    step = "no step" if it.step is None else it.step
    title = (text.clean(it.title), "bold")
    if it.hold is not None or it.at_s is None:
        why = f"not taken: {HOLDS.get(it.hold, it.hold) if it.hold else ''}"
        out.flow([units.clock(at_s), (step, "dim"), title, size, why], first="  ", rest="      ")
        return
    out.flow([units.clock(at_s), (step, "yellow"), title, size, since], first="  ", rest="      ")
    left = ""
    if it.until_at_s is not None and it.outcome in {"ended", "worked", "acted"}:
        left = f", {span_text(it.until_at_s - it.at_s)} the step"
    word = "" if it.word is None else f'; your label: "{it.word}"'
    style = {True: "green", False: "red", None: "dim"}[it.right]
    out.flow([(f"{_BECAME[it.outcome]}{left}{word}", style)], first="      ", rest="      ")


def span_text(left_s: float) -> str:
    """Return how long one instant is before or after another."""
    return f"{units.duration(abs(left_s))} {'after' if left_s >= 0.0 else 'before'}"
