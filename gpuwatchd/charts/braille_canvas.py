"""Dots in the cells of a terminal: Braille, or plain characters where there is nothing better.

Every part of a chart is a layer. A cell shows the dots of its uppermost layer, so that it has one
colour; columns of dots are the bits of whole numbers, which makes a screen a matter of a
millisecond.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

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
