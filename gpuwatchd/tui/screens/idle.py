"""``z``: memory that is held without work, and what would free it, as ``zombies`` tells."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.cli.verbs import zombies
from gpuwatchd.core import units
from gpuwatchd.tui.views import PagedScreen
from gpuwatchd.tui.widgets.sheet import Settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.cli.current_state import View
    from gpuwatchd.cli.direct_holdings import Loose
    from gpuwatchd.cli.flags import Globals


class Held(NamedTuple):
    """What one look found."""

    view: View
    loose: Loose
    flags: Settled


def read(flags: Globals) -> Held:
    """Look once. Runs in a thread."""
    settled = Settled(flags, verbose=True)
    view = zombies.idle_view(settled)
    return Held(view, zombies.openers(settled, view), settled)


class HeldScreen(PagedScreen):
    """Dead owners, ghosts, idle holders, hung ranks: who, since when, what it costs, what to do."""

    name_shown = "Held without work"

    def job(self) -> Callable[[], Held]:
        """Return what looks."""
        return partial(read, self.flags)

    def redrawn(self) -> None:
        """Say what the live state says, until the whole story is read."""
        self.retitled()

    def retitled(self) -> None:
        """Say how much it is."""
        holdings = () if self.view is None else self.view.holdings
        known = [holding.held_bytes for holding in holdings if holding.held_bytes is not None]
        count = len(holdings)
        if not count:
            self.headline(("nothing is held without work, as far as is known", "calm"))
            return
        least = "at least " if len(known) < count else ""
        text = f"{count} holding{'s' if count > 1 else ''}, {least}{units.size(sum(known))}"
        self.headline((text, "held bold"), ("nothing is ever signalled", "faint"))

    def answered(self, held: Held) -> None:
        """Show what was found."""
        self.page.write(partial(zombies.show, flags=held.flags, view=held.view, loose=held.loose))
