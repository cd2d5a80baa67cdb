"""What keys and the mouse do to the first screen of ``top``."""

from __future__ import annotations

import pytest
from textual import events

from gpuwatchd.core.errors import SourceUnavailable
from gpuwatchd.core.model import ProcessKey
from gpuwatchd.tui import app as app_module
from gpuwatchd.tui import polling
from tests.tui import world
from tests.tui.first import Opened, cursor, processes_of, rows_of, usual
from tests.tui.viewing import opened, press

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let alerts be of now."""
    monkeypatch.setattr("time.time", lambda: world.NOW_S)


async def test_the_cursor_stays_with_its_process_when_the_order_changes() -> None:
    async with opened(usual()) as (app, pilot):
        await press(pilot, "down", "down")
        assert cursor(app).split()[2] == "4001"
        app.post_message(polling.ViewRead(usual(devices=world.state(8, 4).devices[::-1])))
        await pilot.pause()
        await press(pilot, "r")
        assert cursor(app).split()[2] == "4001"
        assert app.shared.selected_process == ProcessKey(pid=4001, started_at_s=world.NOW_S - 7200)


async def test_the_cursor_follows_whatever_is_first_until_it_is_moved() -> None:
    async with opened(usual()) as (app, pilot):
        assert cursor(app).split()[2] == "10001"
        app.post_message(polling.ViewRead(usual(4)))
        await pilot.pause()
        assert cursor(app).split()[2] == "7001"


async def test_the_cursor_stays_where_its_process_was_that_has_ended() -> None:
    async with opened(usual()) as (app, pilot):
        await press(pilot, "down")
        assert cursor(app).split()[2] == "7001"
        app.post_message(polling.ViewRead(usual(3)))
        await pilot.pause()
        assert len([row for row in rows_of(app) if row.startswith(">")]) == 1
        assert app.shared.selected_process is not None
        assert app.shared.selected_process.pid != 7001


@pytest.mark.parametrize(
    ("keys", "head", "first"),
    [
        (("M",), "MEMORY▼", "31.2"),
        (("M", "r"), "MEMORY▲", "5.9"),
        (("greater_than_sign",), "VERDICT▼", "CRITICAL"),
        (("left",), "MEMORY▼", "31.2"),
        (("comma", "comma"), "USER▼", "alice"),
        (("M", "N"), "GROWTH▼", "+86.8"),
    ],
)
async def test_keys_change_the_order(keys: tuple[str, ...], head: str, first: str) -> None:
    async with opened(usual(), *keys) as (app, _):
        assert any(head in row for row in rows_of(app))
        assert first in processes_of(app)[0]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("vllm", 6), ("alice", 6), ("7001", 1), ("pytorch", 13), ("gpu3", 4), ("CRITICAL", 1),
        ("alice gpu3", 1), ("nobody", 0),
    ],
)  # fmt: skip
async def test_a_filter_narrows_while_it_is_typed(typed: str, found: int) -> None:
    async with opened(usual(), size=(100, 60)) as (app, pilot):
        keys = ["space" if sign == " " else sign for sign in typed]
        await press(pilot, "slash", *keys)
        assert len(processes_of(app)) == found
        assert f"filter: {typed}" in rows_of(app)[-1]
        await press(pilot, "enter")
        assert f"/{typed}/ {found} of 32" in rows_of(app)[0]
        await press(pilot, "escape")
        assert len(processes_of(app)) == 32


async def test_while_a_filter_is_typed_keys_are_letters() -> None:
    async with opened(usual(), "slash", "q", "P", "question_mark", "backspace") as (app, pilot):
        assert app.is_running
        assert "filter: qP" in rows_of(app)[-1]
        await press(pilot, "ctrl+u", "escape")
        assert "filter:" not in rows_of(app)[-1]


async def test_a_digit_shows_one_gpu_and_again_all() -> None:
    async with opened(usual(), "3") as (app, pilot):
        assert {row[3] for row in processes_of(app)} == {"3"}
        assert "GPU 3" in rows_of(app)[0]
        assert app.shared.selected_device_uid == "GPU-3"
        await press(pilot, "3")
        assert len({row[3] for row in processes_of(app)}) > 1
        await press(pilot, "9")
        assert "there is no GPU 9" in rows_of(app)[-1]


async def test_two_digits_are_one_number() -> None:
    async with opened(usual(16), "1", "2") as (app, _):
        assert "GPU 12" in rows_of(app)[0]


async def test_tab_goes_to_the_gpus_and_what_is_opened_is_about_one() -> None:
    async with opened(usual(), "tab", "down") as (app, pilot):
        assert cursor(app).startswith(">GPU 1")
        assert (app.shared.selected_device_uid, app.shared.selected_process) == ("GPU-1", None)
        await press(pilot, "tab")
        assert app.shared.selected_process is not None


@pytest.mark.parametrize(
    ("keys", "key"),
    [(("enter",), "d"), (("d",), "d"), (("tab", "enter"), "P"), (("P",), "P"),
     (("question_mark",), "question_mark"), (("z",), "z"), (("a",), "a"), (("h",), "h")],
)  # fmt: skip
@pytest.mark.requirement("G37")
async def test_keys_open_screens_and_escape_comes_back(
    keys: tuple[str, ...], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(app_module.VIEWS, key, "tests.tui.first:Opened")
    monkeypatch.setattr("gpuwatchd.core.registry.load", lambda table, name: {key: Opened}[name])
    async with opened(usual(), *keys) as (app, pilot):
        assert isinstance(app.screen, Opened)
        assert (app.shared.selected_device_uid or "").startswith("GPU-")
        await press(pilot, "escape")
        assert not isinstance(app.screen, Opened)
        assert "GROWTH" in "\n".join(rows_of(app))


async def test_what_came_in_meanwhile_is_shown_when_a_screen_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuwatchd.core.registry.load", lambda table, name: Opened)
    async with opened(usual(), "tab", "P") as (app, pilot):
        app.post_message(polling.ViewRead(usual(3)))
        await pilot.pause()
        app.shared.selected_device_uid = "GPU-2"
        await press(pilot, "escape")
        rows = rows_of(app)
        assert any(row.startswith(">GPU 2") for row in rows)
        assert not any("GPU 3" in row for row in rows)


async def test_a_screen_that_cannot_be_loaded_costs_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(app_module.VIEWS, "P", "gpuwatchd.tui.nothing:Screen")
    async with opened(usual(), "P") as (app, _):
        assert "cannot be loaded" in rows_of(app)[-1]


async def test_a_look_that_fails_leaves_what_was_seen_and_says_so() -> None:
    async with opened(usual()) as (app, pilot):
        app.post_message(polling.Failed(SourceUnavailable("no GPU found: the driver is gone")))
        await pilot.pause()
        rows = rows_of(app)
        assert "not live" in rows[0]
        assert "daemon off" not in rows[0], "a look that fails knows nothing of the daemon"
        assert "no GPU found: the driver is gone" in rows[1]
        assert any(row.startswith(" GPU 7") for row in rows)


async def test_a_click_selects_and_two_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatchd.core.registry.load", lambda table, name: Opened)
    async with opened(usual()) as (app, pilot):
        rows = rows_of(app)
        y = next(at for at, row in enumerate(rows) if " 4003 " in row)
        await pilot.click(offset=(20, y))
        await pilot.pause()
        assert cursor(app).split()[2] == "4003"
        await pilot.double_click(offset=(20, y))
        await pilot.pause()
        assert isinstance(app.screen, Opened)


async def test_a_click_on_the_name_of_a_column_sorts_by_it() -> None:
    async with opened(usual()) as (app, pilot):
        y = next(at for at, row in enumerate(rows_of(app)) if " NAME" in row)
        x = rows_of(app)[y].index("PID")
        await pilot.click(offset=(x, y))
        await pilot.pause()
        assert [int(row.split()[2]) for row in processes_of(app)][:3] == [4000, 4001, 4002]
        await pilot.click(offset=(x, y))
        await pilot.pause()
        assert processes_of(app)[0].split()[2] == "11003"


async def test_what_is_pasted_goes_into_the_filter_that_is_typed() -> None:
    async with opened(usual()) as (app, pilot):
        app.screen.post_message(events.Paste("alice"))
        await pilot.pause()
        assert "/alice/" not in rows_of(app)[0], "nobody has asked for a filter"
        await pilot.press("slash", "g", "p")
        app.screen.post_message(events.Paste("u3\x1b[31m"))
        await pilot.pause()
        assert rows_of(app)[-1].startswith(" filter: gpu3▏ ")
        assert {row.split()[1] for row in processes_of(app)} == {"3"}
