"""``python -m tests.campaign``: what must never happen, tried very often; see ``__main__``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Figures = dict[str, float]


class Part(NamedTuple):
    """One thing that is tried."""

    run: Callable[[int, int], Figures]
    """Takes how often, and the seed; raises AssertionError with figures that must not be."""
    full: int
    short: int
    """How often, in the short form."""


def require(figures: Figures, **wanted: float) -> Figures:
    """Return figures of which some must be just so; raise AssertionError where they are not."""
    wrong = {name: value for name, value in wanted.items() if figures[name] != value}
    if wrong:
        raise AssertionError(f"{line(figures)}; must be {line(wrong)}")
    return figures


def line(figures: Mapping[str, float]) -> str:
    """Return figures as they are printed."""
    return ", ".join(f"{name} {value:,g}" for name, value in figures.items())
