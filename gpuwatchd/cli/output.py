"""How results reach stdout: blocks as lines with colour, ASCII and width, or JSON."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from gpuwatchd.core import units
from gpuwatchd.core.errors import FINDINGS, OK
from gpuwatchd.view.blocks import Flow, Page, use_colour

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.view.answers.base import Answered
    from gpuwatchd.view.blocks import Block

_SGR = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36",
    "red-bold": "1;31", "yellow-bold": "1;33",
}  # fmt: skip


def emit_json(value: Any) -> None:
    """Write one object and a newline to stdout, and flush."""
    import msgspec  # noqa: PLC0415

    line = msgspec.json.encode(value) + b"\n"
    raw = getattr(sys.stdout, "buffer", None)
    sys.stdout.flush()
    if raw is None:
        sys.stdout.write(line.decode())
    else:
        raw.write(line)
    sys.stdout.flush()


def emit_answer(kind: type[Any], data: Any, **more: Any) -> None:
    """Write the answer of a verb that succeeded; the rest is what ``answer_of`` takes."""
    from gpuwatchd.view.answers import base  # noqa: PLC0415 - only for those who want JSON

    emit_json(base.answer_of(kind, data, **more))


def emit_answered(answered: Answered, *, exit_code: bool = False) -> int:
    """Write an answer, and return its exit code; ``exit_code`` asks for that of findings."""
    emit_json(answered.answer)
    return code_of(answered.exit_code, findings=exit_code)


def code_of(code: int, *, findings: bool) -> int:
    """Return an exit code; that of findings only where it is asked for."""
    return OK if code == FINDINGS and not findings else code


def columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Return the width to lay out for: COLUMNS, else the terminal, else 80."""
    wish = environ.get("COLUMNS", "")
    if units.is_number(wish) and int(wish) > 0:
        return max(20, int(wish))
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 80


class Out(Page):
    """A page that is written as it comes, by default to stdout as it is now."""

    def __init__(self, flags: Globals, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        encoding = (getattr(self._stream, "encoding", None) or "utf-8").lower()
        super().__init__(
            columns(self._stream, os.environ),
            ascii_only=flags.ascii or encoding.replace("-", "") not in {"utf8", "utf8sig"},
            terminal=self._stream.isatty(),
            quiet=flags.quiet,
            verbose=flags.verbose,
            wide=flags.wide,
        )
        self.colour = use_colour(flags.color, os.environ, terminal=self.terminal)

    def add(self, block: Block) -> None:
        """Write one block."""
        for row in self.lay_out(block):
            line = "".join(self._coloured(words, style) for words, style in row)
            self.raw(line.rstrip() if isinstance(block, Flow) else line)

    def _coloured(self, words: str, style: str) -> str:
        return f"\x1b[{_SGR[style]}m{words}\x1b[0m" if self.colour and style and words else words

    def raw(self, line: str) -> None:
        """Write a line of our own making as it is (a file's content, CSV)."""
        self._stream.write(line + "\n")

    def flush(self) -> None:
        """Hand everything over now."""
        self._stream.flush()
