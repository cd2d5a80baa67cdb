"""The chart of the live screen: what a cursor says, zoom and pan by keys and mouse."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from textual.app import App, ComposeResult

from gpuwatchd.charts.chart_model import Curve, Forecast, Gap, Mark, Picture
from gpuwatchd.tui.theme import Painter
from gpuwatchd.tui.widgets.chart import SHORTEST_S, Chart, point_text
from tests.making import GIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T0 = 1_795_300_000.0


def picture() -> Picture:
    """Return an hour: it rises by 1 GiB a minute, with a gap of ten minutes in it."""
    minutes = [minute for minute in range(61) if not 30 < minute < 40]
    at_s = [T0 + 60.0 * minute for minute in minutes]
    used: list[float | None] = [float((10 + minute) * GIB) for minute in minutes]
    at_s.insert(31, T0 + 35 * 60.0)
    used.insert(31, None)
    low = tuple(None if one is None else one - GIB for one in used)
    high = tuple(None if one is None else one + GIB for one in used)
    curve = Curve(
        at_s=tuple(at_s), used_bytes=tuple(used), low_bytes=low, high_bytes=high, width_s=60.0
    )
    floor = tuple(float(10 * GIB) for _ in (0, 1))
    return Picture(
        key="GPU-0", title="GPU 0", kind="leak", verdict="LEAK", begin_s=T0, end_s=T0 + 3600,
        now_s=T0 + 3600, curve=curve,
        floor=Curve(at_s=(T0, T0 + 3600), used_bytes=floor, low_bytes=floor, high_bytes=floor),
        limit_bytes=float(80 * GIB),
        forecast=Forecast(
            judged_at_s=T0 + 3600, level_bytes=float(70 * GIB), rate_bytes_per_s=GIB / 60,
            onset_at_s=T0, limit_bytes=float(80 * GIB), low_s=400, mid_s=600, high_s=900,
        ),
        marks=(Mark(at_s=T0 + 1200, kind="alert", text="alert", severity="warning"),),
        gaps=(Gap(begin_s=T0 + 1801, end_s=T0 + 2399, why="the daemon was not running"),),
    )  # fmt: skip


class Bench(App[None]):
    """Nothing but a chart."""

    def __init__(self, color: str = "never", **flags: Any) -> None:
        super().__init__(ansi_color=True)
        self.moved = 0
        self.painter = Painter(color, **flags)

    def compose(self) -> ComposeResult:
        yield Chart(self.painter, id="chart")

    def on_chart_moved(self) -> None:
        self.moved += 1

    @property
    def chart(self) -> Chart:
        return self.query_one(Chart)


@asynccontextmanager
async def shown(size: tuple[int, int] = (80, 20), **flags: Any) -> AsyncIterator[Bench]:
    """Yield the chart with its picture."""
    app = Bench(**flags)
    async with app.run_test(size=size):
        app.chart.put(picture())
        yield app


def rows(chart: Chart) -> list[str]:
    return [chart.render_line(y).text for y in range(chart.size.height)]


def said(at_s: float, **changes: float) -> str:
    hour = picture()
    return "  ".join(words for words, _ in point_text(hour, at_s, **changes))


def test_a_sample_has_its_value_its_range_and_the_floor() -> None:
    assert said(T0 + 600).endswith("20.0 GiB  19.0 GiB - 21.0 GiB  floor 10.0 GiB")


def test_between_two_samples_it_is_the_nearer_one() -> None:
    assert said(T0 + 629) == said(T0 + 600) != said(T0 + 660)
    assert said(T0 + 631) == said(T0 + 660)


def test_a_gap_says_why_and_never_a_value() -> None:
    assert said(T0 + 2100).endswith("the daemon was not running")
    # However much time one column of the chart stands for.
    assert said(T0 + 2100, within_s=60.0).endswith("the daemon was not running")


def test_what_comes_is_a_forecast_and_ends_at_the_limit() -> None:
    assert said(T0 + 3600 + 300).endswith("fit 75.0 GiB  a forecast")
    assert said(T0 + 3600 + 6000).endswith("fit 80.0 GiB  a forecast")


def test_of_an_empty_picture_nothing_is_said_but_that() -> None:
    empty = Picture(key="x", title="x", kind="unknown", verdict="?", begin_s=T0, end_s=T0 + 60,
                    now_s=T0 + 60, curve=Curve())  # fmt: skip
    assert point_text(empty, T0 + 30)[1:] == [("no data", "faint")]
    assert len(point_text(empty, T0 + 900)) == 1


async def test_zoom_keeps_the_cursor_where_it_is_and_ends_somewhere() -> None:
    app = Bench()
    async with app.run_test(size=(80, 20)) as pilot:
        app.chart.put(picture())
        whole = app.chart.span
        assert whole[0] == T0
        assert whole[1] > T0 + 3600, "the forecast is not seen"
        app.chart.point_at(T0 + 1200)
        share = (T0 + 1200 - whole[0]) / (whole[1] - whole[0])
        app.chart.zoom(2)
        begin_s, end_s = app.chart.span
        assert end_s - begin_s < (whole[1] - whole[0]) / 2
        assert (T0 + 1200 - begin_s) / (end_s - begin_s) == pytest.approx(share)
        app.chart.zoom(100)
        begin_s, end_s = app.chart.span
        assert end_s - begin_s == pytest.approx(SHORTEST_S)
        app.chart.reset()
        await pilot.pause()
        assert app.chart.span == whole
        assert app.chart.cursor_s is None
        assert app.moved == 3


async def test_zoom_without_a_cursor_keeps_now_where_it_is() -> None:
    now_s = picture().now_s
    async with shown() as app:
        begin_s, end_s = app.chart.span
        share = (now_s - begin_s) / (end_s - begin_s)
        for _ in range(6):
            app.chart.zoom(1)
        begin_s, end_s = app.chart.span
        assert begin_s < now_s < end_s, "what is newest went out of sight"
        assert (now_s - begin_s) / (end_s - begin_s) == pytest.approx(share)


async def test_pan_goes_back_at_will_but_never_past_what_is_foreseen() -> None:
    async with shown() as app:
        begin_s, end_s = app.chart.span
        app.chart.zoom(1)
        app.chart.pan(-8)
        assert app.chart.span[1] < begin_s
        for _ in range(40):
            app.chart.pan(1)
        assert app.chart.span[0] < end_s < app.chart.span[1] + 1
        assert app.chart.span[1] < end_s + 0.2 * (end_s - begin_s)


async def test_a_new_picture_changes_nothing_of_zoom_and_cursor() -> None:
    async with shown() as app:
        app.chart.zoom(2)
        app.chart.point_at(T0 + 1500)
        seen, before = app.chart.span, rows(app.chart)
        app.chart.put(picture())
        assert (app.chart.span, app.chart.cursor_s) == (seen, T0 + 1500)
        assert rows(app.chart) == before


async def test_the_cursor_steps_over_columns_from_the_newest_sample_on() -> None:
    app = Bench()
    async with app.run_test(size=(80, 20)):
        assert app.chart.point_under_cursor() == []
        app.chart.step(-1)
        assert app.chart.cursor_s is None
        app.chart.put(picture())
        app.chart.step(-1)
        assert app.chart.cursor_s == T0 + 3600
        assert app.chart.point_under_cursor()[1] == ("70.0 GiB", "curve")
        app.chart.step(-3)
        assert app.chart.cursor_s is not None
        assert T0 + 3000 < app.chart.cursor_s < T0 + 3600
        app.chart.step(-1000)
        assert app.chart.cursor_s == T0


@pytest.mark.parametrize("color", ["always", "never"])
async def test_the_column_of_the_cursor_is_seen(
    color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    async with shown(color=color) as app:
        app.chart.point_at(T0 + 1200)
        lit = []
        for y in range(20):
            column = 0
            for text, style, _ in app.chart.render_line(y):
                ground = app.painter.style("cursor").bgcolor
                if style and (style.reverse or (ground and style.bgcolor == ground)):
                    lit.append((y, column, text))
                column += len(text)
        assert [y for y, _, _ in lit] == list(range(18)), "not from top to bottom, or below"
        assert len({column for _, column, _ in lit}) == 1
        assert any(text != " " for _, _, text in lit), "what is drawn there is gone"


async def test_the_mouse_points_zooms_and_drags() -> None:
    app = Bench()
    async with app.run_test(size=(80, 20)) as pilot:
        app.chart.put(picture())
        whole = app.chart.span
        await pilot.hover(app.chart, offset=(40, 5))
        at_s = app.chart.cursor_s
        assert at_s is not None
        assert whole[0] < at_s < whole[1]
        await pilot.hover(app.chart, offset=(1, 5))
        assert app.chart.cursor_s is None, "beside the plot there is no instant"
        app.chart.zoom(3, at_s)
        begin_s, end_s = app.chart.span
        await pilot.mouse_down(app.chart, offset=(40, 5))
        await pilot.hover(app.chart, offset=(60, 5))
        await pilot.mouse_up(app.chart, offset=(60, 5))
        dragged = app.chart.span
        assert dragged[0] < begin_s
        assert dragged[1] - dragged[0] == pytest.approx(end_s - begin_s)
        await pilot.hover(app.chart, offset=(30, 5))
        assert app.chart.span == dragged, "it is still held"


@pytest.mark.parametrize("size", [(80, 20), (40, 10), (20, 3), (1, 1), (300, 100)])
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_any_size_is_filled_and_no_more(size: tuple[int, int], ascii_only: bool) -> None:
    async with shown(size, ascii_only=ascii_only) as app:
        app.chart.point_at(T0 + 600)
        drawn = [app.chart.render_line(y) for y in range(size[1])]
        assert [strip.cell_length for strip in drawn] == [size[0]] * size[1]
        text = "".join(strip.text for strip in drawn)
        assert text.isascii() or not ascii_only
        app.chart.put(None)
        assert not "".join(rows(app.chart)).strip()
