"""``fleet``: what the workers of ``gpuwatchd fleet`` see, from their state files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core.errors import FAILED, FINDINGS, OK
from gpuwatchd.core.model import is_leak
from gpuwatchd.view.answers import fleet
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.queries import fleet_state
from gpuwatchd.view.text import fleet_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.view.queries.fleet_state import Worker

_state_option: Callable[[Any], Any] = click.option(
    "--state",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Read this state only; repeatable.",
)


@click.group(
    "fleet",
    subcommand_metavar="VERB ...",
    epilog=options.examples("fleet status", "fleet explain GPU-5f3a"),
)
def command() -> None:
    """Show what the workers of `gpuwatchd fleet` on this machine see.

    They leave a state after each round; that of the user and of the packaged unit are read unless
    --state names others. Exit 1: there is none, or a worker has stopped or looks dead.
    """


@command.command(
    "status", epilog=options.examples("fleet status", "fleet status --state fleet.json --json")
)
@_state_option
@click.option("--all", "every", is_flag=True, help="All GPUs with a verdict, not the first 40.")
@options.wide_option
@options.exit_code_option
def status(files: tuple[Path, ...], every: bool, exit_code: bool) -> int:  # noqa: FBT001
    """List open alerts and verdicts, then how each worker is.

    Exit 1 also where a worker has had no round, or a member of Alertmanager has taken no alerts,
    for three steps, or no GPU has a value.
    """
    flags, now_s = options.current(), time.time()
    workers, warnings = _load(files)
    warnings += fleet_text.problems(workers, now_s)
    failing = any(worker.failing(now_s) or not worker.running(now_s) for worker in workers)
    blind = all(worker.blind for worker in workers)
    workers = fleet_state.only(workers, flags.gpu)
    if flags.json:
        data = fill(fleet.FleetStatusData, (), workers=[_worker(one, now_s) for one in workers])
        output.emit_answer(fleet.FleetStatus, data, source="state-file", warnings=warnings)
    else:
        out = output.Out(flags)
        out.warn(warnings)
        fleet_text.show(out, workers, now_s=now_s, every=every, sure=not warnings)
    if failing:
        return FAILED
    firing = any(
        gpu.state == "firing" and is_leak(gpu.finding)
        for worker in workers
        for gpu in worker.state.round.verdicts
    )
    if firing and exit_code:
        return FINDINGS
    return FAILED if blind else OK


@command.command("explain", epilog=options.examples("fleet explain GPU-5f3a1b2c"))
@click.argument("uuid", metavar="GPU")
@_state_option
def explain(uuid: str, files: tuple[Path, ...]) -> int:
    """Explain the verdict on one GPU, by its UUID, the beginning of it, or HOST/INDEX."""
    flags, now_s = options.current(), time.time()
    workers, warnings = _load(files)
    worker, gpu = fleet_state.find(fleet_state.only(workers, flags.gpu), uuid)
    warnings += fleet_text.problems([worker], now_s)
    if flags.json:
        calm = gpu if isinstance(gpu, fleet_state.CalmGpu) else None
        found = gpu if isinstance(gpu, fleet_state.FleetGpu) else None
        data = fill(
            fleet.FleetExplained,
            gpu,
            calm_since_at=calm and calm.since_at_s,
            verdict=found,
            judged_at=found and found.finding.judged_at_s,
            alert=found and found.alert,
            worker=_worker(fleet_state.one(worker, gpu), now_s),
        )
        output.emit_answer(fleet.FleetExplain, data, source="state-file", warnings=warnings)
    else:
        out = output.Out(flags)
        out.warn(warnings)
        fleet_text.explain(out, worker, gpu, now_s=now_s)
    return OK if worker.running(now_s) else FAILED


def _load(files: tuple[Path, ...]) -> tuple[list[Worker], list[tuple[str, str]]]:
    if options.current().config is not None:
        raise click.UsageError(
            "fleet reads states that workers leave, no configuration: --state FILE names one",
            click.get_current_context(),
        )
    return fleet_state.load(files)


def _worker(worker: Worker, now_s: float) -> fleet.FleetWorker:
    return fill(
        fleet.FleetWorker,
        worker.state,
        file=str(worker.file),
        running=worker.running(now_s),
        process_runs=worker.process_runs,
    )
