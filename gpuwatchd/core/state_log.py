"""Which changes of state are worth a line in the log: each at once, but not to and fro for ever."""

from __future__ import annotations

import re
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LINES: Final = 6
"""So many changes of one thing are logged within :data:`PER_S`."""
PER_S: Final = 3600.0
_MOST_KEYS: Final = 8192


_FIGURES: Final = re.compile(r"\d+")


def masked(line: str) -> str:
    """Return a line for the log without its figures: where only they change, it is no news."""
    return _FIGURES.sub("#", line)


class Change(NamedTuple):
    """A change that is to be logged now."""

    was: str | None
    """The state that was logged last; None: nothing was."""
    after_s: float
    """For how long that has been so in the log, in seconds."""
    unlogged: int
    """How many changes between the two were left out."""

    @property
    def fields(self) -> str:
        """What a line ends with: how long the old state lasted, and what was left out."""
        left_out = f" unlogged={self.unlogged}" if self.unlogged else ""
        return ("" if self.was is None else f" after_s={self.after_s:.0f}") + left_out


class StateLog:
    """Remembers of each thing what was logged of it.

    What changes too often is logged again as soon as there is room, with the state that it then
    has: the newest line in the log is wrong for a while, never for good. For that the present state
    must be given again and again.
    """

    def __init__(self, mono: Callable[[], float] = time.monotonic) -> None:
        self._mono = mono
        self._things: dict[str, _Thing] = {}

    def change(self, key: str, state: str, *, first: str | None = None) -> Change | None:
        """Return the change of a thing where it is to be logged now; None in all other cases.

        It counts as having been ``first`` before anything was known of it.
        """
        thing = self._things.get(key)
        if thing is None:
            if state == first:
                return None
            if len(self._things) >= _MOST_KEYS:
                del self._things[next(iter(self._things))]
            thing = self._things[key] = _Thing(first)
        if state != thing.seen:
            thing.seen = state
            thing.turns += 1
        if state == thing.logged:
            return None
        now_s = self._mono()
        if len(thing.lines_s) == MOST_LINES and now_s - thing.lines_s[0] < PER_S:
            return None
        since_s = thing.lines_s[-1] if thing.lines_s else now_s
        found = Change(thing.logged, now_s - since_s, thing.turns - 1)
        thing.logged, thing.turns = state, 0
        thing.lines_s.append(now_s)
        return found

    def logged(self, key: str) -> str | None:
        """Return the state of a thing that was logged last."""
        thing = self._things.get(key)
        return None if thing is None else thing.logged


class _Thing:
    """What is known of one thing."""

    def __init__(self, first: str | None) -> None:
        self.logged = self.seen = first
        self.turns = 0
        """Changes since the newest line."""
        self.lines_s: deque[float] = deque(maxlen=MOST_LINES)
