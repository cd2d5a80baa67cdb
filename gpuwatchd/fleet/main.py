"""``gpuwatchd fleet``: rounds over a Prometheus, each printed as one line of JSON, or alerts."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gpuwatchd import __version__
from gpuwatchd.core import units
from gpuwatchd.core.errors import PIPE_CLOSED, MetricsServerError
from gpuwatchd.core.state_log import StateLog, masked
from gpuwatchd.core.text import clean
from gpuwatchd.fleet import config
from gpuwatchd.fleet.client import Client
from gpuwatchd.fleet.judging import Judge
from gpuwatchd.fleet.outgoing import Sender
from gpuwatchd.fleet.rings import NO_DATA_S
from gpuwatchd.fleet.state import Metrics, StateFile, round_state
from gpuwatchd.fleet.worker import LAG_S, Worker, pause_s
from gpuwatchd.service import own_process
from gpuwatchd.service.own_process import NotifySocket, watchdog_s
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.fleet import FleetRound
from gpuwatchd.view.queries import fleet_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.view.queries.fleet_state import FleetRoundState

log = logging.getLogger("gpuwatchd.fleet")


class Stop:
    """Set to end the worker; whoever looks at it or waits for it tells the service manager so.

    Between two looks is an answer, or a judgement of all GPUs, at most. A handler of a signal sets
    it, also while this very thread waits: an event of `threading` would stand still then, for ever.
    """

    def __init__(self) -> None:
        self._feed_every_s = watchdog_s(os.environ) / 2
        self.manager = NotifySocket(os.environ.pop("NOTIFY_SOCKET", ""))
        self._told = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def set(self) -> None:
        """End it, and all that waits."""
        self._told = True
        with contextlib.suppress(RuntimeError):  # open already
            self._closed.release()

    def is_set(self) -> bool:
        """Say whether it is."""
        self.manager.send("WATCHDOG=1")
        return self._told

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, by default for ever; return whether it is set."""
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (left_s := until_s - time.monotonic()) > 0:
            if self._closed.acquire(timeout=min(left_s, self._feed_every_s, threading.TIMEOUT_MAX)):
                self.set()  # for the others that wait
        return self._told


def _rounds(
    worker: Worker,
    judge: Judge,
    file: StateFile,
    metrics: Metrics,
    stop: Stop,
    *,
    sender: Sender | None = None,
) -> None:
    """Do a round for each step until told to stop, or until the clock is set back.

    A server that fails is asked less and less.
    """
    failures, failing_since_s = 0, time.time()
    changes = StateLog()
    while not stop.is_set() and not _is_ahead(worker):
        wait_s, begun_s, before = 0.0, time.monotonic(), worker.rings.end
        error: MetricsServerError | None = None
        try:
            worker.round(time.time())
            if worker.rings.end != before:
                if sender is not None:
                    sender.before(worker.rings, judge)
                judge.round(worker.rings)
        except MetricsServerError as caught:
            failures, error = failures + 1, caught
            worker.count_failure("round", error)
            wait_s = pause_s(failures, error.wait_s, first_s=worker.step_s / 4)
        else:
            failures, failing_since_s = 0, time.time()
        _log_server(changes, error, wait_s)
        if sender is not None:
            sender.send(worker.rings, judge, failing_since_s=failing_since_s if failures else None)
        found = _found(worker, judge, file, sender)
        now_s, round_s = time.time(), time.monotonic() - begun_s
        due_s = (worker.rings.end + 1) * worker.step_s + LAG_S
        next_s = min(due_s, now_s + worker.step_s + LAG_S) if error is None else now_s + wait_s
        if error is not None:
            stop.manager.status(clean(f"no round: {error}"))
            file.after_failure(str(error), found, next_s)
            metrics.after_failure(found)
        elif worker.rings.end != before:
            firing = sum(gpu.state == "firing" for gpu in found.verdicts)
            stop.manager.status(f"{units.count(found.gpus, 'GPU')}, {firing} with an alert")
            _log_gpus(changes, found, file.state.shard, worker, round_s)
            if sender is None:
                print_round(found, file.state.shard)
            metrics.after_round(found, round_s)
            file.after_round(worker, judge, found, round_s=round_s, due_at_s=next_s)
        stop.wait(max(next_s - time.time(), 0.1))


def _found(worker: Worker, judge: Judge, file: StateFile, sender: Sender | None) -> FleetRoundState:
    """Return what is known after a round, or after one that failed; tell the file who fails."""
    if sender is None:
        return round_state(worker, judge)
    file.failing_members = sender.members.failing()
    found = round_state(worker, judge, sender.without_data())
    return msgspec.structs.replace(found, failures=found.failures | sender.members.failures)


def _log_server(changes: StateLog, error: MetricsServerError | None, wait_s: float) -> None:
    """Log that the server fails, or answers again, when that changes."""
    state = "answers" if error is None else masked(str(error))
    change = changes.change("server", state, first="answers")
    if change is not None and error is None:
        log.info("the server answers again%s", change.fields)
    elif change is not None:
        hint = error and error.hint and f" ({error.hint})"
        log.warning("no round: %s%s; asked again in %.0f s, then less often", error, hint, wait_s)


def _log_gpus(
    changes: StateLog, found: FleetRoundState, shard: str, worker: Worker, round_s: float
) -> None:
    """Log that the past of GPUs was read, and what may be wrong with the map, once each."""
    gpus = worker.rings.rows.size
    change = changes.change("gpus", "some" if gpus else "none")
    for code, words in fleet_state.warnings(found, shard):
        if (change if code == "no-series" else changes.change(code, "warned")) is not None:
            log.warning("%s: %s", code, words)
    if change is not None and gpus:
        missing = len(worker.missing)
        log.info("past read gpus=%d without_past=%d took_s=%.1f", gpus, missing, round_s)


def _is_ahead(worker: Worker) -> bool:
    """Say whether values are of a time that is still to come: nothing would be judged till then."""
    ahead = worker.rings.end * worker.step_s - time.time() > NO_DATA_S
    if ahead:
        log.warning("the clock was set back: all is read anew")
    return ahead


def print_round(found: FleetRoundState, shard: str = "1/1") -> None:
    """Print what a round has come to, as one line."""
    warnings = fleet_state.warnings(found, shard)
    answer = base.answer_of(FleetRound, found, source="prometheus", warnings=warnings)
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def _parts(fleet: config.Fleet, stop: Stop) -> tuple[Worker, Judge]:
    worker = Worker(fleet, Client(fleet), sleep=stop.wait, stopped=stop.is_set)
    return worker, Judge(fleet.detection, fleet.policy)


def _serve(fleet: config.Fleet, stop: Stop, *, send: bool) -> None:
    """Do rounds until told to stop; begin anew where the clock was set back."""
    state, metrics = StateFile(fleet, dry_run=not send), Metrics(fleet)
    with state.held():
        log.info(
            "start version=%s pid=%d server=%s map=%s shard=%s step_s=%g",
            __version__,
            state.state.pid,
            state.state.server,
            clean(fleet.section.map, limit=80),
            fleet.shard,
            fleet.section.step,
        )
        try:
            with metrics.served():
                # Not after the first round: a server that is away, or slow, is no failed start.
                stop.manager.send("READY=1", "STATUS=reads the past")
                state.begin()
                while not stop.is_set():
                    worker, judge = _parts(fleet, stop)
                    sender = Sender(fleet) if send else None
                    _rounds(worker, judge, state, metrics, stop, sender=sender)
                    if sender is not None:
                        sender.close()
        except BrokenPipeError:  # whoever read it has gone: an end in order
            state.close()
            raise
        stop.manager.send("STOPPING=1")
        state.close()
    log.info("stopped rounds=%d", state.state.rounds)


def _checked(file: Path, shard: str | None, *, sends: bool) -> int:
    """Print what is in force, or all that is wrong; the last fault is raised.

    Raises
    ------
    ConfigError
        When something is wrong.
    ValueError
        When ``shard`` is none.
    """
    faults = config.faults(file, shard, sends=sends)
    for fault in faults[:-1]:
        sys.stderr.write(f"gpuwatchd: {clean(fault.message, limit=1024)}\n")
    if faults:
        raise faults[-1]
    for name, words in _in_force(config.load(file, shard, sends=sends)):
        click.echo(f"{name:<14} {clean(words, limit=2000)}")
    return 0


def _in_force(fleet: config.Fleet) -> Iterator[tuple[str, str]]:
    """Yield name and value of what a configuration comes to; no secrets."""
    section, span, listen = fleet.section, units.duration, fleet.listen
    metrics = (fleet.map.used, fleet.map.total, fleet.map.free, fleet.map.reserved)
    yield "server", " ".join((section.url, f"({section.backend})", *_with(fleet.headers)))
    yield "map", f"{section.map}: {', '.join(name for name in metrics if name)}"
    yield "matchers", ", ".join(section.matchers) or "none"
    yield "shard", str(fleet.shard)
    yield "rounds", f"every {span(section.step)}, each over the last {span(section.window)}"
    budget = section.budget
    answers = f"answers up to {units.size(budget.answer)} within {span(budget.timeout)}"
    yield "budget", f"{budget.in_flight} questions of {budget.series} GPUs at a time, {answers}"
    members = " ".join(section.alertmanagers) or "none: no alerts are sent"
    yield "alertmanagers", " ".join((members, *_with(fleet.alertmanager_headers)))
    rules, policy = fleet.detection, fleet.policy
    yield "sensitivity", f"{rules.sensitivity}, alerts from {rules.confidence_threshold:g}"
    yield "confirmed", f"after {policy.confirm} rounds, over after {policy.clear_after}"
    where = listen and (str(listen.path) if listen.path else f"{listen.hosts[0]}:{listen.port}")
    yield "metrics", where or "not served"


def _with(headers: dict[str, str]) -> Iterator[str]:
    if headers:
        yield f"with {', '.join(headers)}"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="The configuration, fleet.toml.",
)
@click.option("--once", is_flag=True, help="Do one round, print it, and leave.")
@click.option("--shard", metavar="N/M", help="This worker of how many: 2/4, or hostname/4.")
@click.option("--dry-run", is_flag=True, help="Do rounds and print them; send no alerts.")
@click.option("--check", is_flag=True, help="Say what is in force or wrong; ask no server.")
@click.option("--log-level", type=click.Choice(own_process.LOG_LEVELS), help="Log level on stderr.")
def command(
    *,
    file: Path,
    shard: str | None,
    once: bool,
    dry_run: bool,
    check: bool,
    log_level: str | None,
) -> int:
    """Judge the GPUs that a Prometheus watches.

    It asks the server for memory that exporters have recorded, and sends alerts on GPUs that leak
    to the Alertmanagers of its configuration. With --once or --dry-run it sends nothing, and prints
    one line of JSON per round. With --check it only reads its files: 0, or 78 and a line per fault.
    A key that is missing or of another type hides the faults of values.

    \b
    Examples:
      gpuwatchd fleet --config fleet.toml --check
      gpuwatchd fleet --config fleet.toml --once
      gpuwatchd fleet --config fleet.toml
    """  # noqa: D301 - click reads the backspace
    sends = not (once or dry_run)
    if log_level is not None:
        logging.getLogger().setLevel(log_level.upper())
    try:
        if check:
            return _checked(file, shard, sends=sends)
        fleet, stop = config.load(file, shard, sends=sends), Stop()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--shard") from None
    for number in (signal.SIGTERM, signal.SIGINT) if not once else ():
        signal.signal(number, lambda *_: stop.set())
    try:
        if not once:
            _serve(fleet, stop, send=not dry_run)
            return 0
        worker, judge = _parts(fleet, stop)
        worker.round(time.time())
        judge.round(worker.rings)
        print_round(round_state(worker, judge), str(fleet.shard))
    except BrokenPipeError:  # whoever read it has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return 0 if worker.rings.gpus else 1
