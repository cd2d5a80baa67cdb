"""The live screen opened in a test: keys pressed, what is shown as text."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from gpuwatchd.tui.app import TopApp
from gpuwatchd.tui.base import ViewScreen
from gpuwatchd.view.queries.current_view import View
from gpuwatchd.view.query import Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.pilot import Pilot

    from gpuwatchd.store.live import LiveState

Screen = TypeVar("Screen", bound=ViewScreen)
NEVER_S = 86_400.0
"""Between two looks: tests hand over themselves what is seen."""


def view_of(state: LiveState) -> View:
    """Return what a look at a state gives, as if its daemon ran."""
    view = View("state-file", state.taken_at_s, state.devices)
    view.stale_s = 0.0
    view.alerts, view.holdings, view.silences = state.alerts, state.holdings, state.silences
    view.daemon.running, view.daemon.pid = True, state.pid
    view.daemon.started_at_s = state.started_at_s
    return view


@asynccontextmanager
async def opened(
    view: View,
    *keys: str,
    size: tuple[int, int] = (80, 24),
    color: str = "never",
    ascii_only: bool = False,
    now_s: float | None = None,
) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    """Yield the program with these keys pressed, when everything is read."""
    app = TopApp(
        Query(), color=color, ascii_only=ascii_only, every_s=NEVER_S, first=view,
        now=lambda: now_s or view.taken_at_s,
    )  # fmt: skip
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await press(pilot, *keys)
        yield app, pilot
    assert app.broken is None


async def press(pilot: Pilot[int], *keys: str) -> None:
    """Press keys one after the other, each when the one before has had its effect."""
    await settled(pilot)
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


async def settled(pilot: Pilot[int]) -> None:
    """Wait until the view that is shown has read everything that it asked for."""
    await pilot.pause()
    while True:
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        screen = pilot.app.screen
        if not (isinstance(screen, ViewScreen) and screen.asking):
            return
        await pilot.pause(0.01)


def screen(app: TopApp, kind: type[Screen]) -> Screen:
    """Return the screen that is shown, which is of this kind."""
    assert isinstance(app.screen, kind)
    return app.screen


def shown(app: TopApp) -> str:
    """Return what stands on the screen, row by row."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


def words(app: TopApp) -> str:
    """Return the same with single spaces: sentences are broken where the width ends."""
    return " ".join(shown(app).split())
