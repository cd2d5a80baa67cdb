"""The short way reads a line exactly as the command-line parser does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.cli import panel, program, status_options
from gpuwatchd.cli.flags import Globals

WORDS = [
    "status", "--json", "--ascii", "-q", "--quiet", "-v", "--debug", "--gpu", "0", "GPU-*",
    "--color", "never", "always", "pink", "--pid", "4711", "-1", "0x1", "--exit-code",
    "--watch", "--wide", "--user", "me", "--config", "/dev/null", "--help", "watch", "--", "",
]  # fmt: skip
SLOTS = ("json", "color", "ascii", "gpu", "quiet", "verbose", "debug", "verb", "config", "wide",
         "user")  # fmt: skip


def _parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any] | None:
    """Return what the parser hands to the verb; None when it does not come to that."""
    seen: dict[str, Any] = {}

    def run(flags: Globals, pids: Any, *, exit_code: bool) -> int:
        seen.update({name: getattr(flags, name) for name in SLOTS})
        seen.update(pids=list(pids), exit_code=exit_code)
        return 0

    monkeypatch.setattr(panel, "run", run)
    program.call(arguments)
    return seen or None


@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_what_is_read_here_is_what_the_parser_reads(arguments: list[str]) -> None:
    wish = status_options.read(arguments)
    if wish is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        parsed = _parsed(arguments, patch)
    assert parsed is not None
    mine = {name: getattr(wish.flags, name) for name in SLOTS}
    assert parsed == {**mine, "pids": wish.pids, "exit_code": wish.exit_code}


@pytest.mark.parametrize(
    "line",
    ["status", "status --json", "--gpu 0 status -v", "status --pid 4 --pid 5 --exit-code",
     "status --wide --json",
     "--color never status --gpu 1 --gpu 2"],
)  # fmt: skip
def test_plain_lines_take_the_short_way(line: str) -> None:
    assert status_options.read(line.split()) is not None


@pytest.mark.parametrize(
    "line",
    ["", "predict", "status --help", "status -h", "status status", "status --gpu", "status --pid x",
     "status --color pink", "status --watch 2", "status --config x", "--exit-code status",
     "--wide status", "alerts show status", "status --pid 0", f"status --pid {'9' * 5000}"],
)  # fmt: skip
def test_everything_else_goes_the_long_way(line: str) -> None:
    assert status_options.read(line.split()) is None


def test_every_slot_of_the_flags_is_compared() -> None:
    assert set(SLOTS) == set(Globals.__slots__)
