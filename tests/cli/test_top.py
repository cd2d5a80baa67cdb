"""``top`` where there is no screen to draw on."""

from __future__ import annotations

import io
import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.cli import main
from gpuwatchd.store import live
from tests.tui import world

if TYPE_CHECKING:
    from pathlib import Path


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_it_names_the_verb_that_needs_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["top"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == (
        "gpuwatchctl: top needs a terminal; gpuwatchctl status shows the same once"
    )
    assert len(said.err.splitlines()) == 2


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_one_end_alone_is_no_terminal(
    stream: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, stream, _Terminal())
    assert main(["top"]) == 2
    assert "top needs a terminal" in capsys.readouterr().err


def test_a_stream_that_was_closed_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["top"]) == 2
    assert "top needs a terminal" in capsys.readouterr().err


def test_a_terminal_that_cannot_move_its_cursor_is_left_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, "dumb")
    assert main(["top"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "TERM is dumb" in said.err


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm") -> None:
    """Let both ends be a terminal."""
    monkeypatch.setattr(sys, "stdin", _Terminal())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", term)


def test_json_names_the_verbs_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--json"]) == 2
    error = msgspec.json.decode(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 2
    assert "gpuwatchctl watch --json" in error["message"]


def test_no_gpu_is_said_before_a_screen_is_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    assert main(["top"]) == 1
    assert "no GPU found" in capsys.readouterr().err


def test_a_wish_for_a_gpu_that_is_not_there_is_told_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    live.write(run, world.state(2, 1, at_s=time.time(), pid=os.getpid()))
    on_a_terminal(monkeypatch)
    assert main(["top", "--gpu", "7"]) == 1
    assert "no GPU matches 7" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0s", "-1s", "soon"])
def test_an_interval_is_a_time(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-i", interval]) == 2
    assert "interval" in capsys.readouterr().err
