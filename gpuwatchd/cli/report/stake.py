"""The order of what is at stake: dollars decide only where the prices of all are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_T = TypeVar("_T")


class Stake(NamedTuple):
    """What one thing is ranked by."""

    level: tuple[int, ...]
    """Lower is first; only things of one level compete."""
    usd: float | None
    """At stake; None is unknown, which is not nothing."""
    left_s: float | None
    """Until memory is full; None is never, or unknown."""
    rest: tuple[float | str, ...]
    """Breaks ties."""


def ranked(things: Iterable[_T], of: Callable[[_T], Stake]) -> list[_T]:
    """Return things by level, then by dollars, then by the time left.

    Where a price of a level is unknown the time left comes first: what costs nobody knows what
    must not stand below a dollar that is due hours later.
    """
    pairs = [(of(thing), thing) for thing in things]
    unpriced = {stake.level for stake, _ in pairs if stake.usd is None}

    def place(stake: Stake) -> tuple[object, ...]:
        left_s = float("inf") if stake.left_s is None else stake.left_s
        dear = -(stake.usd or 0.0)
        by = (left_s, 0.0) if stake.level in unpriced else (dear, left_s)
        return (stake.level, by, stake.rest, dear)

    return [one for _, one in sorted(pairs, key=lambda pair: place(pair[0]))]
