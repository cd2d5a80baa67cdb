"""Cells of text to strips of a terminal: the one place where a part of the screen gets its colour.

A cell is a text and its parts: words with a space between them. One says what it is, and with that
its colour (a :data:`~gpuwatchd.core.design.Kind`, a key of :data:`~gpuwatchd.core.design.PARTS`, or
a style of ``gpuwatchctl``); the others how it is written: ``badge`` (black on the colour of the
kind),
``bold``, ``underline``, ``reverse``, ``head`` (of a panel), ``bar`` (the first and last row),
``chosen`` (the row under the cursor), ``cursor`` (a place in a chart), ``filled`` and ``empty``
(parts of a bar with text on it).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gpuwatchd.core import design
from gpuwatchd.view import blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Cell = tuple[str, str]
"""Text, and its parts."""
Row = list[Cell]

Depth = Literal["true", "256", "16", "none"]
"""How many colours a terminal has."""

_CHOSEN: Final = "#2b4263"
_CURSOR: Final = "#4b5a70"
_NO_COLOURS: Final = ("dumb", "vt100", "vt102", "vt220", "vt320")
_MANY: Final = ("256", "kitty", "alacritty", "ghostty", "wezterm", "foot")
_FEW: Final[dict[str, str]] = {
    "faint": "bright_black", "grid": "bright_black", "curve": "cyan", "range": "blue",
    "floor": "green", "band": "yellow", "limit": "red", "now": "bright_black",
    "gap": "bright_black", "red-bold": "bold red", "red": "red", "yellow-bold": "bold yellow",
    "yellow": "yellow", "green": "green", "dim": "bright_black", "cyan": "cyan",
}  # fmt: skip
"""Of parts, where a terminal has sixteen colours of its own; the others are as its text is."""
_MEANT: Final[dict[str, str]] = {
    "red-bold": "critical", "red": "critical", "yellow-bold": "leak", "yellow": "leak",
    "green": "calm", "dim": "faint", "cyan": "curve",
}  # fmt: skip
"""Styles of ``gpuwatchctl``, where there are more."""
_FEW_BADGES: Final[dict[str, str]] = {
    "critical": "bold white on red",
    "leak": "black on yellow",
    "trouble": "black on magenta",
    "held": "black on cyan",
}


def depth(flag: str, environ: Mapping[str, str]) -> Depth:
    """Return how many colours to use, by ``--color`` and the environment.

    Examples
    --------
    >>> depth("auto", {"TERM": "xterm-256color", "COLORTERM": "truecolor"})
    'true'
    >>> depth("auto", {"TERM": "xterm-256color", "NO_COLOR": "1"}), depth("auto", {"TERM": "vt100"})
    ('none', 'none')
    >>> depth("always", {"TERM": "linux", "NO_COLOR": "1"})
    '16'
    """
    term = environ.get("TERM", "")
    if not blocks.use_colour(flag, environ, terminal=True):
        return "none"
    if flag == "auto" and (term.startswith(_NO_COLOURS) or term.endswith("-m")):
        return "none"
    if environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        return "true"
    return "256" if any(word in term for word in _MANY) else "16"


class Painter:
    """What one terminal can show.

    Parameters
    ----------
    color
        "auto", "always" or "never".
    ascii_only
        Whether nothing but ASCII can be shown.
    environ
        By default the environment of the process.
    """

    def __init__(
        self,
        color: str = "auto",
        *,
        ascii_only: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.depth: Depth = depth(color, os.environ if environ is None else environ)
        self._page = blocks.Page(ascii_only=ascii_only)
        self.ascii = ascii_only
        self._styles: dict[str, Style] = {}
        self._grounded: dict[str, Style] = {}

    def safe(self, words: str) -> str:
        """Return text as this terminal may show it: nothing that moves the cursor, ASCII if so."""
        if words.isascii() and words.isprintable():
            return words
        return self._page.safe(words)

    def fit(self, words: str, width: int) -> str:
        """Return text of at most ``width`` columns, marked where it was cut."""
        words = self.safe(words)
        if width < 1:
            return ""
        mark = "…" if not self.ascii else "..." if width > 8 else ""
        return blocks.fit(words, width, mark)

    def cell(self, words: str, width: int, *, right: bool = False) -> str:
        """Return text of exactly ``width`` columns."""
        words = self.fit(words, width)
        blank = " " * max(0, width - blocks.width_of(words))
        return blank + words if right else words + blank

    def mark(self, kind: design.Kind) -> str:
        """Return the mark of a verdict: one character."""
        look = design.LOOKS[kind]
        return look.ascii_mark if self.ascii else look.mark

    @property
    def rich(self) -> bool:
        """Whether the screen has a ground of its own, and exact colours."""
        return self.depth in {"true", "256"}

    def style(self, parts: str) -> Style:
        """Return how a cell of these parts is written; what lies behind it only where it says."""
        known = self._styles.get(parts)
        if known is None:
            words = parts.split()
            known = _many(words) if self.rich else _few(words, colour=self.depth == "16")
            known += Style(
                bold="bold" in words or None,
                underline="underline" in words or None,
                reverse="reverse" in words or None,
            )
            self._styles[parts] = known
        return known

    def strip(self, row: Iterable[Cell], width: int, *, ground: str = "") -> Strip:
        """Return a row as a strip of exactly ``width`` columns.

        Parameters
        ----------
        ground
            Parts of the blank space behind the last cell.
        """
        segments: list[Segment] = []
        used = 0
        for words, parts in row:
            long = len(words) if words.isascii() else cell_len(words)
            if used + long > width:
                words = set_cell_size(words, width - used)  # noqa: PLW2901
                long = width - used
            if long > 0:
                segments.append(Segment(words, self._whole(parts)))
                used += long
            if used >= width:
                break
        if used < width:
            segments.append(Segment(" " * (width - used), self._whole(ground)))
        return Strip(segments, width)

    def _whole(self, parts: str) -> Style:
        """Return a style with the ground of the screen."""
        known = self._grounded.get(parts)
        if known is None:
            known = self.style(parts)
            if self.rich:
                ink = design.PARTS["ink"].dark
                known = Style(color=ink, bgcolor=design.NIGHT) + known
            self._grounded[parts] = known
        return known


def _kind(words: Sequence[str]) -> design.Kind | None:
    return next((kind for kind in design.LOOKS if kind in words), None)


def _many(words: Sequence[str]) -> Style:
    paints, looks = design.PARTS, design.LOOKS
    words = [_MEANT.get(word, word) for word in words]
    kind = _kind(words)
    part = next((word for word in words if word in paints), None)
    behind = None
    if "bar" in words or "head" in words:
        behind = paints["surface"].dark
    if "chosen" in words:
        behind = _CHOSEN
    if "cursor" in words:
        behind = _CURSOR
    if "empty" in words:
        behind = paints["grid"].dark
    if kind is not None and "badge" in words:
        return Style(color=design.BADGE_INK, bgcolor=looks[kind].fill, bold=True)
    if "filled" in words:
        fill = looks[kind].fill if kind is not None else paints["curve"].dark
        return Style(color=design.BADGE_INK, bgcolor=fill)
    colour = None if part is None else paints[part].dark
    if kind is not None:
        colour = looks[kind].dark
    elif "chosen" in words and part == "faint":
        colour = paints["ink"].dark
    loud = kind in {"critical", "leak"} and part is None
    return Style(color=colour, bgcolor=behind, bold=loud or None)


def _few(words: Sequence[str], *, colour: bool) -> Style:
    looks = design.LOOKS
    kind = _kind(words)
    turned = not {"chosen", "bar", "cursor"}.isdisjoint(words)
    found = Style(reverse=turned or None)
    if kind is not None:
        loud = kind in {"critical", "leak"}
        if not colour or turned:
            found += Style(bold=loud or None, reverse=turned or ("badge" in words and loud) or None)
        elif "badge" in words and kind in _FEW_BADGES:
            found += Style.parse(_FEW_BADGES[kind])
        else:
            found += Style.parse(_FEW[looks[kind].style])
    elif colour and not turned:
        found += Style.parse(next((_FEW[word] for word in words if word in _FEW), ""))
    if "head" in words:
        found += Style(bold=True, underline=not colour or None)
    return found
