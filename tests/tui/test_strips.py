"""From parts to colours, on every kind of terminal."""

from __future__ import annotations

import pytest
from rich.style import Style

from gpuwatchd.core import design
from gpuwatchd.tui import theme
from gpuwatchd.tui.widgets import gpus

TRUE = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


def painter(environ: dict[str, str], *, color: str = "auto") -> theme.Painter:
    return theme.Painter(color, environ=environ)


@pytest.mark.parametrize(
    ("flag", "environ", "wanted"),
    [
        ("auto", TRUE, "true"),
        ("auto", {"TERM": "tmux-256color"}, "256"),
        ("auto", {"TERM": "xterm-kitty"}, "256"),
        ("auto", {"TERM": "linux"}, "16"),
        ("auto", {"TERM": "screen"}, "16"),
        ("auto", {}, "16"),
        ("auto", {"TERM": "dumb"}, "none"),
        ("auto", {"TERM": "vt220"}, "none"),
        ("auto", {"TERM": "xterm-m"}, "none"),
        ("auto", {**TRUE, "NO_COLOR": "1"}, "none"),
        ("auto", {**TRUE, "NO_COLOR": ""}, "true"),
        ("never", TRUE, "none"),
        ("always", {"TERM": "vt100", "NO_COLOR": "1"}, "16"),
        ("always", {"TERM": "dumb"}, "16"),
    ],
)
def test_the_first_rule_that_applies_decides_on_colours(
    flag: str, environ: dict[str, str], wanted: str
) -> None:
    assert theme.depth(flag, environ) == wanted


@pytest.mark.parametrize("environ", [TRUE, {"TERM": "linux"}, {"TERM": "dumb"}])
def test_the_row_under_the_cursor_is_told_from_the_others(environ: dict[str, str]) -> None:
    one = painter(environ)
    for part in ("", "faint", *design.LOOKS):
        assert one.style(f"{part} chosen") != one.style(part)
        chosen = one.style(f"{part} chosen")
        assert chosen.reverse or chosen.bgcolor is not None


@pytest.mark.parametrize("parts", ["", "head", "critical badge", "leak bar", "curve", "red-bold"])
def test_without_colour_there_is_none(parts: str) -> None:
    style = painter({"TERM": "dumb"}).style(parts)
    assert (style.color, style.bgcolor) == (None, None)


def test_loud_verdicts_are_bold_or_reversed_without_colour() -> None:
    one = painter({"TERM": "dumb"})
    assert one.style("critical badge").reverse
    assert one.style("leak").bold
    assert one.style("calm") == Style()


@pytest.mark.parametrize("words", ["plain", "日本語の長い名前", "a" * 300, "e\u0301" * 30, ""])
@pytest.mark.parametrize("width", [1, 2, 7, 40])
def test_a_strip_is_as_wide_as_asked_whatever_is_in_it(words: str, width: int) -> None:
    strip = painter(TRUE).strip([(words, "curve"), ("x", "")], width)
    assert strip.cell_length == width
    assert sum(segment.cell_length for segment in strip) == width


@pytest.mark.parametrize("width", [1, 3, 9, 30])
def test_a_cell_is_as_wide_as_asked(width: int) -> None:
    one = painter(TRUE)
    for words in ("", "short", "日本語の長い名前", "a much longer text than there is room for"):
        for right in (False, True):
            cell = one.cell(words, width, right=right)
            assert one.strip([(cell, "")], width).text == cell or width < 2


def test_what_moves_a_cursor_never_reaches_the_terminal() -> None:
    assert painter(TRUE).safe("a\x1b[2Jb\rc\u202ed") == "ab cd"


@pytest.mark.parametrize("share", [None, 0.0, 0.004, 0.5, 0.999, 1.0, 1.7])
@pytest.mark.parametrize("cells", [3, 12, 33])
@pytest.mark.parametrize("flat", [True, False])
def test_a_bar_fills_its_cells(share: float | None, cells: int, flat: bool) -> None:
    for ascii_only in (True, False):
        row = gpus.figured(share, cells, "12/80 GiB", "calm", ascii_only=ascii_only, flat=flat)
        assert len("".join(words for words, _ in row)) == cells
        full = next(len(words) for words, parts in row if parts.startswith("calm"))
        inner = cells - 2 * flat
        assert full == min(inner, round((share or 0.0) * inner))


def test_a_sparkline_keeps_gaps_and_does_not_make_mountains_of_noise() -> None:
    flat = gpus.spark([1000, 1001, 1000, None, 1001], 1000, 5, ascii_only=True)
    assert set(flat) <= set(" :="), "neighbours among eight signs"
    assert flat[3] == " "
    assert gpus.spark([1], 10, 4, ascii_only=True) == "    "
    assert gpus.spark(list(range(32)), 31, 8, ascii_only=False) == "▁▂▃▄▅▆▇█"
    assert gpus.spark([1, 2], 2, 0, ascii_only=True) == ""
