"""``backtest --act``: the steps that would have been taken, of a history or of logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.cli import options, output, parallel
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import ActHold
from gpuwatchd.core.errors import GpuwatchdError, LogFormatError
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import Backtest, BacktestData, IdleReplay, StepReplay
from gpuwatchd.view.queries import current_state, state_location

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device
    from gpuwatchd.pipeline.act_replay import ActCase, ActTally, Rule
    from gpuwatchd.pipeline.backtest import DeviceReport
    from gpuwatchd.pipeline.idle_replay import IdleCase, IdleTally
    from gpuwatchd.store.reader import Reader

    Played = list[tuple[DeviceReport, list[ActCase]]]
    Job = tuple[Config, tuple[str, ...], Path, Device | None, tuple[float, float]]
    IdleJob = tuple[Config, Path, list[Device], frozenset[str], tuple[float, float]]

_SHOWN = 40
_HOLDS = {
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
_IDLE_BECAME = {
    "ended": "it ended without having worked again", "worked": "it worked again",
    "acted": "it was ended by a step or by reap", "running": "it was idle to the end of the record",
    "unknown": "whether it worked again is not known",
}  # fmt: skip
_NOT_OF_LOGS = "Idle memory is not judged in logs: they do not tell what its steps rest on."
_BECAME = {
    "died": "it ended with the memory full", "full": "the memory was full",
    "ended": "it ended before the memory was full", "released": "it released the memory",
    "stopped": "it stopped growing", "running": "it grew to the end of the record",
}  # fmt: skip


class _Unread(NamedTuple):
    """Stands for a log that cannot be read; as an error it could not leave its worker."""

    path: str
    why: str
    hint: str


def chosen(history: Reader) -> list[Device]:
    """Return the recorded devices that are asked for."""
    flags, seen = options.current(), history.devices()
    current_state.require_gpus(flags, seen)
    parents = {device.parent_uid for device in seen}
    return [one for one in seen if flags.wants(one) and one.uid not in parents]


def run(logs: Sequence[str], span: tuple[float, float], config: Config) -> int:
    """Show which steps would have been taken; return the exit code."""
    from gpuwatchd.pipeline import act_replay  # noqa: PLC0415 - and numpy
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - SQLite comes with it

    flags = options.current()
    nothing = act_replay.nothing_to_do(config)
    rules: tuple[Rule, ...] = ()
    idle: IdleTally | None = None
    is_shown = not (flags.quiet or flags.json)
    if logs:
        jobs = _jobs_of_logs(logs, config, span)
    else:
        with history_query.reader() as history:
            devices, rules = chosen(history), act_replay.rules(history, config)
            every = history.devices()
        place = state_location.state_dir()
        jobs = [(config, (), place, device, span) for device in devices]
        of = frozenset(device.uid for device in devices)
        idle = _idle_replayed((config, place, every, of, span), shown=is_shown)
    reports, cases = _played(jobs if nothing is None else [], shown=is_shown)
    if nothing is None and not any(report.samples for report in reports):
        raise GpuwatchdError(
            "no data in these logs" if logs else f"no data since {units.clock(span[0])}",
            hint="gpuwatchctl analyze LOG" if logs else "gpuwatchctl status",
            page="errors#nothing-recorded",
        )
    tally = act_replay.tally(reports, cases)
    if flags.json:
        act = fill(
            StepReplay, tally, mode=config.act.mode, steps=config.act.leak_steps, hold=nothing,
            idle_judged=not logs, rules=rules,
            idle=fill(IdleReplay, idle, steps=config.act.idle_steps),
        )  # fmt: skip
        data = fill(BacktestData, (), devices=reports, settings=(), act=act)
        warnings = [] if logs else state_location.service_warnings()
        source = "files" if logs else "database"
        output.emit_answer(Backtest, data, source=source, warnings=warnings)
    else:
        out = output.Out(flags)
        if not logs:
            state_location.head(out)
        _show(out, tally, config, nothing, show_all=flags.verbose)
        out.line("")
        _show_idle(out, idle, config, show_all=flags.verbose)
        for rule in rules:
            out.line(_rule(rule))
    return 0


def _played(jobs: list[Job], *, shown: bool) -> tuple[list[DeviceReport], list[ActCase]]:
    """Return what became of leaks on every device, within the budgets of their hosts."""
    from gpuwatchd.pipeline import act_replay  # noqa: PLC0415

    reports: list[DeviceReport] = []
    by_host: dict[str, list[ActCase]] = {}
    found = parallel.spread(_replayed, jobs, _name, shown=shown)
    for job, played in zip(jobs, found, strict=True):
        if isinstance(played, parallel.Lost):
            raise played.error(_name(job) if job[1] else f"the history of {_name(job)}")
        if isinstance(played, _Unread):
            raise LogFormatError(played.path, None, played.why, hint=played.hint)
        for report, cases in played:
            reports.append(report)
            by_host.setdefault(job[1][0] if job[1] else "", []).extend(cases)
    return reports, [it for cases in by_host.values() for it in act_replay.budgeted(cases)]


def _name(job: Job) -> str:
    _, files, _, device, _ = job
    return Path(files[0]).name if device is None else device.name


def _jobs_of_logs(logs: Sequence[str], config: Config, span: tuple[float, float]) -> list[Job]:
    from gpuwatchd.collect.logs import joining  # noqa: PLC0415
    from gpuwatchd.collect.logs.log_types import LogOptions  # noqa: PLC0415
    from gpuwatchd.collect.replay import preview  # noqa: PLC0415

    groups = joining.groups(logs, lambda file: preview(file, LogOptions()))
    return [(config, group, Path(), None, span) for group in groups]


def _replayed(job: Job, tell: Callable[[float], None]) -> Played | _Unread:
    from gpuwatchd.collect.logs import joining  # noqa: PLC0415
    from gpuwatchd.collect.replay import read_log  # noqa: PLC0415
    from gpuwatchd.pipeline import act_replay  # noqa: PLC0415
    from gpuwatchd.store.reader import Reader  # noqa: PLC0415

    config, files, directory, device, span = job
    if device is not None:
        with Reader.open(directory) as history:
            return [act_replay.play(history, device, span, config, passed=tell)]
    logs = [read_log(file) for file in files]
    for log in logs:
        if log.error is not None:
            return _Unread(log.path, log.error, log.hint or "gpuwatchctl analyze LOG")
    parts = joining.joined(logs) if len(logs) > 1 else logs
    known = act_replay.Circumstances()
    return [
        act_replay.play_log(log, one, config, known, passed=tell)
        for log in parts
        for one in log.devices
    ]


def _show(
    out: output.Out, tally: ActTally, config: Config, nothing: ActHold | None,
    *, show_all: bool,
) -> None:  # fmt: skip
    if nothing is not None:
        why = "mode is observe" if nothing is ActHold.OBSERVE else "leak-steps is empty"
        out.line(f"Nothing would be done on a leak: [act] {why}.")
        return
    cases = [it for it in tally.cases if show_all or it.at_s is not None]
    for it in cases[-_SHOWN:]:
        _show_case(out, it)
    if len(cases) > _SHOWN:
        out.line(f"  and {len(cases) - _SHOWN} older ones; --json has them all")
    if cases:
        out.line("")
    out.line(
        f"{units.count(tally.alerts, 'alert')}, {units.count(tally.taken, 'step')}: "
        f"{tally.right} right (the run ended near its limit), {tally.wrong} wrong, "
        f"{tally.unknown} not known; {tally.held} held back"
    )
    if tally.taken_per_day is not None:
        days = tally.gpu_hours / 24.0
        out.line(f"{tally.taken_per_day:.3g} steps a day and GPU, on {days:.3g} GPU-days")
    wrong = [it for it in tally.cases if it.right is False and it.at_s and it.hold is None]
    if wrong:
        out.line("wrong: " + "; ".join(it.case.title for it in wrong))
    out.line(
        f"Steps on leaks ({', '.join(config.act.leak_steps)}) are only ever proposed. Assumed here:"
        " the notices arrive, the target has opted in."
    )


def _rule(rule: Rule) -> str:
    name = "The overrides with act = auto" if rule.by_override else "The rule auto"
    if rule.since_at_s is None or rule.acts_from_at_s is None:
        return f"{name}: no daemon has run with it yet; it only proposes for its first 7 days."
    since = f"{name}: in force since {units.clock(rule.since_at_s)}"
    until = units.clock(rule.acts_from_at_s)
    if rule.acts_from_at_s > state_location.now_s():
        return f"{since}; until {until} it only proposes."
    return f"{since}; acts on idle memory since {until}."


def _show_case(out: output.Out, it: ActCase) -> None:
    at_s = it.at_s if it.at_s is not None else it.case.alert_at_s or 0.0
    step = "no step" if it.step is None else it.step
    why = "" if it.hold is None else f"not taken: {_HOLDS.get(it.hold, it.hold)}"
    out.flow(
        [
            units.clock(at_s),
            (step, "yellow" if it.hold is None else "dim"),
            (text.clean(it.case.title), "bold"),
            *([why] if why else []),
        ],
        first="  ",
        rest="      ",
    )
    left = "" if it.left_s is None else f", {_span(it.left_s)} the step"
    word = "" if it.case.word is None else f'; your label: "{it.case.word}"'
    style = {True: "red", False: "green", None: "dim"}[it.right]
    out.flow([(f"{_BECAME[it.outcome]}{left}{word}", style)], first="      ", rest="      ")


def _idle_replayed(job: IdleJob, *, shown: bool) -> IdleTally:
    """Return what would have been done to idle memory of a history; ``shown``: with a bar.

    Raises
    ------
    GpuwatchdError
        It could not be replayed.
    """
    (tally,) = parallel.spread(_replay_idle, [job], lambda _: "idle memory", shown=shown)
    if isinstance(tally, parallel.Lost):
        raise tally.error("the idle memory of the history")
    return tally


def _replay_idle(job: IdleJob, tell: Callable[[float], None]) -> IdleTally:
    from gpuwatchd.pipeline import idle_replay  # noqa: PLC0415
    from gpuwatchd.store.reader import Reader  # noqa: PLC0415

    config, directory, devices, of, span = job
    uid = directory.stat().st_uid
    owner = None if uid == 0 else state_location.name_of(uid)
    with Reader.open(directory) as history:
        return idle_replay.play(history, devices, span, config, owner, of=of, passed=tell)


def _show_idle(out: output.Out, tally: IdleTally | None, config: Config, *, show_all: bool) -> None:
    """Show it."""
    if tally is None:
        out.line(_NOT_OF_LOGS)
        return
    if tally.hold is not None:
        why = "mode is observe" if tally.hold is ActHold.OBSERVE else "idle-steps is empty"
        out.line(f"Nothing would be done to idle memory: [act] {why}.")
        return
    cases = [it for it in tally.cases if show_all or it.at_s is not None]
    for it in cases[-_SHOWN:]:
        _show_idle_case(out, it)
    if len(cases) > _SHOWN:
        out.line(f"  and {len(cases) - _SHOWN} older ones; --json has them all")
    out.line(
        f"Idle memory: {units.count(tally.taken, 'step')}: {tally.right} right (the process never "
        f"worked again), {tally.wrong} wrong, {tally.unknown} not known"
    )
    held = Counter(it.hold for it in tally.cases if it.hold is not None)
    if held:
        whys = (f"{number}: {_HOLDS.get(hold, hold)}" for hold, number in held.most_common())
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


def _show_idle_case(out: output.Out, it: IdleCase) -> None:
    at_s = it.idle_since_at_s if it.at_s is None else it.at_s
    size = "" if it.held_bytes is None else units.size(it.held_bytes)
    since = f"idle since {units.clock(it.idle_since_at_s)}"
    step = "no step" if it.step is None else it.step
    title = (text.clean(it.title), "bold")
    if it.hold is not None or it.at_s is None:
        why = f"not taken: {_HOLDS.get(it.hold, it.hold) if it.hold else ''}"
        out.flow([units.clock(at_s), (step, "dim"), title, size, why], first="  ", rest="      ")
        return
    out.flow([units.clock(at_s), (step, "yellow"), title, size, since], first="  ", rest="      ")
    left = ""
    if it.until_at_s is not None and it.outcome in {"ended", "worked", "acted"}:
        left = f", {_span(it.until_at_s - it.at_s)} the step"
    word = "" if it.word is None else f'; your label: "{it.word}"'
    style = {True: "green", False: "red", None: "dim"}[it.right]
    out.flow([(f"{_IDLE_BECAME[it.outcome]}{left}{word}", style)], first="      ", rest="      ")


def _span(left_s: float) -> str:
    """Return how long one instant is before or after another."""
    return f"{units.duration(abs(left_s))} {'after' if left_s >= 0.0 else 'before'}"
