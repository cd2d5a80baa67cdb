"""Draws the live screen as it is in a terminal, for the documentation."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock
from xml.sax.saxutils import escape

from gpuwatchd.core import design
from gpuwatchd.tui.app import TopApp
from gpuwatchd.tui.base import ViewScreen
from gpuwatchd.view.blocks import width_of
from gpuwatchd.view.queries import current_state
from gpuwatchd.view.query import Query

if TYPE_CHECKING:
    from rich.style import Style
    from textual.strip import Strip

CELL, LINE, MARGIN, BAR = 8.4, 19.0, 16.0, 34.0
_STYLE = (
    f".w{{fill:{design.NIGHT}}}.t{{fill:#1b2530}}text{{font:14px ui-monospace,SFMono-Regular,Menlo,"
    "Consolas,'DejaVu Sans Mono','Liberation Mono',monospace;white-space:pre}"
    ".b{font-weight:700}.u{text-decoration:underline}"
)
_QUIET_S = 0.3
"""How long a screen has to stand still: one behind a key reads in a thread."""
_PATIENCE = 40
WORDS = re.compile(r"\S+(?: \S+)*")
"""What is written at a place: not every viewer keeps several blanks."""
_BLOCKS = "▁▂▃▄▅▆▇█"


class Live(NamedTuple):
    """One picture of the live screen."""

    scenario: str
    minutes: float
    keys: tuple[str, ...]
    size: tuple[int, int]
    words: str
    """For those who cannot see it."""


def picture(one: Live) -> str:
    """Return it, in a world that stands still (``screens.world``)."""
    with mock.patch.dict(os.environ, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}):
        return _drawn(asyncio.run(_strips(one)), one)


async def _strips(one: Live) -> list[Strip]:
    query = Query()
    first = current_state.load_view(query)
    app = TopApp(query, color="always", every_s=3600.0, first=first)
    async with app.run_test(size=one.size) as pilot:
        await pilot.pause()
        for key in one.keys:
            await pilot.press(key)
        found: list[Strip] = []
        for _ in range(_PATIENCE):
            await pilot.pause(_QUIET_S)
            before, found = found, app.screen._compositor.render_strips()
            same = [strip.text for strip in before] == [strip.text for strip in found]
            if same and not (isinstance(app.screen, ViewScreen) and app.screen.asking):
                break
        return found


CIRCLES = tuple(
    f'<circle cx="{x}" cy="13" r="5" fill="{fill}"/>'
    for x, fill in ((18, "#ff5f57"), (35, "#febc2e"), (52, "#28c840"))
)


def window(title: str, words: str, style: str, size: tuple[int, int]) -> list[str]:
    """Return the window of a terminal of so many columns and rows."""
    width = 2 * MARGIN + size[0] * CELL
    height = BAR + size[1] * LINE + MARGIN
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(words)}</desc>",
        f"<style>{style}</style>",
        f'<rect class="w" width="{width:g}" height="{height:g}" rx="9"/>',
        f'<path class="t" d="M0 26V9a9 9 0 0 1 9-9H{width - 9:g}a9 9 0 0 1 9 9v17z"/>',
    ]


def _drawn(strips: list[Strip], one: Live) -> str:
    frame = window("gpuwatchctl top", one.words, _STYLE, (one.size[0], len(strips)))
    parts = [*frame, *CIRCLES]
    grounds, texts = [], []
    for number, strip in enumerate(strips):
        column = 0
        for text, style, _ in strip:
            ground, said = _piece(text, style, column, number)
            grounds += ground
            texts += said
            column += width_of(text)
    return "\n".join([*parts, *grounds, *texts, "</svg>"]) + "\n"


def _piece(text: str, style: Style | None, column: int, row: int) -> tuple[list[str], list[str]]:
    """Return the ground and the text of one segment."""
    ink, behind = design.PARTS["ink"].dark, design.NIGHT
    if style is not None:
        ink = ink if style.color is None else style.color.get_truecolor().hex
        behind = behind if style.bgcolor is None else style.bgcolor.get_truecolor().hex
        if style.reverse:
            ink, behind = behind, ink
    y = BAR + row * LINE
    ground = []
    if behind != design.NIGHT:
        wide = width_of(text) * CELL
        x = MARGIN + column * CELL
        ground.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{LINE:g}" fill="{behind}"/>'
        )
    if set(text) <= set(_BLOCKS + " "):
        return ground, _bars(text, column, y, ink)
    kind = " ".join(
        name for name, has in (("b", style and style.bold), ("u", style and style.underline)) if has
    )
    named = f' class="{kind}"' if kind else ""
    texts = []
    for found in WORDS.finditer(text):
        shown = found[0]
        x = MARGIN + (column + width_of(text[: found.start()])) * CELL
        texts.append(
            f'<text x="{x:.1f}" y="{y + 0.75 * LINE:.1f}" fill="{ink}"'
            f' textLength="{width_of(shown) * CELL:.1f}"{named}>{escape(shown)}</text>'
        )
    return ground, texts


def _bars(text: str, column: int, y: float, ink: str) -> list[str]:
    """Return block characters as what they are: fonts leave gaps between them."""
    path = []
    for at, sign in enumerate(text):
        if sign in _BLOCKS:
            tall = LINE * (_BLOCKS.index(sign) + 1) / len(_BLOCKS)
            x = MARGIN + (column + at) * CELL
            path.append(f"M{x:.1f} {y + LINE:.1f}v-{tall:.1f}h{CELL:g}v{tall:.1f}z")
    return [f'<path d="{"".join(path)}" fill="{ink}"/>']
