"""``plot``: memory over time as a picture, in the terminal or in a file."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import design, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store import curves
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import charts, current_state, history_query, state_location, user_filter
from gpuwatchd.view.queries.charts import Asked

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from gpuwatchd.charts.braille_canvas import Cell
    from gpuwatchd.charts.chart_model import Picture
    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.cli.output import Out
    from gpuwatchd.core.model import Device, ProcessInfo, ProcessKey
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.current_state import View

_DAY_S = 86400.0
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
@click.argument("gpus", nargs=-1, metavar="[GPU]...", shell_complete=options.complete_gpu)
@click.option("--since", type=options.Instant(), metavar="TIME", help="From when on (24h).")
@click.option("--until", type=options.Instant(), metavar="TIME", help="Until when (now).")
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
    gpus: tuple[str, ...],
    since: float | None,
    until: float | None,
    pids: tuple[int, ...],
    file: Path | None,
    dark: bool,  # noqa: FBT001
    size: tuple[int, int] | None,
) -> int:
    """Draw memory over time, its floor and fit, where it leads, and what happened.

    Of every GPU, of those that are named, or of processes (--pid, --user), also of ended ones. In
    the terminal, or as a file (--output). TIME is 2h (ago), today, yesterday or 2026-11-21T08:00.
    """
    flags = options.current()
    flags.gpu.extend(gpus)
    if file is None and (dark or size):
        raise click.UsageError("--dark and --size are of a file: name one with --output")

    until_s = until if until is not None else current_state.now_s()
    since_s = since if since is not None else until_s - _DAY_S
    if since_s >= until_s:
        raise click.UsageError("--since is not before --until")
    pictures, left_out, missing = chosen(flags, pids, (since_s, until_s), tight=since is None)
    more = f"and {left_out} more processes, smaller ones; --pid draws one" if left_out else ""
    if file is not None:
        _write(file, pictures, dark=dark, size=size)
    if flags.json:
        from gpuwatchd.charts import chart_model  # noqa: PLC0415

        data = [chart_model.to_json(picture) for picture in pictures]
        pair = (("not-all", more), ("no-such-gpu", missing))
        warnings = [one for one in pair if one[1]]
        output.emit("plot", data, source="database", warnings=warnings)
        return 0
    out = output.Out(flags)
    if file is None:
        show(out, pictures)
    elif not flags.quiet:
        what = "1 chart" if len(pictures) == 1 else f"{len(pictures)} charts"
        out.line(f"{file}: {what}")
    if more and not flags.quiet:
        out.flow(blocks.sentence(more, "dim"), gap=" ")
    if missing and not flags.quiet:
        out.flow(blocks.sentence(missing, "yellow"), gap=" ")
    return 0


def _write(
    file: Path, pictures: Sequence[Picture], *, dark: bool, size: tuple[int, int] | None
) -> None:
    from gpuwatchd.charts import rendering  # noqa: PLC0415
    from gpuwatchd.charts.chart_model import Order  # noqa: PLC0415
    from gpuwatchd.view.report import saving  # noqa: PLC0415 - only for files

    form: Literal["png", "svg"] = "svg" if file.suffix.lower() == ".svg" else "png"
    width_px, height_px = size or (None, None)
    order = Order(
        pictures=tuple(pictures), form=form, dark=dark, width_px=width_px, height_px=height_px
    )
    saving.write(file, rendering.draw(order))


# ---- in the terminal


def show(out: Out, pictures: Sequence[Picture]) -> None:
    """Write pictures one below the other, then what their parts are."""
    from gpuwatchd.charts import terminal  # noqa: PLC0415

    width = min(out.width, _MOST_COLUMNS)
    height = min(_ROWS.get(len(pictures), _ROWS_OF_MANY), max(8, width // 3))
    for picture in pictures:
        _head(out, picture)
        groups = terminal.draw(picture, width, height, ascii_only=out.ascii, numbered=True)
        for row in groups:
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
    mark = look.ascii_mark if out.ascii else look.mark
    verdict = f"{mark} {picture.verdict}"
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


# Which pictures are meant: of GPUs, of processes that run, or of ones that have ended.

_POINTS = 400
_MOST = 32
"""Processes: of more nobody sees anything, and each is a question to the history."""


class Chosen(NamedTuple):
    """What is drawn."""

    pictures: list[Picture]
    left_out: int
    """Processes that are meant too."""
    missing: str = ""
    """What was asked for and is not there, as a sentence."""


def chosen(
    flags: Globals, pids: Sequence[int], span: tuple[float, float], *, tight: bool
) -> Chosen:
    """Return what is to be drawn of a time, at least one picture with something on it.

    Parameters
    ----------
    flags
        ``--gpu`` and ``--user`` choose.
    pids
        Of processes; none means the GPUs, or with ``--user`` all of these users' processes.
    span
        From and to, epoch seconds.
    tight
        Whether to begin where the record begins, if that is later.

    Raises
    ------
    GpuwatchdError
        When there is no such GPU or process, or nothing is known of that time.
    """
    asked = Asked(*span, _POINTS)
    drawn = _asked_for(flags, pids, asked)
    pictures = drawn.pictures
    first_s = min(
        (picture.curve.at_s[0] for picture in pictures if not picture.empty), default=None
    )
    # One look of now is no curve: without a history there will be no more than that.
    alone = all(len(picture.curve.at_s) < 2 for picture in pictures)
    if first_s is None or (alone and not state_location.recorded(state_location.state_dir())):
        raise _nothing(span)
    shorter = charts.since_record(pictures, asked)
    if tight and shorter != asked:
        return _asked_for(flags, pids, shorter)
    return drawn


def _nothing(span: tuple[float, float]) -> GpuwatchdError:
    if not state_location.recorded(state_location.state_dir()):
        return GpuwatchdError(
            "there is no history yet to draw",
            hint="gpuwatchctl service install; without a GPU: gpuwatchctl demo",
            page="errors#no-history",
        )
    between = f"{units.clock(span[0])} and {units.clock(span[1])}"
    return GpuwatchdError(
        f"no data between {between}",
        hint="ask for a longer time, such as --since 7d; what is now: gpuwatchctl status",
        page="errors#nothing-recorded",
    )


def _asked_for(flags: Globals, pids: Sequence[int], asked: Asked) -> Chosen:
    if not pids and not flags.user:
        pictures, view = charts.all_devices(flags, asked)
        return Chosen(pictures, 0, _nobody_there(view))
    if not state_location.recorded(state_location.state_dir()):
        return _processes(flags, None, pids, asked)
    with history_query.reader() as history:
        return _processes(flags, history, pids, asked)


def _processes(flags: Globals, history: Reader | None, pids: Sequence[int], asked: Asked) -> Chosen:
    """Return the pictures of processes: of those that run, then of others, the largest first."""
    view = current_state.load_view(flags, want_trend=True)
    running = [
        (item, process)
        for item in view.devices
        for process in item.processes or ()
        if not pids or process.info.key.pid in pids
    ]
    running.sort(key=lambda pair: -(pair[1].used_bytes or 0))
    pairs = {(item.device.uid, process.info.key) for item, process in running}
    ended = [] if history is None else _ended(flags, history, pids, asked, pairs)
    count = len(running) + len(ended)
    pictures = [
        charts.of_process(history, view, item, process, asked) for item, process in running[:_MOST]
    ]
    if history is not None:
        room = _MOST - len(pictures)
        drawn = [charts.past_process(history, *pair, asked) for pair in ended[:room]]
        pictures += [picture for picture in drawn if not picture.empty]
        count -= sum(picture.empty for picture in drawn)
    if not pictures:
        raise _nobody(flags, pids)
    return Chosen(pictures, count - len(pictures), _nobody_there(view))


def _nobody_there(view: View) -> str:
    return next((text for code, text in view.warnings if code == "no-such-gpu"), "")


def _nobody(flags: Globals, pids: Sequence[int]) -> GpuwatchdError:
    named = f"pid {', '.join(map(str, pids))}" if pids else f"user {', '.join(flags.user)}"
    return GpuwatchdError(
        f"no process of {named} is or was on a GPU here in that time",
        hint="gpuwatchctl status; of an earlier time: --since 7d",
        page="errors#no-such-process",
    )


def _ended(
    flags: Globals,
    history: Reader,
    pids: Sequence[int],
    asked: Asked,
    container: Container[tuple[str, ProcessKey]],
) -> list[tuple[Device, ProcessInfo]]:
    """Return the others that were on a GPU in that time, the largest first."""
    people = user_filter.People(flags.user) if flags.user else None
    infos = {
        info.key: info
        for info in history.processes(asked.begin_s)
        if (not pids or info.key.pid in pids) and (people is None or people.own(info))
    }
    span = (asked.begin_s, asked.end_s)
    found: list[tuple[int, Device, ProcessInfo]] = []
    for device in history.devices():
        if not flags.wants(device):
            continue
        there = {
            presence.process: presence.peak_bytes or 0
            for presence in history.ask(partial(curves.present, uid=device.uid, span=span))
        }
        # What was not rolled up yet, or not any more, can be asked for by its pid.
        keys = infos.keys() if pids else infos.keys() & there.keys()
        found += [
            (there.get(key, 0), device, infos[key])
            for key in keys
            if (device.uid, key) not in container
        ]
    found.sort(key=lambda one: -one[0])
    return [(device, info) for _, device, info in found]
