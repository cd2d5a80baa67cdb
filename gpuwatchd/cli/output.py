"""How results reach stdout: colour, ASCII, width, and text that cannot harm a terminal."""

from __future__ import annotations

import os
import sys
import unicodedata
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuwatchd.cli.flags import Globals

_SGR = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36",
    "red-bold": "1;31", "yellow-bold": "1;33",
}  # fmt: skip
_ASCII = str.maketrans(
    {"…": "...", "→": "->", "²": "2", "–": "-", "—": "-", "█": "#", "░": "-", "·": "-", "≥": ">="}
)

Part = str | tuple[str, str]
"""A text, or a text and its style."""


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


def sentence(words: str, style: str = "") -> list[Part]:
    """Return prose as parts that may be broken at every space; for a gap of one space."""
    return [(word, style) for word in text.clean(words, limit=4096).split(" ")]


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


_handed: ContextVar[tuple[list[Any], Sequence[str]] | None] = ContextVar("handed", default=None)


@contextmanager
def capture_json(words: Sequence[str]) -> Iterator[list[Any]]:
    """Collect what this thread emits as JSON instead of writing it: we ask a verb by ``words``."""
    kept: list[Any] = []
    before = _handed.set((kept, words))
    try:
        yield kept
    finally:
        _handed.reset(before)


def internal_call() -> Sequence[str]:
    """Return the words that we have asked a verb by; none where a person has typed it."""
    handed = _handed.get()
    return () if handed is None else handed[1]


def emit_json(value: Any) -> None:
    """Write one object and a newline to stdout, and flush."""
    handed = _handed.get()
    if handed is not None:
        handed[0].append(value)
        return
    import msgspec  # noqa: PLC0415

    line = msgspec.json.encode(value) + b"\n"
    raw = getattr(sys.stdout, "buffer", None)
    sys.stdout.flush()
    if raw is None:
        sys.stdout.write(line.decode())
    else:
        raw.write(line)
    sys.stdout.flush()


def columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Return the width to lay out for: COLUMNS, else the terminal, else 80."""
    wish = environ.get("COLUMNS", "")
    if wish.isdecimal() and int(wish) > 0:
        return max(20, int(wish))
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 80


class Out:
    """Where one verb writes its result.

    Parameters
    ----------
    flags
        The global flags of the call.
    stream
        By default stdout as it is now.
    """

    def __init__(self, flags: Globals, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.terminal = self._stream.isatty()
        self.colour = use_colour(flags.color, os.environ, terminal=self.terminal)
        encoding = (getattr(self._stream, "encoding", None) or "utf-8").lower()
        self.ascii = flags.ascii or encoding.replace("-", "") not in {"utf8", "utf8sig"}
        self.width = columns(self._stream, os.environ)

    def safe(self, words: str) -> str:
        """Return foreign or own text as this stream may show it."""
        words = text.clean(words, limit=4096)
        if self.ascii and not words.isascii():
            words = words.translate(_ASCII).encode("ascii", "replace").decode()
        return words

    def paint(self, words: str, style: str = "") -> str:
        """Return safe text in a style, or plain where colour is off."""
        words = self.safe(words)
        if not self.colour or not style or not words:
            return words
        return f"\x1b[{_SGR[style]}m{words}\x1b[0m"

    def line(self, *parts: Part, end: str = "\n") -> None:
        """Write parts one after the other."""
        pieces = (self.paint(p) if isinstance(p, str) else self.paint(*p) for p in parts)
        self._stream.write("".join(pieces) + end)

    def flow(
        self,
        parts: Iterable[Part],
        *,
        first: str = "",
        rest: str = "",
        gap: str = "  ",
        whole: bool = False,
    ) -> None:
        """Write parts with gaps, breaking between them where the width ends.

        On a terminal a part that is wider than a line is cut and marked, or with ``whole`` broken
        at its spaces and wherever it must be; a pipe gets it whole.
        """
        used, row = width_of(first), [first]
        fresh = True
        room = self.width - width_of(rest) if whole and self.terminal else 0
        for part, before in _pieces(parts, gap, room):
            words, style = (part, "") if isinstance(part, str) else part
            words = self.safe(words)
            if not words:
                continue
            need = width_of(words) + (0 if fresh else len(before))
            if not fresh and used + need > self.width:
                self._stream.write("".join(row).rstrip() + "\n")
                used, row, fresh = width_of(rest), [rest], True
                need = width_of(words)
            if self.terminal and used + need > self.width:
                words = fit(
                    words, self.width - used - (0 if fresh else len(before)), self.safe("…")
                )
                need = width_of(words)
            row.append(("" if fresh else before) + self.paint(words, style))
            used, fresh = used + need, False
        self._stream.write("".join(row).rstrip() + "\n")

    def raw(self, line: str) -> None:
        """Write a line of our own making as it is (a file's content, CSV)."""
        self._stream.write(line + "\n")

    def flush(self) -> None:
        """Hand everything over now."""
        self._stream.flush()

    def table(
        self,
        headers: list[str],
        rows: Iterable[Iterable[str]],
        *,
        right: frozenset[int] = frozenset(),
    ) -> None:
        """Write a table; cells wrap on a terminal and are never cut in a pipe."""
        from rich import box  # noqa: PLC0415 - 30 ms, only for those who show tables
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(
            box=box.ASCII2 if self.ascii else box.SIMPLE_HEAD,
            header_style="bold" if self.colour else "",
            safe_box=False,
            show_edge=False,
            pad_edge=False,
        )
        for position, header in enumerate(headers):
            table.add_column(
                Text(self.safe(header)),
                justify="right" if position in right else "left",
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(self.safe(cell)) for cell in row))
        Console(
            file=self._stream,
            color_system="standard" if self.colour else None,
            force_terminal=self.colour,
            width=self.width if self.terminal else 10_000,
            highlight=False,
            markup=False,
            emoji=False,
        ).print(table)
