"""The command line, called within the tests' process."""

from __future__ import annotations

import io
import json
import os
import pty
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuwatchd.cli import main
from tests.children import Child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pytest


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Written(NamedTuple):
    """What a call wrote, and the code it ended with."""

    out: str
    err: str
    code: int


class Ctl:
    """Call ``gpuwatchctl`` and return what it writes; the exit code is always asserted."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, line: str, *words: str, code: int | None = 0) -> str:
        """Return what goes to standard output.

        The first words may be one text; what may have spaces in it goes alone. A code of None
        is any.
        """
        return self.both(line, *words, code=code).out

    def err(self, line: str, *words: str, code: int | None = 1) -> str:
        """Return what goes to standard error."""
        return self.both(line, *words, code=code).err

    def both(self, line: str, *words: str, code: int | None = 0) -> Written:
        """Return everything."""
        self._capsys.readouterr()
        got = main([*line.split(), *words])
        out, err = self._capsys.readouterr()
        assert code is None or got == code, f"{got} instead of {code}: {out}{err}"
        return Written(out, err, got)

    def json(self, line: str, *words: str, code: int | None = 0) -> dict[str, Any]:
        """Return the answer in JSON."""
        answer: dict[str, Any] = json.loads(self(line, *words, "--json", code=code))
        return answer

    def data(self, line: str, *words: str, code: int | None = 0) -> Any:
        """Return the data of the answer in JSON."""
        return self.json(line, *words, code=code)["data"]


def on_a_terminal(argv: Sequence[str | Path], env: Mapping[str, str]) -> tuple[int, str]:
    """Return how a program on a terminal of its own ends, and everything that it shows there."""
    master, slave = pty.openpty()
    with Child(argv, stdin=slave, stdout=slave, stderr=slave, env=env) as process:
        os.close(slave)
        chunks = []
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
        code = process.wait(timeout=60)
    os.close(master)
    return code, b"".join(chunks).decode().replace("\r\n", "\n")
