"""``report``: what happened in a period, or to a process: text, a page to send, or JSON."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from gpuwatchd.cli import options, output
from gpuwatchd.core import units
from gpuwatchd.view.queries import state_location

if TYPE_CHECKING:
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.view.report.period import Period

_DAY_S: Final = 86_400.0
_FORMATS: Final = ("text", "html", "json")
_TOP: Final = 5


@click.command("report", epilog=options.examples("report", "report --since 30d --output june.html"))
@click.option("--since", type=options.PAST, metavar="TIME", help="From when on (7d).")
@click.option("--until", type=options.INSTANT, metavar="TIME", help="Until when (now).")
@options.pid_option
@options.user_option
@click.option(
    "--top", type=click.IntRange(min=0), default=_TOP, show_default=True, metavar="N",
    help="Number of findings and advice items shown in full.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Show all in full.")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="How to write it (text, or what --output ends with).",
)
@click.option(
    "--output", "file", type=click.Path(path_type=Path), metavar="FILE",
    help="Write it there: .html, .json or .txt; - is standard output.",
)  # fmt: skip
@options.exit_code_option
def command(  # noqa: PLR0913, PLR0917 - one argument per flag
    since: float | None,
    until: float | None,
    pids: tuple[int, ...],
    top: int,
    everything: bool,  # noqa: FBT001
    form: str | None,
    file: Path | None,
    exit_code: bool,  # noqa: FBT001
) -> int:
    """Show what happened in a period: findings with charts, who, cost, advice.

    As text; as one page that opens from a mail, without a network (--output x.html); as JSON.
    Without --output, a page is written to a file named after machine and days in the current
    folder, or to the pipe. A file is readable by you alone.
    """
    from gpuwatchd.view.report import compose, document, gather, html, period  # noqa: PLC0415 - 280 ms: SQLite comes with it

    flags = options.current()
    until_s = state_location.now_s() if until is None else until
    since_s = until_s - 7 * _DAY_S if since is None else since
    if since_s >= until_s:
        raise click.UsageError("--since is not before --until")
    to_pipe = file is not None and str(file) == "-"
    file = None if to_pipe else file
    form = _form(flags, form, file, html.FORMATS)
    asked = period.Asked(since_s, until_s, pids=pids, top=top, everything=everything)
    found = gather.gather(flags, asked)
    if form == "html" and file is None and not to_pipe and sys.stdout.isatty():
        file = html.named(asked)
    if file is not None:
        html.write(file, content(flags, found, form))
        _confirm(flags, file)
    elif form == "json":
        output.emit_json(compose.answer(found))
    elif form == "text":
        document.show(output.Out(flags), compose.document(found))
    else:
        click.echo(content(flags, found, form), nl=False)
    return 3 if exit_code and any(alert.kind == "leak" for alert in found.alerts) else 0


def _form(flags: Globals, form: str | None, file: Path | None, values: dict[str, str]) -> str:
    """Return what is to be written; a name that says otherwise than a flag is a mistake."""
    ends = None if file is None else values.get(file.suffix.lower())
    if flags.json:
        if form not in {None, "json"}:
            raise click.UsageError(f"--json and --format {form} are two answers")
        return "json"
    if form is None and file is not None and ends is None:
        raise click.BadParameter(
            f"{file.name!r}: name it .html, .json or .txt, or add --format", param_hint="--output"
        )
    return form or ends or "text"


def content(flags: Globals, period: Period, form: str) -> str:
    """Return what is written to a file."""
    from gpuwatchd.view.report import compose, document, html  # noqa: PLC0415 - 190 ms

    if form == "html":
        return html.render(compose.document(period))
    if form == "json":
        return msgspec.json.encode(compose.answer(period)).decode() + "\n"
    stream = io.StringIO()
    document.show(output.Out(flags, stream), compose.document(period))
    return stream.getvalue()


def _confirm(flags: Globals, file: Path) -> None:
    """Say what was written, and who may read it."""
    if flags.quiet or not file.is_file():
        return
    size = (
        units.size(file.stat().st_size)
        if file.stat().st_size >= 1 << 20
        else (f"{file.stat().st_size / 1024:.0f} KiB")
    )
    output.Out(flags).line(f"{file}", (f"  {size}, readable by you alone", "dim"))
