"""Named styles and what a terminal can show of them: the one place where text gets its colour.

The style of a text is a name of the theme, or several with a space between them, later ones over
earlier ones: a :data:`~gpuwatchd.core.design.Kind`, a key of :data:`~gpuwatchd.core.design.PARTS`
or a style of ``gpuwatchctl`` gives the colour; ``badge`` and ``filled`` (black on the colour of the
kind), ``bold``, ``underline``, ``reverse``, ``head`` (of a table), ``bar`` (the first and last
row), ``chosen`` (the row under the cursor), ``cursor`` (a place in a chart) and ``empty`` (of a
bar) say how it is written; ``@KEY`` at the end presses a key when it is clicked.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from gpuwatchd.core import design
from gpuwatchd.view import blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuwatchd.view.blocks import Row

Depth = Literal["true", "256", "16", "none"]
"""How many colours a terminal has."""

_NO_COLOURS: Final = ("dumb", "vt100", "vt102", "vt220", "vt320")
_MANY: Final = ("256", "kitty", "alacritty", "ghostty", "wezterm", "foot")
_SAME: Final[dict[str, str]] = {
    "red-bold": "critical", "red": "critical", "yellow-bold": "leak", "yellow": "leak",
    "green": "calm", "dim": "faint", "cyan": "curve",
}  # fmt: skip
"""Styles of ``gpuwatchctl``, where a terminal has exact colours."""
_SIXTEEN: Final[dict[str, str]] = {
    "faint": "bright_black", "grid": "bright_black", "curve": "cyan", "range": "blue",
    "floor": "green", "band": "yellow", "limit": "red", "now": "bright_black",
    "gap": "bright_black", "red-bold": "bold red", "red": "red", "yellow-bold": "bold yellow",
    "yellow": "yellow", "green": "green", "dim": "bright_black", "cyan": "cyan",
    "critical badge": "bold white on red", "leak badge": "black on yellow",
    "trouble badge": "black on magenta", "held badge": "black on cyan",
}  # fmt: skip
"""Where a terminal has sixteen colours of its own; what is not here is as its text is."""
_PLAIN: Final[dict[str, str]] = {
    "bold": "bold", "underline": "underline", "reverse": "reverse", "chosen": "reverse",
    "bar": "reverse", "cursor": "reverse", "head": "bold",
}  # fmt: skip
_LOUD: Final = ("critical", "leak")
_BEHIND: Final = {"chosen", "bar", "cursor"}


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


def _exact_styles() -> dict[str, Style]:
    """Return the styles of a terminal with the exact colours of the design."""
    paints = design.colours(dark=True)
    styles = {name: Style(color=colour) for name, colour in paints.items()}
    for kind, look in design.LOOKS.items():
        styles[kind] = Style(color=look.dark, bold=kind in _LOUD or None)
        styles[f"{kind} filled"] = Style(color=design.BADGE_INK, bgcolor=look.fill)
        styles[f"{kind} badge"] = Style(color=design.BADGE_INK, bgcolor=look.fill, bold=True)
    styles |= {name: styles[meant] for name, meant in _SAME.items()}
    behind = {"bar": paints["surface"], "head": paints["surface"], "empty": paints["grid"],
              "chosen": "#2b4263", "cursor": "#4b5a70"}  # fmt: skip
    styles |= {name: Style(bgcolor=colour) for name, colour in behind.items()}
    styles["curve filled"] = Style(color=design.BADGE_INK, bgcolor=paints["curve"])
    styles["faint chosen"] = Style(color=paints["ink"], bgcolor=behind["chosen"])
    return styles | {name: Style.parse(name) for name in ("bold", "underline", "reverse")}


def _few_styles(*, colour: bool) -> dict[str, Style]:
    """Return the styles of a terminal with its own sixteen colours, or none."""
    styles = {name: Style.parse(definition) for name, definition in _PLAIN.items()}
    for kind, look in design.LOOKS.items():
        loud = kind in _LOUD or None
        styles[kind] = Style.parse(_SIXTEEN[look.style]) if colour else Style(bold=loud)
        styles[f"{kind} badge"] = styles[kind] + Style(reverse=None if colour else loud)
    if colour:
        return styles | {name: Style.parse(text) for name, text in _SIXTEEN.items()}
    return styles | {"head": Style(bold=True, underline=True)}


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

    Attributes
    ----------
    rich
        Whether the screen has a ground of its own, and exact colours.
    """

    def __init__(
        self,
        color: str = "auto",
        *,
        ascii_only: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.depth: Depth = depth(color, os.environ if environ is None else environ)
        self.rich = self.depth in {"true", "256"}
        self.ascii = ascii_only
        self._page = blocks.Page(ascii_only=ascii_only)
        self._styles = _exact_styles() if self.rich else _few_styles(colour=self.depth == "16")
        self._ground = Style()
        if self.rich:
            self._ground = Style(color=design.PARTS["ink"].dark, bgcolor=design.NIGHT)
        self._on_ground: dict[str, Style] = {}
        # Most cells say what they said before.
        self.cell = lru_cache(4096)(self.cell)  # type: ignore[method-assign]
        self.fit = lru_cache(4096)(self.fit)  # type: ignore[method-assign]

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

    def cut(self, parts: Iterable[blocks.Part], width: int, *, gap: str = "") -> Row:
        """Return parts with gaps between them, cut where the width ends."""
        row: Row = []
        for part in parts:
            words, style = (part, "") if isinstance(part, str) else part
            if not words:
                continue
            before = gap if row and not (words.startswith(" ") or row[-1][0].endswith(" ")) else ""
            shown = self.fit(words, width - len(before))
            if shown:
                row += [(before, ""), (shown, style)] if before else [(shown, style)]
                width -= len(before) + blocks.width_of(shown)
        return row

    def mark(self, kind: design.Kind) -> str:
        """Return the mark of a verdict: one character."""
        look = design.LOOKS[kind]
        return look.ascii_mark if self.ascii else look.mark

    def style(self, names: str) -> Style:
        """Return the style of these names; what lies behind it only where they say so."""
        style = self._styles.get(names)
        if style is None:
            looks, _, key = names.partition("@")
            words = looks.split()
            if "badge" in words:  # the same under the cursor
                words = words[:2]
            style = self._styles.get(" ".join(words))
            if style is None:
                style = Style.combine([Style(), *(self._styles.get(w, Style()) for w in words)])
                if not (self.rich or _BEHIND.isdisjoint(words)):
                    style = style.without_color
            if key:
                style += Style(meta={"@click": f"app.simulate_key('{key}')"})
            self._styles[names] = style
        return style

    def text(self, rows: Iterable[Row]) -> Text:
        """Return rows as a text for a widget of textual."""
        text = Text(no_wrap=True, end="")
        for number, row in enumerate(rows):
            text.append("\n" if number else "")
            for words, names in row:
                text.append(words, self.style(names))
        return text

    def strip(self, row: Row, width: int) -> Strip:
        """Return a row as a strip of exactly ``width`` columns, with the ground of the screen."""
        segments: list[Segment] = []
        used = 0
        for words, names in row:
            long = len(words) if words.isascii() else cell_len(words)
            if used + long > width:
                words = set_cell_size(words, width - used)  # noqa: PLW2901
                long = width - used
            if long > 0:
                segments.append(Segment(words, self._grounded(names)))
                used += long
            if used >= width:
                break
        if used < width:
            segments.append(Segment(" " * (width - used), self._grounded("")))
        return Strip(segments, width)

    def _grounded(self, names: str) -> Style:
        style = self._on_ground.get(names)
        if style is None:
            style = self._on_ground[names] = self._ground + self.style(names)
        return style
