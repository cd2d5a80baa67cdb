"""``check``: a plug-in for Nagios, Icinga and what else runs such; exit codes of its own."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gpuwatchd import alerts
from gpuwatchd.cli import options, output
from gpuwatchd.cli.monitoring_plugin import (
    CRITICAL,
    FIRST_CHARS,
    OK,
    STATES,
    UNKNOWN,
    WARNING,
    Answer,
    Perf,
    Range,
    judge,
    parse,
    render,
    safe,
    worst,
)
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import outdated_s
from gpuwatchd.pipeline.messages import sentences
from gpuwatchd.store import live
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.program import Check, PluginData
from gpuwatchd.view.queries import current_state, state_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.model import Alert, Device, Finding, Holding
    from gpuwatchd.store.live import LiveDevice, LiveState

# What ``check`` looks at in the live state, one function per mode.

_SEVERITY: Final = {"info": OK, "warning": WARNING, "critical": CRITICAL}
ETA_WARN: Final = Range(4 * 3600.0, float("inf"))
ETA_CRIT: Final = Range(3600.0, float("inf"))
_LEAST_TITLE: Final = 22
"""Characters of "GPU 0: train.py[4711]"."""
_BEGIN: Final = f"GPUWATCHD {STATES[CRITICAL]} - "
_SOME: Final = Range(0.0, 0.0)
"""Alerts above none."""


class Mark(StrEnum):
    """What stands behind a time where no open alert says so."""

    NONE = ""
    WATCHED = " (watched)"
    SILENCED = " (silenced)"


class Case(NamedTuple):
    """What is to be looked at."""

    state: LiveState
    devices: tuple[LiveDevice, ...]
    """Those that ``--gpu`` lets through."""
    alerts: tuple[Alert, ...]
    """Open alerts on them that people are told of."""
    silenced: tuple[Alert, ...]
    """Those that nobody is told of now, on a person's word."""
    holdings: tuple[Holding, ...]
    now_s: float
    warn: Range | None
    crit: Range | None
    """None: the default of the mode."""


def label_of(device: Device) -> str:
    """Return the beginning of a device's labels: gpu0, gpu3_mig1, gpu_1a2b3c4d.

    Examples
    --------
    >>> from gpuwatchd.core.model import Device
    >>> label_of(Device(uid="GPU-1", vendor="x", index=0, name="y", memory_total_bytes=None))
    'gpu0'
    """
    if device.index is None:
        return device.label.lower().replace(" ", "_")
    if device.parent_uid is None:
        return f"gpu{device.index}"
    card = "" if device.parent_index is None else device.parent_index
    return f"gpu{card}_mig{device.index}"


def left_s(finding: Finding | None, now_s: float) -> float | None:
    """Return how long it is from now to out of memory, None when that is unknown."""
    if finding is None or finding.eta is None or finding.tier == "none":
        return None
    return max(0.0, finding.eta.mid_s - outdated_s(finding.judged_at_s, finding.eta.mid_s, now_s))


def _words(alert: Alert, now_s: float) -> str:
    """Return one alert in one line: who, how fast, until when."""
    finding = alert.finding
    if alert.kind != "leak":
        return f"{alert.title}: {finding.reason}" if finding.reason else alert.title
    return "".join((alert.title, *_pace(finding, now_s)))


def _pace(finding: Finding, now_s: float) -> tuple[str, str]:
    rate = finding.shown_rate_bytes_per_s
    growth = "" if rate is None else f" {'+' if rate >= 0 else ''}{units.rate(rate)}"
    left = left_s(finding, now_s)
    return growth, "" if left is None else f", full in {units.duration(left)}"


def _brief(alert: Alert, others: int, now_s: float) -> str:
    """Return one alert in the room of a first line, its GPU first; what there is no room for goes.

    Who it is of goes before how fast it grows, and that before its pid.
    """
    more = f" (and {others} more)" if others else ""
    if alert.kind != "leak":
        return f"{_words(alert, now_s)}{more}"
    growth, full = _pace(alert.finding, now_s)
    room = FIRST_CHARS - len(f"{_BEGIN}{full}{more}")
    if room - len(growth) < _LEAST_TITLE and full:
        growth = ""
    return f"{sentences.fitted(sentences.brief(alert), room - len(growth))}{growth}{full}{more}"


def _used(case: Case) -> tuple[Perf, ...]:
    return tuple(
        Perf(f"{label_of(item.device)}_used", item.used_bytes, "B", low=0, high=item.total_bytes)
        for item in case.devices
    )


def _soon(alert: Alert, now_s: float) -> float:
    left = left_s(alert.finding, now_s)
    return float("inf") if left is None else left


def leak(case: Case, left: tuple[Range | None, Range | None] = (None, None)) -> Answer:
    """Check open alerts; their severity decides, or with a threshold their number.

    ``left`` are thresholds of the time that is left, where that decides too: what is worst by
    either is named first.
    """

    def state_of(alert: Alert) -> int:
        soon = judge(_soon(alert, case.now_s), *left) if not alert.subject.host else OK
        return max(_SEVERITY[alert.severity], soon)

    firing = [alert for alert in case.alerts if alert.state == "firing" and alert.kind != "held"]
    firing.sort(key=lambda one: (-state_of(one), _soon(one, case.now_s)))
    if case.warn is None and case.crit is None:
        state = worst(_SEVERITY[alert.severity] for alert in firing)
    else:
        state = judge(float(len(firing)), case.warn, case.crit)
    perf = Perf("findings", float(len(firing)), "", case.warn or _SOME, case.crit, 0)
    lines = [f"{alert.severity}: {_words(alert, case.now_s)}" for alert in firing]
    watched = [alert for alert in case.alerts if alert.state == "watch"]
    lines += [f"watched: {_words(alert, case.now_s)}" for alert in watched]
    lines += [f"silenced: {_words(alert, case.now_s)}" for alert in case.silenced]
    if firing:
        head = _brief(firing[0], len(firing) - 1, case.now_s)
    else:
        other = "other " if case.silenced else ""
        head = f"no {other}leak on {units.count(len(case.devices), 'GPU')}"
        if watched:
            head += f", {len(watched)} watched"
        if case.silenced:
            head += f", {len(case.silenced)} silenced"
    return Answer(state, head, (perf, *_used(case)), tuple(lines))


def eta(case: Case, *, watched_too: bool = True) -> Answer:
    """Check the time that is left on each GPU.

    Parameters
    ----------
    watched_too
        Whether growth that is only watched counts; it warns at most.
    """
    warn, crit = case.warn, case.crit
    if warn is None and crit is None:
        warn, crit = ETA_WARN, ETA_CRIT
    perf: list[Perf] = []
    told: list[tuple[int, float, str]] = []
    silenced = {alert.finding.subject.id for alert in case.silenced}
    for item in case.devices:
        left, mark = _soonest(item, case, silenced)
        perf.append(Perf(f"{label_of(item.device)}_eta", left, "s", warn, crit, 0))
        if left is not None:
            state = OK if mark is Mark.SILENCED else judge(left, warn, crit)
            if mark is not Mark.NONE:
                state = min(state, WARNING if watched_too else OK)
            told.append((state, left, f"{item.device.label} full in {units.duration(left)}{mark}"))
    told.sort(key=lambda one: (-one[0], one[1]))
    state = worst(one[0] for one in told)
    head = told[0][2] if told else f"no growth on {units.count(len(case.devices), 'GPU')}"
    return Answer(state, head, tuple(perf), tuple(one[2] for one in told))


def _soonest(
    item: LiveDevice, case: Case, silenced: Iterable[str] = ()
) -> tuple[float | None, Mark]:
    """Return the least time that is left on a device, and a mark where no open alert says so.

    An open alert beats what is only watched, and that what is silenced, however soon that would be
    full.
    """
    if open_s := _left_of(case.alerts, item, case.now_s):
        return min(open_s), Mark.NONE
    findings = [item.finding, *(process.finding for process in item.processes or ())]
    seen = [
        left
        for finding in findings
        if finding is not None and finding.subject.id not in silenced
        if (left := left_s(finding, case.now_s)) is not None
    ]
    if seen:
        return min(seen), Mark.WATCHED
    hushed = _left_of(case.silenced, item, case.now_s)
    return (min(hushed), Mark.SILENCED) if hushed else (None, Mark.NONE)


def _left_of(alerts: Iterable[Alert], item: LiveDevice, now_s: float) -> list[float]:
    """Return the time that is left before each alert that fires about a device's memory."""
    return [
        left
        for alert in alerts
        if alert.state == "firing" and alert.kind == "leak"
        if alert.subject.device_uid == item.device.uid and not alert.subject.host
        if (left := left_s(alert.finding, now_s)) is not None
    ]


def used(case: Case) -> Answer:
    """Check how full each GPU is, in per cent; without a threshold nothing is too full."""
    perf: list[Perf] = []
    told: list[tuple[int, float, str]] = []
    unread: list[str] = []
    for item, amount in zip(case.devices, _used(case), strict=True):
        share = None
        if amount.value is not None and amount.high:
            share = 100.0 * amount.value / amount.high
            state = judge(share, case.warn, case.crit)
            of = f"{units.size(amount.value)} of {units.size(amount.high)}"
            told.append((state, share, f"{item.device.label} {share:.0f} % used ({of})"))
        else:
            unread.append(f"{item.device.label} cannot be read")
        name = f"{label_of(item.device)}_used_pct"
        perf += (amount, Perf(name, share, "%", case.warn, case.crit, 0, 100))
    told.sort(reverse=True)
    state = worst([*(one[0] for one in told), *(UNKNOWN for _ in unread)])
    lines = [*(one[2] for one in told), *unread]
    return Answer(state, lines[0] if lines else "no GPU", tuple(perf), tuple(lines))


def idle_memory(case: Case) -> Answer:
    """Check idle memory; by default any of it warns."""
    warn = case.warn if case.warn is not None or case.crit is not None else _SOME
    number = float(len(case.holdings))
    held = [holding.held_bytes for holding in case.holdings if holding.held_bytes is not None]
    total = float(sum(held)) if held or not case.holdings else None
    labels = {item.device.uid: item.device.label for item in case.devices}
    lines = []
    for holding in case.holdings:
        who = holding.process.name_and_pid if holding.process else "no known process"
        where = labels.get(holding.device_uid, "a GPU")
        lines.append(f"{where} {who} holds {units.size(holding.held_bytes)}: {holding.kind}")
    head = "no idle memory"
    if case.holdings:
        head = f"{units.count(len(case.holdings), 'holding')} of idle memory"
        head += f", {units.size(total)}" if total is not None else ""
    perf = (
        Perf("zombies", number, "", warn, case.crit, 0),
        Perf("zombies_held", total, "B", low=0),
    )
    return Answer(judge(number, warn, case.crit), head, perf, tuple(lines))


def daemon(case: Case) -> Answer:
    """Check the daemon that runs: its last sample, its GPUs, whether what it tells arrives."""
    age_s = max(0.0, case.now_s - case.state.taken_at_s)
    found: list[tuple[int, str]] = [
        (_SEVERITY[alert.severity], f"{alert.severity}: {_words(alert, case.now_s)}")
        for alert in case.alerts
        if alert.kind == "gpu" and alert.state == "firing"
    ]
    found += [
        (WARNING, f"{item.device.label} cannot be read")
        for item in case.devices
        if item.reading is None
    ]
    for channel in case.state.channels:
        if channel.ok is False:
            why = f": {channel.why}" if channel.why else ""
            found.append((WARNING, f"channel {channel.name} does not deliver{why}"))
    if case.state.untold:
        found.append((WARNING, f"{units.count(len(case.state.untold), 'alert')} not delivered"))
    state = worst([judge(age_s, case.warn, case.crit), *(state for state, _ in found)])
    lines = [line for _, line in found]
    # What keeps a channel from delivering is a problem of the daemon too: once is enough.
    lines += [problem for problem in case.state.problems if problem not in lines]
    head = f"daemon {case.state.version} (pid {case.state.pid}), last sample {age_s:.0f} s ago"
    if lines and state != OK:
        lines.append(head)  # the first line may have no room for it
        head = f"{lines[0]}; {head}"
    age = Perf("sample_age", age_s, "s", case.warn, case.crit, 0)
    return Answer(state, head, (age,), tuple(lines))


def all_of_it(case: Case) -> Answer:
    """Check what the default looks at: leaks, the time left before each, the daemon.

    Thresholds are those of the time that is left; severity decides the rest.
    """
    by_itself = case._replace(warn=None, crit=None)
    given = case.warn is not None or case.crit is not None
    left = (case.warn, case.crit) if given else (ETA_WARN, ETA_CRIT)
    parts = [leak(by_itself, left), eta(case, watched_too=False), daemon(by_itself)]
    state = worst(part.state for part in parts)
    # An alert says who and how fast; of the time alone it need not be said again.
    lines = list(dict.fromkeys(line for part in parts for line in part.more))
    answer = parts[0] if parts[0].state != OK else parts[1]
    heads = [part.line for part in (answer, parts[2]) if part.state != OK]
    head = heads[0] if heads else parts[0].line
    both = "; ".join(heads)
    head = both if heads and len(f"{_BEGIN}{both}") <= FIRST_CHARS else head
    findings, *amounts = parts[0].perf
    return Answer(state, head, (*amounts, *parts[1].perf, findings), tuple(lines))


MODES: Final[dict[str, Callable[[Case], Answer]]] = {
    "all": all_of_it,
    "leak": leak,
    "eta": eta,
    "used": used,
    "zombies": idle_memory,
    "daemon": daemon,
}
_OWN: Final = "all"


class _Absent(Exception):
    """There is no state of a running daemon; the argument says why."""


class _Late(Exception):
    """The time of this check is over."""


def _end(words: str, mode: str) -> float:
    """Return one end of a range: a number, or with a unit a duration or a percentage."""
    try:
        value = float(words.removesuffix("%"))
    except ValueError:
        return units.parse_duration(words)
    if mode != "used" and words.endswith("%"):
        raise ValueError("a percentage is for --mode used")
    return value


def _range(words: str | None, flag: str, mode: str) -> Range | None:
    try:
        return None if words is None else parse(words, lambda end: _end(end, mode))
    except ValueError as error:
        raise click.BadParameter(
            f"{words!r} is not a range ({error}); write for example 4h: or 90 or @10:20",
            param_hint=flag,
        ) from None


@click.command("check", epilog=options.examples("check", "check --mode eta -w 4h: -c 1h:"))
@click.option("-w", "--warning", "warn", metavar="RANGE", help="WARNING outside of this range.")
@click.option("-c", "--critical", "crit", metavar="RANGE", help="CRITICAL outside of this range.")
@click.option(
    "-t",
    "--timeout",
    "timeout_s",
    type=options.SPAN,
    default="10s",
    metavar="TIME",
    help="UNKNOWN after this (10s).",
)
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default=_OWN,
    help="What to check: leaks, time left and daemon (all), or one thing.",
)
def command(warn: str | None, crit: str | None, timeout_s: float, mode: str) -> int:
    """Answer as a monitoring plug-in: one line, performance data, exit 0, 1, 2 or 3.

    0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN: also for a wrong flag, and without the state of a daemon
    that runs (--mode daemon: CRITICAL). RANGE is that of plug-ins: 4h: alerts below, 90 above,
    @10:20 inside. It applies to the time left (all, eta), to per cent (used), to a number
    (leak, zombies), to the age of the last sample (daemon).
    """
    flags = options.current()
    ranges = _range(warn, "-w", mode), _range(crit, "-c", mode)
    try:
        with _deadline(timeout_s):
            answer = _checked(flags, mode, *ranges)
    except _Late:
        answer = Answer(UNKNOWN, f"no answer within {timeout_s:g} s")
    if flags.json:
        data = fill(
            PluginData,
            answer,
            mode=mode,
            state=STATES[answer.state],
            text=safe(answer.line),
            details=map(safe, answer.more),
        )
        output.emit_answer(Check, data, source="state-file")
    else:
        click.echo(render(answer))
    return answer.state


@contextmanager
def _deadline(timeout_s: float) -> Iterator[None]:
    """Raise within the block when it takes longer."""

    def late(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _checked(flags: Globals, mode: str, warn: Range | None, crit: Range | None) -> Answer:
    """Check one mode; GpuwatchdError where ``--gpu`` names none, or ``--config`` a wrong one."""
    if flags.config is not None:
        flags.load_config()
    try:
        state = _state()
    except _Absent as absent:
        sure = CRITICAL if mode == "daemon" else UNKNOWN
        return Answer(sure, str(absent), more=("hint: gpuwatchctl service status",))
    except PermissionError as error:
        hint = "hint: run this check as the user of the daemon"
        return Answer(UNKNOWN, f"{error.filename}: you may not read it", more=(hint,))
    case = _case(flags, state, warn, crit)
    if not case.devices and mode != "daemon":
        if flags.gpu and state.devices:
            raise GpuwatchdError(
                f"no GPU matches {', '.join(flags.gpu)}",
                hint="gpuwatchctl status",
                page="errors#no-such-gpu",
            )
        reasons = "; ".join(state.problems) or "no source has one"
        return Answer(UNKNOWN, f"no GPU is watched: {reasons}")
    return MODES[mode](case)


def _case(flags: Globals, state: LiveState, warn: Range | None, crit: Range | None) -> Case:
    devices = tuple(item for item in state.devices if flags.wants(item.device))
    uids = {item.device.uid for item in devices}
    # Where all are wanted, so is what is known of one that is not there any more.
    every = len(devices) == len(state.devices)
    now_s = max(time.time(), state.taken_at_s)
    told: dict[bool, list[Alert]] = {True: [], False: []}
    for alert in state.alerts:
        if every or alert.subject.device_uid in uids:
            told[alerts.silenced(alert, state.silences, now_s) is None].append(alert)
    return Case(
        state=state,
        devices=devices,
        alerts=tuple(told[True]),
        silenced=tuple(told[False]),
        holdings=tuple(one for one in state.holdings if every or one.device_uid in uids),
        now_s=now_s,
        warn=warn,
        crit=crit,
    )


def _state() -> LiveState:
    """Return the live state of a daemon that runs; _Absent where there is none, or it is old."""
    file = state_location.runtime_dir() / live.FILE_NAME
    if (refused := state_location.access_error()) is not None:
        raise _Absent(refused[1])
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError:
        raise
    except OSError as error:
        raise _Absent(f"no daemon has written {file}: {error.strerror}") from None
    state, wrong = current_state.read_state()
    if state is None:
        raise _Absent(wrong[0][1] if wrong else f"{file} is no longer there")
    if not current_state.alive(state):
        raise _Absent(f"the daemon {'was stopped' if state.stopped else 'is not running'}")
    age_s = max(0.0, time.time() - state.taken_at_s)
    if age_s > max(current_state.FRESH_INTERVALS * state.interval_s, 10.0):
        raise _Absent(f"the daemon's last sample is {units.duration(age_s)} old")
    return state
