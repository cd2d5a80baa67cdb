"""``check``: a plug-in for Nagios, Icinga and what else runs such; exit codes of its own."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from gpuwatchd import alerts
from gpuwatchd.cli import check_modes, current_state, envelope, locations, options, output, plugin
from gpuwatchd.core import units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store import live

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.cli.plugin import Answer, Range
    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.live import LiveState

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
    if words is None:
        return None
    try:
        return plugin.parse(words, lambda end: _end(end, mode))
    except ValueError as error:
        raise click.BadParameter(
            f"{words!r} is not a range ({error}); write for example 4h: or 90 or @10:20",
            param_hint=flag,
        ) from None


@click.command(
    "check",
    epilog=options.examples("check", "check --mode eta -w 4h: -c 1h:"),
)
@click.option("-w", "--warning", "warn", metavar="RANGE", help="WARNING outside of this range.")
@click.option("-c", "--critical", "crit", metavar="RANGE", help="CRITICAL outside of this range.")
@click.option(
    "-t",
    "--timeout",
    "timeout_s",
    type=options.Span(),
    default="10s",
    metavar="TIME",
    help="UNKNOWN after this (10s).",
)
@click.option(
    "--mode",
    type=click.Choice(list(check_modes.MODES)),
    default=_OWN,
    help="What to check: leaks, time left and daemon (all), or one thing.",
)
def command(warn: str | None, crit: str | None, timeout_s: float, mode: str) -> int:
    """Answer as a monitoring plug-in: one line, performance data, exit 0, 1, 2 or 3.

    0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN: also for a wrong flag, and without the state of a daemon
    that runs (--mode daemon: CRITICAL). RANGE is that of plug-ins: 4h: alerts below, 90 above,
    @10:20 inside. It is of the time that is left (all, eta), of per cent (used), of a number
    (leak, zombies), of the age of the last sample (daemon).
    """
    flags = options.current()
    ranges = _range(warn, "-w", mode), _range(crit, "-c", mode)
    try:
        with _deadline(timeout_s):
            answer = _checked(flags, mode, *ranges)
    except _Late:
        answer = plugin.Answer(plugin.UNKNOWN, f"no answer within {timeout_s:g} s")
    if flags.json:
        output.emit_json(envelope.answer("check", _payload(answer, mode), source="state-file"))
    else:
        click.echo(plugin.render(answer))
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
    """Check one mode.

    Raises
    ------
    GpuwatchdError
        When no GPU is what ``--gpu`` names, or the configuration that was named is wrong.
    """
    if flags.config is not None:
        flags.load_config()
    try:
        state = _state()
    except _Absent as absent:
        sure = plugin.CRITICAL if mode == "daemon" else plugin.UNKNOWN
        return plugin.Answer(sure, str(absent), more=("hint: gpuwatchctl service status",))
    except PermissionError as error:
        return plugin.Answer(
            plugin.UNKNOWN,
            f"{error.filename}: you may not read it",
            more=("hint: run this check as the user of the daemon",),
        )

    def quiet(alert: Alert) -> bool:
        return alerts.silenced(alert, state.silences, time.time()) is not None

    case = check_modes.case_of(state, wants=flags.wants, quiet=quiet, warn=warn, crit=crit)
    if not case.devices and mode != "daemon":
        if flags.gpu and state.devices:
            raise GpuwatchdError(
                f"no GPU matches {', '.join(flags.gpu)}",
                hint="gpuwatchctl status",
                page="errors#no-such-gpu",
            )
        reasons = "; ".join(state.problems) or "no source has one"
        return plugin.Answer(plugin.UNKNOWN, f"no GPU is watched: {reasons}")
    return check_modes.MODES[mode](case)


def _state() -> LiveState:
    """Return the live state of a daemon that runs.

    Raises
    ------
    _Absent
        When there is none, or it is old.
    PermissionError
        When it belongs to somebody else.
    """
    file = locations.runtime_dir() / live.FILE_NAME
    if (refused := locations.refused()) is not None:
        raise _Absent(refused[1])
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK)):
            pass
    except PermissionError:
        raise
    except OSError as error:
        raise _Absent(f"no daemon has written {file}: {error.strerror}") from None
    state, wrong = current_state.read_state()
    if state is None:
        raise _Absent(wrong[0][1] if wrong else f"{file} has gone")
    if not current_state.alive(state):
        raise _Absent(f"the daemon {'was stopped' if state.stopped else 'is not running'}")
    age_s = max(0.0, time.time() - state.taken_at_s)
    if age_s > max(current_state.FRESH_INTERVALS * state.interval_s, 10.0):
        raise _Absent(f"the daemon's last sample is {units.duration(age_s)} old")
    return state


def _payload(answer: Answer, mode: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "state": plugin.STATES[answer.state],
        "exit_code": answer.state,
        "text": plugin.safe(answer.line),
        "details": [plugin.safe(line) for line in answer.more],
        "perfdata": [
            {
                "label": perf.label,
                "value": perf.value,
                "unit": perf.unit,
                "warning": str(perf.warn) if perf.warn is not None else None,
                "critical": str(perf.crit) if perf.crit is not None else None,
                "min": perf.low,
                "max": perf.high,
            }
            for perf in answer.perf
        ],
    }
