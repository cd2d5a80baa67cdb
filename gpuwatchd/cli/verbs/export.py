"""``export``: the recorded series as a file for everybody, without anything that names anybody."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from gpuwatchd.cli import options, output
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import FAILED, OK, GpuwatchdError
from gpuwatchd.view.answers.history import Export, ExportData
from gpuwatchd.view.queries import current_state, state_location

if TYPE_CHECKING:
    from gpuwatchd.collect.logs.formats.corpus import Licence
    from gpuwatchd.core.model import Finding
    from gpuwatchd.pipeline.corpus import Corpus

_SINCE_S: Final = 7 * 86_400.0
_LICENCES: Final = ("CC0-1.0", "CC-BY-4.0")
_SAMPLE_VALUES: Final = 6
_LEFT_OUT: Final = (
    "left out: users, hosts, names, command lines, paths, jobs, containers, UUIDs, pids, served"
    " models, your reasons, dates and times of day"
)
_STAYS: Final = (
    "stays: the model and memory of each card, frameworks, memory and load over time, verdicts,"
    " your labels normal and leak"
)


@click.command(
    "export",
    epilog=options.examples(
        "export --anonymous corpus.jsonl.gz",
        "export --anonymous --since 30d --licence CC0-1.0 corpus.jsonl.gz",
    ),
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--anonymous", is_flag=True, help="Without anything that names anybody; required.")
@click.option("--since", type=options.PAST, metavar="TIME", help="From when on (7d).")
@options.device_option
@click.option(
    "--licence",
    type=click.Choice(_LICENCES),
    help="Under which others may use it; needed only for a contribution.",
)
@click.option("--yes", is_flag=True, help="Write without a question.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def command(  # noqa: PLR0917 - one argument per flag
    file: Path,
    anonymous: bool,  # noqa: FBT001
    since: float | None,
    licence: Licence | None,
    yes: bool,  # noqa: FBT001
    force: bool,  # noqa: FBT001
) -> int:
    """Write memory over time, verdicts and what came of them, with nobody's name.

    It shows what it is going to write, and asks. `analyze FILE` reads it; how to contribute it:
    contrib/corpus/README.md. FILE is readable by you alone; .gz compresses it.
    """
    flags = options.current()
    if not anonymous:
        raise click.UsageError("only an anonymous export is offered: add --anonymous")
    if not yes and (flags.json or not sys.stdin.isatty()):
        raise click.UsageError("nobody is here to confirm what is written: add --yes")
    _require_free(file, force=force)
    from gpuwatchd.view.report import html  # noqa: PLC0415 - 160 ms at a --help

    corpus = _collected(since, licence)
    content = corpus.encoded(packed=file.suffix.lower() == ".gz")
    verdicts = [verdict for line in corpus.lines for verdict in line.verdicts]
    data = ExportData(
        file=str(file),
        size_bytes=len(content),
        span_s=corpus.header.span_s,
        devices=sum(line.kind == "device" for line in corpus.lines),
        subjects=corpus.header.subjects,
        points=corpus.header.points,
        verdicts=len(verdicts),
        labels=sum(verdict.feedback is not None for verdict in verdicts),
    )
    if not flags.json and not (yes and flags.quiet):
        _show(output.Out(flags), corpus, data)
    if not yes and not click.confirm(f"write this to {text.clean(str(file))}?", err=True):
        return FAILED
    html.write(file, content)
    if flags.json:
        output.emit_answer(Export, data, source="database")
    else:
        output.Out(flags).line(f"{file}: {len(content):,} bytes, readable by you alone")
    return OK


def _require_free(file: Path, *, force: bool) -> None:
    """Refuse a place where nothing can be written, before the history is read."""
    why, hint = "", ""
    if file.is_dir():
        why, hint = "is a folder", f"name a file in it: {file / 'corpus.jsonl.gz'}"
    elif not file.parent.is_dir():
        why, hint = "cannot be written: there is no such folder", f"mkdir -p {file.parent}"
    elif os.path.lexists(file) and not force:
        why, hint = "is there already", "--force replaces it"
    if why:
        raise GpuwatchdError(f"{file}: {why}", hint=hint, page="errors#report-not-written")


def _collected(since: float | None, licence: Licence | None) -> Corpus:
    from gpuwatchd.pipeline import corpus  # noqa: PLC0415 - numpy too: 1 s
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - SQLite too: 500 ms

    flags = options.current()
    until_s = state_location.now_s() + 1.0
    since_s = until_s - _SINCE_S if since is None else since
    with history_query.reader() as history:
        known = history.devices()
        current_state.require_gpus(flags, known)
        parents = {device.parent_uid for device in known}
        devices = [one for one in known if flags.wants(one) and one.uid not in parents]
        found = corpus.collect(history, devices, (since_s, until_s), licence, _judged())
    if not found.lines:
        raise GpuwatchdError(
            f"no data since {units.clock(since_s)}",
            hint="gpuwatchctl status",
            page="errors#nothing-recorded",
        )
    return found


def _judged() -> dict[str, Finding]:
    """Return what the daemon says now of each process, by the id of its subject."""
    state, _ = current_state.read_state()
    every = [] if state is None else [p for one in state.devices for p in one.processes or ()]
    return {p.finding.subject.id: p.finding for p in every if p.finding is not None}


def _show(out: output.Out, corpus: Corpus, data: ExportData) -> None:
    out.flow(
        [
            (f"{units.duration(data.span_s)} in all", "bold"),
            f"devices: {data.devices}",
            f"subjects: {data.subjects}",
            f"points: {data.points:,}",
            f"verdicts: {data.verdicts} ({data.labels} with your label)",
        ]
    )
    for words in (_LEFT_OUT, _STAYS):
        out.flow(words.split(" "), rest="  ", gap=" ")
    out.line("a sample of it:")
    longest = max(corpus.lines, key=lambda line: (len(line.verdicts), len(line.t_ds)))
    for part in (corpus.header, longest):
        out.raw(f"  {msgspec.json.encode(_shortened(msgspec.to_builtins(part))).decode()}")


def _shortened(value: object) -> object:
    """Return the same with long lists cut."""
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        more = [f"{len(value) - _SAMPLE_VALUES} more"] if len(value) > _SAMPLE_VALUES else []
        return [*map(_shortened, value[:_SAMPLE_VALUES]), *more]
    return value
