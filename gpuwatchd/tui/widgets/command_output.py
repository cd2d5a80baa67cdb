"""What a verb would print, on the live screen: the same words, laid out for the width at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuwatchd.view import blocks
from gpuwatchd.view.blocks import Page
from gpuwatchd.view.query import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events

    from gpuwatchd.core.config import Loaded
    from gpuwatchd.tui.strips import Cell, Painter, Row

    Written = Callable[[Page], None]
    """Something that a verb can print: it writes itself onto an :class:`Out`."""


class Paragraph(NamedTuple):
    """Something to be written, and whether it can be chosen."""

    write: Written
    choice: int | None = None
    """Which of the things that can be chosen it tells of."""


class Pages(ScrollView, can_focus=False):
    """Rows of text that scroll; some of them may be chosen.

    What is written is kept, so that another width lays it out anew without asking for anything.
    """

    DEFAULT_CSS = """
    Pages { height: 1fr; scrollbar-size: 0 0; }
    """

    def __init__(self, painter: Painter, *, id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(id=id)
        self._painter = painter
        self._written: tuple[Paragraph, ...] = ()
        self._rows: list[Row] = []
        self._choices: list[int | None] = []
        self._laid_for = 0
        self.chosen: int | None = None

    def write(self, *written: Written) -> None:
        """Show this instead; where it is scrolled to stays."""
        self.put([Paragraph(one) for one in written])

    def put(self, paragraphs: Sequence[Paragraph]) -> None:
        """Show this instead, some of it to be chosen."""
        self._written = tuple(paragraphs)
        self._lay()

    def choose(self, choice: int | None) -> None:
        """Mark one of the things that can be chosen, and bring it into view."""
        self.chosen = choice
        rows = [at for at, one in enumerate(self._choices) if one == choice]
        if choice is not None and rows:
            top, height = self.scroll_offset.y, max(1, self.scrollable_content_region.height)
            if rows[0] < top:
                self.scroll_to(y=rows[0], animate=False)
            elif rows[-1] >= top + height:
                self.scroll_to(y=min(rows[0], rows[-1] - height + 1), animate=False)
        self.refresh()

    def choice_at(self, y: int) -> int | None:
        """Return what is told of in a row of the screen, counted from the top of this."""
        at = y + self.scroll_offset.y
        return self._choices[at] if 0 <= at < len(self._choices) else None

    def clicked(self, event: events.Click) -> int | None:
        """Return what is told of in the row that was clicked; None beside this."""
        return self.choice_at(event.screen_y - self.region.y) if event.widget is self else None

    @property
    def text(self) -> str:
        """Everything that is written, without its looks."""
        return "\n".join("".join(words for words, _ in row).rstrip() for row in self._rows)

    def on_resize(self) -> None:
        """Lay out anew for another width."""
        if self.scrollable_content_region.width != self._laid_for:
            self._lay()

    def render_line(self, y: int) -> Strip:
        """Return one row of the screen."""
        at = y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        row: Row = self._rows[at] if at < len(self._rows) else []
        ground = ""
        if at < len(self._rows) and self.chosen is not None and self._choices[at] == self.chosen:
            row, ground = [(words, f"{part} chosen") for words, part in row], "chosen"
        strip = self._painter.strip(row, width - 1, ground=ground)
        return Strip.join([strip, self._painter.strip([self._edge(y)], 1)])

    def _edge(self, y: int) -> Cell:
        """Return the last cell of a row: where what is seen lies in all that there is."""
        height, count = self.scrollable_content_region.height, len(self._rows)
        if count <= height or height < 1:
            return " ", ""
        long = max(1, round(height * height / count))
        at = round(self.scroll_offset.y / max(1, count - height) * (height - long))
        thumb = at <= y < at + long
        if self._painter.ascii:
            return ("#" if thumb else "|"), "faint"
        return ("┃" if thumb else "│"), "faint" if thumb else "grid"

    def _lay(self) -> None:
        width = self.scrollable_content_region.width
        if width <= 1:
            return
        self._laid_for = width
        laid: list[Row] = []
        choices: list[int | None] = []
        for paragraph in self._written:
            page = Page(max(20, width - 1), ascii_only=self._painter.ascii, terminal=True)
            paragraph.write(page)
            rows = page.rows()
            laid += rows
            choices += [paragraph.choice] * len(rows)
        changed = laid != self._rows
        self._rows, self._choices = laid, choices
        size = Size(width, len(laid))
        if size != self.virtual_size:
            self.virtual_size = size
        if changed:
            self.refresh()


def sentence(words: str, style: str = "") -> Written:
    """Return what writes one sentence, broken between its words."""
    return lambda out: out.flow(blocks.sentence(words, style), rest="  ", gap=" ")


def blank(out: Page) -> None:
    """Write an empty line."""
    out.line("")


class Settled(Query):
    """A query with the configuration that was in force when it was read."""

    __slots__ = ("_loaded",)

    def __init__(self, query: Query) -> None:
        super().__init__(config=query.config, gpu=query.gpu, user=query.user)
        self._loaded = query.load_config()

    def load_config(self) -> Loaded:
        """Return the configuration without reading it again."""
        return self._loaded
