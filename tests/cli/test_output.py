"""Colour, width and characters of what is written."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.cli.output import Out, columns
from gpuwatchd.view.blocks import use_colour, width_of
from tests.cli.calls import Terminal

ANY_TEXT = st.text(max_size=60)


def _out(stream: io.StringIO, width: int, **changes: object) -> Out:
    flags = Globals()
    for name, value in changes.items():
        setattr(flags, name, value)
    out = Out(flags, stream)
    out.width = width
    return out


@pytest.mark.parametrize(
    ("flag", "environ", "terminal", "colour"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"CLICOLOR_FORCE": "1", "TERM": "dumb"}, False, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_the_first_rule_that_applies_decides(
    flag: str, environ: dict[str, str], terminal: bool, colour: bool
) -> None:
    assert use_colour(flag, environ, terminal=terminal) is colour


@given(st.lists(ANY_TEXT, max_size=8), st.integers(20, 120))
def test_flow_fits_a_terminal_and_writes_no_control_character(parts: list[str], width: int) -> None:
    stream = Terminal()
    out = _out(stream, width, color="never")
    out.flow(parts, first="GPU 0  ", rest="       ")
    out.flow(parts, first="GPU 0  ", rest="       ", whole=True)
    written = stream.getvalue()
    assert written.endswith("\n")
    assert all(c.isprintable() or c == "\n" or ord(c) > 0x9F for c in written)
    for line in written.splitlines():
        assert width_of(line) <= width


@given(st.lists(st.text("abc 日", min_size=1, max_size=40), max_size=6))
def test_flow_loses_nothing_in_a_pipe(parts: list[str]) -> None:
    stream = io.StringIO()
    _out(stream, 20).flow(parts)
    written = stream.getvalue().replace("\n", " ").split()
    assert written == [word for part in parts for word in part.split()]


@given(st.lists(st.text("abc 日", min_size=1, max_size=90), max_size=6), st.integers(20, 120))
def test_what_is_wanted_whole_is_broken_and_not_cut(parts: list[str], width: int) -> None:
    stream = Terminal()
    _out(stream, width, color="never").flow(parts, first="GPU 0  ", rest="       ", whole=True)
    written = stream.getvalue()
    assert max(map(width_of, written.splitlines())) <= width
    assert "".join(written.split())[4:] == "".join("".join(parts).split())


@given(ANY_TEXT)
def test_ascii_means_ascii(words: str) -> None:
    stream = io.StringIO()
    out = _out(stream, 80, ascii=True)
    out.line(words, ("→ ² … █", "red"))
    out.flow([words])
    assert stream.getvalue().isascii()


@pytest.mark.parametrize("ascii_only", [True, False])
def test_tables_write_no_escape_without_colour(ascii_only: bool) -> None:
    stream = Terminal()
    out = _out(stream, 60, color="never", ascii=ascii_only)
    out.table(["a", "b"], [["\x1b[31mred[/red] [link=x]", "1"], ["日本", "2"]])
    assert "\x1b" not in stream.getvalue()
    assert "red[/red] [link=x]" in stream.getvalue()
    assert stream.getvalue().isascii() is ascii_only


def test_tables_are_never_cut_in_a_pipe() -> None:
    stream = io.StringIO()
    _out(stream, 20).table(["name"], [["x" * 300]])
    assert "x" * 300 in stream.getvalue()


def test_width_comes_from_columns_then_80() -> None:
    assert columns(io.StringIO(), {"COLUMNS": "133"}) == 133
    assert columns(io.StringIO(), {"COLUMNS": "wide"}) == 80
    assert columns(io.StringIO(), {"COLUMNS": "1"}) == 20
