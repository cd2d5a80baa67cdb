"""``gpuwatchd fleet``: rounds over a Prometheus, each printed as one line of JSON, or alerts."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np

from gpuwatchd.core.errors import PIPE_CLOSED, ConfigError, MetricsServerError
from gpuwatchd.fleet import config
from gpuwatchd.fleet.client import Client
from gpuwatchd.fleet.judging import Judge, silent
from gpuwatchd.fleet.outgoing import Sender
from gpuwatchd.fleet.rings import NO_DATA_S
from gpuwatchd.fleet.worker import LAG_S, Worker, pause_s
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.fleet import FleetRound, FleetRoundData, FleetVerdict

if TYPE_CHECKING:
    from gpuwatchd.fleet.rings import Rings

log = logging.getLogger("gpuwatchd.fleet")


def summary(worker: Worker, judge: Judge) -> FleetRoundData:
    """Return what a round has come to."""
    rings, none = worker.rings, silent(worker.rings)
    return base.fill(
        FleetRoundData,
        (),
        at=float(rings.end * rings.step_s) if rings.end else None,
        gpus=len(rings.gpus),
        no_data=int(np.count_nonzero(none)),
        judged=judge.judged,
        failed=len(judge.failed),
        resolved=len(judge.resolved),
        dropped=rings.dropped,
        failures=worker.failures,
        verdicts=[
            _verdict(rings, judge, row, none=bool(none[row])) for row in sorted(judge.findings)
        ],
    )


def _verdict(rings: Rings, judge: Judge, row: int, *, none: bool) -> FleetVerdict:
    finding, alert, limit = judge.findings[row], judge.alerts.get(row), rings.limit_bytes[row]
    used = rings.series(row)[1]
    late = rings.last[row] < rings.end
    return base.fill(
        FleetVerdict,
        rings.gpus[row],
        state="none" if alert is None else alert.state,
        data="none" if none else "late" if late else "fresh",
        used_bytes=float(used[-1]) if used.size else None,
        limit_bytes=None if np.isnan(limit) else float(limit),
        verdict=base.fill(base.Verdict, finding),
    )


def _rounds(worker: Worker, judge: Judge, stop: threading.Event, sender: Sender | None) -> None:
    """Do a round for each step until told to stop, or until the clock is set back.

    A server that fails is asked less and less.
    """
    failures, failing_since_s = 0, time.time()
    while not stop.is_set() and not _is_ahead(worker):
        wait_s = 0.0
        try:
            before = worker.rings.end
            worker.round(time.time())
            if worker.rings.end != before:
                if sender is not None:
                    sender.before(worker.rings, judge)
                judge.round(worker.rings)
                if sender is None:
                    print_round(worker, judge)
            failures, failing_since_s = 0, time.time()
        except MetricsServerError as error:
            failures += 1
            worker.count_failure("round", error)
            wait_s = pause_s(failures, error.wait_s, first_s=worker.step_s / 4)
            log.warning("no round: %s; asked again in %.0f s", error, wait_s)
        if sender is not None:
            sender.send(worker.rings, judge, failing_since_s=failing_since_s if failures else None)
        now_s = time.time()
        due_s = (worker.rings.end + 1) * worker.step_s + LAG_S
        due_s = min(due_s, now_s + worker.step_s + LAG_S)
        stop.wait(max(wait_s, due_s - now_s if not failures else 0.0, 0.1))


def _is_ahead(worker: Worker) -> bool:
    """Say whether values are of a time that is still to come: nothing would be judged till then."""
    ahead = worker.rings.end * worker.step_s - time.time() > NO_DATA_S
    if ahead:
        log.warning("the clock was set back: all is read anew")
    return ahead


def print_round(worker: Worker, judge: Judge) -> None:
    """Print what a round has come to, as one line."""
    none = "no GPU has a fresh value: do map and matchers fit what the server has?"
    answer = base.answer_of(
        FleetRound,
        summary(worker, judge),
        source="prometheus",
        warnings=[] if worker.rings.gpus else [("no-series", none)],
    )
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def _parts(fleet: config.Fleet, stop: threading.Event) -> tuple[Worker, Judge]:
    worker = Worker(fleet, Client(fleet), sleep=stop.wait)
    return worker, Judge(fleet.detection, fleet.policy)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="The configuration, fleet.toml.",
)
@click.option("--once", is_flag=True, help="Do one round, print it, and leave.")
@click.option("--dry-run", is_flag=True, help="Do rounds and print them; send no alerts.")
def command(
    file: Path,
    once: bool,  # noqa: FBT001 - a click flag
    dry_run: bool,  # noqa: FBT001 - a click flag
) -> int:
    """Judge the GPUs that a Prometheus watches.

    It asks the server for memory that exporters have recorded, and sends alerts on GPUs that leak
    to the Alertmanagers of its configuration. With --once or --dry-run it sends nothing, and prints
    one line of JSON per round.

    \b
    Examples:
      gpuwatchd fleet --config fleet.toml --once
      gpuwatchd fleet --config fleet.toml
    """  # noqa: D301 - click reads the backspace
    fleet, stop = config.load(file), threading.Event()
    if not (once or dry_run or fleet.section.alertmanagers):
        key, hint = "[fleet] alertmanagers", "--once and --dry-run send nothing"
        raise ConfigError(str(file), key, "names none to send alerts to", hint=hint)
    for number in (signal.SIGTERM, signal.SIGINT) if not once else ():
        signal.signal(number, lambda *_: stop.set())
    try:
        while not once and not stop.is_set():
            worker, judge = _parts(fleet, stop)
            sender = None if dry_run else Sender(fleet)
            _rounds(worker, judge, stop, sender)
            if sender is not None:
                sender.close()
        if not once:
            return 0
        worker, judge = _parts(fleet, stop)
        worker.round(time.time())
        judge.round(worker.rings)
        print_round(worker, judge)
    except BrokenPipeError:  # whoever read it has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return 0 if worker.rings.gpus else 1
