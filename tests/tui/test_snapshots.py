"""Every screen of ``gpuwatchctl top``, with its looks, as it was seen to be right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.view.blocks import width_of
from tests.tui import leaky, world
from tests.tui.viewing import opened, view_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from syrupy.assertion import SnapshotAssertion
    from textual.strip import Strip

    from gpuwatchd.charts.chart_model import Picture


@pytest.fixture(autouse=True)
def _then_and_there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the clock, and take the same zone and colours everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    monkeypatch.setattr("time.time", lambda: world.NOW_S)
    # Whoever runs the tests may be younger than that clock, or older.
    monkeypatch.setattr("gpuwatchd.view.queries.state_location.alive", lambda _: True)
    monkeypatch.setattr("gpuwatchd.view.queries.current_state.alive", lambda _: True)
    # How a chart is drawn has tests of its own.
    monkeypatch.setattr("gpuwatchd.charts.terminal.draw", _place)
    yield
    monkeypatch.undo()
    time.tzset()


def _place(picture: Picture, width: int, height: int, **_: object) -> list[list[tuple[str, str]]]:
    """Return where the chart of a picture would be."""
    return [[(f"{picture.key[:width]:^{width}}", "curve")] for _ in range(height)]


def look_of(strips: Iterable[Strip]) -> str:
    """Return the rows of a screen with their looks, and what each letter stands for."""
    letters: dict[str, str] = {}
    rows = []
    for strip in strips:
        looks = ""
        for text, style, _ in strip:
            letter = letters.setdefault(str(style), chr(ord("A") + len(letters)))
            looks += letter * width_of(text)
        rows += [f"|{strip.text}|", f" {looks}"]
    return "\n".join([*rows, *(f"{letter}: {style}" for style, letter in letters.items())])


@pytest.mark.parametrize("key", ["P", "d", "h", "a", "s", "question_mark"])
async def test_a_view(snapshot: SnapshotAssertion, key: str) -> None:
    """The words at other sizes are in the recordings."""
    leaky.leave()
    async with opened(leaky.view(), key, size=(80, 24), color="always") as (app, _):
        assert look_of(app.screen._compositor.render_strips()) == snapshot


@pytest.mark.parametrize(
    ("columns", "rows", "color", "what"),
    [
        (80, 24, "always", "usual"), (40, 24, "always", "usual"), (160, 40, "never", "usual"),
        (80, 24, "always", "strange"),
    ],
)  # fmt: skip
async def test_the_first_screen(
    snapshot: SnapshotAssertion, columns: int, rows: int, color: str, what: str
) -> None:
    state = world.state() if what == "usual" else world.strange()
    ascii_only = color == "never"
    async with opened(view_of(state), size=(columns, rows), color=color, ascii_only=ascii_only) as (
        app,
        _,
    ):
        assert look_of(app.screen._compositor.render_strips()) == snapshot
