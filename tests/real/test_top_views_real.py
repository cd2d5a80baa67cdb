"""The views of the live screen in a real terminal: keys and mouse, and what they leave behind."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli import world
from tests.real.tmux import Pane, terminal
from tests.tui import leaky

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real_terminal
CTL = Path(sys.executable).parent / "gpuwatchctl"
_NO_COLOURS = {"", "0", "1", "4", "7", "39", "49"}
"""Plain, bold, underlined, reverse, and the terminal's own colours."""
SECOND_OF_THE_DAY = r"\d\d:\d\d:\d\d"


@contextlib.contextmanager
def opened(
    folder: Path, flags: str = "", *, columns: int = 80, rows: int = 24, term: str = "tmux-256color"
) -> Iterator[Pane]:
    """Yield a terminal in which the live screen runs, on an hour in which something leaked."""
    leaky.leave()
    with terminal(folder, {"LC_ALL": "C.UTF-8"}, columns=columns, rows=rows, term=term) as pane:
        pane.has("ready>")
        pane.keys(f"clear; {CTL} top {flags}; echo left:$?", "Enter")
        pane.has("LEAK", "GPU 1")
        yield pane


def chart(shown: str) -> str:
    """Return the rows of a chart: those with its scale at the left."""
    return "\n".join(row for row in shown.splitlines() if re.match(r" *[\d.]* ?(GiB)?[│┤└]", row))


def test_a_snooze_through_the_screen_is_found_by_the_verb(tmp_path: Path) -> None:
    with opened(tmp_path) as pane:
        pane.keys("a")
        pane.has("over in 7 days", "python[4711]")
        pane.keys("s")
        pane.has("For how long", "until it is over")
        pane.keys("2", "Tab")
        pane.has("Why? _")
        pane.keys("-l", "it is known; q")
        pane.has("Why? it is known; q_")
        pane.keys("Enter")
        pane.has("Alerts", "1 snoozed", "silent until")
        told = " ".join(world.run("snooze", "list").stdout.split())
        assert "python[4711]" in told
        assert "it is known; q" in told
        assert "(for 8h 00m)" in told or "(for 7h 59m)" in told
        pane.keys("u")
        pane.has("taken back")
        assert "nothing is snoozed" in world.run("snooze", "list").stdout
        pane.keys("q")
        pane.has("left:0")


def test_every_view_opens_and_escape_leads_back(tmp_path: Path) -> None:
    with opened(tmp_path) as pane:
        for key, *words in (
            ("P", "Predict", "growth rate +251 MB/min", "since the record begins"),
            ("d", "Detail", "python train.py[4711] of alice", "Cost"),
            ("z", "Held without work", "looked at"),
            ("a", "Alerts", "over in 7 days"),
            ("h", "History", "since the record begins"),
            ("?", "Help", "Keys everywhere"),
        ):
            pane.keys(key)
            pane.has(*words)
            pane.keys("Escape")
            pane.has("Overview", "GROWTH")
        pane.keys("q")
        pane.has("left:0")


def test_keys_and_mouse_move_the_chart_of_the_past(tmp_path: Path) -> None:
    with opened(tmp_path, columns=120, rows=30) as pane:
        pane.keys("h")
        record = chart(pane.has("since the record begins"))
        pane.keys("1")
        whole = chart(pane.until(
            lambda text: "since the record" not in text and chart(text) != record, "shows 1 h"
        ))  # fmt: skip
        assert re.search("[⠁-⣿]", whole), "no curve is drawn"
        pane.keys("+", "+")
        near = pane.until(lambda text: chart(text) != whole and "zoomed" in text, "zooms")
        pane.keys("Left")
        pane.until(lambda text: chart(text) != chart(near), "pans")
        pane.keys("0")
        pane.until(lambda text: chart(text) == whole and "zoomed" not in text, "is reset")
        wheel(pane, 64, 40, 10)
        pane.until(lambda text: chart(text) != whole, "zooms by the wheel")
        wheel(pane, 35, 20, 10)
        pane.until(lambda text: re.search(SECOND_OF_THE_DAY + ".*GiB", last(text)) is not None,
                   "reads out what is under the mouse")  # fmt: skip


def wheel(pane: Pane, button: int, x: int, y: int) -> None:
    """Send what a terminal sends for the wheel (64 up) or a move (35), at a column and row."""
    pane.raw(f"\x1b[<{button};{x + 1};{y + 1}M")


def last(shown: str) -> str:
    """Return the row below the chart."""
    return shown.splitlines()[-2]


def test_a_story_is_told_and_scrolled(tmp_path: Path) -> None:
    with opened(tmp_path) as pane:
        pane.keys("a")
        pane.has("over in 7 days")
        pane.keys("Enter")
        shown = pane.has("judgement", "full in", "delivered")
        assert "leak:GPU-1/4711" in shown
        pane.keys("Escape")
        pane.has("over in 7 days")
        pane.keys("Escape")
        pane.has("GROWTH")
        pane.keys("d")
        first = pane.has("Detail", "Cost")
        pane.keys("PageDown", "PageDown", "PageDown")
        pane.until(lambda text: "Cost" not in text and "Detail" in text, "scrolls")
        assert first.splitlines()[1] in pane.screen(), "who it is about is scrolled away"


@pytest.mark.parametrize(("columns", "rows"), [(40, 24), (80, 24)])
def test_plain_terminals_get_plain_characters(tmp_path: Path, columns: int, rows: int) -> None:
    with opened(tmp_path, "--ascii --color never", columns=columns, rows=rows) as pane:
        for key, word in (("P", "Predict"), ("d", "Detail"), ("h", "History"), ("a", "Alerts"),
                          ("z", "Held"), ("?", "Help")):  # fmt: skip
            pane.keys(key)
            shown = pane.has(word)
            assert shown.isascii()
            codes = re.findall(r"\x1b\[([\d;]*)m", pane.screen(colours=True))
            assert {code for one in codes for code in one.split(";")} <= _NO_COLOURS
            pane.keys("Escape")
            pane.has("GROWTH")
