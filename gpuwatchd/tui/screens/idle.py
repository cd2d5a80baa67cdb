"""``z``: idle memory, and what would free it, as ``zombies`` tells."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from gpuwatchd.core import units
from gpuwatchd.tui.base import PagedScreen, Settled
from gpuwatchd.tui.screens.reap import ReapScreen
from gpuwatchd.view.queries import direct_holdings
from gpuwatchd.view.text import idle_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.tui.base import Keys
    from gpuwatchd.tui.widgets.texts import Written
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners
    from gpuwatchd.view.query import Query


class HeldScreen(PagedScreen):
    """Dead owners, ghosts, idle holders, hung ranks: who, since when, what it costs, what to do."""

    name_shown = "Idle memory"
    own_keys: ClassVar[Keys] = (*PagedScreen.own_keys, ("x", "free"))
    BINDINGS: ClassVar[list[BindingType]] = [Binding("x", "free", show=False)]

    def job(self) -> Callable[[], Written]:
        """Return what looks, and gives what writes it."""
        query = self.shared.query

        def read() -> Written:
            settled = Settled(query)
            view, loose = direct_holdings.idle_memory(settled)
            return partial(_show, settled, view, loose)

        return read

    def subject(self) -> Iterable[Part]:
        """Return how much it is, by the live state, until the whole story is read."""
        holdings = () if self.view is None else self.view.holdings
        known = [holding.held_bytes for holding in holdings if holding.held_bytes is not None]
        count = len(holdings)
        if not count:
            yield "no idle memory, as far as is known", "calm"
            return
        least = "at least " if len(known) < count else ""
        yield f"{units.count(count, 'holding')}, {least}{units.size(sum(known))}", "held bold"
        yield "x ends one of yours, after a question", "faint"

    def action_free(self) -> None:
        """Ask whether one of the user's own is to be ended."""
        self.app.push_screen(ReapScreen(listed_first=True))

    def answered(self, written: Written) -> None:
        """Show what was found."""
        self.page.write(written)


def _show(query: Query, view: View, loose: UnlistedOpeners, page: Page) -> None:
    page.verbose = True
    idle_memory.show(page, query, view, loose)
