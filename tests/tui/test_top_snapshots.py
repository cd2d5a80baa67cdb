"""How the first screen looks, cell by cell: each row, and below it a letter for each look.

``pytest tests/tui/test_top_snapshots.py --snapshot-update`` after a change that is meant.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli.output import width_of
from gpuwatchd.tui.page import Lines
from tests.tui import world
from tests.tui.viewing import flags_of, opened, view_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from syrupy.assertion import SnapshotAssertion

    from gpuwatchd.tui.app import TopApp


@pytest.fixture(autouse=True)
def _then_and_there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the clock, and take the same zone and colours everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    monkeypatch.setattr("gpuwatchd.cli.panel.time.time", lambda: world.NOW_S)
    yield
    monkeypatch.undo()
    time.tzset()


def look_of(app: TopApp) -> str:
    """Return the rows of a screen with their looks, and what each letter stands for."""
    letters: dict[str, str] = {}
    rows = []
    lines = app.screen.query_one(Lines)
    for y in range(app.size.height):
        strip = lines.render_line(y)
        looks = ""
        for text, style, _ in strip:
            letter = letters.setdefault(str(style), chr(ord("A") + len(letters)))
            looks += letter * width_of(text)
        rows += [f"|{strip.text}|", f" {looks}"]
    return "\n".join([*rows, *(f"{letter}: {style}" for style, letter in letters.items())])


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
    flags = flags_of(color=color, ascii_only=color == "never")
    async with opened(view_of(state), size=(columns, rows), flags=flags) as (app, _):
        assert look_of(app) == snapshot
