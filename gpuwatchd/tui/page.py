"""A whole screen of rows: what every screen of ``top`` has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.strip import Strip

    from gpuwatchd.tui.app import TopApp
    from gpuwatchd.tui.strips import Painter, Row


class Page(Screen[None]):
    """One screen: a head row, the body, and a row of keys.

    A subclass gives its ``name_shown``, its ``keys``, :meth:`draw`, and ``key_X`` methods or
    ``BINDINGS`` as textual has them; it calls :meth:`draw` after everything that changes it.
    """

    name_shown: ClassVar[str] = ""
    """In the head row."""
    keys: ClassVar[tuple[tuple[str, str], ...]] = (("Esc", "back"), ("?", "help"), ("q", "quit"))
    """(key, what it does), the most needed first: as many as there is room for are shown."""

    @property
    def top(self) -> TopApp:
        """The program."""
        from gpuwatchd.tui.app import TopApp  # noqa: PLC0415 - it knows the pages

        return cast("TopApp", self.app) if not isinstance(self.app, TopApp) else self.app

    @property
    def painter(self) -> Painter:
        """What the terminal can show."""
        return self.top.painter

    def on_mount(self) -> None:
        """Show what is known."""
        self.call_after_refresh(self.draw)

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002
        """Lay everything out anew."""
        self.call_after_refresh(self.draw)

    def on_screen_resume(self) -> None:
        """Show what came in while another screen lay above."""
        self.draw()

    def draw(self) -> None:
        """Paint what has changed."""


# A widget of rows: only those that have changed are painted again.


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
