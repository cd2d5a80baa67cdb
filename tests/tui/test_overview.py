"""The first screen of ``top``: what it shows, and what keys and mouse do to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.model import ProcessKey
from gpuwatchd.tui import app as app_module
from gpuwatchd.tui import feed
from gpuwatchd.tui.lines import Lines
from gpuwatchd.tui.page import Page
from tests.tui import world
from tests.tui.viewing import flags_of, opened, press, view_of

if TYPE_CHECKING:
    from gpuwatchd.ctl.look import View
    from gpuwatchd.tui.app import TopApp


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let alerts be of now, in the same zone everywhere."""
    monkeypatch.setattr("gpuwatchd.ctl.panel.time.time", lambda: world.NOW_S)


def rows_of(app: TopApp) -> list[str]:
    """Return the whole screen."""
    lines = app.screen.query_one(Lines)
    return [lines.render_line(y).text for y in range(app.size.height)]


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


# ---- what is shown


@pytest.mark.parametrize("size", [(80, 24), (40, 24), (20, 8), (200, 60), (120, 40), (300, 5)])
@pytest.mark.parametrize("cards", [1, 8, 32])
async def test_every_row_is_as_wide_as_the_terminal(cards: int, size: tuple[int, int]) -> None:
    async with opened(usual(cards), size=size) as (app, _):
        for y in range(size[1]):
            strip = app.screen.query_one(Lines).render_line(y)
            assert strip.cell_length == size[0]
            assert sum(segment.cell_length for segment in strip) == size[0]


async def test_eighty_by_twenty_four_has_every_gpu_with_its_verdict_and_time_left() -> None:
    async with opened(usual()) as (app, _):
        rows = rows_of(app)
        cards = [row for row in rows if re.match(r" GPU \d ", row)]
        assert [row[1:6] for row in cards] == [f"GPU {at}" for at in range(8)]
        assert "▲ CRITICAL" in cards[0]
        assert "0h 47m (0h 39m - 1h 02m)" in cards[0]
        assert "0%  45°C  310W" in cards[0]
        assert "● plateau" in cards[1]
        assert "(0h" not in cards[1], "what is calm has no time left"
        assert len(processes_of(app)) == 8
        assert "3 alerts" in rows[0]
        assert rows[-4].startswith(" 3 open alerts (2 more below: a)")
        assert "critical since" in rows[-3]


async def test_forty_columns_have_verdict_memory_time_left_and_growth() -> None:
    async with opened(usual(), size=(40, 24)) as (app, _):
        rows = rows_of(app)
        card = next(row for row in rows if row.startswith(" GPU 0"))
        assert all(word in card for word in ("CRITICAL", "75.0/80.0", "0h 47m"))
        assert "+86.8 MB/min" in processes_of(app)[0]
        assert "3 alerts" in rows[0]


async def test_two_hundred_columns_name_suspects_and_show_the_last_minutes() -> None:
    async with opened(usual(), size=(200, 60)) as (app, _):
        card = next(row for row in rows_of(app) if row.startswith(" GPU 0"))
        assert "by VLLM::EngineCore[4001] of bob" in card
        assert re.search("[▁▂▃▄▅▆▇█]{5}", card)
        assert " ▃" in card, "a gap stays one"
        assert "+12.4 MB/min" in card
        assert any("HOST MEM" in row and "TIME" in row for row in rows_of(app))


async def test_where_there_is_room_each_gpu_has_a_second_row() -> None:
    async with opened(usual(2), size=(100, 40)) as (app, _):
        rows = rows_of(app)
        at = next(i for i, row in enumerate(rows) if row.startswith(" GPU 0"))
        assert "NVIDIA H100" in rows[at + 1]
        assert "by VLLM::EngineCore[4001] of bob" in rows[at + 1]


async def test_growth_comes_first_then_memory() -> None:
    async with opened(usual()) as (app, _):
        rates = [re.search(r"\+([\d.]+) MB/min", row) for row in processes_of(app)]
        assert [float(found[1]) for found in rates[:3] if found] == [86.8, 49.6, 12.4]
        assert rates[3] is None
        held = [float(row.split()[4]) for row in processes_of(app)[3:]]
        assert held == sorted(held, reverse=True)


async def test_what_is_strange_is_shown_for_what_it_is() -> None:
    state = world.strange()
    view = view_of(state)
    view.daemon.problems = state.problems
    async with opened(view, size=(120, 30)) as (app, _):
        text = "\n".join(rows_of(app))
        assert "✕ lost" in text
        assert "✕ unreadable" in text
        assert "?/80.0 GiB" in text
        assert "MIG 3:0" in text
        assert "90s (30s - open)" in text
        assert "outside this container" in text
        assert "pid 13 (gone" in text
        assert "[bold red]<script>" in text, "markup is text"
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "problem: the desktop cannot be reached" in text


async def test_without_a_process_the_reason_is_told() -> None:
    async with opened(usual(1, 0)) as (app, _):
        assert any("no process uses a GPU" in row for row in rows_of(app))


async def test_a_daemon_that_is_gone_is_told_at_the_top() -> None:
    view = usual()
    view.daemon.running = False
    view.warnings.append(("daemon-dead", "the daemon is not running; this is what it saw last"))
    view.stale_s = 300.0
    async with opened(view) as (app, _):
        rows = rows_of(app)
        assert "daemon off" in rows[0]
        assert rows[1].startswith(
            " ! the daemon is not running; this is what it saw last 0h 05m ago"
        )


async def test_a_thousand_processes_are_scrolled_through() -> None:
    async with opened(usual(8, 128), size=(80, 24)) as (app, pilot):
        assert len(processes_of(app)) == 8
        before = cursor(app)
        await press(pilot, "end")
        assert cursor(app) != before
        assert app.selected_process is not None
        await press(pilot, "home")
        assert cursor(app) == before


async def test_what_is_unknown_of_everybody_has_no_column() -> None:
    state = world.state(1, 2)
    rows = tuple(
        msgspec.structs.replace(one, sm_pct=None, host_bytes=None)
        for one in state.devices[0].processes or ()
    )
    device = msgspec.structs.replace(state.devices[0], processes=rows)
    for devices, there in (((device,), False), (state.devices, True)):
        view = view_of(msgspec.structs.replace(state, devices=devices))
        async with opened(view, size=(140, 24)) as (app, _):
            assert any("HOST MEM" in row for row in rows_of(app)) is there


# ---- keys


async def test_the_cursor_stays_with_its_process_when_the_order_changes() -> None:
    async with opened(usual()) as (app, pilot):
        await press(pilot, "down", "down")
        assert cursor(app).split()[2] == "4001"
        app.post_message(feed.Seen(usual(devices=world.state(8, 4).devices[::-1])))
        await pilot.pause()
        await press(pilot, "r")
        assert cursor(app).split()[2] == "4001"
        assert app.selected_process == ProcessKey(pid=4001, started_at_s=world.NOW_S - 7200)


async def test_the_cursor_follows_whatever_is_first_until_it_is_moved() -> None:
    async with opened(usual()) as (app, pilot):
        assert cursor(app).split()[2] == "10001"
        app.post_message(feed.Seen(usual(4)))
        await pilot.pause()
        assert cursor(app).split()[2] == "7001"


async def test_the_cursor_stays_where_its_process_was_that_has_ended() -> None:
    async with opened(usual()) as (app, pilot):
        await press(pilot, "down")
        assert cursor(app).split()[2] == "7001"
        app.post_message(feed.Seen(usual(3)))
        await pilot.pause()
        assert len([row for row in rows_of(app) if row.startswith(">")]) == 1
        assert app.selected_process is not None
        assert app.selected_process.pid != 7001


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
        assert app.selected_device_uid == "GPU-3"
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
        assert (app.selected_device_uid, app.selected_process) == ("GPU-1", None)
        await press(pilot, "tab")
        assert app.selected_process is not None


class Opened(Page):
    """Stands for a screen behind a key."""

    def body(self, width: int, height: int) -> list[list[tuple[str, str]]]:
        return [[(f"about {self.top.selected_device_uid} {self.top.selected_process}", "")]]


@pytest.mark.parametrize(
    ("keys", "key"),
    [(("enter",), "d"), (("d",), "d"), (("tab", "enter"), "P"), (("P",), "P"),
     (("question_mark",), "question_mark"), (("z",), "z"), (("a",), "a"), (("h",), "h")],
)  # fmt: skip
async def test_keys_open_screens_and_escape_comes_back(
    keys: tuple[str, ...], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(app_module.VIEWS, key, f"{__name__}:Opened")
    monkeypatch.setattr("gpuwatchd.registry.load", lambda table, name: {key: Opened}[name])
    async with opened(usual(), *keys) as (app, pilot):
        assert isinstance(app.screen, Opened)
        assert "about GPU-" in rows_of(app)[1]
        await press(pilot, "escape")
        assert not isinstance(app.screen, Opened)
        assert "GROWTH" in "\n".join(rows_of(app))


async def test_what_came_in_meanwhile_is_shown_when_a_screen_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuwatchd.registry.load", lambda table, name: Opened)
    async with opened(usual(), "tab", "P") as (app, pilot):
        app.post_message(feed.Seen(usual(3)))
        await pilot.pause()
        app.selected_device_uid = "GPU-2"
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
    from gpuwatchd.errors import SourceUnavailable

    async with opened(usual()) as (app, pilot):
        app.post_message(feed.Failed(SourceUnavailable("no GPU found: the driver is gone")))
        await pilot.pause()
        rows = rows_of(app)
        assert "daemon off" in rows[0]
        assert "no GPU found: the driver is gone" in rows[1]
        assert any(row.startswith(" GPU 7") for row in rows)


# ---- the mouse


async def test_a_click_selects_and_two_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatchd.registry.load", lambda table, name: Opened)
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


async def test_a_click_on_a_key_presses_it() -> None:
    async with opened(usual()) as (app, pilot):
        await pilot.click(offset=(rows_of(app)[-1].index("filter"), 23))
        await pilot.pause()
        assert "filter:" in rows_of(app)[-1]


# ---- how it is painted


async def test_only_what_changes_is_painted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    view = usual()
    async with opened(view, size=(120, 40)) as (app, pilot):
        lines = app.screen.query_one(Lines)
        painted: list[int] = []
        kept = Lines.put

        def put(self: Lines, rows: list[list[tuple[str, str]]]) -> int:
            count = kept(self, rows)
            painted.append(count)
            return count

        monkeypatch.setattr(Lines, "put", put)
        app.post_message(feed.Seen(view))
        await pilot.pause()
        assert painted == [0], "the same again paints nothing"
        app.post_message(feed.Seen(usual(devices=world.state(8, 4, shift=1).devices)))
        await pilot.pause()
        assert 0 < painted[1] < 16, "eight GPUs and three processes, not forty rows"
        assert lines.is_attached


@pytest.mark.parametrize("size", [(80, 24), (40, 24), (120, 40)])
async def test_ascii_draws_nothing_else(size: tuple[int, int]) -> None:
    for state in (world.state(), world.strange()):
        flags = flags_of(ascii_only=True)
        async with opened(view_of(state), size=size, flags=flags) as (app, pilot):
            await press(pilot, "slash", "x", "escape")
            assert "\n".join(rows_of(app)).isascii()


async def test_without_colour_no_cell_has_one() -> None:
    async with opened(usual(), flags=flags_of(color="never")) as (app, _):
        lines = app.screen.query_one(Lines)
        styles = {segment.style for y in range(24) for segment in lines.render_line(y)}
        assert all(style is not None and style.color is None for style in styles)
        assert all(style is not None and style.bgcolor is None for style in styles)
        assert any(style is not None and style.reverse for style in styles)


async def test_a_mistake_of_ours_ends_the_screen_and_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpuwatchd.tui.app import TopApp as Program
    from gpuwatchd.tui.selection import Selection

    def broken(self: Selection) -> None:
        raise ValueError("a broken row")

    monkeypatch.setattr(Selection, "turn", broken)
    view = usual()
    app = Program(flags_of(), every_s=1e6, first=view)

    async def scene() -> None:
        async with app.run_test() as pilot:
            await pilot.pause()
            await pilot.press("r")

    with pytest.raises(ValueError, match="a broken row"):
        await scene()
    assert isinstance(app.broken, ValueError)
