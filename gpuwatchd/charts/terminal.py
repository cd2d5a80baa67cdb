"""A picture as rows of cells of a terminal: what ``plot`` prints and the live screen shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.charts import scales
from gpuwatchd.charts.field import LAYERS, Field
from gpuwatchd.charts.mark_groups import groups, numbered, sign
from gpuwatchd.charts.raster import Canvas, Cell, runs
from gpuwatchd.core import units
from gpuwatchd.core.design import LEGEND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.charts.drawing import Picture

__all__ = ["Cell", "Plot", "draw", "keys", "legend", "plot", "span"]

span = scales.span

_LEAST_WIDTH, _LEAST_HEIGHT = 24, 4
"""In less room there is nothing but the curve."""
_COLUMNS_PER_TICK: Final = 12
_MOST_LEVELS: Final = 5

_SWATCHES: Final[dict[str, tuple[str, str]]] = {
    "curve": ("⠶⠶", "--"),
    "range": ("⠡⠡", "::"),
    "floor": ("⠁⠄", ",,"),
    "fit": ("⠒⠂", "++"),
    "band": ("⢕⢕", "//"),
    "limit": ("──", "=="),
    "gap": ("░░", ".."),
    "now": ("┊", ":"),
}
"""Of each part a piece, and that of plain characters."""


class Plot(NamedTuple):
    """Where in the rows the curve is: cells, the ends not included, and what time it spans."""

    left: int
    right: int
    top: int
    bottom: int
    begin_s: float
    end_s: float


def plot(
    picture: Picture,
    width: int,
    height: int,
    *,
    ascii_only: bool = False,  # noqa: ARG001 - the place is the same
    window: tuple[float, float] | None = None,
) -> Plot:
    """Return where :func:`draw` draws the curve."""
    return _place(width, height, scales.frame(picture, window))


def _place(width: int, height: int, frame: scales.Frame) -> Plot:
    bare = width < _LEAST_WIDTH or height < _LEAST_HEIGHT
    left = 0 if bare else _gutter(frame) + 1
    bottom = height if bare else height - 2
    return Plot(left, max(width, left + 1), 0, max(bottom, 1), frame.begin_s, frame.end_s)


def _gutter(frame: scales.Frame) -> int:
    # Whatever the height is, so that the legend knows it too.
    counts = range(1, _MOST_LEVELS + 1)
    return max(
        len(scales.level(v)) for count in counts for v in scales.levels(frame.top_bytes, count)
    )


def draw(
    picture: Picture,
    width: int,
    height: int,
    *,
    ascii_only: bool = False,
    window: tuple[float, float] | None = None,
    numbered: bool = False,
) -> list[list[Cell]]:
    """Return a picture as ``height`` rows of ``width`` cells.

    Parameters
    ----------
    picture
        What to draw.
    width, height
        Cells. Below 24 by 4 there is a curve without scales.
    ascii_only
        Whether there is nothing but ASCII.
    window
        The span that is seen, epoch seconds; by default all, with the forecast.
    numbered
        Whether each mark has the number that :func:`legend` explains.
    """
    if width < 1 or height < 1:
        return [[] for _ in range(max(0, height))]
    frame = scales.frame(picture, window)
    place = _place(width, height, frame)
    canvas = Canvas(place.right - place.left, place.bottom, LAYERS, ascii_only=ascii_only)
    field = Field(picture, canvas, frame)
    field.draw()
    rows = canvas.cells()
    if place.left == 0:
        return rows[:height]
    levels = scales.levels(frame.top_bytes, max(1, min(_MOST_LEVELS, place.bottom // 2)))
    heights = {field.row(level): scales.level(level) for level in levels}
    stem, notch = ("|", "+") if ascii_only else ("│", "┤")
    found: list[list[Cell]] = []
    for at, cells in enumerate(rows):
        words = heights.get(at)
        label = f"{words or '':>{place.left - 1}}{notch if words else stem}"
        found.append([(label, "faint"), *cells])
    return [*found, *_times(picture, frame, place, ascii_only=ascii_only, numbered=numbered)]


def _times(
    picture: Picture, frame: scales.Frame, place: Plot, *, ascii_only: bool, numbered: bool
) -> list[list[Cell]]:
    """Return the axis with the marks on it, and the labels below."""
    width = place.right - place.left
    line, notch, corner = ("-", "+", "+") if ascii_only else ("─", "┬", "└")
    signs, parts = [line] * width, ["faint"] * width
    labels = [" "] * width
    per_s = width / (frame.end_s - frame.begin_s)
    places, step_s = scales.instants(frame.begin_s, frame.end_s, max(1, width // _COLUMNS_PER_TICK))
    zone = units.zone(frame.end_s)
    labels[max(0, width - len(zone)) :] = zone[:width]
    free, last = 0, width - len(zone) - 1
    for at_s in places:
        column = min(width - 1, int((at_s - frame.begin_s) * per_s))
        signs[column] = notch
        words = units.tick(at_s, step_s=step_s)
        begin = max(free, min(column - len(words) // 2, last - len(words)))
        if begin <= column < begin + len(words) <= last:
            labels[begin : begin + len(words)] = words
            free = begin + len(words) + 1
    for group in groups(picture, width, frame, numbered=numbered):
        mark, part = sign(group.marks, ascii_only=ascii_only)
        for at, text in enumerate(mark + (str(group.number) if numbered else ""), group.column):
            if at < width:
                signs[at], parts[at] = text, part
    axis = runs("".join(signs), parts)
    day = _day(picture, frame, place.left)
    return [
        [(" " * (place.left - 1) + corner, "faint"), *axis],
        [(f"{day:<{place.left}}" + "".join(labels), "faint")],
    ]


def _day(picture: Picture, frame: scales.Frame, room: int) -> str:
    """Return the day on which a chart begins, where that is another one than today."""
    today, day = (units.clock(at_s)[:10] for at_s in (picture.now_s, frame.begin_s))
    if today == day:
        return ""
    return next((words for words in (day, day[5:]) if len(words) < room), "")


def legend(
    picture: Picture,
    width: int,
    *,
    ascii_only: bool = False,
    window: tuple[float, float] | None = None,
    most: int = 12,
) -> list[list[Cell]]:
    """Return what the numbered marks of :func:`draw` at that width are, one row each.

    Parameters
    ----------
    most
        Rows; of what is left out there is a count.
    """
    frame = scales.frame(picture, window)
    place = _place(width, _LEAST_HEIGHT, frame)
    pairs, left_out = numbered(groups(picture, place.right - place.left, frame), most)
    rows: list[list[Cell]] = []
    for number, mark in pairs:
        shape, part = sign((mark,), ascii_only=ascii_only)
        at = units.moment(mark.at_s, now_s=picture.now_s)
        rows.append([(f"{shape}{number}", part), (f" {at}  ", "faint"), (mark.text, "")])
    if left_out:
        rows.append([(f"and {left_out} more", "faint")])
    return rows


def keys(pictures: Sequence[Picture], *, ascii_only: bool = False) -> list[tuple[Cell, Cell]]:
    """Return what the parts of these pictures look like: for each a piece of it and its word."""
    have = {part for picture in pictures for part in _parts(picture)}
    return [
        ((shape[1 if ascii_only else 0], part), (LEGEND[part], "faint"))
        for part, shape in _SWATCHES.items()
        if part in have
    ]


def _parts(picture: Picture) -> set[str]:
    curve, forecast = picture.curve, picture.forecast
    ranged = any(low != high for low, high in zip(curve.low_bytes, curve.high_bytes, strict=True))
    ends = forecast is not None and forecast.mid_s is not None and forecast.limit_bytes is not None
    have = {
        "curve": not picture.empty,
        "range": ranged,
        "floor": picture.floor is not None,
        "fit": forecast is not None,
        "band": ends,
        "limit": picture.limit_bytes is not None,
        "gap": bool(picture.gaps),
        "now": forecast is not None,
    }
    return {part for part, there in have.items() if there}
