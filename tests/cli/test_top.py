"""``top`` where there is no screen to draw on."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.cli.verbs import top
from tests.cli import world
from tests.cli.calls import Terminal

if TYPE_CHECKING:
    from tests.cli.calls import Ctl


@pytest.mark.parametrize(
    ("stdin", "stdout", "term"),
    [
        (False, False, "xterm"),
        (True, False, "xterm"),
        (False, True, "xterm"),
        (None, True, "xterm"),  # a stream that was closed
        (True, True, "dumb"),
    ],
)
def test_without_a_terminal_nothing_is_drawn(
    stdin: bool | None, stdout: bool, term: str, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, term)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout)
    if not stdin:
        monkeypatch.setattr(sys, "stdin", None if stdin is None else io.StringIO())
    said = ctl.both("top", code=2)
    assert (said.out, len(said.err.splitlines())) == ("", 2)
    assert ("TERM is dumb" if term == "dumb" else "top needs a terminal") in said.err


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm") -> None:
    """Let both ends be a terminal."""
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", term)


def test_no_gpu_is_said_before_a_screen_is_drawn(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    assert "no GPU found" in ctl.err("top")


def test_what_is_known_is_drawn_before_the_screen_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.write()
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 6, 80, 0, 0))

    monkeypatch.setattr(top, "_SCREEN", {})
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(slave, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stdin", stream)
        code = main(["top"])
        drawn = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                drawn += os.read(master, 65536)
    os.close(master)
    assert code == 1
    assert drawn.startswith(b"\x1b[?1049h")
    assert b"GPU 0" in drawn
    assert drawn.count(b"\n") <= 5
    assert drawn.endswith(b"\x1b[?1049l")
