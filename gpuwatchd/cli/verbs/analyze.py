"""``gpuwatchctl analyze``: the daemon's verdicts on a log that was recorded elsewhere."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from msgspec import UNSET

from gpuwatchd.cli import exits, options, output, parallel
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import BAD_INPUT, FINDINGS, GpuwatchdError, LogFormatError
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.history import Analyze, LogRead
from gpuwatchd.view.queries import snapshots
from gpuwatchd.view.queries.snapshots import Asked
from gpuwatchd.view.text import snapshots as snapshots_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.collect.logs.log_types import LogFile, LogOptions, LogSeries
    from gpuwatchd.core.config import Config
    from gpuwatchd.pipeline.replay import SubjectResult
    from gpuwatchd.view.answers.base import Answer
    from gpuwatchd.view.answers.inspection import SnapshotChange

    Job = tuple[tuple[str, ...], LogOptions, Config]
    Drawn = dict[str, Picture]
    Analyzed = tuple[LogFile, list[SubjectResult], Drawn]

_PARALLEL_FROM_BYTES = 2 * 1024**2
_READ_SHARE = 0.4
_LEAST_TOTAL_BYTES = 16 * 1024**2
_SKIPPED_SUFFIXES = {".md", ".png", ".svg", ".py", ".html"}
_LOG_NAME = re.compile(
    r"\.(csv|tsv|txt|log|out|json|jsonl|ndjson|xml|gz|pickle|pkl)(\.|$)", re.IGNORECASE
)
# Of one directory (/tmp may hold anything), and of a file in it with another name.
_MOST_FILES, _MOST_OTHER_BYTES = 1000, 1024**2
_FAIL_RANK = {"info": 0, "watch": 0, "warning": 1, "critical": 2}


_SNAPSHOT = "pytorch-snapshot"


class Judged(NamedTuple):
    """A log, its verdicts, their charts, and what is asked of it where it is a snapshot."""

    log: LogFile
    subjects: list[SubjectResult]
    pictures: Drawn
    asked: Asked | None


def _formats() -> Iterable[str]:
    from gpuwatchd.collect.logs.formats import FORMATS  # noqa: PLC0415

    return FORMATS


@click.command(
    epilog=options.examples(
        "analyze gpu.csv",
        "nvidia-smi -q -x -l 5 | gpuwatchctl analyze -",
        "analyze before.pickle after.pickle",
    )
)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", type=click.Path())
@click.option(
    "--format",
    "form",
    shell_complete=options.complete_from(_formats),
    help="Format of the log; normally recognised.",
)
@click.option("--interval", type=options.SPAN, help="Time between rows of a log without times.")
@click.option("--tz", default="UTC", show_default=True, help="Zone of times without one.")
@click.option("--date-order", type=click.Choice(["dmy", "mdy"]), help="How to read 04-03-2021.")
@click.option(
    "--memory-total", "--total", "total", help="Device memory if the log lacks it, as 24GiB."
)
@click.option("--columns", help="Column names of a CSV without a header, comma-separated.")
@click.option(
    "--fail-on",
    type=click.Choice(["info", "watch", "warning", "critical", "never"]),
    default="warning",
    show_default=True,
    help="Exit 3 from this severity on; info is a watch.",
)
@click.option(
    "--site",
    metavar="GLOB",
    help="Of memory snapshots these lines only: 'train.py:*', 'log_*'.",
)
@click.option("--all", "show_all", is_flag=True, help="List harmless subjects too.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path), metavar="FILE",
    help="Write a page with charts there, too.",
)  # fmt: skip
def command(  # noqa: PLR0913, PLR0917 - one argument per flag
    logs: tuple[str, ...],
    form: str | None,
    interval: float | None,
    tz: str,
    date_order: str | None,
    total: str | None,
    columns: str | None,
    fail_on: str,
    site: str | None,
    show_all: bool,  # noqa: FBT001
    page: Path | None,
) -> int:
    """Find leaks in recorded logs: nvidia-smi, dmon, gpustat, DCGM, W&B ...

    The log is replayed at its own clock; alerts are what the daemon would have raised live. Of two
    memory snapshots of PyTorch it shows which lines of code hold more in the later one.
    """
    from gpuwatchd.collect.logs.log_types import LogOptions  # noqa: PLC0415 - numpy comes with it

    flags = options.current()
    wishes = LogOptions(
        format=form,
        interval_s=interval,
        tz=_zone(tz),
        date_order=date_order,  # type: ignore[arg-type]
        total_bytes=_total(total),
        columns=tuple(c.strip() for c in columns.split(",")) if columns else None,
    )
    files, warnings = _expand(logs)
    for words in [] if flags.json or flags.quiet else warnings:
        click.echo(f"warning: {text.clean(words)}", err=True)
    if not files:
        raise LogFormatError(logs[0], None, "no file in this directory", hint="name a log file")
    config = flags.load_config().config
    found = _work(files, wishes, config, quiet=flags.quiet or flags.json, drawn=page is not None)
    wanted = flags.wants
    judged = [
        Judged(log, [one for one in all_ if wanted(one.device)], drawn, _asked(log, site, flags))
        for log, all_, drawn in found
    ]
    if flags.gpu and not any(one.subjects for one in judged):
        named = ", ".join(flags.gpu)
        raise GpuwatchdError(
            f"no GPU of these logs matches --gpu {named}",
            hint="leave it out",
            page="errors#no-such-gpu",
        )
    if site is not None and not any(one.asked or one.log.error for one in judged):
        raise click.BadParameter("none of these logs is a memory snapshot", param_hint="--site")
    asked = [one.asked for one in judged if one.asked is not None]
    change = snapshots.change(*asked) if len(asked) == len(judged) == 2 else None
    if page is not None:
        _save(page, judged, change, show_all=show_all or flags.verbose)
    if flags.json:
        output.emit_json(_answer(judged, change, [("not-all", words) for words in warnings]))
    else:
        out = output.Out(flags)
        _show(out, judged, change, show_all=show_all or flags.verbose)
        only_watches = _worst(judged, change) == _FAIL_RANK["watch"]
        if fail_on == "warning" and only_watches and not flags.quiet:
            out.line(("only watches: exit 0; --fail-on watch exits 3 for them", "dim"))
    return _exit_code(judged, change, fail_on, tell=not flags.json)


def _asked(log: LogFile, site: str | None, flags: Globals) -> Asked | None:
    if log.snapshot is None:
        return None
    indexes = {device.index for device in log.devices if flags.wants(device)}
    return Asked(log.path, log.snapshot, indexes, site)


def _show(
    out: output.Out, judged: list[Judged], change: SnapshotChange | None, *, show_all: bool
) -> None:
    from gpuwatchd.view.report import log_report  # noqa: PLC0415 - numpy comes with it

    if change is not None:
        snapshots_text.show_change(out, change, show_all=show_all)
    for position, (log, subjects, _, asked) in enumerate(judged):
        if position or change is not None:
            out.line("")
        if log.error is not None and len(judged) == 1:
            continue  # standard error says it
        log_report.show(out, log, subjects, show_all=show_all)
        if asked is not None:
            snapshots_text.show(out, asked, sites=change is None, show_all=show_all)


def _save(
    page: Path, judged: list[Judged], change: SnapshotChange | None, *, show_all: bool
) -> None:
    """Write what was found as one page; where no log could be read there is none to write."""
    if all(one.log.error is not None for one in judged):
        return
    from gpuwatchd.view.report import html, log_report  # noqa: PLC0415 - rare

    logs = [
        log_report.Log(log, subjects, pictures, snapshots_text.notes(asked, change))
        for log, subjects, pictures, asked in judged
    ]
    html.write(page, html.render(log_report.document(logs, everything=show_all)))


def _zone(name: str) -> str:
    import zoneinfo  # noqa: PLC0415

    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise click.BadParameter(
            f"{name!r} is not a time zone; write for example Europe/Berlin", param_hint="--tz"
        ) from None
    return name


def _total(text_: str | None) -> float | None:
    if text_ is None:
        return None
    try:
        total = float(units.parse_size(text_))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--memory-total") from None
    if total < _LEAST_TOTAL_BYTES:
        raise click.BadParameter(
            f"{text_!r} is {total:.0f} bytes; write the unit, for example 24GiB or 24564MiB",
            param_hint="--memory-total",
        )
    return total


def _expand(logs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return files, and what is left out; a directory stands for the files below it, sorted."""
    files: list[str] = []
    warnings = []
    for name in logs:
        if name == "-" or not os.path.isdir(name):  # noqa: PTH112 - never raises
            files.append(name)
        else:
            below = sorted(_below(name))
            chosen = [
                file
                for file in below
                if _LOG_NAME.search(Path(file).name) or _size(file) <= _MOST_OTHER_BYTES
            ][:_MOST_FILES]
            files += chosen
            if len(chosen) < len(below):
                warnings.append(
                    f"{name}: {len(below) - len(chosen):,} of {len(below):,} files are left out: "
                    f"beyond the first {_MOST_FILES:,}, or large and not called as a log is"
                )
    return files, warnings


def _below(folder: str) -> Iterator[str]:
    # What may not be entered is passed over, as is what is no file (a FIFO would never end).
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = os.path.join(top, name)  # noqa: PTH118
            plain = os.path.isfile(path) and not name.startswith(".")  # noqa: PTH113 - never raises
            if plain and Path(name).suffix.lower() not in _SKIPPED_SUFFIXES:
                yield path


def _analyzed(job: Job, tell: Callable[[float], None], *, drawn: bool = False) -> list[Analyzed]:
    from gpuwatchd.collect.logs import joining  # noqa: PLC0415
    from gpuwatchd.collect.replay import read_log  # noqa: PLC0415
    from gpuwatchd.pipeline import recorded_ledger, recorded_runs, replay  # noqa: PLC0415

    files, wishes, config = job
    logs = [read_log(file, wishes) for file in files]
    if len(logs) > 1:
        logs = joining.joined(logs)
    tell(_READ_SHARE)
    answers: list[Analyzed] = []
    for log in logs:
        results: list[SubjectResult] = []
        if log.error is None:
            results = replay.analyze(
                log,
                config,
                evaluator=recorded_runs.LearningEvaluator(config, log),
                passed=lambda share: tell(_READ_SHARE + (1.0 - _READ_SHARE) * share),
            )
        rests = recorded_ledger.unowned(log.series) if drawn else []
        pictures = _pictures(log, results, rests) if drawn else {}
        # What was read is not needed any more: a directory costs the memory of its largest file.
        log.series = []
        answers.append((log, results, pictures))
    return answers


def _pictures(log: LogFile, results: list[SubjectResult], unowned: Sequence[LogSeries]) -> Drawn:
    """Return a chart of each subject; of one with several runs the last."""
    from gpuwatchd.view.report import log_report  # noqa: PLC0415 - rare

    chosen = [series for series in log.series if series.t_s.size]
    rests = {series.subject: series for series in unowned}
    # Subjects are those of the log in their order, then what nobody owns of some devices.
    chosen += [rests[one.subject] for one in results[len(chosen) :]]
    return {
        subject_result.subject.id: log_report.picture(log, series, subject_result)
        for series, subject_result in zip(chosen, results, strict=True)
    }


def _work(
    files: list[str], wishes: LogOptions, config: Config, *, quiet: bool, drawn: bool = False
) -> list[Analyzed]:
    from gpuwatchd.collect.logs import joining  # noqa: PLC0415
    from gpuwatchd.collect.logs.log_types import LogFile  # noqa: PLC0415
    from gpuwatchd.collect.replay import preview  # noqa: PLC0415

    jobs: list[Job] = [
        (group, wishes, config)
        for group in joining.groups(files, lambda file: preview(file, wishes))
    ]
    sizes = [sum(_size(file) for file in group) for group, _, _ in jobs]
    # Standard input cannot be handed to another process.
    alone = "-" in files or sum(sizes) < _PARALLEL_FROM_BYTES
    much = len(jobs) > 1 or sum(sizes) >= _PARALLEL_FROM_BYTES
    results = parallel.spread(
        partial(_analyzed, drawn=drawn),
        jobs,
        lambda job: Path(job[0][0]).name,
        shown=not quiet and much,
        weights=[float(size + 1) for size in sizes],
        cores=1 if alone else None,
    )
    out: list[Analyzed] = []
    for (group, _, _), answers in zip(jobs, results, strict=True):
        if not isinstance(answers, parallel.Lost):
            out += answers
            continue
        if options.current().debug:
            sys.stderr.write(answers.trace)
        why = f"could not be analysed: {answers.why}"
        out += [(LogFile(path=file, error=why), [], {}) for file in group]
    joining.warn_apart([log for log, _, _ in out])
    return out


def _size(file: str) -> int:
    try:
        return os.path.getsize(file) if file != "-" and os.path.isfile(file) else 0  # noqa: PTH113, PTH202
    except (OSError, ValueError):
        return 0


def _answer(
    judged: list[Judged], change: SnapshotChange | None, warnings: list[tuple[str, str]]
) -> Answer:
    data = tuple(
        base.fill(
            LogRead,
            log,
            subjects=subjects,
            snapshot=UNSET if asked is None else snapshots.snapshot(asked),
        )
        for log, subjects, _, asked in judged
    )
    first = _failed(judged)
    if first is None:
        more = UNSET if change is None else change
        return base.answer_of(Analyze, data, source="files", warnings=warnings, change=more)
    error = base.fill(
        base.Fault,
        first,
        kind="LogFormatError",
        message=f"{first.path}: {first.error}",
        exit_code=BAD_INPUT,
        page=LogFormatError.default_page,
    )
    return base.answer_of(Analyze, data, source="files", warnings=warnings, error=error)


def _failed(judged: list[Judged]) -> LogFile | None:
    """Return the log for want of which there is no answer: of two snapshots either is."""
    broken = [one.log for one in judged if one.log.error is not None]
    pair = len(judged) == 2 and {x.log.format for x in judged if not x.log.error} <= {_SNAPSHOT}
    return broken[0] if broken and (pair or len(broken) == len(judged)) else None


def _exit_code(
    judged: list[Judged], change: SnapshotChange | None, fail_on: str, *, tell: bool
) -> int:
    first = _failed(judged)
    if first is not None:
        if tell:
            hint = first.hint or "gpuwatchctl analyze --help lists the flags for unusual logs"
            value = f"gpuwatchctl: {first.path}: {first.error}"
            for line in (value, f"hint: {hint}", exits.docs_reference(LogFormatError.default_page)):
                sys.stderr.write(f"{text.clean(line, limit=4096)}\n")
        return BAD_INPUT
    if fail_on == "never":
        return 0
    return FINDINGS if _worst(judged, change) >= _FAIL_RANK[fail_on] else 0


def _worst(judged: list[Judged], change: SnapshotChange | None) -> int:
    # Two points prove no leak: what grew between two snapshots is a watch.
    grown = _FAIL_RANK["watch"] if change is not None and change.grown_count else -1
    return max([grown, *(_severity(each) for one in judged for each in one.subjects)])


def _severity(subject_result: SubjectResult) -> int:
    ranks = [_FAIL_RANK[event.alert.severity] for event in subject_result.alerts]
    finding = subject_result.finding
    if finding is not None and finding.tier == "alert":
        ranks.append(_FAIL_RANK[finding.severity])
    if finding is not None and finding.tier == "watch":
        ranks.append(0)
    return max(ranks, default=-1)
