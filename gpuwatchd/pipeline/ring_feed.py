"""Feeds the rings of one device: what stands still costs one entry of a clock for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.store.ring import Ring

CLOCK_TICKS = 64
"""What stands still is brought up to date at least this often."""


class Feeder:
    """Gives every ring its value at every look, and touches only those whose value changed.

    The others follow a clock: they take its times in when somebody looks at them.
    """

    __slots__ = ("_clock", "_fed")

    def __init__(self) -> None:
        self._clock: list[float] = []
        self._fed: dict[Ring, float] = {}
        """What each got at the last look."""

    def again(self, now_s: float) -> None:
        """Give every ring what it got at the last look."""
        clock = self._clock
        if len(clock) >= CLOCK_TICKS:
            clock = self._clock = []
            for ring in self._fed:
                ring.follow(clock)
        clock.append(now_s)

    def feed(self, now_s: float, values: Sequence[tuple[Ring, float]]) -> None:
        """Give each of these rings its value; nobody else gets anything at this look.

        Parameters
        ----------
        now_s
            The time of the look, epoch seconds.
        values
            (ring, bytes); of a ring that is there twice the first counts.
        """
        before, fed = self._fed, dict(reversed(values))
        for ring in before.keys() - fed.keys():
            ring.leave()
        changed = [ring for ring, value in fed.items() if before.get(ring) != value]
        for ring in changed:
            ring.add(now_s, fed[ring])
        self._fed = fed
        self.again(now_s)
        for ring in changed:
            ring.follow(self._clock)
