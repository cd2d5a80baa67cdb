"""A widget of rows: only those that have changed are painted again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import Region
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.strip import Strip

    from gpuwatchd.tui.paint import Painter, Row


class Lines(Widget):
    """Rows of cells, painted with no more than they need."""

    DEFAULT_CSS = "Lines { width: 1fr; height: 1fr; }"

    def __init__(self, painter: Painter) -> None:
        super().__init__()
        self._painter = painter
        self._rows: list[Row] = []
        self._strips: list[Strip] = []
        self._wide = 0

    def put(self, rows: Sequence[Row]) -> int:
        """Show these rows from the top; return how many of them are painted anew."""
        width = self.size.width
        if width != self._wide:
            self._wide, self._rows, self._strips = width, [], []
        changed = []
        strips: list[Strip] = []
        for y, row in enumerate(rows):
            if y < len(self._rows) and self._rows[y] == row:
                strips.append(self._strips[y])
                continue
            changed.append(y)
            strips.append(self._painter.strip(row, width))
        changed += range(len(rows), len(self._rows))
        self._rows, self._strips = list(rows), strips
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))
        return len(changed)

    def render_line(self, y: int) -> Strip:
        """Return the strip of one row."""
        if y < len(self._strips):
            return self._strips[y]
        return self._painter.strip((), self.size.width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the strips of a region, without the detour over borders that are not there."""
        strips = [self.render_line(y) for y in crop.line_range]
        if crop.column_span == (0, self.size.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]
