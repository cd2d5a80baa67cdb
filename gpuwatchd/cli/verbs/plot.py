"""``plot``: memory over time as a picture, in the terminal or in a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from gpuwatchd.charts.chart_model import Order
from gpuwatchd.cli import options, output
from gpuwatchd.core import design
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import recorded_answers, subjects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.charts.terminal import Cell
    from gpuwatchd.cli.output import Out

_MOST_PX = 10_000
_LEAST_PX = 200
_MOST_COLUMNS = 140
_ROWS = {1: 20, 2: 16}
"""Of the chart, by how many there are."""
_ROWS_OF_MANY = 12
_STYLES = {
    "curve": "cyan", "range": "dim", "floor": "green", "band": "yellow", "limit": "red",
    "gap": "dim", "now": "dim", "faint": "dim", "grid": "dim", "ink": "bold",
} | {kind: look.style for kind, look in design.LOOKS.items()}  # fmt: skip
"""Of the parts of a chart, in a terminal whose ground may be light or dark."""


def _place(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in {".png", ".svg"}:
        raise click.BadParameter(f"{str(path)!r} ends neither in .png nor in .svg")
    return path


def _size(_: click.Context, __: click.Parameter, words: str | None) -> tuple[int, int] | None:
    if words is None:
        return None
    match = re.fullmatch(r"([0-9]{1,5})[xX×]([0-9]{1,5})", words.strip())
    if not match:
        raise click.BadParameter(f"{words!r} is not a size; write for example 1200x800")
    size = int(match[1]), int(match[2])
    if not all(_LEAST_PX <= px <= _MOST_PX for px in size):
        raise click.BadParameter(f"each side must be {_LEAST_PX} to {_MOST_PX} pixels")
    return size


@click.command(
    "plot",
    epilog=options.examples(
        "plot", "plot 0 --since 6h", "plot --pid 4711 --since 7d --output leak.png"
    ),
)
@click.argument(
    "words", nargs=-1, metavar="[GPU|PID|ALERT]...", shell_complete=options.complete_subject
)
@click.option("--since", type=options.PAST, metavar="TIME", help="From when on (24h).")
@click.option("--until", type=options.INSTANT, metavar="TIME", help="Until when (now).")
@options.pid_option
@options.user_option
@click.option(
    "--output", "file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    callback=_place, help="Draw it there: .png or .svg (extra charts).",
)  # fmt: skip
@click.option("--dark", is_flag=True, help="Dark theme (file only).")
@click.option(
    "--size", metavar="WxH", callback=_size, help="Size in pixels (file only), as 1200x800."
)
def command(  # noqa: PLR0917 - one argument per flag
    words: tuple[str, ...],
    since: float | None,
    until: float | None,
    pids: tuple[int, ...],
    file: Path | None,
    dark: bool,  # noqa: FBT001
    size: tuple[int, int] | None,
) -> int:
    """Draw memory over time, its floor and fit, where it leads, and what happened.

    Of every GPU, of those that are named, or of processes, also of ended ones (by pid, program,
    user, job or alert). In the terminal, or as a file (--output). TIME is 2h (ago), today,
    yesterday or 2026-11-21T08:00. The same as a table: `history`.
    """
    flags = options.current()
    gpus, more = subjects.sorted_out(words) if words else ([], [])
    flags.gpu.extend(gpus)
    pids = (*pids, *more)
    if file is None and (dark or size):
        raise click.UsageError("--dark and --size are of a file: name one with --output")
    try:
        selection = recorded_answers.selection(flags, since_s=since, until_s=until, pids=pids)
    except recorded_answers.EmptySpan as error:
        raise click.UsageError(str(error)) from None
    pictures = selection.pictures
    if file is not None:
        _write(file, pictures, dark=dark, size=size)
    if flags.json:
        output.emit_json(recorded_answers.pictures_answer(selection))
        return 0
    out = output.Out(flags)
    if file is None:
        show(out, pictures)
    elif not flags.quiet:
        what = "1 chart" if len(pictures) == 1 else f"{len(pictures)} charts"
        out.line(f"{file}: {what}")
    if not flags.quiet:
        for code, sentence in selection.warnings:
            out.prose(sentence, "dim" if code == "not-all" else "yellow")
    return 0


def _write(
    file: Path, pictures: Sequence[Picture], *, dark: bool, size: tuple[int, int] | None
) -> None:
    from gpuwatchd.charts import picture_file  # noqa: PLC0415 - 17 ms
    from gpuwatchd.view.report import html  # noqa: PLC0415 - 20 ms: only for files

    form: Literal["png", "svg"] = "svg" if file.suffix.lower() == ".svg" else "png"
    width_px, height_px = size or (None, None)
    order = Order(
        pictures=tuple(pictures), form=form, dark=dark, width_px=width_px, height_px=height_px
    )
    html.write(file, picture_file.draw(order))


def show(out: Out, pictures: Sequence[Picture]) -> None:
    """Write pictures one below the other, then what their parts are."""
    from gpuwatchd.charts import terminal  # noqa: PLC0415 - 7 ms

    width = min(out.width, _MOST_COLUMNS)
    height = min(_ROWS.get(len(pictures), _ROWS_OF_MANY), max(8, width // 3))
    for picture in pictures:
        _head(out, picture)
        for row in terminal.draw(picture, width, height, ascii_only=out.ascii, numbered=True):
            _row(out, row)
        for pairs in terminal.legend(picture, width, ascii_only=out.ascii):
            spoken = [part for cell in pairs for part in blocks.sentence(*_part(cell))]
            out.flow(spoken, rest="    ", gap=" ", whole=True)
        for note in picture.notes:
            out.flow([(note, "dim")])
        out.line("")
    _keys(out, terminal.keys(pictures, ascii_only=out.ascii))


def _keys(out: Out, parts: Sequence[tuple[Cell, Cell]]) -> None:
    """Write what the parts look like, each in its colour, as many in a row as there is room."""
    row: list[Cell] = []
    used = 0
    for shape, (word, _) in parts:
        need = len(shape[0]) + 1 + len(word) + 2
        if row and used + need - 2 > out.width:
            _row(out, row)
            row, used = [], 0
        row += [shape, (f" {word}  ", "")]
        used += need
    _row(out, row)


def _head(out: Out, picture: Picture) -> None:
    look = design.LOOKS[picture.kind]
    verdict = f"{look.ascii_mark if out.ascii else look.mark} {picture.verdict}"
    out.flow([(picture.title, "bold"), (verdict, look.style)], rest="  ", whole=True)


def _row(out: Out, row: Sequence[Cell]) -> None:
    pairs = list(row)
    while pairs and not pairs[-1][0].strip():
        pairs.pop()
    if pairs:
        pairs[-1] = (pairs[-1][0].rstrip(), pairs[-1][1])
    out.line(*(_part(cell) for cell in pairs))


def _part(cell: Cell) -> tuple[str, str]:
    return cell[0], _STYLES.get(cell[1], "")
