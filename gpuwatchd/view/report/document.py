"""What a report consists of, before it is a page: sections of blocks, all in words; as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from gpuwatchd.charts.chart_model import Picture
from gpuwatchd.core.design import Kind
from gpuwatchd.core.model.base import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

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
