"""The first screen of ``top`` in tests: its rows, and the states it shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.tui.base import TopScreen
from tests.tui import world
from tests.tui.viewing import view_of

if TYPE_CHECKING:
    from gpuwatchd.tui.app import TopApp
    from gpuwatchd.view.queries.current_view import View


def rows_of(app: TopApp) -> list[str]:
    """Return the whole screen."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def processes_of(app: TopApp) -> list[str]:
    """Return the rows of processes."""
    rows = rows_of(app)
    head = next(at for at, row in enumerate(rows) if " NAME" in row)
    found = [row for row in rows[head + 1 :] if re.match(r".[^ ] \d", row)]
    return found[: next((i for i, row in enumerate(found) if "alert" in row), len(found))]


def usual(cards: int = 8, processes: int = 4, **changes: object) -> View:
    """Return a view of the usual machine."""
    return view_of(msgspec.structs.replace(world.state(cards, processes), **changes))


def cursor(app: TopApp) -> str:
    """Return the row with the cursor, which has a mark where there is no colour."""
    found = [row for row in rows_of(app) if row.startswith(">")]
    assert len(found) == 1
    return found[0]


class Opened(TopScreen):
    """Stands for a screen behind a key."""
