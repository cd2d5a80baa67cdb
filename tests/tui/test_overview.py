"""The first screen of ``top``: what it shows, and what keys and mouse do to it."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpuwatchd.store.live import UndeliveredAlert
from gpuwatchd.tui import feed
from gpuwatchd.tui.page import Lines
from tests.tui import world
from tests.tui.first import cursor, processes_of, rows_of, usual
from tests.tui.viewing import flags_of, opened, press, view_of


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let alerts be of now, in the same zone everywhere."""
    monkeypatch.setattr("gpuwatchd.cli.panel.time.time", lambda: world.NOW_S)


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
        assert rows[-4].startswith(" 3 alerts open (2 more below: a)")
        assert "critical since" in rows[-3]


async def test_alerts_get_the_rows_that_few_processes_leave_empty() -> None:
    view = usual()
    view.devices = tuple(
        msgspec.structs.replace(item, processes=(item.processes or ())[1 : 2 if at < 2 else 1])
        for at, item in enumerate(view.devices)
    )
    async with opened(view) as (app, _):
        rows = rows_of(app)
        assert len(processes_of(app)) == 2
        assert rows[-6].startswith(" 3 alerts open ")
        assert not any("below" in row for row in rows), "all is told where there is room"


async def test_eighty_columns_name_the_script_and_not_its_interpreter() -> None:
    async with opened(usual()) as (app, _):
        rows = [row for row in processes_of(app) if "carol" in row or "LEAK" in row]
        assert any(re.search(r" finetune( |$)", row) for row in rows)
        assert not any("python" in row for row in rows)
        assert any("VLLM::EngineCore" in row for row in processes_of(app))
    async with opened(usual(), size=(160, 40)) as (app, _):
        assert any("python -m finetune" in row for row in processes_of(app))


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
        assert re.search("[▁-█] [▁-█]", card), "a gap stays one"
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


async def test_what_nobody_was_told_of_reads_like_a_sentence() -> None:
    view = usual(1, 1)
    title = "GPU 0 (A100): python of bob"
    view.lost = (
        UndeliveredAlert(
            key="leak:GPU-0/1@1", code="b12345", title=title, severity="critical",
            ended="it ended", ended_at_s=view.taken_at_s,
        ),
    )  # fmt: skip
    async with opened(view, size=(120, 30)) as (app, _):
        rows = [row.rstrip() for row in rows_of(app)]
        assert " ! 1 alert was over before anybody could be told" in rows


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
        app.post_message(feed.ViewRead(view))
        await pilot.pause()
        assert painted == [0], "the same again paints nothing"
        app.post_message(feed.ViewRead(usual(devices=world.state(8, 4, shift=1).devices)))
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
    from gpuwatchd.tui.screens.overview import Selection

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
