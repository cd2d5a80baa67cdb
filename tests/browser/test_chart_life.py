"""A chart that lives on: new numbers, another width, another zone, paper; and its words."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from gpuwatchd.charts import page, svg, text_description
from gpuwatchd.charts.chart_model import Curve, Forecast, Gap, Mark, MarkKind, Picture
from gpuwatchd.core import units
from gpuwatchd.core.text import clean
from gpuwatchd.view.answers.base import fill
from gpuwatchd.view.answers.history import PictureShape
from tests.browser import gallery
from tests.browser.gallery import html
from tests.browser.harness import assert_no_console_errors, axe, canvas_colours, settle
from tests.browser.test_charts import at, drag, point, zoomed

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page


EMPTY = """<!doctype html><html lang="en"><head><title>Live</title><style>{style}</style></head>
<body><main><h1>Live</h1><div id="place"></div></main></body></html>"""
BERLIN = [[gallery.NOW_S - 1e7, 7200, "CEST"], [gallery.NOW_S - 27 * 86400, 3600, "CET"]]


@pytest.fixture
def live(page_of: Callable[..., Page]) -> Callable[..., Page]:
    """Return what opens a page with one chart that is made by hand, ``chart``, as a live page."""

    def show(picture: Picture, wanted: dict[str, Any] | None = None, **options: Any) -> Page:
        tab = page_of(EMPTY.format(style=page.page_style()), bypass_csp=True, **options)
        tab.add_script_tag(content=page.page_script())
        tab.evaluate(
            """([said, wanted]) => {
              window.chart = gpuwatchdChart(document.getElementById("place"), said, wanted);
            }""",
            [msgspec.to_builtins(fill(PictureShape, picture)), wanted or {}],
        )
        settle(tab)
        return tab

    return show


def update(tab: Page, picture: Picture) -> None:
    tab.evaluate("said => chart.update(said)", msgspec.to_builtins(fill(PictureShape, picture)))
    settle(tab)


def later(picture: Picture, seconds: float) -> Picture:
    """Return the same curve, looked at later."""
    return msgspec.structs.replace(
        picture,
        begin_s=picture.begin_s + seconds, end_s=picture.end_s + seconds,
        now_s=picture.now_s + seconds,
    )  # fmt: skip


def clocks(tab: Page) -> tuple[float, float]:
    """Return what is shown of time, as read at both ends of the chart."""
    found = [point(tab, share).splitlines()[0].split()[-1] for share in (0.002, 0.998)]
    parts = [
        sum(int(p) * k for p, k in zip(f.split(":"), (3600, 60, 1), strict=False)) for f in found
    ]
    return parts[0], parts[1]


def test_new_numbers_keep_the_zoom(live: Callable[..., Page]) -> None:
    tab = live(gallery.leak())
    drag(tab, 0.2, 0.4)
    before = clocks(tab)
    update(tab, later(gallery.leak(), 60.0))
    assert zoomed(tab)
    assert clocks(tab) == before
    assert_no_console_errors(tab)


def test_who_sees_now_goes_along_with_it(live: Callable[..., Page]) -> None:
    tab = live(gallery.month())
    drag(tab, 0.9, 1.0)
    assert zoomed(tab)
    update(tab, later(gallery.month(), 7200.0))
    assert zoomed(tab)
    assert point(tab, 0.998).splitlines()[0].startswith("Sun 22 Nov")


def test_a_picture_may_become_another(live: Callable[..., Page]) -> None:
    tab = live(gallery.empty())
    assert tab.get_by_text("No data for this time.").is_visible()
    assert tab.get_by_role("button", name="Close up").is_disabled()
    for picture in (*gallery.everything(), gallery.empty()):
        update(tab, picture)
        label = tab.locator("#place").get_attribute("aria-label") or ""
        assert label.startswith(clean(picture.title, limit=4096))
    assert tab.get_by_text("No data for this time.").is_visible()
    assert_no_console_errors(tab)


def test_a_picture_that_grows_by_one_sample_at_a_time(live: Callable[..., Page]) -> None:
    tab = live(gallery.empty())
    update(tab, gallery.one_sample())
    assert canvas_colours(tab).get("#0072b2", 0) > 5
    assert "2.5 GiB used" in point(tab, 0.99)


def test_it_follows_the_width_of_the_window(live: Callable[..., Page]) -> None:
    tab = live(gallery.leak(), viewport={"width": 1100, "height": 700})
    wide = tab.locator("canvas").bounding_box()
    tab.set_viewport_size({"width": 500, "height": 700})
    tab.wait_for_function("document.querySelector('canvas').clientWidth < 500")
    slim = tab.locator("canvas").bounding_box()
    assert wide is not None
    assert slim is not None
    assert wide["height"] == slim["height"]


def test_what_is_let_go_leaves_nothing(live: Callable[..., Page]) -> None:
    tab = live(gallery.leak())
    tab.evaluate("chart.destroy()")
    assert tab.locator("#place").inner_html() == ""
    tab.emulate_media(color_scheme="dark")
    tab.set_viewport_size({"width": 600, "height": 600})
    settle(tab)
    assert_no_console_errors(tab)


def test_a_chart_is_there_for_those_who_hear_it(live: Callable[..., Page]) -> None:
    tab = live(gallery.leak(), {"sentence": "GPU 0 grows"})
    figure = tab.get_by_role("figure", name="GPU 0 grows")
    assert figure.is_visible()
    slider = figure.get_by_role("slider", name="Values over time")
    slider.focus()
    tab.keyboard.press("End")
    assert "GiB used" in (slider.get_attribute("aria-valuetext") or "")
    now = float(slider.get_attribute("aria-valuenow") or "nan")
    assert float(slider.get_attribute("aria-valuemin") or "nan") <= now
    assert now <= float(slider.get_attribute("aria-valuemax") or "nan")
    assert axe(tab) == []


def test_times_are_those_of_the_machine_where_it_says_which(live: Callable[..., Page]) -> None:
    tab = live(gallery.leak(), {"zones": BERLIN}, timezone_id="America/New_York")
    assert tab.get_by_text("time in CET").is_visible()
    assert point(tab, 0.01).startswith("Sun 22 Nov 09:0")
    own = live(gallery.leak(), timezone_id="America/New_York")
    assert point(own, 0.01).startswith("Sun 22 Nov 03:0")


def test_days_begin_at_midnight_although_the_clocks_change(live: Callable[..., Page]) -> None:
    tab = live(gallery.month(), {"zones": BERLIN})
    midnights = tab.evaluate(
        """([zones, now]) => {
          const clock = GpuwatchdWords.clockOf(zones);
          const found = clock.ticks(now - 35 * 86400, now, 40);
          return found.found.map((at) => clock.time(at, true));
        }""",
        [BERLIN, gallery.NOW_S],
    )
    assert len(midnights) == 35
    assert set(midnights) == {"00:00:00"}


def test_sizes_are_written_as_everywhere(live: Callable[..., Page]) -> None:
    tab = live(gallery.empty())
    rng = random.Random(5)
    exact = [k * 1024.0**2 / 8 for k in range(200)] + [k * 1024.0**3 / 8 for k in range(400)]
    exact += [1024.0**4 * k / 16 for k in range(16, 80)]
    rough = [rng.uniform(0, 10**power) for power in range(14) for _ in range(40)]
    values = [*exact, *rough, None]
    found = tab.evaluate("all => all.map(GpuwatchdWords.size)", values)
    assert found == [units.size(value) for value in values]


def test_moments_are_written_as_everywhere(live: Callable[..., Page]) -> None:
    tab = live(gallery.empty(), timezone_id="UTC")
    ago = [0.0, 3600.0, 86400.0, 5 * 86400.0, 6 * 86400.0, 7 * 86400.0, 40 * 86400.0, -86400.0]
    found = tab.evaluate(
        """([ago, now]) => ago.map((each) =>
          GpuwatchdWords.clockOf([[0, 0, "UTC"]]).near(now - each, now))""",
        [ago, gallery.NOW_S],
    )
    local = [units.moment(gallery.NOW_S - each, now_s=gallery.NOW_S) for each in ago]
    assert [said.rpartition(" ")[0] for said in found] == [s.rpartition(" ")[0] for s in local]


def test_on_paper_it_is_the_drawing_in_light_colours(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()), color_scheme="dark")
    assert tab.locator("svg.drawn").is_hidden()
    tab.emulate_media(media="print")
    settle(tab)
    assert tab.locator("svg.drawn").is_visible()
    assert tab.locator("canvas").is_hidden()
    stroke = tab.locator("svg.drawn .s-curve").evaluate("one => getComputedStyle(one).stroke")
    assert stroke == "rgb(0, 114, 178)"
    assert len(tab.pdf()) > 5000


def test_nothing_jumps_while_a_page_comes_up(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(*gallery.everything()[:3]))
    settle(tab)
    moved = tab.evaluate(
        """() => new Promise((done) => {
          let sum = 0;
          new PerformanceObserver((list) => {
            for (const one of list.getEntries()) sum += one.value;
          }).observe({ type: "layout-shift", buffered: true });
          setTimeout(() => done(sum), 100);
        })"""
    )
    assert moved < 0.1


def test_what_a_page_forbids_does_not_run(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.hostile()))
    assert_no_console_errors(tab)
    tab.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          document.body.append(Object.assign(new Image(), { src: "https://example.org/x.png" }));
        }"""
    )
    settle(tab)
    assert tab.evaluate("window.ran") is None
    assert tab.locator(".chart-tip").count() == 1
    tab.mouse.move(*at(tab, 0.5))
    assert "<img src=x onerror=alert(1)>" in tab.locator(".chart-tip").inner_text()
    with pytest.raises(AssertionError, match="Content Security Policy"):
        assert_no_console_errors(tab)


def wild(rng: random.Random) -> Picture:
    """Return a picture at the edges of what there may be."""
    begin_s = gallery.NOW_S - rng.choice([0.0, 1.0, 600.0, 86400.0, 400 * 86400.0])
    end_s = rng.choice([begin_s, gallery.NOW_S])
    n = rng.choice([0, 1, 2, 3, 50])
    at_s = sorted({rng.uniform(begin_s - 10, end_s + 10) for _ in range(n)})
    top = rng.choice([0.0, 1.0, 1e6, 8e10, 2.0**50])
    used = [rng.choice([0.0, top, rng.random() * top]) for _ in at_s]
    gone = [0 < k < len(used) - 1 and rng.random() < 0.3 for k in range(len(used))]
    values = tuple(None if hole else v for v, hole in zip(used, gone, strict=True))
    curve = Curve(at_s=tuple(at_s), used_bytes=values, low_bytes=values, high_bytes=values)
    limit = rng.choice([None, 0.0, top, 2 * top, 1e12])
    mid = rng.choice([None, 0.0, 60.0, 1e9])
    forecast = Forecast(
        judged_at_s=rng.choice([begin_s - 100, end_s, end_s + 100]), level_bytes=rng.random() * top,
        rate_bytes_per_s=rng.choice([0.0, 1e6, -5.0]), onset_at_s=rng.choice([None, begin_s - 1e9]),
        limit_bytes=limit, low_s=None if mid is None else mid / 2, mid_s=mid,
        high_s=None if mid is None else rng.choice([None, 2 * mid]),
    )  # fmt: skip
    kinds = get_args(MarkKind)
    marks = tuple(
        Mark(at_s=rng.uniform(begin_s - 99, end_s + 99), kind=kinds[k % len(kinds)], text="x")
        for k in range(rng.choice([0, 1, 300]))
    )
    gaps = (Gap(begin_s=begin_s - 5, end_s=rng.choice([begin_s, end_s + 5]), why=""),)
    return Picture(
        key="k", title="t", kind="calm", verdict="v", begin_s=begin_s, end_s=end_s,
        now_s=rng.choice([end_s, end_s + 1e7]), curve=curve, floor=rng.choice([None, curve]),
        limit_bytes=limit, forecast=rng.choice([None, forecast]), marks=marks, gaps=gaps,
    )  # fmt: skip


def test_nothing_that_may_be_drawn_breaks_it(live: Callable[..., Page]) -> None:
    rng = random.Random(11)
    tab = live(gallery.empty())
    pictures = [wild(rng) for _ in range(60)]
    for picture in pictures:
        assert text_description.sentence(picture)
        assert "nan" not in svg.draw(picture).lower()
    tab.evaluate(
        """async (pictures) => {
          const host = document.querySelector(".chart-plot");
          const press = (key) => host.dispatchEvent(new KeyboardEvent("keydown", { key }));
          for (const each of pictures) {
            chart.update(each);
            await new Promise(requestAnimationFrame);
            for (const key of ["End", "ArrowLeft", "+", "+", "n", "p", "c", "-", "0"]) press(key);
            await new Promise(requestAnimationFrame);
          }
        }""",
        [msgspec.to_builtins(fill(PictureShape, picture)) for picture in pictures],
    )
    assert_no_console_errors(tab)
    update(tab, gallery.leak())
    assert canvas_colours(tab).get("#0072b2", 0) > 100
