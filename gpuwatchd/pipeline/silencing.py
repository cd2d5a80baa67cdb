"""Silences in force: read anew when another program has written, over when their time is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwatchd.model import Silence
    from gpuwatchd.store.profiles import Shelf


class Silencing:
    """What the user does not want to hear of.

    Parameters
    ----------
    shelf
        Says when another program has written; None: there are no silences.
    """

    def __init__(self, shelf: Shelf | None) -> None:
        self._shelf = shelf
        self.active: tuple[Silence, ...] = ()
        """Those in force, as of the last look."""

    def look(self, now_s: float) -> None:
        """Read again what has changed, and drop what is over; some microseconds otherwise."""
