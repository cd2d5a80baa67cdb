"""A view that is one page of text to be scrolled through."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from gpuwatchd.tui.views import ViewScreen
from gpuwatchd.tui.widgets.sheet import Pages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

SCROLLING: list[BindingType] = [
    Binding("up,k", "scroll(-1)", show=False),
    Binding("down,j", "scroll(1)", show=False),
    Binding("pageup,b", "scroll_page(-1)", show=False),
    Binding("pagedown,space", "scroll_page(1)", show=False),
    Binding("home", "scroll_to(0)", show=False),
    Binding("end,G", "scroll_to(1)", show=False),
]


class PagedScreen(ViewScreen):
    """One :class:`~gpuwatchd.tui.widgets.sheet.Pages`, with the id "text"."""

    own_keys: ClassVar[tuple[tuple[str, str], ...]] = (("↑↓", "scroll"),)
    BINDINGS: ClassVar[list[BindingType]] = SCROLLING

    def parts(self) -> Iterable[Widget]:
        """Return the page."""
        yield Pages(self.flags, self.painter, id="text")

    @property
    def page(self) -> Pages:
        """The page."""
        return self.query_one("#text", Pages)

    def action_scroll(self, rows: int) -> None:
        """Scroll by rows."""
        self.page.scroll_relative(y=rows, animate=False)

    def action_scroll_page(self, pages: int) -> None:
        """Scroll by what is seen at once, less a row."""
        height = max(1, self.page.size.height - 1)
        self.page.scroll_relative(y=pages * height, animate=False)

    def action_scroll_to(self, end: int) -> None:
        """Scroll to the first row, or to the last."""
        if end:
            self.page.scroll_end(animate=False)
        else:
            self.page.scroll_home(animate=False)
