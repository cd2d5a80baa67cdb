"""Predict, Detail and History: what they tell, and what zoom and time do to them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpuwatchd.alerts import wording
from gpuwatchd.core import config
from gpuwatchd.store.live import LiveState
from gpuwatchd.tui.screens.chart_screen import SPANS
from gpuwatchd.tui.screens.detail import DetailScreen
from gpuwatchd.tui.screens.history import PastScreen
from gpuwatchd.tui.screens.predict import PredictScreen
from gpuwatchd.tui.widgets.texts import Lines, TextPage
from tests import making
from tests.cli import world
from tests.tui import leaky
from tests.tui import world as machine
from tests.tui.viewing import opened, press, screen, settled, shown, view_of, words

if TYPE_CHECKING:
    from typing import Any

    from gpuwatchd.view.queries import charts

HOUR_S = 3600.0
ALL = {"P": PredictScreen, "d": DetailScreen, "h": PastScreen}


@pytest.fixture(autouse=True)
def left() -> LiveState:
    """Leave a history and a live state of an hour that ends now."""
    return leaky.leave()


def text(view: Any, name: str = "text") -> str:
    return " ".join(view.query_one(f"#{name}", TextPage).text.split())


@pytest.mark.requirement("B15")
async def test_predict_goes_from_gpu_to_gpu_and_back_to_the_same_one() -> None:
    async with opened(leaky.view(), "P") as (app, pilot):
        view = screen(app, PredictScreen)
        assert view.chart.picture is not None
        assert view.chart.picture.key.startswith("GPU-1")
        await press(pilot, "down")
        assert app.shared.selected_device_uid == "GPU-2"
        assert view.chart.picture is not None
        assert view.chart.picture.key.startswith("GPU-2")
        assert "no growth in 6 h" in words(app)
        await pilot.click("#gpus", offset=(3, 0))
        await settled(pilot)
        assert view.chart.picture.key.startswith("GPU-1")


async def test_detail_of_a_process_that_ends_meanwhile_keeps_what_was_known(
    left: LiveState,
) -> None:
    async with opened(leaky.view(), "d", size=(80, 40)) as (app, pilot):
        (alert,) = left.alerts
        over = leaky.state(left.taken_at_s + 5.0, alert, ended=True)
        world.write(over)
        view = screen(app, DetailScreen)
        view._due_text_s = 0.0
        view.show(leaky.view())
        view.request(anew=True)
        await settled(pilot)
        assert "it has ended" in shown(app).splitlines()[1]
        assert "this is what was known of it last" in text(view)
        assert "Detectors" in text(view)
        assert view.chart.picture is not None
        assert view.chart.picture.curve.at_s


async def test_detail_shows_what_was_learned_inside(left: LiveState) -> None:
    (alert,) = left.alerts
    found = replace(alert.finding, holder=making.HOLDER, allocator=making.ALLOCATOR)
    seen = leaky.state(left.taken_at_s, replace(alert, finding=found))
    async with opened(view_of(seen), "d", size=(120, 60)) as (app, _):
        for line in wording.inside(found).values():
            assert line in text(screen(app, DetailScreen))


async def test_history_lists_what_happened_and_goes_there() -> None:
    async with opened(leaky.view(), "h", size=(120, 30)) as (app, pilot):
        view = screen(app, PastScreen)
        picture = view.chart.picture
        assert picture is not None
        assert picture.marks, "the alert is not marked"
        newest = picture.marks[-1]
        await press(pilot, "down")
        assert view.chart.cursor_s == newest.at_s
        assert newest.text.split()[0] in words(app)
        await press(pilot, "escape")


async def test_tab_goes_through_gpus_and_their_processes() -> None:
    async with opened(leaky.view()) as (app, pilot):
        app.shared.selected_device_uid, app.shared.selected_process = "GPU-1", None
        app.open("h")
        await settled(pilot)
        said = []
        for _ in range(5):
            said.append(shown(app).splitlines()[1])
            await press(pilot, "tab")
        assert said[0].startswith("GPU 0")
        assert said[1].startswith(leaky.WHO)
        assert "jupyter" in said[2]
        assert said[3].startswith("GPU 1")
        assert said[4] == said[0]


async def test_spans_zoom_pan_and_reset() -> None:
    async with opened(leaky.view(), "h") as (app, pilot):
        view = screen(app, PastScreen)
        for one, name, span_s in SPANS:
            await press(pilot, one)
            assert view.chart.picture is not None
            asked_s = view.chart.picture.end_s - view.chart.picture.begin_s
            if span_s is not None:
                assert asked_s == pytest.approx(span_s)
            else:
                assert asked_s == pytest.approx(HOUR_S, rel=0.1), "everything there is"
            assert f"span {name}" in view.query_one("#told", Lines).text
        await press(pilot, "1")
        whole = view.chart.span
        await press(pilot, "plus", "plus", "left", "left", "left")
        begin_s, end_s = view.chart.span
        assert end_s - begin_s < (whole[1] - whole[0]) / 2
        assert view.chart.picture is not None
        assert view.chart.picture.begin_s < begin_s, "nothing beside what is seen was read"
        assert view.chart.picture.begin_s > whole[0] - HOUR_S
        await press(pilot, "0")
        assert view.chart.span == whole


@pytest.mark.parametrize("key", list(ALL))
async def test_a_view_opens_where_the_record_begins(key: str) -> None:
    async with opened(leaky.view(), key) as (app, pilot):
        view = screen(app, ALL[key])
        picture = view.chart.picture
        assert picture is not None
        span_s = picture.end_s - picture.begin_s
        assert span_s == pytest.approx(HOUR_S, rel=0.2), "hours of nothing are drawn"
        assert "since recording started" in view.query_one("#told", Lines).text
        await press(pilot, "2")
        assert view.chart.picture is not None
        assert view.chart.picture.begin_s < picture.begin_s - HOUR_S, "6h stays what it says"


async def test_a_new_look_goes_along_with_time_but_leaves_the_past_alone() -> None:
    seen = leaky.view()
    async with opened(seen, "d") as (app, pilot):
        view = screen(app, DetailScreen)
        await press(pilot, "plus", "right", "right", "right")
        live = view.chart.span
        assert live[1] >= seen.taken_at_s
        view.show(leaky.later(seen, 10.0))
        await settled(pilot)
        assert view.chart.span == pytest.approx((live[0] + 10.0, live[1] + 10.0))
        view.chart.pan(-12)
        await settled(pilot)
        past = view.chart.span
        assert past[1] < seen.taken_at_s
        view.chart.point_at(past[0] + 60.0)
        view.show(leaky.later(seen, 20.0))
        await settled(pilot)
        assert view.chart.span == past
        assert view.chart.cursor_s == past[0] + 60.0


async def test_the_cursor_reads_out() -> None:
    async with opened(leaky.view(), "P") as (app, pilot):
        view = screen(app, PredictScreen)
        await press(pilot, "1", "less_than_sign", "shift+left")
        assert "GiB" in view.query_one("#told", Lines).text
        await press(pilot, "home")
        assert "span 1h" in view.query_one("#told", Lines).text


def nothing() -> LiveState:
    """Return the state of a machine without a GPU."""
    return LiveState(
        pid=1, version="1", started_at_s=0.0, taken_at_s=time.time(), interval_s=1.0
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("key", [*ALL, "a", "z"])
@pytest.mark.parametrize(
    ("size", "ascii_only", "kind"),
    [((80, 24), False, "strange"), ((40, 20), True, "strange"), ((20, 6), False, "strange"),
     ((80, 24), False, "nothing")],
)  # fmt: skip
async def test_strange_machines_fit_any_terminal(
    key: str, size: tuple[int, int], ascii_only: bool, kind: str
) -> None:
    state = nothing() if kind == "nothing" else machine.strange(at_s=time.time())
    async with opened(view_of(state), key, size=size, ascii_only=ascii_only) as (app, pilot):
        said = shown(app)
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert said.isascii() or not ascii_only
        await pilot.press("down", "plus", "1", "6", "end")
        await settled(pilot)


async def test_a_history_that_cannot_be_read_is_a_line_and_the_live_state_is_drawn() -> None:
    (config.state_dir() / "history.db").write_bytes(b"no database" * 200)
    async with opened(leaky.view(), "P", size=(240, 24)) as (app, _):
        assert "is damaged" in words(app)
        view = screen(app, PredictScreen)
        assert view.chart.picture is not None
        assert view.chart.picture.curve.at_s, "nothing is drawn of what the live state has"


@pytest.mark.slow
async def test_what_is_asked_for_is_never_more_than_can_be_drawn() -> None:
    asked: list[charts.Asked] = []
    async with opened(leaky.view(), "h", size=(100, 24)) as (app, pilot):
        view = screen(app, PastScreen)
        for keys in (("6",), ("5",), ("plus",), ("plus", "left")):
            await press(pilot, *keys)
            asked.append(view.asked())
    assert all(one.points <= 1000 for one in asked)
    assert all(one.begin_s < one.end_s for one in asked)
