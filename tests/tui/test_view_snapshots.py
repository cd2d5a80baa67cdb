"""How the views look, cell by cell: each row, and below it a letter for each look.

``pytest tests/tui/test_view_snapshots.py --snapshot-update`` after a change that is meant.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli.output import width_of
from tests.tui import leaky, world
from tests.tui.viewing import flags_of, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from syrupy.assertion import SnapshotAssertion

    from gpuwatchd.charts.drawing import Picture
    from gpuwatchd.tui.app import TopApp


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
    monkeypatch.setattr("gpuwatchd.cli.locations.alive", lambda _: True)
    monkeypatch.setattr("gpuwatchd.cli.current_state.alive", lambda _: True)
    # How a chart is drawn has tests of its own.
    monkeypatch.setattr("gpuwatchd.charts.terminal.draw", _place)
    leaky.leave()
    yield
    monkeypatch.undo()
    time.tzset()


def _place(picture: Picture, width: int, height: int, **_: object) -> list[list[tuple[str, str]]]:
    """Return where the chart of a picture would be."""
    return [[(f"{picture.key[:width]:^{width}}", "curve")] for _ in range(height)]


def look_of(app: TopApp) -> str:
    """Return the rows of a screen with their looks, and what each letter stands for."""
    letters: dict[str, str] = {}
    rows = []
    for strip in app.screen._compositor.render_strips():
        looks = ""
        for text, style, _ in strip:
            letter = letters.setdefault(str(style), chr(ord("A") + len(letters)))
            looks += letter * width_of(text)
        rows += [f"|{strip.text}|", f" {looks}"]
    return "\n".join([*rows, *(f"{letter}: {style}" for style, letter in letters.items())])


@pytest.mark.parametrize("key", ["P", "d", "h", "a", "s", "question_mark"])
@pytest.mark.parametrize(
    ("columns", "rows", "color"), [(80, 24, "always"), (40, 20, "always"), (140, 30, "never")]
)
async def test_a_view(
    snapshot: SnapshotAssertion, key: str, columns: int, rows: int, color: str
) -> None:
    flags = flags_of(color=color, ascii_only=color == "never")
    async with opened(leaky.view(), key, size=(columns, rows), flags=flags) as (app, _):
        assert look_of(app) == snapshot
