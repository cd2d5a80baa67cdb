"""Rows of a screen: only those that have changed are painted again.

Painted by us, not by textual's DataTable: with 8 GPUs x 64 processes once a second, the screen with
a DataTable of the processes took a core 1 % more, of the GPUs in ten columns 1.7 % more; it renders
each visible cell anew when one changes (textual 8.2.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import Region
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.strip import Strip

    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Row


class Lines(Widget):
    """Rows of texts with their styles, painted with no more than they need."""

    DEFAULT_CSS = "Lines { width: 1fr; height: 1fr; } Lines.line { height: 1; }"

    def __init__(
        self,
        painter: Painter,
        *,
        id: str | None = None,  # noqa: A002 - textual's
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
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

    @property
    def text(self) -> str:
        """What is shown, without its looks."""
        return "\n".join(strip.text for strip in self._strips)

    def render_line(self, y: int) -> Strip:
        """Return the strip of one row."""
        if y < len(self._strips):
            return self._strips[y]
        return self._painter.strip([], self.size.width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the strips of a region, without the detour over borders that are not there."""
        strips = [self.render_line(y) for y in crop.line_range]
        if crop.column_span == (0, self.size.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]
