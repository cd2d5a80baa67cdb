"""How the programs are called: within this process, with streams of our own."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from tests.recordings import places
from tests.recordings.frozen import chance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
_BROKEN = re.compile(r"^Traceback \(most recent|docs errors#internal$", re.MULTILINE)
_LONG = re.compile(r"-?\d+\.\d{9,}(?:[eE][-+]?\d+)?")


class Failed(Exception):
    """An item could not be recorded: what the program answered is a fault of it, or of ours."""


class Form(NamedTuple):
    """How somebody looks at what is written."""

    name: str
    words: tuple[str, ...] = ()
    columns: int = 80
    terminal: bool = False


PLAIN = Form("plain")
JSON = Form("json", ("--json",))
COLOUR = Form("colour", ("--color", "always"), terminal=True)
ASCII = Form("ascii", ("--ascii", "--color", "never"), terminal=True)
NARROW = Form("narrow", ("--color", "never"), 40, terminal=True)
WIDE = Form("wide", ("--color", "never"), 120, terminal=True)
LOOKS = (PLAIN, JSON, COLOUR, ASCII, NARROW, WIDE)


class _Stream(io.TextIOWrapper):
    def __init__(self, *, terminal: bool) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8", newline="", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        return self.bytes.getvalue().decode("utf-8", "replace")


def call(main: Callable[[list[str]], int], argv: Sequence[str], form: Form = PLAIN) -> str:
    """Return exit code and streams of a program, as text.

    Raises Failed when it broke: a traceback, or an error that it did not foresee itself.
    """
    out, err = _Stream(terminal=form.terminal), _Stream(terminal=form.terminal)
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(form.columns)}),
        mock.patch.object(sys, "stdin", io.StringIO("")),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main([*argv, *form.words])
    said, wrong = out.text(), err.text()
    if _BROKEN.search(wrong) or said.startswith("GPUWATCHD UNKNOWN - internal error"):
        raise Failed(wrong.strip() or said)
    return f"exit {code}\n== stdout\n{said}\n== stderr\n{wrong}"


def ctl(*argv: str, form: Form = PLAIN) -> str:
    """Return what gpuwatchctl answers."""
    return call(places.gpuwatchctl, argv, form)


def begin(name: str) -> None:
    """Let an item begin as if it were the only one."""
    chance(name)


def settled(text: str, root: Path) -> str:
    """Return a text without what may differ from one machine to the next.

    A number with more digits than anybody measures is rounded: the last ones depend on the
    processor.
    """
    parts = re.compile(re.escape(str(root)[:-8]) + r"([a-z0-9_]{0,8})")  # it may be cut within
    text = parts.sub(lambda match: str(root)[:-8] + "x" * len(match[1]), text)
    text = text.replace(str(REPOSITORY), "/opt/gpuwatchd")
    return _LONG.sub(lambda match: f"{float(match[0]):.9g}", text)
