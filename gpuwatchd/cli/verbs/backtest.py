"""``backtest``: the recorded history, judged again: what would be raised, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli import backtest_act, options, output, parallel
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import Backtest, BacktestData
from gpuwatchd.view.queries import state_location
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Device
    from gpuwatchd.pipeline.backtest import BacktestCase, DeviceReport, Tally, Trial
    from gpuwatchd.view import blocks

_DAY_S = 86400.0
_SINCE_S = 30 * _DAY_S
_SECTIONS = ("detection", "policy")
_SHOWN = 40
Job = tuple["Path", "Device", tuple[float, float], "list[Trial]"]


@click.command(
    "backtest",
    epilog=options.examples(
        "backtest --since 7d", "backtest --set confidence-threshold=0.9", "backtest --act"
    ),
)
@click.argument("logs", nargs=-1, metavar="[LOG]...", type=click.Path())
@click.option("--since", type=options.PAST, metavar="TIME", help="From when on (30d).")
@click.option(
    "--set", "wishes", multiple=True, metavar="KEY=VALUE", shell_complete=options.complete_setting,
    help="Try this setting too, e.g. detection.confidence-threshold=0.9; repeatable.",
)  # fmt: skip
@click.option(
    "--act", is_flag=True,
    help="Which steps of [act] would have been taken, and whether they were right; of logs those "
    "on leaks.",
)  # fmt: skip
@click.option("--all", "show_all", is_flag=True, help="List watches too.")
def command(
    logs: tuple[str, ...],
    since: float | None,
    wishes: tuple[str, ...],
    act: bool,  # noqa: FBT001
    show_all: bool,  # noqa: FBT001
) -> int:
    """Replay your own history: which alerts, what came of them, and what if.

    The recorded memory goes through today's detectors and settings, at its own clock. Nothing is
    sent, nothing is written.
    """
    flags = options.current()
    if logs and not act:
        raise click.UsageError("logs go with --act; gpuwatchctl analyze finds leaks in them")
    if act and wishes:
        raise click.UsageError("--act takes the settings as they are: leave out --set")
    if logs and since is not None:
        raise click.UsageError("--since is of the history; a log is replayed whole")
    until_s = state_location.now_s() + 1.0
    since_s = since if since is not None else until_s - _SINCE_S
    settings = flags.load_config().config
    if act:
        return backtest_act.run(logs, (since_s, until_s), settings)
    name, changed = _changed(wishes, flags.config)
    from gpuwatchd.pipeline import backtest  # noqa: PLC0415 - and numpy
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - SQLite comes with it

    with history_query.reader() as history:
        devices = backtest_act.chosen(history)
    tried = backtest.trials(settings, changed, name)
    reports = _play(devices, (since_s, until_s), tried, quiet=flags.quiet or flags.json)
    if not any(report.samples for report in reports):
        raise GpuwatchdError(
            f"no data since {units.clock(since_s)}",
            hint="gpuwatchctl status",
            page="errors#nothing-recorded",
        )
    tallies = backtest.tally(reports, tried)
    if flags.json:
        data = fill(BacktestData, (), devices=reports, settings=tallies)
        warnings = state_location.service_warnings()
        output.emit_answer(Backtest, data, source="database", warnings=warnings)
    else:
        out = output.Out(flags)
        state_location.head(out)
        _show(out, reports, tallies, show_all=show_all or flags.verbose)
    return 0


def _changed(wishes: Sequence[str], file: Path | None) -> tuple[str, Config | None]:
    """Return the settings with those of ``--set``, and what they are called."""
    if not wishes:
        return "", None
    from gpuwatchd.core import config  # noqa: PLC0415

    every = config.keys()
    known = [name for name, _ in every if name.partition(".")[0] in _SECTIONS]
    overrides: dict[str, Any] = {}
    names = []
    for wish in wishes:
        key, equals, value = wish.partition("=")
        key = key.strip().replace("_", "-")
        if not equals or not key:
            raise click.BadParameter(f"{wish!r} is not KEY=VALUE", param_hint="--set")
        full = next((name for name in known if key in {name, name.partition(".")[2]}), None)
        if full is None:
            raise click.BadParameter(_unknown(key, known), param_hint="--set")
        section, _, leaf = full.partition(".")
        overrides.setdefault(section, {})[leaf] = config.toml_value(value.strip())
        names.append(f"{full}={value.strip()}")
    return " ".join(names), config.load(file, overrides=overrides).config


def _unknown(key: str, names: Sequence[str]) -> str:
    if "." in key and key.partition(".")[0] not in _SECTIONS:
        return f"{key} has no effect here; only [detection] and [policy] do"
    known = [*names, *(name.partition(".")[2] for name in names)]
    return f"no such setting: {key}{text.guess(key, known)}"


def _play(
    devices: Sequence[Device],
    span: tuple[float, float],
    tried: list[Trial],
    *,
    quiet: bool,
) -> list[DeviceReport]:
    jobs: list[Job] = [(state_location.state_dir(), device, span, tried) for device in devices]
    found = parallel.spread(_replayed, jobs, lambda job: job[1].name, shown=not quiet)
    reports = []
    for device, report in zip(devices, found, strict=True):
        if isinstance(report, parallel.Lost):
            raise report.error(f"the history of {device.name}")
        reports.append(report)
    return reports


def _replayed(job: Job, tell: Callable[[float], None]) -> DeviceReport:
    from gpuwatchd.pipeline import backtest  # noqa: PLC0415
    from gpuwatchd.store.reader import Reader  # noqa: PLC0415

    directory, device, span, tried = job
    with Reader.open(directory) as history:
        return backtest.play(history, device, span, tried, passed=tell)


def _show(
    out: output.Out, reports: Sequence[DeviceReport], tallies: Sequence[Tally], *, show_all: bool
) -> None:
    device_reports = [report for report in reports if report.begun_at_s is not None]
    begun_s = min(report.begun_at_s or 0.0 for report in device_reports)
    ended_s = max(report.ended_at_s or 0.0 for report in device_reports)
    samples = sum(report.samples for report in device_reports)
    out.flow(
        [
            (f"{units.clock(begun_s)} to {units.clock(ended_s)}", "bold"),
            units.count(len(device_reports), "GPU"),
            units.count(sum(report.subjects for report in device_reports), "subject"),
            f"{samples:,} points",
        ]
    )
    cases = (case for report in device_reports for case in report.played[0].cases)
    shown = [case for case in cases if show_all or case.alert_at_s is not None]
    shown.sort(key=_begun_of)
    for case in shown[-_SHOWN:]:
        _show_case(out, case)
    if len(shown) > _SHOWN:
        out.line(f"  and {len(shown) - _SHOWN} older ones; --json has them all")
    out.line("")
    _summary(out, tallies[0])
    out.line("")
    out.table(
        [
            "settings",
            "alerts",
            "came true",
            "harmless",
            "not known",
            "deaths missed",
            "lead",
            "30 min left",
        ],
        (
            [
                tally.trial,
                *map(str, (tally.alerts, tally.true, tally.false, tally.unknown)),
                f"{tally.missed} of {tally.deaths}",
                "-" if tally.lead_s is None else units.duration(tally.lead_s),
                _share_left(tally, 30),
            ]
            for tally in tallies
        ),
        right=frozenset({1, 2, 3, 4, 5, 6, 7}),
    )


def _share_left(tally: Tally, least_min: int) -> str:
    share = tally.share_left(least_min)
    return "-" if share is None else units.percent(share)


def _begun_of(case: BacktestCase) -> float:
    return min(at for at in (case.watch_at_s, case.alert_at_s) if at is not None)


def _show_case(out: output.Out, case: BacktestCase) -> None:
    at_s = _begun_of(case) if case.alert_at_s is None else case.alert_at_s
    parts: list[blocks.Part] = [
        units.clock(at_s),
        ("watch", "cyan") if case.alert_at_s is None else ("alert", "yellow"),
        (case.title, "bold"),
        f"{case.finding.pattern}, {units.rate(case.finding.rate_bytes_per_s)}",
    ]
    if case.finding.eta is not None:
        parts.append(f"full in {verdict_text.eta(case.finding.eta)}")
    out.flow(parts, first="  ", rest="      ")
    style = {True: "red", False: "green", None: "dim"}[case.true]
    out.flow([(outcome_text(case), style)], first="      ", rest="      ")


def outcome_text(case: BacktestCase) -> str:
    """Return what came of a case, in words."""
    fate = case.fate
    part = "" if fate.share is None else f" {units.percent(fate.share)} of the memory"
    share = part and f" at{part}"
    lead = "" if case.lead_s is None else f", {units.duration(case.lead_s)} after the alert"
    text = {
        "filled": f"ended{share}: probably out of memory{lead}"
        if fate.ended
        else f"filled{part}{lead}",
        "given-back": f"released the memory {_after(case)}",
        "plateaued": f"stopped growing {_after(case)}" + (f", ended{share}" if fate.ended else ""),
        "ended": f"ended{share} while it grew: outcome unknown",
        "open": f"still open{share}",
    }[fate.came]
    return text if case.word is None else f'{text}; your label: "{case.word}"'


def _after(case: BacktestCase) -> str:
    after_s = max(0.0, case.fate.at_s - _begun_of(case))
    return f"{units.duration(after_s)} later" if after_s >= 60.0 else "immediately"


def _summary(out: output.Out, tally: Tally) -> None:
    known = tally.true + tally.false
    text = units.count(tally.alerts, "alert")
    if known:
        text += (
            f": {tally.true} of the {known} whose outcome is known came true "
            f"(precision {units.percent(tally.true / known)})"
        )
    parts = [text, f"{units.count(tally.watches, 'watch')} besides"]
    if tally.deaths:
        died = units.count(tally.deaths, "process")
        parts.append(f"{died} died near the limit, {tally.missed} without an alert")
    if tally.filled:
        shares = ", ".join(f"{least} min in {_share_left(tally, least)}" for least in (10, 30, 60))
        times = units.count(tally.filled, "time")
        parts.append(f"memory was full {times}; an alert came at least this long before: {shares}")
    if tally.foretold:
        stopped = f" ({tally.stopped} stopped growing instead)" if tally.stopped else ""
        parts.append(f"the 90 % band held in {tally.held} of {tally.foretold}{stopped}")
    for part in parts:
        out.line(part)
