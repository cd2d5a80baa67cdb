"""Blocks on the live screen: a text that scrolls, and a list to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.segment import Segment, Segments
from rich.style import Style
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.scrollbar import ScrollBarRender
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from gpuwatchd.view.blocks import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.strip import Strip

    from gpuwatchd.tui.theme import Painter
    from gpuwatchd.view.blocks import Row

    Written = Callable[[Page], None]
    """Something that adds its blocks to a page."""

_NARROWEST = 20


class Paragraph(NamedTuple):
    """Something to be written, and whether it can be chosen."""

    write: Written
    choice: int | None = None
    """Which of the things that can be chosen it tells of."""


class ThinScrollBar(ScrollBarRender):
    """A scroll bar of one column, seen without colours, and where there is no Unicode."""

    SIGNS: ClassVar[tuple[str, str]] = ("┃", "│")
    STYLES: ClassVar[tuple[Style, Style]] = (Style(), Style())

    @classmethod
    def use(cls, painter: Painter) -> type[ThinScrollBar]:
        """Return what draws it on a terminal."""
        styles = painter.style("faint"), painter.style("faint" if painter.ascii else "grid")
        signs = ("#", "|") if painter.ascii else cls.SIGNS
        return type("PaintedScrollBar", (cls,), {"SIGNS": signs, "STYLES": styles})

    @classmethod
    def render_bar(  # type: ignore[override]
        cls, size: int = 25, virtual_size: float = 50, window_size: float = 20,
        position: float = 0, **_: object,
    ) -> Segments:  # fmt: skip
        """Return the bar: where what is seen lies in all that there is."""
        rows = []
        long = max(1, round(size * window_size / max(1, virtual_size)))
        at = round(position / max(1, virtual_size - window_size) * (size - long))
        for y in range(size):
            thumb = at <= y < at + long
            action = "grab" if thumb else "scroll_up" if y < at else "scroll_down"
            style = cls.STYLES[not thumb] + Style(meta={"@mouse.down": action})
            rows.append(Segment(cls.SIGNS[not thumb], style))
        return Segments(rows, new_lines=True)


def _laid(painter: Painter, write: Written, width: int) -> list[Row]:
    page = Page(max(_NARROWEST, width), ascii_only=painter.ascii, terminal=True)
    write(page)
    return [painter.cut(row, page.width) for row in page.rows()]


class TextPage(VerticalScroll, can_focus=False):
    """A text that scrolls; another width lays it out anew without asking for anything."""

    DEFAULT_CSS = """
    TextPage {
        height: 1fr; overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1;
    }
    TextPage > Static { text-wrap: nowrap; }
    """

    def __init__(self, painter: Painter, *, id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(id=id)
        self._painter = painter
        self._written: tuple[Written, ...] = ()
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        """Build the text inside."""
        yield Static()

    def write(self, *written: Written) -> None:
        """Show this instead; where it is scrolled to stays."""
        self._written = written
        self._lay()

    @property
    def text(self) -> str:
        """Everything that is written, without its looks."""
        return "\n".join("".join(words for words, _ in row).rstrip() for row in self._rows)

    def on_resize(self) -> None:
        """Lay out anew for another width."""
        self._lay()

    def _lay(self) -> None:
        width = self.scrollable_content_region.width
        if width < 1:
            return
        rows = [row for write in self._written for row in _laid(self._painter, write, width)]
        if rows != self._rows:
            self._rows = rows
            self.query_one(Static).update(self._painter.text(rows))


class Choices(OptionList, can_focus=False):
    """Paragraphs, some of which can be chosen, by the screen's keys or a click."""

    DEFAULT_CSS = """
    Choices, Choices:focus {
        height: 1fr; border: none; padding: 0; background: transparent;
        overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1;
        & > .option-list--option { padding: 0; }
        & > .option-list--option-disabled { color: $foreground; }
        & > .option-list--option-hover { background: transparent; }
        & > .option-list--option-highlighted {
            color: $foreground; background: #2b4263; text-style: none;
        }
    }
    """

    def __init__(self, painter: Painter, *, id: str | None = None) -> None:  # noqa: A002 - textual's
        super().__init__(id=id, markup=False)
        self._painter = painter
        self._paragraphs: tuple[Paragraph, ...] = ()
        self._texts: list[tuple[list[Row], int | None]] = []

    def put(self, paragraphs: Iterable[Paragraph], chosen: int | None = None) -> None:
        """Show these instead, one of them chosen; where the list is scrolled to stays."""
        self._paragraphs = tuple(paragraphs)
        self._lay(chosen)

    def on_resize(self) -> None:
        """Lay out anew for another width."""
        self._lay(self.chosen)

    @property
    def chosen(self) -> int | None:
        """The choice that is marked."""
        return None if self.highlighted is None else self._texts[self.highlighted][1]

    def clicked(self, event: events.Click) -> int | None:
        """Return what can be chosen where somebody clicked."""
        at = event.style.meta.get("option")
        return None if at is None else self._texts[at][1]

    def move(self, by: int) -> None:
        """Mark another of those that can be chosen, within what there is."""
        choices = [at for at, (_, choice) in enumerate(self._texts) if choice is not None]
        if choices:
            at = choices.index(self.highlighted) + by if self.highlighted in choices else 0
            self.highlighted = choices[min(max(at, 0), len(choices) - 1)]

    def _lay(self, chosen: int | None) -> None:
        width = self.scrollable_content_region.width
        if width < 1:
            return
        texts = [
            (_laid(self._painter, paragraph.write, width), paragraph.choice)
            for paragraph in self._paragraphs
        ]
        if texts != self._texts:
            y = self.scroll_offset.y
            self.set_options(
                Option(self._painter.text(rows), disabled=choice is None) for rows, choice in texts
            )
            self._texts = texts
            self.scroll_to(y=y, animate=False, immediate=True)
        at = next((at for at, (_, choice) in enumerate(texts) if choice == chosen), None)
        if at != self.highlighted:
            self.highlighted = at if chosen is not None else None


def sentence(words: str, style: str = "") -> Written:
    """Return what writes one sentence, broken between its words."""
    return lambda out: out.prose(words, style, rest="  ")


def blank(out: Page) -> None:
    """Write an empty line."""
    out.line("")


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
