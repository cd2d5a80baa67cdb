"""Bars, sparklines and scroll bars, with and without Unicode."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.scrollbar import ScrollBarRender

from gpuwatchd import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.tui.paint import Row

_EIGHTHS = " ▏▎▍▌▋▊▉"
_MIN_SPAN = 0.02
"""Noise must not look like a mountain: a sparkline spans at least this share of the device."""


class PlainScrollBar(ScrollBarRender):
    """A scroll bar without characters of its own: its colours are enough."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


def bar(share: float | None, cells: int, parts: str, *, ascii_only: bool) -> Row:
    """Return a bar of the used share, exact to an eighth of a cell; dots where it is unknown.

    Examples
    --------
    >>> bar(0.5, 6, "calm", ascii_only=True)
    [('[', 'faint'), ('##', 'calm'), ('--', 'grid'), (']', 'faint')]
    >>> bar(0.3, 4, "calm", ascii_only=False)
    [('█▎', 'calm bar'), ('  ', 'calm bar')]
    """
    if cells < 3:
        return []
    if ascii_only:
        inner = cells - 2
        full = 0 if share is None else min(inner, max(0, round(share * inner)))
        rest = ("-" if share is not None else "?") * (inner - full)
        return [("[", "faint"), ("#" * full, parts), (rest, "grid"), ("]", "faint")]
    if share is None:
        return [("?" + " " * (cells - 1), "faint bar")]
    eighths = min(cells * 8, max(0, round(share * cells * 8)))
    full, part = divmod(eighths, 8)
    told = "█" * full + (_EIGHTHS[part] if part else "")
    return [(told, f"{parts} bar"), (" " * (cells - len(told)), f"{parts} bar")]


def spark(
    values: Sequence[int | None], total: float | None, points: int, *, ascii_only: bool
) -> str:
    """Return the newest ``points`` values as a sparkline, right-aligned.

    Examples
    --------
    >>> spark([0, 50, None, 100], 100, 5, ascii_only=True)
    ' _= #'
    """
    shown: list[float | None] = list(values[-points:]) if points > 0 else []
    known = [value for value in shown if value is not None]
    if len(known) < 2:
        return " " * max(0, points)
    low, high = min(known), max(known)
    least = _MIN_SPAN * (total or high or 1)
    if high - low < least:
        low, high = max(0.0, low - least / 2), high + least / 2
    return units.spark(shown, low=low, high=high, ascii_only=ascii_only).rjust(points)
