"""A picture as rows of cells of a terminal: what ``plot`` prints and the live screen shows."""

from __future__ import annotations

from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.charts import chart_model
from gpuwatchd.charts.chart_model import groups, limit_texts, numbered, sign
from gpuwatchd.charts.text_description import parts
from gpuwatchd.core import units
from gpuwatchd.core.design import LEGEND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.charts.chart_model import Curve, Forecast, Frame, Gap, Picture


Cell = tuple[str, str]
"""A text, and the part of the chart that it belongs to: a key of ``design.PARTS``, a
``design.Kind``, or ""."""

SOLID: Final = (-1, -1)
"""Every dot; a pattern is the bits of even and of odd columns."""
_CHECKED: Final = int("01" * 400, 2)
CHECKED: Final = (_CHECKED, _CHECKED << 1)
"""Half of the dots."""
_SPARSE: Final = int("0001" * 200, 2)
SPARSE: Final = (_SPARSE, _SPARSE << 2)
"""A quarter."""
_FAINT: Final = int("00000001" * 100, 2)
FAINT: Final = (_FAINT, _FAINT << 4)
"""An eighth."""

# Bits of a Braille character for the four dots of its left and of its right column, from the top.
_LEFT: Final = (0x01, 0x02, 0x04, 0x40)
_RIGHT: Final = (0x08, 0x10, 0x20, 0x80)


def _bits(column: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sum(bit for n, bit in enumerate(column) if mask >> n & 1) for mask in range(16))


_LEFT_OF: Final = _bits(_LEFT)
_RIGHT_OF: Final = _bits(_RIGHT)
_LINE_ASCII: Final = (" ", "'", "-", "|", "_", "|", "|", "|")
"""Of three dots, one above the other: the characters of a curve."""
ASCII_FILL: Final[dict[str, str]] = {
    "range": ":", "floor": ",", "fit": "+", "band": "/", "gap": ".",
}  # fmt: skip
"""Of the other layers."""


class Canvas:
    """A field of dots, ``columns`` by ``rows`` cells.

    Parameters
    ----------
    columns, rows
        Cells; at least 1.
    layers
        The parts that are drawn in dots, undermost first.
    ascii_only
        Whether there is nothing but ASCII.

    Attributes
    ----------
    wide, high
        Dots across and down; (0, 0) is at the top left.
    """

    def __init__(
        self, columns: int, rows: int, layers: Iterable[str], *, ascii_only: bool = False
    ) -> None:
        self.columns, self.rows = columns, rows
        self.ascii = ascii_only
        self._across, self._down = (1, 3) if ascii_only else (2, 4)
        self.wide, self.high = columns * self._across, rows * self._down
        self._dots = {part: [0] * self.wide for part in layers}
        self._all = (1 << self.high) - 1
        self._under = [[" "] * columns for _ in range(rows)]
        self._parts = [[""] * columns for _ in range(rows)]
        self._over: list[tuple[int, int, str, str]] = []

    def row_of(self, y: float) -> int:
        """Return the row of cells in which a height in dots is."""
        return min(self.rows - 1, max(0, int(y) // self._down))

    def column_of(self, x: float) -> int:
        """Return the column of cells in which a place in dots is; it may be outside."""
        return int(x // self._across)

    def fill(
        self, part: str, x: int, y0: float, y1: float, pattern: tuple[int, int] = SOLID
    ) -> None:
        """Set the dots of one column between two heights, both included."""
        if not 0 <= x < self.wide:
            return
        top, bottom = (int(y0), int(y1)) if y0 <= y1 else (int(y1), int(y0))
        top, bottom = max(0, top), min(self.high - 1, bottom)
        if top <= bottom:
            bits = (1 << (bottom + 1)) - (1 << top)
            self._dots[part][x] |= bits & pattern[x & 1]

    def line(
        self,
        part: str,
        points: Iterable[tuple[float, float]],
        dash: tuple[int, int] = (1, 0),
        *,
        thick: int = 1,
    ) -> None:
        """Join points (x, y), ascending in x, by a line; ``dash`` is dots on and dots off.

        Every dot is ``thick`` dots high, downwards.
        """
        on, period = dash[0], sum(dash)
        dots, last_x, last_y = self._dots[part], self.wide - 1, self.high - 1
        more = 1 << thick
        for (x0, y0), (x1, y1) in pairwise(points):
            x, end = int(x0), int(x1)
            if end < 0 or x > last_x:
                continue
            rise = (y1 - y0) / (x1 - x0) if end > x else 0.0
            if x < 0:
                x, before = 0, y0 - rise * x0
            else:
                before = y0
            stop = min(end, last_x)
            while x <= stop:
                after = y1 if x >= end else y0 + rise * (x + 1 - x0)
                # As fill() does it, without a call: this is most of the work. The last dot is left
                # to the next column: lines are as thin as they can be without a hole.
                top, bottom = int(before), int(after)
                if top < bottom:
                    bottom -= x < end
                elif bottom < top:
                    top, bottom = bottom + (x < end), top
                if x % period < on and bottom >= 0 and top <= last_y:
                    dots[x] |= ((more << min(bottom, last_y)) - (1 << max(top, 0))) & self._all
                before = after
                x += 1

    def point(self, part: str, x: float, y: float) -> None:
        """Set a dot that can be seen alone."""
        at = int(x)
        for place in (at, at - 1 if at & 1 else at + 1):
            self.fill(part, place, y - 0.5, y + 0.5)

    def under(self, column: int, row: int, text: str, part: str) -> None:
        """Write text below the dots."""
        for at, value in enumerate(text, column):
            if 0 <= at < self.columns and 0 <= row < self.rows:
                self._under[row][at] = value
                self._parts[row][at] = part

    def write(self, column: int, row: int, text: str, part: str) -> None:
        """Write text above everything."""
        self._over.append((column, row, text, part))

    def cells(self) -> list[list[Cell]]:
        """Return the rows; each is exactly ``columns`` wide."""
        signs, parts = self._under, self._parts
        for part, dots in self._dots.items():
            if any(dots):
                self._lay(part, dots)
        for column, row, text, part in self._over:
            if 0 <= row < self.rows:
                for at, value in enumerate(text, column):
                    if 0 <= at < self.columns:
                        signs[row][at], parts[row][at] = value, part
        return [runs("".join(row), of) for row, of in zip(signs, parts, strict=True)]

    def _lay(self, part: str, dots: list[int]) -> None:
        signs, parts, down = self._under, self._parts, self._down
        mask = (1 << down) - 1
        for column in range(self.columns):
            left = dots[column * self._across]
            right = dots[column * self._across + 1] if self._across > 1 else 0
            both = left | right
            while both:
                row = ((both & -both).bit_length() - 1) // down
                shift = row * down
                one, other = left >> shift & mask, right >> shift & mask
                if self.ascii:
                    sign = ASCII_FILL.get(part) or _LINE_ASCII[one]
                else:
                    sign = chr(0x2800 | _LEFT_OF[one] | _RIGHT_OF[other])
                signs[row][column] = sign
                parts[row][column] = part
                both &= -1 << (shift + down)


def runs(text: str, parts: list[str]) -> list[Cell]:
    """Return text whose characters have parts as runs of the same part.

    Examples
    --------
    >>> runs("ab-", ["x", "x", ""])
    [('ab', 'x'), ('-', '')]
    """
    groups = groupby(zip(text, parts, strict=True), itemgetter(1))
    return [("".join(sign for sign, _ in run), part) for part, run in groups]


_LEAST_WIDTH, _LEAST_HEIGHT = 24, 4
"""In less room there is nothing but the curve."""
_COLUMNS_PER_TICK: Final = 12
_MOST_LEVELS: Final = 5
_MOST_MARKS: Final = 12
"""Rows of the legend."""

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
    bottom: int
    begin_s: float
    end_s: float


def plot(
    picture: Picture, width: int, height: int, *, window: tuple[float, float] | None = None
) -> Plot:
    """Return where :func:`draw` draws the curve."""
    return _place(width, height, chart_model.frame(picture, window))


def _place(width: int, height: int, frame: chart_model.Frame) -> Plot:
    bare = width < _LEAST_WIDTH or height < _LEAST_HEIGHT
    left = 0 if bare else _gutter(frame) + 1
    bottom = height if bare else height - 2
    return Plot(left, max(width, left + 1), max(bottom, 1), frame.begin_s, frame.end_s)


def _gutter(frame: chart_model.Frame) -> int:
    # Whatever the height is, so that the legend knows it too.
    return max(
        len(chart_model.level(v))
        for count in range(1, _MOST_LEVELS + 1)
        for v in chart_model.levels(frame.top_bytes, count)
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

    Below 24 by 4 there is a curve without scales. ``window`` is the span that is seen, epoch
    seconds; by default all, with the forecast. With ``numbered`` each mark has the number that
    :func:`legend` explains.
    """
    if width < 1 or height < 1:
        return [[] for _ in range(max(0, height))]
    frame = chart_model.frame(picture, window)
    place = _place(width, height, frame)
    canvas = Canvas(place.right - place.left, place.bottom, LAYERS, ascii_only=ascii_only)
    field = Field(picture, canvas, frame)
    field.draw()
    rows = canvas.cells()
    if place.left == 0:
        return rows[:height]
    levels = chart_model.levels(frame.top_bytes, max(1, min(_MOST_LEVELS, place.bottom // 2)))
    heights = {field.row(level): chart_model.level(level) for level in levels}
    stem, notch = ("|", "+") if ascii_only else ("│", "┤")
    found: list[list[Cell]] = []
    for at, cells in enumerate(rows):
        words = heights.get(at)
        label = f"{words or '':>{place.left - 1}}{notch if words else stem}"
        found.append([(label, "faint"), *cells])
    return [*found, *_times(picture, frame, place, ascii_only=ascii_only, numbered=numbered)]


def _times(
    picture: Picture, frame: chart_model.Frame, place: Plot, *, ascii_only: bool, numbered: bool
) -> list[list[Cell]]:
    """Return the axis with the marks on it, and the labels below."""
    width = place.right - place.left
    line, notch, corner = ("-", "+", "+") if ascii_only else ("─", "┬", "└")
    signs, parts = [line] * width, ["faint"] * width
    labels = [" "] * width
    per_s = width / (frame.end_s - frame.begin_s)
    places, step_s = chart_model.instants(
        frame.begin_s, frame.end_s, max(1, width // _COLUMNS_PER_TICK)
    )
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


def _day(picture: Picture, frame: chart_model.Frame, room: int) -> str:
    """Return the day on which a chart begins, where that is another one than today."""
    today, day = (units.clock(at_s)[:10] for at_s in (picture.now_s, frame.begin_s))
    if today == day:
        return ""
    return next((words for words in (day, day[5:]) if len(words) < room), "")


def legend(picture: Picture, width: int, *, ascii_only: bool = False) -> list[list[Cell]]:
    """Return what the numbered marks of :func:`draw` at that width are, one row each.

    Of what is left out there is a count.
    """
    frame = chart_model.frame(picture)
    place = _place(width, _LEAST_HEIGHT, frame)
    pairs, left_out = numbered(groups(picture, place.right - place.left, frame), _MOST_MARKS)
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
    have = {part for picture in pictures for part in parts(picture)}
    have |= {"now" for picture in pictures if picture.forecast is not None}
    return [
        ((shape[1 if ascii_only else 0], part), (LEGEND[part], "faint"))
        for part, shape in _SWATCHES.items()
        if part in have
    ]


# What is between the scales of a picture, in the dots of a terminal.

LAYERS: Final = ("band", "range", "floor", "fit", "curve")
"""What is drawn in dots, undermost first."""
_FIT_DASH: Final = (4, 3)
_FLOOR_DASH: Final = (1, 2)
_FADES: Final = (CHECKED, SPARSE, FAINT)
"""Of what is foreseen without an end, the further the fainter."""
_ROWS_WITH_WORDS: Final = 5
"""Of fewer, none is left to the words above the limit."""


class Field:
    """Everything between the scales."""

    def __init__(self, picture: Picture, canvas: Canvas, frame: Frame) -> None:
        limit, rows = picture.limit_bytes, canvas.rows
        if limit is not None and limit <= frame.top_bytes and rows >= _ROWS_WITH_WORDS:
            frame = frame._replace(top_bytes=max(frame.top_bytes, limit * rows / (rows - 1.2)))
        self._picture, self._canvas, self._shown = picture, canvas, frame
        self._per_s = canvas.wide / (frame.end_s - frame.begin_s)
        self._per_byte = canvas.high / frame.top_bytes

    def draw(self) -> None:
        """Draw all of it."""
        picture = self._picture
        self._gaps(picture.gaps)
        self._limit(picture.limit_bytes)
        if picture.forecast is not None:
            self._now()
            self._forecast(picture.forecast)
        if picture.floor is not None:
            for run in picture.floor.runs():
                self._canvas.line("floor", self._points(picture.floor, run), _FLOOR_DASH)
        self._ranges(picture.curve)
        for run in picture.curve.runs():
            points = self._points(picture.curve, run)
            if len(points) == 1 or points[-1][0] - points[0][0] < 1:
                self._canvas.point("curve", *points[0])
            self._canvas.line("curve", points, thick=1 if self._canvas.ascii else 2)
        if picture.empty:
            words = LEGEND["gap"]
            middle = max(0, (self._canvas.columns - len(words)) // 2)
            self._canvas.write(max(0, middle - 1), self._canvas.rows // 2, f" {words} ", "faint")

    def row(self, value_bytes: float) -> int:
        """Return the row of cells in which a level is."""
        return self._canvas.row_of(self._y(value_bytes))

    def _x(self, at_s: float) -> float:
        return (at_s - self._shown.begin_s) * self._per_s

    def _y(self, value_bytes: float) -> float:
        return min(max(self._canvas.high - 0.5 - value_bytes * self._per_byte, -1e6), 1e6)

    def _points(self, curve: Curve, run: list[int]) -> list[tuple[float, float]]:
        begin_s, per_s = self._shown.begin_s, self._per_s
        base, per_byte = self._canvas.high - 0.5, self._per_byte
        at_s, used = curve.at_s, curve.used_bytes
        return [((at_s[n] - begin_s) * per_s, base - (used[n] or 0.0) * per_byte) for n in run]

    def _ranges(self, curve: Curve) -> None:
        half = max(curve.width_s * self._per_s / 2, 0.5)
        begin_s, per_s, wide = self._shown.begin_s, self._per_s, self._canvas.wide
        base, per_byte, fill = self._canvas.high - 0.5, self._per_byte, self._canvas.fill
        seen = ((at_s - begin_s) * per_s for at_s in curve.at_s)
        for x, low, high in zip(seen, curve.low_bytes, curve.high_bytes, strict=True):
            if low is None or high is None or low == high or x < -half or x > wide + half:
                continue
            first, top, bottom = int(x - half), base - high * per_byte, base - low * per_byte
            for column in range(first, max(int(x + half), first + 1)):
                fill("range", column, top, bottom, SPARSE)

    def _gaps(self, gaps: tuple[Gap, ...]) -> None:
        canvas = self._canvas
        for gap in gaps:
            first = max(0, canvas.column_of(self._x(gap.begin_s) + 0.999))
            last = min(canvas.columns, canvas.column_of(self._x(gap.end_s)))
            for row in range(canvas.rows):
                if last > first:
                    canvas.under(first, row, self._shade(first, last, row), "gap")
            texts = (f" {words} " for words in (gap.why, LEGEND["gap"]) if words)
            words = next((text for text in texts if len(text) <= last - first), "")
            if words and not self._picture.empty:
                middle = first + (last - first - len(words)) // 2
                canvas.write(middle, canvas.rows // 2, words, "faint")

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
        words = self._words(limit_bytes)
        if len(words) + 2 <= canvas.columns:
            canvas.write(1, max(0, row - 1), words, "limit")

    def _words(self, limit_bytes: float) -> str:
        return f"{LEGEND['limit']} {units.size(limit_bytes)}"

    def _now(self) -> None:
        canvas = self._canvas
        now_s = self._picture.now_s
        if now_s < self._shown.end_s:
            column = canvas.column_of(self._x(now_s))
            for row in range(canvas.rows):
                canvas.under(column, row, ":" if canvas.ascii else "┊", "now")

    def _forecast(self, forecast: Forecast) -> None:
        canvas, frame = self._canvas, self._shown
        fit = [(self._x(at_s), self._y(used)) for at_s, used in forecast.fit(self._picture.begin_s)]
        at, level = fit[1]
        canvas.line("fit", fit[:2], _FIT_DASH)
        if forecast.end is None:
            return
        (full_s, limit_bytes), (_, top) = forecast.end, fit[2]
        edge = (canvas.row_of(top) + 1) * canvas.high / canvas.rows  # the line itself stays visible
        low_s, high_s = forecast.low_s, forecast.high_s
        low = self._x(full_s if low_s is None else forecast.judged_at_s + low_s)
        high = None if high_s is None else self._x(forecast.judged_at_s + high_s)
        if level > edge:
            self._cone((at, level), (low, high), edge)
            canvas.line("fit", [(at, level), (self._x(full_s), edge)], _FIT_DASH)
        row = canvas.row_of(top)
        first = canvas.column_of(low)
        last = canvas.columns if high is None else canvas.column_of(high) + 1
        if high is not None:
            canvas.under(first, row, ("#" if canvas.ascii else "━") * (last - first), "band")
        room = canvas.columns - len(self._words(limit_bytes)) - 3
        words = next(
            (words for words in limit_texts(forecast, self._picture.now_s) if len(words) <= room),
            "",
        )
        if row > 0:  # in the line itself it would be in the way
            canvas.write(canvas.columns - len(words) - 1, row - 1, words, "ink")
        if full_s <= frame.end_s:
            canvas.write(
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
            pattern = CHECKED
            if high is None:
                share = (x - at) / max(canvas.wide - at, 1.0)
                pattern = _FADES[min(int(share * len(_FADES)), len(_FADES) - 1)]
            canvas.fill("band", x, upper, lower, pattern)


def sparkline(picture: Picture, width: int, *, ascii_only: bool) -> tuple[str, str] | None:
    """Return the curve as one line, and from where to where it goes; None where nothing is known.

    The scale spans at least a fiftieth of the limit.
    """
    known = [value for value in picture.curve.used_bytes if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    spread = max(high - low, 0.02 * (picture.limit_bytes or high or 1.0))
    line = units.spark(
        _highest(picture, width),
        low=max(0.0, high - spread),
        high=max(high, spread),
        ascii_only=ascii_only,
    )
    return line, f"{units.size(low)} to {units.size(high)}"


def _highest(picture: Picture, count: int) -> list[float | None]:
    """Return the highest value of so many equal parts of the time; None where none is known."""
    curve = picture.curve
    step_s = max(picture.end_s - picture.begin_s, 1.0) / count
    highest: list[float | None] = [None] * count
    for at_s, value in zip(curve.at_s, curve.high_bytes, strict=True):
        if value is not None:
            # A point of a roll-up stands for more than its middle.
            first = int((at_s - curve.width_s / 2 - picture.begin_s) / step_s)
            last = int((at_s + curve.width_s / 2 - picture.begin_s) / step_s - 1e-6)
            for cell in range(max(0, first), min(count - 1, last) + 1):
                highest[cell] = max(value, highest[cell] or value)
    return highest
