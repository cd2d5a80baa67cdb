"""What a report consists of, before it is a page: sections of blocks, all in words; as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from gpuwatchd.charts import terminal
from gpuwatchd.charts.chart_model import Picture
from gpuwatchd.core.design import LOOKS, Kind
from gpuwatchd.core.model.base import Value
from gpuwatchd.view import blocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.view.blocks import Page


# How large a report may get: a page stays below 2 MB whatever happened, and opens at once.

CARDS: Final = 120
"""Findings that are told in full, --all or not: the rest are rows of a table."""
CHARTS: Final = 16
"""Of them those with a chart."""
GPU_CHARTS: Final = 16
ROWS: Final = 500
"""Of one table."""
FEW: Final = 10
"""Of a table by user, job or program, without --all."""

Tone = Literal["", "note", "good", "warn", "bad"]


class Says(Value, frozen=True, kw_only=True):
    """A paragraph."""

    text: str
    tone: Tone = ""


class Figure(Value, frozen=True, kw_only=True):
    """One number that is seen before anything is read."""

    value: str
    label: str
    note: str = ""


class Figures(Value, frozen=True, kw_only=True):
    """Some of them beside each other."""

    figures: tuple[Figure, ...]


class Facts(Value, frozen=True, kw_only=True):
    """Label and sentence, line by line; a label of "" goes on with the one before."""

    rows: tuple[tuple[str, str], ...]

    def merged(self) -> list[tuple[str, list[str]]]:
        """Return each label once, with all of its sentences."""
        groups: list[tuple[str, list[str]]] = []
        for label, value in self.rows:
            if label or not groups:
                groups.append((label, []))
            groups[-1][1].append(value)
        return groups


class Table(Value, frozen=True, kw_only=True):
    """Rows under heads."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    """Columns of numbers."""
    left_out: str = ""
    """What is not in it, in a sentence."""


def table(
    caption: str,
    heads: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    *,
    right: Iterable[int] = (),
    most: int | None = None,
    what: str = "",
) -> Table:
    """Return a table of at most so many rows, with a sentence on what is left out."""
    every, left = tuple(rows), ""
    if most is not None and len(every) > most:
        where = "; --all has more" if most < ROWS else "; a shorter --since has them"
        left = f"{len(every) - most:,} more {f'{what} ' if what else ''}are left out"
        left += f"{where if what else ''}."
    return Table(
        caption=caption, heads=heads, rows=every[:most], right=frozenset(right), left_out=left
    )


class Step(Value, frozen=True, kw_only=True):
    """One piece of advice."""

    text: str
    why: str = ""
    """What it is about and what it is worth."""
    command: str = ""


class Steps(Value, frozen=True, kw_only=True):
    """Advice in order."""

    steps: tuple[Step, ...]


Plain = Says | Figures | Facts | Table | Steps | Picture


class Card(Value, frozen=True, kw_only=True):
    """One subject with its verdict."""

    key: str
    """Stable: what a link to it ends with."""
    title: str
    kind: Kind
    word: str
    """The badge."""
    said: str
    """The verdict in words."""
    blocks: tuple[Plain, ...]


Block = Plain | Card


class Section(Value, frozen=True, kw_only=True):
    """A part with a heading; without blocks it is left out."""

    key: str
    title: str
    blocks: tuple[Block, ...]


class Document(Value, frozen=True, kw_only=True):
    """The whole."""

    title: str
    about: str
    """The period, the machine and when it was written: one line under the title."""
    sections: tuple[Section, ...]
    foot: str = ""

    def pictures(self) -> list[Picture]:
        """Return its charts in order."""
        every = [block for section in self.sections for block in section.blocks]
        cards = [block.blocks if isinstance(block, Card) else (block,) for block in every]
        return [block for card in cards for block in card if isinstance(block, Picture)]


_TONES: dict[Tone, str] = {
    "": "", "note": "dim", "good": "green", "warn": "yellow", "bad": "red-bold",
}  # fmt: skip
_LABEL = 12
_SPARK = 48
_LEAST = 24
"""Columns that a first cell keeps at least, before a table is written as lists."""


def show(out: Page, document: Document) -> None:
    """Write it."""
    out.prose(document.title, "bold")
    out.prose(document.about, "dim")
    for section in document.sections:
        if not section.blocks:
            continue
        out.line("")
        out.line((section.title.upper(), "bold"))
        for position, block in enumerate(section.blocks):
            if position and isinstance(block, Card | Table):
                out.line("")
            _block(out, block, indent="")
    if document.foot:
        out.line("")
        out.prose(document.foot, "dim")


def _block(out: Page, block: Block, *, indent: str) -> None:
    if isinstance(block, Says):
        out.prose(block.text, _TONES[block.tone], first=indent, rest=indent, whole=True)
    elif isinstance(block, Figures):
        _figures(out, block, indent)
    elif isinstance(block, Facts):
        _facts(out, block, indent)
    elif isinstance(block, Table):
        _table(out, block, indent)
    elif isinstance(block, Steps):
        _steps(out, block, indent)
    elif isinstance(block, Card):
        _card(out, block)
    else:
        room = min(_SPARK, max(8, out.width - len(indent) - 30))
        parts = terminal.sparkline(block, room, ascii_only=out.ascii)
        if parts:
            out.flow([(parts[0], "cyan"), (parts[1], "dim")], first=indent, rest=indent)


def _card(out: Page, card: Card) -> None:
    look = LOOKS[card.kind]
    mark = look.ascii_mark if out.ascii else look.mark
    parts = [(f"{mark} {card.word}", look.style), *blocks.sentence(card.title, "bold")]
    out.flow(parts, rest="  ", gap=" ", whole=True)
    if card.said and card.said != card.word:
        out.prose(card.said, first="  ", rest="  ", whole=True)
    for block in card.blocks:
        _block(out, block, indent="  ")


def _figures(out: Page, block: Figures, indent: str) -> None:
    width = max((blocks.width_of(figure.value) for figure in block.figures), default=0)
    for figure in block.figures:
        gap = " " * (width - blocks.width_of(figure.value))
        note = f" ({figure.note})" if figure.note else ""
        said = [(f"{gap}{figure.value}", "bold"), *blocks.sentence(f"{figure.label}{note}")]
        out.flow(said, first=indent, rest=indent + " " * (width + 1), gap=" ")


def _facts(out: Page, block: Facts, indent: str) -> None:
    rest = indent + " " * (_LABEL + 1)
    for label, text in block.rows:
        out.prose(text, first=f"{indent}{label:<{_LABEL}} ", rest=rest, whole=True)


def _steps(out: Page, block: Steps, indent: str) -> None:
    for number, step in enumerate(block.steps, 1):
        first, rest = f"{indent}{number:>2}. ", indent + "    "
        out.prose(step.text, first=first, rest=rest, whole=True)
        if step.why:
            out.prose(step.why, "dim", first=rest, rest=rest, whole=True)
        if step.command:
            out.flow([(step.command, "cyan")], first=rest, rest=rest)


def _table(out: Page, table: Table, indent: str) -> None:
    if table.caption:
        out.prose(table.caption, "bold", first=indent, rest=indent)
    widths = [
        max(blocks.width_of(out.safe(row[at])) for row in [table.heads, *table.rows])
        for at in range(len(table.heads))
    ]
    spare = out.width - len(indent) - sum(widths) - 2 * (len(widths) - 1)
    if spare < 0 and widths[0] + spare >= _LEAST and out.terminal:
        widths[0] += spare
        spare = 0
    if spare < 0:
        _listed(out, table, indent)
    else:
        for position, row in enumerate([table.heads, *table.rows]):
            cells = [
                _cell(out, row[at], widths[at], right=at in table.right)
                for at in range(len(widths))
            ]
            out.line(indent, ("  ".join(cells).rstrip(), "bold" if position == 0 else ""))
    if table.left_out:
        out.prose(table.left_out, "dim", first=indent, rest=indent)


def _cell(out: Page, words: str, width: int, *, right: bool) -> str:
    words = blocks.fit(out.safe(words), width, out.safe("…"))
    gap = " " * (width - blocks.width_of(words))
    return gap + words if right else words + gap


def _listed(out: Page, table: Table, indent: str) -> None:
    """Write a table that is too wide as one entry per row: nothing of it is cut."""
    for row in table.rows:
        first, *others = zip(table.heads, row, strict=True)
        out.prose(first[1], "bold", first=indent, rest=indent, whole=True)
        texts = [f"{head} {cell}" if head else cell for head, cell in others if cell]
        texts = [f"{text}," for text in texts[:-1]] + texts[-1:]
        out.flow(texts, first=indent + "  ", rest=indent + "  ", gap=" ", whole=True)
