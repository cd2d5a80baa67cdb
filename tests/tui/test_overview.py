"""The first screen of ``top``: what it shows, and what keys and mouse do to it."""

from __future__ import annotations

import pytest

from gpuwatchd.store.live import UndeliveredAlert
from gpuwatchd.tui import polling
from gpuwatchd.tui.widgets.texts import Lines
from gpuwatchd.view.query import Query
from tests.tui import world
from tests.tui.first import cursor, processes_of, rows_of, usual
from tests.tui.viewing import opened, press, view_of


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let alerts be of now, in the same zone everywhere."""
    monkeypatch.setattr("time.time", lambda: world.NOW_S)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (40, 24), (20, 8), (200, 60), (120, 40), (300, 5)])
@pytest.mark.parametrize("cards", [1, 8, 32])
async def test_every_row_is_as_wide_as_the_terminal(cards: int, size: tuple[int, int]) -> None:
    async with opened(usual(cards), size=size) as (app, _):
        strips = app.screen._compositor.render_strips()
        for y in range(size[1]):
            strip = strips[y]
            assert strip.cell_length == size[0]
            assert sum(segment.cell_length for segment in strip) == size[0]


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
            " ! the daemon is not running; this is what it saw last 5 min ago"
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
        assert sum("b12345" in row for row in rows_of(app)) == 1


async def test_a_thousand_processes_are_scrolled_through() -> None:
    async with opened(usual(8, 128), size=(80, 24)) as (app, pilot):
        assert len(processes_of(app)) == 8
        before = cursor(app)
        await press(pilot, "end")
        assert cursor(app) != before
        assert app.shared.selected_process is not None
        await press(pilot, "home")
        assert cursor(app) == before


async def test_only_what_changes_is_painted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    view = usual()
    async with opened(view, size=(120, 40)) as (app, pilot):
        lines = app.screen.query_one(Lines)
        painted: list[int] = []
        kept = Lines.put

        def put(self: Lines, rows: list[list[tuple[str, str]]]) -> int:
            count = kept(self, rows)
            if self is lines:
                painted.append(count)
            return count

        monkeypatch.setattr(Lines, "put", put)
        app.post_message(polling.ViewRead(view))
        await pilot.pause()
        assert painted == [0], "the same again paints nothing"
        app.post_message(polling.ViewRead(usual(devices=world.state(8, 4, shift=1).devices)))
        await pilot.pause()
        assert 0 < painted[1] < 16, "eight GPUs and three processes, not forty rows"
        assert lines.is_attached


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (40, 24), (120, 40)])
async def test_ascii_draws_nothing_else(size: tuple[int, int]) -> None:
    for state in (world.state(), world.strange()):
        async with opened(view_of(state), size=size, ascii_only=True) as (app, pilot):
            await press(pilot, "slash", "x", "escape")
            assert "\n".join(rows_of(app)).isascii()


async def test_a_mistake_of_ours_ends_the_screen_and_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpuwatchd.tui.app import TopApp as Program
    from gpuwatchd.tui.screens.overview import Selection

    def broken(self: Selection) -> None:
        raise ValueError("a broken row")

    monkeypatch.setattr(Selection, "turn", broken)
    view = usual()
    app = Program(Query(), every_s=1e6, first=view)

    async def scene() -> None:
        async with app.run_test() as pilot:
            await pilot.pause()
            await pilot.press("r")

    with pytest.raises(ValueError, match="a broken row"):
        await scene()
    assert isinstance(app.broken, ValueError)
