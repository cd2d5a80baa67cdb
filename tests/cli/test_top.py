"""``top`` where there is no screen to draw on."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.store import live
from tests.cli.calls import Terminal
from tests.tui import world

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_wish_for_a_gpu_that_is_not_there_is_told_too(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    live.write(run, world.state(2, 1, at_s=time.time(), pid=os.getpid()))
    on_a_terminal(monkeypatch)
    assert "no GPU matches 7" in ctl.err("top --gpu 7")
