"""``z``: idle memory, and what would free it, as ``zombies`` tells."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.core import units
from gpuwatchd.tui.base import PagedScreen, Settled
from gpuwatchd.view.queries import direct_holdings
from gpuwatchd.view.text import idle_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.queries.direct_holdings import UnlistedOpeners
    from gpuwatchd.view.query import Query


class IdleMemoryView(NamedTuple):
    """What one look found."""

    view: View
    loose: UnlistedOpeners
    query: Query


def read(query: Query) -> IdleMemoryView:
    """Look once. Runs in a thread."""
    settled = Settled(query)
    return IdleMemoryView(*direct_holdings.idle_memory(settled), settled)


class HeldScreen(PagedScreen):
    """Dead owners, ghosts, idle holders, hung ranks: who, since when, what it costs, what to do."""

    name_shown = "Idle memory"

    def job(self) -> Callable[[], IdleMemoryView]:
        """Return what looks."""
        return partial(read, self.top.query_asked)

    def subject(self) -> Iterable[Part]:
        """Return how much it is, by the live state, until the whole story is read."""
        holdings = () if self.view is None else self.view.holdings
        known = [holding.held_bytes for holding in holdings if holding.held_bytes is not None]
        count = len(holdings)
        if not count:
            yield "no idle memory, as far as is known", "calm"
            return
        least = "at least " if len(known) < count else ""
        yield (
            f"{count} holding{'s' if count > 1 else ''}, {least}{units.size(sum(known))}",
            "held bold",
        )
        yield "no process is ever signalled", "faint"

    def answered(self, held: IdleMemoryView) -> None:
        """Show what was found."""
        self.page.write(partial(_show, held))


def _show(held: IdleMemoryView, page: Page) -> None:
    page.verbose = True
    idle_memory.show(page, held.query, held.view, held.loose)
