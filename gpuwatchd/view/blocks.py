"""Blocks of styled text: what an answer looks like before somebody lays it out for a width.

A text function adds blocks to a :class:`Page`. The command line lays each one out as it comes, the
live screen lays out a whole page for its width, the web page takes the texts.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_ASCII = str.maketrans(
    {
        "…": "...",
        "→": "->",
        "²": "2",
        "–": "-",
        "—": "-",
        "█": "#",
        "░": "-",
        "·": "-",
        "≥": ">=",
        "✖": "X",
    }
)
_ANY_WIDTH = 10_000

Part = str | tuple[str, str]
"""A text, or a text and its style."""
Row = list[tuple[str, str]]
"""One line of a screen: texts with their styles."""


class Line(msgspec.Struct, frozen=True):
    """Parts one after the other, never broken."""

    parts: tuple[Part, ...]


class Flow(msgspec.Struct, frozen=True):
    """Parts with gaps, broken between them where the width ends."""

    parts: tuple[Part, ...]
    first: str = ""
    """Before the first line."""
    rest: str = ""
    """Before every other line."""
    gap: str = "  "
    whole: bool = False
    """A part that is wider than a line is broken, not cut."""


class Table(msgspec.Struct, frozen=True):
    """Rows under headers; cells wrap where the width ends."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    """Columns that are aligned at their right."""


Block = Line | Flow | Table


def width_of(words: str) -> int:
    """Return the terminal columns that a text takes.

    Examples
    --------
    >>> width_of("abc"), width_of("日本")
    (3, 4)
    """
    if words.isascii():
        return len(words)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in words
    )


def fit(words: str, width: int, mark: str = "…") -> str:
    """Return text of at most ``width`` terminal columns, marked where it was cut.

    Examples
    --------
    >>> fit("a long name", 6), fit("日本語", 5), fit("short", 6)
    ('a lon…', '日本…', 'short')
    """
    if width_of(words) <= width:
        return words
    kept, room = 0, max(0, width - width_of(mark))
    while kept < len(words) and width_of(words[: kept + 1]) <= room:
        kept += 1
    return words[:kept] + mark


def use_colour(flag: str, environ: Mapping[str, str], *, terminal: bool) -> bool:
    """Return whether to write colour; the first rule that applies decides.

    Examples
    --------
    >>> use_colour("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, terminal=True)
    False
    >>> use_colour("always", {"NO_COLOR": "1"}, terminal=False)
    True
    """
    if flag != "auto":
        return flag == "always"
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in {"", "0"} for name in ("CLICOLOR_FORCE", "FORCE_COLOR")):
        return True
    return terminal and environ.get("TERM") != "dumb"


def sentence(words: str, style: str = "") -> list[Part]:
    """Return prose as parts that may be broken at every space; for a gap of one space."""
    return [(word, style) for word in text.clean(words, limit=4096).split(" ")]


class Page:
    """Blocks, and what whoever shows them can show.

    Parameters
    ----------
    width
        Columns.
    ascii_only
        Whether nothing but ASCII can be shown.
    terminal
        Whether lines that are too wide are cut; else they stay whole.
    quiet, verbose, wide
        How much is to be said: results only, more detail, all that is known.
    """

    def __init__(
        self,
        width: int = 80,
        *,
        ascii_only: bool = False,
        terminal: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        wide: bool = False,
    ) -> None:
        self.width = width
        self.ascii = ascii_only
        self.terminal = terminal
        self.quiet = quiet
        self.verbose = verbose
        self.wide = wide
        self.blocks: list[Block] = []

    def add(self, block: Block) -> None:
        """Take one block."""
        self.blocks.append(block)

    def line(self, *parts: Part) -> None:
        """Add parts one after the other."""
        self.add(Line(parts))

    def flow(
        self,
        parts: Iterable[Part],
        *,
        first: str = "",
        rest: str = "",
        gap: str = "  ",
        whole: bool = False,
    ) -> None:
        """Add parts with gaps, broken between them where the width ends.

        On a terminal a part that is wider than a line is cut and marked, or with ``whole`` broken
        at its spaces and wherever it must be; a pipe gets it whole.
        """
        self.add(Flow(tuple(parts), first, rest, gap, whole))

    def prose(
        self, words: str, style: str = "", *, first: str = "", rest: str = "", whole: bool = False
    ) -> None:
        """Add a text that is broken between its words where the width ends."""
        self.flow(sentence(words, style), first=first, rest=rest, gap=" ", whole=whole)

    def warn(self, warnings: Iterable[tuple[str, str]]) -> None:
        """Add the sentence of each warning, given as (code, sentence)."""
        for _, words in warnings:
            self.prose(f"! {words}", "yellow", rest="  ")

    def table(
        self,
        headers: Iterable[str],
        rows: Iterable[Iterable[str]],
        *,
        right: frozenset[int] = frozenset(),
    ) -> None:
        """Add a table; cells wrap on a terminal and are never cut in a pipe."""
        self.add(Table(tuple(headers), tuple(tuple(row) for row in rows), right))

    def safe(self, words: str) -> str:
        """Return foreign or own text as it may be shown here."""
        words = text.clean(words, limit=4096)
        if self.ascii and not words.isascii():
            words = words.translate(_ASCII).encode("ascii", "replace").decode()
        return words

    def rows(self) -> list[Row]:
        """Return everything laid out for the width."""
        return [row for block in self.blocks for row in self.lay_out(block)]

    def lay_out(self, block: Block) -> Iterator[Row]:
        """Yield the rows of one block."""
        if isinstance(block, Line):
            yield [pair for part in block.parts if (pair := self._pair(part))[0]]
        elif isinstance(block, Flow):
            yield from self._flow(block)
        else:
            yield from self._table(block)

    def _pair(self, part: Part) -> tuple[str, str]:
        words, style = (part, "") if isinstance(part, str) else part
        return self.safe(words), style

    def _flow(self, block: Flow) -> Iterator[Row]:
        used, row, fresh = width_of(block.first), [(block.first, "")], True
        room = self.width - width_of(block.rest) if block.whole and self.terminal else 0
        for part, before in _pieces(block.parts, block.gap, room):
            words, style = self._pair(part)
            if not words:
                continue
            gap = "" if fresh else before
            if not fresh and used + len(gap) + width_of(words) > self.width:
                yield row
                used, row, gap = width_of(block.rest), [(block.rest, "")], ""
            left = self.width - used - len(gap)
            if self.terminal and width_of(words) > left:
                words = fit(words, left, self.safe("…"))
            row += [(gap, ""), (words, style)]
            used, fresh = used + len(gap) + width_of(words), False
        yield row

    def _table(self, block: Table) -> Iterator[Row]:
        from rich import box  # noqa: PLC0415 - 30 ms, only for those who show tables
        from rich.console import Console  # noqa: PLC0415 - 28 ms
        from rich.table import Table as RichTable  # noqa: PLC0415 - 20 ms
        from rich.text import Text  # noqa: PLC0415 - 14 ms

        table = RichTable(
            box=box.ASCII2 if self.ascii else box.SIMPLE_HEAD,
            header_style="bold",
            safe_box=False,
            show_edge=False,
            pad_edge=False,
        )
        for position, header in enumerate(block.headers):
            justify = "right" if position in block.right else "left"
            table.add_column(Text(self.safe(header)), justify=justify, overflow="fold")  # type: ignore[arg-type]
        for cells in block.rows:
            table.add_row(*(Text(self.safe(cell)) for cell in cells))
        console = Console(
            color_system=None,
            force_terminal=False,
            width=self.width if self.terminal else _ANY_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
        )
        for segments in console.render_lines(table, pad=False, new_lines=False):
            yield [
                (part.text, "bold" if part.style is not None and part.style.bold else "")
                for part in segments
            ]


def _pieces(parts: Iterable[Part], gap: str, room: int) -> Iterator[tuple[Part, str]]:
    """Yield parts and what goes before each; wider ones than ``room`` (0: any) in pieces."""
    for part in parts:
        words, style = (part, "") if isinstance(part, str) else part
        if not room or width_of(words) <= room:
            yield part, gap
            continue
        before = gap
        for word in words.split(" "):
            rest = word
            while rest:
                end = min(len(rest), room)
                while end > 1 and width_of(rest[:end]) > room:
                    end -= 1
                yield (rest[:end], style), before
                rest, before = rest[end:], ""
            before = " "
