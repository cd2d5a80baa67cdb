"""Bars, sparklines and scroll bars, with and without Unicode."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.scrollbar import ScrollBarRender

from gpuwatchd.cli import cards
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.tui.paint import Row


class PlainScrollBar(ScrollBarRender):
    """A scroll bar without characters of its own: its colours are enough."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


def figured(
    share: float | None, cells: int, value: str, parts: str, *, ascii_only: bool, flat: bool
) -> Row:
    """Return a bar of the used share with the figures written on it.

    Parameters
    ----------
    said
        The figures; where they are too long, what fits of them.
    parts
        Colour of the full part.
    ascii_only
        Signs behind the figures show how full it is, where nothing can be reversed.
    flat
        The terminal has few colours: the full part is reversed, and in brackets.

    Examples
    --------
    >>> figured(0.5, 12, "12/16", "calm", ascii_only=True, flat=True)
    [('[', 'faint'), ('12/16', 'calm reverse'), ('-----', ''), (']', 'faint')]
    >>> figured(0.7, 10, "12/16", "calm", ascii_only=False, flat=False)
    [('12/16  ', 'calm filled'), ('   ', 'empty')]
    """
    inner = cells - 2 if flat else cells
    if inner < 1:
        return []
    value = value[:inner]
    full = 0 if share is None else min(inner, max(0, round(share * inner)))
    if ascii_only:
        value += "#" * max(0, full - len(value))
    text = value.ljust(inner, "-" if ascii_only and share is not None else " ")
    if flat:
        return [
            ("[", "faint"), (text[:full], f"{parts} reverse"), (text[full:], ""), ("]", "faint")
        ]  # fmt: skip
    return [(text[:full], f"{parts} filled"), (text[full:], "empty")]


def spark(
    values: Sequence[int | None], total: float | None, points: int, *, ascii_only: bool
) -> str:
    """Return the values as a sparkline of ``points`` columns; the newest one is the last.

    Examples
    --------
    >>> spark([0, 50, None, 100], 100, 5, ascii_only=True)
    ' _= #'
    """
    if points < 1:
        return ""
    every = max(1, -(-len(values) // points))
    shown: list[float | None] = list(values[::-1][::every][::-1])
    known = [value for value in shown if value is not None]
    if len(known) < 2:
        return " " * points
    low, high = cards.spark_scale(known, total)
    return units.spark(shown, low=low, high=high, ascii_only=ascii_only).rjust(points)
