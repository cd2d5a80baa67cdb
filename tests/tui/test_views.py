"""What all views of the live screen have in common: reading without ever making anybody wait."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core import design
from gpuwatchd.core.errors import StoreError
from gpuwatchd.tui import base
from gpuwatchd.tui.app import VIEWS
from gpuwatchd.tui.base import ViewScreen
from gpuwatchd.tui.screens.help import HelpScreen
from gpuwatchd.tui.screens.idle import HeldScreen
from gpuwatchd.tui.widgets.texts import Lines
from tests.cli import world
from tests.tui import world as machine
from tests.tui.viewing import opened, press, screen, settled, shown, view_of, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from gpuwatchd.tui.app import TopApp


class Asking(ViewScreen):
    """A view that reads what the test wants it to."""

    name_shown = "Asking"
    work: Callable[[], Any] = staticmethod(lambda: "nothing")

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Any] = []
        self.asked = 0

    def job(self) -> Callable[[], Any]:
        self.asked += 1
        return self.work

    def answered(self, found: Any) -> None:
        self.got.append(found)


async def asking_on(app: TopApp, work: Callable[[], Any]) -> Asking:
    """Return a view on the screen that reads so."""
    asking = Asking()
    asking.work = work
    await app.push_screen(asking)
    return asking


async def until(pilot: Pilot[int], holds: Callable[[], bool]) -> None:
    """Wait until something holds; the test's own limit ends it."""
    while not holds():
        await pilot.pause(0.01)


def subject(asking: ViewScreen) -> str:
    return asking.query_one("#subject", Lines).text


async def test_what_takes_long_says_so_and_keeps_nobody_waiting() -> None:
    ready = threading.Event()
    async with opened(view_of(machine.state(2))) as (app, pilot):
        asking = await asking_on(app, lambda: ready.wait(30) and "read")
        await pilot.pause()
        assert "reading" not in subject(asking), "said before anybody had to wait"
        await until(pilot, lambda: "reading" in subject(asking))
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert not ready.is_set(), "keys wait for what is read"
        assert asking.got == [], "keys wait for what is read"
        await pilot.press("escape")
        ready.set()
        await settled(pilot)
        assert asking.got == ["read"]
        assert "reading" not in subject(asking)


async def test_an_error_is_a_line_with_its_hint_and_goes_when_it_is_over() -> None:
    def fail() -> str:
        raise StoreError("the history is locked", hint="wait a moment")

    view = view_of(machine.state(2))
    async with opened(view) as (app, pilot):
        asking = await asking_on(app, fail)
        await settled(pilot)
        assert "the history is locked (wait a moment)" in words(app)
        asking.work = lambda: "well again"
        asking.request(anew=True)
        await settled(pilot)
        assert asking.got == ["well again"]
        assert "locked" not in words(app)


async def test_a_mistake_of_ours_is_a_line_as_well() -> None:
    async with opened(view_of(machine.state(2))) as (app, pilot):
        await asking_on(app, lambda: 1 // 0)
        await settled(pilot)
        assert "this cannot be shown: ZeroDivisionError" in words(app)


async def test_an_answer_that_nobody_wants_any_more_is_forgotten() -> None:
    ready = threading.Event()
    async with opened(view_of(machine.state(2))) as (app, pilot):
        asking = await asking_on(app, lambda: ready.wait(30) and "old")
        await until(pilot, lambda: asking.asking)
        asking.work = lambda: "new"
        asking.request(anew=True)
        assert asking.asked == 1, "a second question was asked beside the first"
        ready.set()
        await settled(pilot)
        assert asking.got == ["new"]


async def test_one_that_was_left_is_not_drawn_on() -> None:
    ready = threading.Event()
    async with opened(view_of(machine.state(2))) as (app, pilot):
        asking = await asking_on(app, lambda: ready.wait(30) and "late")
        await until(pilot, lambda: asking.asking)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not asking)
        ready.set()
        await settled(pilot)
        assert asking.got == []
        assert "Overview" in shown(app)


async def test_what_costs_much_is_not_read_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_SHARE", 1e9)
    view = view_of(machine.state(2))
    async with opened(view) as (app, pilot):
        asking = await asking_on(app, Asking.work)
        await settled(pilot)
        for _ in range(3):
            asking.show(view)
            await settled(pilot)
        assert asking.asked == 1
        asking.request(anew=True)
        await settled(pilot)
        assert asking.asked == 2


async def test_held_memory_is_told_as_zombies_tells_it() -> None:
    world.write(world.odd())
    async with opened(view_of(world.odd()), "z", size=(100, 40)) as (app, _):
        told = world.run("zombies", "-v", env={"COLUMNS": "98"}).stdout.split()
        said = screen(app, HeldScreen).page.text.split()
        # Ages go on between the two.
        assert [one for one in said if one.isalpha()] == [one for one in told if one.isalpha()]
        assert "gone" in said


async def test_text_scrolls_and_stays_where_it_is_when_it_is_read_again() -> None:
    async with opened(view_of(machine.state(2)), "question_mark") as (app, pilot):
        page = screen(app, HelpScreen).page
        await press(pilot, "pagedown", "down")
        first = page.scroll_offset.y
        assert first > 10
        screen(app, HelpScreen).show(view_of(machine.state(2)))
        await settled(pilot)
        assert page.scroll_offset.y == first
        await press(pilot, "end")
        assert page.max_scroll_y == page.scroll_offset.y > first
        await press(pilot, "home")
        assert page.scroll_offset.y == 0


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_help_knows_every_key_and_look_of_the_program(ascii_only: bool) -> None:
    view = view_of(machine.state(2))
    async with opened(view, "question_mark", size=(40, 24), ascii_only=ascii_only) as (app, _):
        said = screen(app, HelpScreen).page.text
        for key in VIEWS:
            name = {"question_mark": "?"}.get(key, key)
            assert any(row.split()[:1] in ([name], [f"{name},"]) for row in said.splitlines())
        for look in design.LOOKS.values():
            assert look.word in " ".join(said.split())
            assert (look.ascii_mark if ascii_only else look.mark) in said
        for flag in design.FLAGS.values():
            assert flag.word in said
            assert (flag.ascii_mark if ascii_only else flag.mark) in said
        assert all(word in said for word in design.LEGEND.values())
        assert said.isascii() or not ascii_only
        assert max(map(len, said.splitlines())) <= 39


@pytest.mark.slow
async def test_views_opened_over_one_another_are_no_more_than_there_are() -> None:
    async with opened(view_of(machine.state(2))) as (app, pilot):
        under = len(app.screen_stack)
        await press(pilot, "P", "z", "question_mark", "P", "z", "P", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        await press(pilot, "escape")
        assert app.screen.name_shown == "Predict"
        await press(pilot, "escape")
        assert len(app.screen_stack) == under


async def test_a_click_on_a_key_of_a_view_presses_it() -> None:
    async with opened(view_of(machine.state(2)), "z") as (app, pilot):
        foot = shown(app).splitlines()[-1]
        await pilot.click(offset=(foot.index("help"), 23))
        await settled(pilot)
        assert isinstance(app.screen, HelpScreen)
        foot = shown(app).splitlines()[-1]
        await pilot.click(offset=(foot.index("scroll"), 23))
        await settled(pilot)
        assert isinstance(app.screen, HelpScreen), "two keys are none"
        await pilot.click(offset=(foot.index("back"), 23))
        await settled(pilot)
        assert isinstance(app.screen, HeldScreen)
