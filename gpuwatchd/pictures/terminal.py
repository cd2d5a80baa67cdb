"""A picture as rows of cells of a terminal: what ``plot`` prints and the live screen shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd import units
from gpuwatchd.design import FLAGS, LEGEND, SEVERITY_KINDS
from gpuwatchd.pictures import scales
from gpuwatchd.pictures.raster import CHECKED, FAINT, SPARSE, Canvas, Cell, runs

if TYPE_CHECKING:
    from gpuwatchd.pictures.chart import Curve, Forecast, Gap, Mark, Picture

__all__ = ["Cell", "Group", "Plot", "draw", "frame_of", "groups", "legend", "plot", "span"]

span = scales.span

_LAYERS: Final = ("gap", "band", "range", "floor", "fit", "curve")
_LEAST_WIDTH, _LEAST_HEIGHT = 24, 4
"""In less room there is nothing but the curve."""
_FIT_DASH: Final = (4, 3)
_FLOOR_DASH: Final = (1, 2)
_COLUMNS_PER_TICK: Final = 12
_MOST_LEVELS: Final = 5
_FADES: Final = (SPARSE, FAINT)
"""Of what is foreseen without an end, the further the fainter."""


class Plot(NamedTuple):
    """Where in the rows the curve is: cells, the ends not included, and what time it spans."""

    left: int
    right: int
    top: int
    bottom: int
    begin_s: float
    end_s: float


class Group(NamedTuple):
    """Marks that stand at one place."""

    number: int
    column: int
    marks: tuple[Mark, ...]


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


def _place(width: int, height: int, shown: scales.Frame) -> Plot:
    bare = width < _LEAST_WIDTH or height < _LEAST_HEIGHT
    left = 0 if bare else _gutter(shown) + 1
    bottom = height if bare else height - 2
    return Plot(left, max(width, left + 1), 0, max(bottom, 1), shown.begin_s, shown.end_s)


def frame_of(picture: Picture, window: tuple[float, float] | None = None) -> scales.Frame:
    """Return what is shown of time and memory."""
    return scales.frame(picture, window)


def _gutter(shown: scales.Frame) -> int:
    # Whatever the height is, so that the legend knows it too.
    counts = range(1, _MOST_LEVELS + 1)
    return max(len(_level(v)) for count in counts for v in scales.levels(shown.top_bytes, count))


def _level(value_bytes: float) -> str:
    words = units.size(value_bytes) if value_bytes else "0"
    return words.replace(".00 ", " ").replace(".0 ", " ")


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
    shown = scales.frame(picture, window)
    place = _place(width, height, shown)
    canvas = Canvas(place.right - place.left, place.bottom, _LAYERS, ascii_only=ascii_only)
    _Drawing(picture, canvas, shown).draw()
    rows = canvas.cells()
    if place.left == 0:
        return rows[:height]
    return _with_scales(picture, rows, shown, place, ascii_only=ascii_only, numbered=numbered)


class _Drawing:
    """Everything between the scales."""

    def __init__(self, picture: Picture, canvas: Canvas, shown: scales.Frame) -> None:
        self._picture, self._canvas, self._shown = picture, canvas, shown
        self._per_s = canvas.wide / (shown.end_s - shown.begin_s)
        self._per_byte = canvas.high / shown.top_bytes

    def draw(self) -> None:
        picture = self._picture
        self._gaps(picture.gaps)
        self._limit(picture.limit_bytes)
        if picture.forecast is not None:
            self._now()
            self._forecast(picture.forecast)
        if picture.floor is not None:
            for part in _pieces(picture.floor):
                self._canvas.line("floor", self._points(part), _FLOOR_DASH)
        self._ranges(picture.curve)
        for part in _pieces(picture.curve):
            points = self._points(part)
            if len(points) == 1 or points[-1][0] - points[0][0] < 1:
                self._canvas.point("curve", *points[0])
            self._canvas.line("curve", points)
        if picture.empty:
            self._say_empty()

    def _x(self, at_s: float) -> float:
        return (at_s - self._shown.begin_s) * self._per_s

    def _y(self, value_bytes: float) -> float:
        return min(max(self._canvas.high - 0.5 - value_bytes * self._per_byte, -1e6), 1e6)

    def _points(self, piece: list[tuple[float, float]]) -> list[tuple[float, float]]:
        begin_s, per_s = self._shown.begin_s, self._per_s
        base, per_byte = self._canvas.high - 0.5, self._per_byte
        return [((at_s - begin_s) * per_s, base - used * per_byte) for at_s, used in piece]

    def _ranges(self, curve: Curve) -> None:
        half = max(curve.width_s * self._per_s / 2, 0.5)
        begin_s, per_s, wide = self._shown.begin_s, self._per_s, self._canvas.wide
        for at_s, low, high in zip(curve.at_s, curve.low_bytes, curve.high_bytes, strict=True):
            if low is None or high is None or low == high:
                continue
            x = (at_s - begin_s) * per_s
            if x + half < 0 or x - half >= wide:
                continue
            top, bottom = self._y(high), self._y(low)
            for column in range(int(x - half), max(int(x + half), int(x - half) + 1)):
                self._canvas.fill("range", column, top, bottom, CHECKED)

    def _gaps(self, gaps: tuple[Gap, ...]) -> None:
        canvas = self._canvas
        for gap in gaps:
            first = max(0, canvas.column_of(self._x(gap.begin_s) + 0.999))
            last = min(canvas.columns, canvas.column_of(self._x(gap.end_s)))
            for row in range(canvas.rows):
                if last > first:
                    canvas.under(first, row, self._shade(first, last, row), "gap")
            words = f" {LEGEND['gap']} "
            if last - first >= len(words) and not self._picture.empty:
                middle = first + (last - first - len(words)) // 2
                canvas.over(middle, canvas.rows // 2, words, "faint")

    def _shade(self, first: int, last: int, row: int) -> str:
        if not self._canvas.ascii:
            return "░" * (last - first)
        return "".join("." if (column + row) % 2 else " " for column in range(first, last))

    def _limit(self, limit_bytes: float | None) -> None:
        canvas = self._canvas
        if limit_bytes is None or limit_bytes > self._shown.top_bytes:
            return
        row = canvas.row_of(self._y(limit_bytes))
        canvas.under(0, row, ("=" if canvas.ascii else "─") * canvas.columns, "limit")
        canvas.over(1, max(0, row - 1), f"{LEGEND['limit']} {units.size(limit_bytes)}", "limit")

    def _now(self) -> None:
        canvas = self._canvas
        now_s = self._picture.now_s
        if now_s < self._shown.end_s:
            column = canvas.column_of(self._x(now_s))
            for row in range(canvas.rows):
                canvas.under(column, row, ":" if canvas.ascii else "┊", "now")

    def _forecast(self, told: Forecast) -> None:
        canvas, shown = self._canvas, self._shown
        begin_s = max(told.onset_at_s or told.judged_at_s, self._picture.begin_s)
        before = told.level_bytes - told.rate_bytes_per_s * (told.judged_at_s - begin_s)
        at, level = self._x(told.judged_at_s), self._y(told.level_bytes)
        canvas.line("fit", [(self._x(begin_s), self._y(before)), (at, level)], _FIT_DASH)
        if told.limit_bytes is None or told.mid_s is None:
            return
        top = self._y(told.limit_bytes)
        edge = (canvas.row_of(top) + 1) * canvas.high / canvas.rows  # the line itself stays visible
        low = self._x(told.judged_at_s + (told.mid_s if told.low_s is None else told.low_s))
        high = None if told.high_s is None else self._x(told.judged_at_s + told.high_s)
        full_s = told.judged_at_s + told.mid_s
        if level > edge:
            self._cone((at, level), (low, high), edge)
            canvas.line("fit", [(at, level), (self._x(full_s), edge)], _FIT_DASH)
        row = canvas.row_of(top)
        first = canvas.column_of(low)
        last = canvas.columns if high is None else canvas.column_of(high) + 1
        if high is not None:
            canvas.under(first, row, ("#" if canvas.ascii else "━") * (last - first), "band")
        room = canvas.columns - 2
        if row > 0 or canvas.columns < _LEAST_WIDTH:
            room -= len(f"{LEGEND['limit']} {units.size(told.limit_bytes)}") + 3
        words = next(
            (words for words in _full(told, self._picture.now_s) if len(words) <= room), ""
        )
        canvas.over(canvas.columns - len(words) - 1, max(0, row - 1), words, "ink")
        if full_s <= shown.end_s:
            canvas.over(
                canvas.column_of(self._x(full_s)), row, "X" if canvas.ascii else "╳", "limit"
            )

    def _cone(
        self, start: tuple[float, float], ends: tuple[float, float | None], top: float
    ) -> None:
        """Fill between the earliest and the latest way to the limit; without an end, fade."""
        canvas, (at, level), (low, high) = self._canvas, start, ends
        last = canvas.wide if high is None else min(canvas.wide, int(high) + 1)
        for x in range(max(0, int(at)), last):
            upper = level + (top - level) * min(1.0, (x - at) / max(low - at, 1e-9))
            lower = level
            if high is not None:
                lower = level + (top - level) * min(1.0, (x - at) / max(high - at, 1e-9))
            pattern = SPARSE
            if high is None:
                share = (x - at) / max(canvas.wide - at, 1.0)
                pattern = _FADES[min(int(share * len(_FADES)), len(_FADES) - 1)]
            canvas.fill("band", x, upper, lower, pattern)

    def _say_empty(self) -> None:
        canvas = self._canvas
        words = LEGEND["gap"]
        middle = max(0, (canvas.columns - len(words)) // 2)
        canvas.over(max(0, middle - 1), canvas.rows // 2, f" {words} ", "faint")


def _full(told: Forecast, now_s: float) -> list[str]:
    """Return when it is full, the longest form first."""
    passed_s = max(0.0, now_s - told.judged_at_s)
    mid_s = max(0.0, (told.mid_s or 0.0) - passed_s)
    short = f"full in {units.duration(mid_s)}"
    if told.low_s is None:
        return [short]
    high_s = None if told.high_s is None else max(0.0, told.high_s - passed_s)
    return [f"full in {units.band(max(0.0, told.low_s - passed_s), mid_s, high_s)}", short]


def _pieces(curve: Curve) -> list[list[tuple[float, float]]]:
    """Return a curve without its gaps: (instant, bytes) of each piece."""
    found: list[list[tuple[float, float]]] = []
    piece: list[tuple[float, float]] = []
    for at_s, used in zip(curve.at_s, curve.used_bytes, strict=True):
        if used is not None:
            piece.append((at_s, used))
        elif piece:
            found.append(piece)
            piece = []
    if piece:
        found.append(piece)
    return found


# ---- the scales


def _with_scales(
    picture: Picture,
    rows: list[list[Cell]],
    shown: scales.Frame,
    place: Plot,
    *,
    ascii_only: bool,
    numbered: bool,
) -> list[list[Cell]]:
    heights = {}
    for level in scales.levels(shown.top_bytes, max(1, min(_MOST_LEVELS, place.bottom // 2))):
        row = place.bottom - 1 - int(level / shown.top_bytes * place.bottom)
        heights[max(0, row)] = _level(level)
    gutter = place.left - 1
    stem, notch = ("|", "+") if ascii_only else ("│", "┤")
    found: list[list[Cell]] = []
    for at, cells in enumerate(rows):
        words = heights.get(at)
        found.append([(f"{words or '':>{gutter}}{notch if words else stem}", "faint"), *cells])
    return [*found, *_times(picture, shown, place, ascii_only=ascii_only, numbered=numbered)]


def _times(
    picture: Picture, shown: scales.Frame, place: Plot, *, ascii_only: bool, numbered: bool
) -> list[list[Cell]]:
    """Return the axis with the marks on it, and the labels below."""
    width = place.right - place.left
    line, notch, corner = ("-", "+", "+") if ascii_only else ("─", "┬", "└")
    signs, parts = [line] * width, ["faint"] * width
    labels = [" "] * width
    per_s = width / (shown.end_s - shown.begin_s)
    places, step_s = scales.instants(shown.begin_s, shown.end_s, max(1, width // _COLUMNS_PER_TICK))
    free = 0
    for at_s in places:
        column = min(width - 1, int((at_s - shown.begin_s) * per_s))
        signs[column] = notch
        words = units.tick(at_s, step_s=step_s)
        begin = max(free, min(column - len(words) // 2, width - len(words)))
        if begin <= column < begin + len(words) <= width:
            labels[begin : begin + len(words)] = words
            free = begin + len(words) + 1
    zone = units.zone(shown.end_s)
    if free + len(zone) + 1 <= width:
        labels[width - len(zone) :] = zone
    for group in groups(picture, width, shown, numbered=numbered):
        sign, part = _sign(group.marks, ascii_only=ascii_only)
        for at, one in enumerate(sign + (str(group.number) if numbered else ""), group.column):
            if at < width:
                signs[at], parts[at] = one, part
    axis = runs("".join(signs), parts)
    day = _day(picture, shown, place.left)
    return [
        [(" " * (place.left - 1) + corner, "faint"), *axis],
        [(f"{day:<{place.left}}" + "".join(labels), "faint")],
    ]


def _day(picture: Picture, shown: scales.Frame, room: int) -> str:
    """Return the day on which a chart begins, where that is another one than today."""
    today, day = (units.clock(at_s)[:10] for at_s in (picture.now_s, shown.begin_s))
    if today == day:
        return ""
    return next((words for words in (day, day[5:]) if len(words) < room), "")


def _sign(marks: tuple[Mark, ...], *, ascii_only: bool) -> tuple[str, str]:
    """Return the character and the part of the one that matters most."""
    order = ("critical", "warning", "info")
    mark = min(
        marks,
        key=lambda one: (
            one.kind != "alert",
            order.index(one.severity) if one.severity in order else len(order),
            one.kind != "event",
        ),
    )
    flag = FLAGS[mark.kind]
    part = flag.colour
    if mark.kind == "alert" and mark.severity is not None:
        part = SEVERITY_KINDS.get(mark.severity, flag.colour)
    return (flag.ascii_mark if ascii_only else flag.mark), part


def groups(
    picture: Picture, width: int, shown: scales.Frame, *, numbered: bool = True
) -> list[Group]:
    """Return the marks that are seen, those together for which there is one place."""
    per_s = width / (shown.end_s - shown.begin_s)
    found: list[Group] = []
    for mark in picture.marks:
        if not shown.begin_s <= mark.at_s <= shown.end_s:
            continue
        column = min(width - 1, int((mark.at_s - shown.begin_s) * per_s))
        before = found[-1] if found else None
        taken = 1 + len(str(before.number)) if before is not None and numbered else 1
        if before is not None and column < before.column + taken:
            found[-1] = before._replace(marks=(*before.marks, mark))
        else:
            found.append(Group(len(found) + 1, column, (mark,)))
    return found


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
    shown = scales.frame(picture, window)
    place = _place(width, _LEAST_HEIGHT, shown)
    rows: list[list[Cell]] = []
    for group in groups(picture, place.right - place.left, shown):
        for mark in group.marks:
            sign, part = _sign((mark,), ascii_only=ascii_only)
            at = units.moment(mark.at_s, now_s=picture.now_s)
            rows.append([(f"{sign}{group.number}", part), (f" {at}  ", "faint"), (mark.text, "")])
    left_out = len(rows) - most
    if left_out > 0:
        rows = [*rows[: most - 1], [(f"and {left_out + 1} more", "faint")]]
    return rows
