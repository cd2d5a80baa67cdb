"""The live page in a real browser, before the real server: what is seen, and that it stays so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.core import design
from tests import making
from tests.browser import harness, live_world
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.web.serving import Served

LEAKER = "python[4711] of alice"
VIEWS = (
    "#/", "#/predict", f"#/gpu/{making.CARD.uid}", f"#/process/{making.CARD.uid}/4711/1000000",
    "#/alerts", "#/alerts/latest", "#/held", "#/help",
)  # fmt: skip


@pytest.fixture
def opened(served: Served, new_page: Callable[..., Page]) -> Callable[..., Page]:
    """Return what opens the page at a view, and waits until it is there."""

    def open_it(view: str = "#/", **options: Any) -> Page:
        page = new_page(**options)
        page.goto(served.url)
        page.wait_for_selector(".card")
        if view != "#/":
            go(page, view)
        return page

    return open_it


def go(page: Page, view: str) -> None:
    """Go to another view and wait for its heading."""
    before = page.title()
    page.evaluate("(view) => { location.hash = view; }", view)
    page.wait_for_function("(before) => document.title !== before", arg=before)


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_view_is_accessible_and_fits(opened: Callable[..., Page], look: str) -> None:
    phone = (
        {"viewport": {"width": 390, "height": 844}, "has_touch": True} if look == "phone" else {}
    )
    page = opened(color_scheme="dark" if look == "dark" else "light", **phone)
    for view in VIEWS:
        if view != "#/":
            go(page, view)
        page.wait_for_load_state("networkidle")
        assert harness.axe(page) == [], view
        assert harness.overflow(page) == [], view
        assert page.locator("h1").count() == 1, view
    harness.assert_no_console_errors(page)


def test_the_overview_says_what_status_says(opened: Callable[..., Page]) -> None:
    page = opened()
    first = page.locator(".card").first
    shown = world.run("status").stdout
    assert first.locator(".badge").inner_text().endswith("LEAK")
    for words in first.locator(".verdict li").all_inner_texts():
        assert words in shown
    assert first.locator("svg path").get_attribute("d")
    assert page.locator("tbody th a").first.inner_text() == LEAKER
    assert "1" in page.get_by_role("link", name="Alerts").inner_text()


def test_a_chart_is_drawn_and_can_be_read_and_zoomed(opened: Callable[..., Page]) -> None:
    page = opened(f"#/gpu/{making.CARD.uid}")
    page.wait_for_selector(".chart-live canvas")
    assert harness.canvas_colours(page)[design.PARTS["curve"].light] > 100
    plot = page.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    x, y = box["x"], box["y"] + box["height"] / 2
    page.mouse.move(x + 0.15 * box["width"], y)
    assert "used" in page.locator(".chart-tip").inner_text()
    page.mouse.move(x + 0.1 * box["width"], y)
    page.mouse.down()
    page.mouse.move(x + 0.25 * box["width"], y, steps=4)
    page.mouse.up()
    again = page.get_by_role("button", name="Show all")
    again.wait_for()
    with live_world.asked(page, "/picture"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    assert again.is_visible(), "what is new must not undo the zoom"
    page.locator(".chart-plot").press("Escape")
    again.wait_for(state="hidden")
    harness.assert_no_console_errors(page)


def test_the_span_is_part_of_the_address_and_back_goes_back(opened: Callable[..., Page]) -> None:
    page = opened(f"#/gpu/{making.CARD.uid}")
    page.wait_for_selector(".chart-live")
    with live_world.asked(page, "span=24h"):
        page.get_by_role("link", name="24h").click()
    assert page.url.endswith("?span=24h")
    assert page.get_by_role("link", name="24h").get_attribute("aria-current") == "true"
    with live_world.asked(page, "span=1h"):
        page.go_back()
    page.go_back()
    page.wait_for_selector(".card")
    assert page.title().startswith("Overview")
    page.reload()
    page.wait_for_selector(".card")
    harness.assert_no_console_errors(page)


@pytest.mark.parametrize("view", ["#/nonsense", "#/constructor"])
def test_an_address_that_is_none_says_so_and_leads_to_the_overview(
    opened: Callable[..., Page], view: str
) -> None:
    page = opened(view)
    assert page.title().startswith("No such view")
    assert "no view of that name" in page.get_by_role("alert").inner_text()
    assert harness.axe(page) == []
    page.get_by_role("link", name="Go to the overview").click()
    page.wait_for_selector(".card")
    harness.assert_no_console_errors(page)


def test_what_is_new_comes_without_taking_anything_away(opened: Callable[..., Page]) -> None:
    page = opened("#/", viewport={"width": 800, "height": 400})
    page.get_by_label("Filter").fill("python")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    page.evaluate("""() => {
      document.querySelector('tbody th a').dataset.same = 'yes';
      const words = document.querySelector('.card .name').firstChild;
      getSelection().setBaseAndExtent(words, 0, words, 6);
      window.scrollTo(0, 120);
    }""")
    live_world.used(61)
    page.wait_for_selector("text=61.0/80.0 GiB")
    assert page.locator("tbody th a[data-same=yes]").count() == 1
    assert page.evaluate("getSelection().toString()") == "NVIDIA"
    assert page.evaluate("window.scrollY") == 120
    field = page.get_by_label("Filter")
    assert field.evaluate("(one) => one === document.activeElement")
    assert field.input_value() == "python"


def test_a_thousand_processes_are_two_hundred_rows_until_all_are_wanted(
    opened: Callable[..., Page],
) -> None:
    page = opened()
    first, *rest = world.state().devices
    many = tuple(world.process(1000 + n, f"job{n}", 0.01) for n in range(1000))
    live_world.tick(devices=(msgspec.structs.replace(first, processes=many), *rest))
    button = page.get_by_role("button", name="Show all 1000")
    button.wait_for()
    assert page.locator("tbody tr").count() == 200
    button.click()
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1000")
    page.get_by_label("Filter").fill("job777")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    assert page.locator("tbody th a").inner_text() == "job777[1777] of alice"


def test_hostile_words_stay_words(opened: Callable[..., Page]) -> None:
    words = '<img src=x onerror="window.bad=1"><script>window.bad=1</script>\u202e' + "W" * 300
    alerts = (live_world.firing(title=words),)
    live_world.remember(*alerts)
    page = opened("#/", viewport={"width": 320, "height": 600})
    live_world.tick(**{
        key: getattr(world.odd(words), key) for key in ("devices", "holdings", "servers")
    }, alerts=alerts)  # fmt: skip
    page.wait_for_selector("text=onerror >> nth=0")
    for view in VIEWS[1:]:
        page.evaluate("(view) => { location.hash = view; }", view)
        page.wait_for_load_state("networkidle")
        assert harness.overflow(page) == [], view
    assert page.evaluate("window.bad") is None
    assert page.locator("main img, main script").count() == 0


def test_a_new_alert_is_said_to_those_who_do_not_see_it(opened: Callable[..., Page]) -> None:
    page = opened()
    assert page.locator("#heard").inner_text() == ""
    second = live_world.firing(key="leak:GPU-2/99@5.0", title="GPU 1 (A100): jupyter[99] of alice")
    live_world.tick(alerts=(live_world.firing(), second))
    page.wait_for_function("() => document.getElementById('heard').textContent.length > 0")
    said = page.locator("#heard").inner_text()
    assert "New alert" in said
    assert "jupyter[99]" in said
    assert LEAKER not in said


def test_the_keyboard_is_enough(opened: Callable[..., Page]) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    link = page.get_by_role("link", name="GPU 0", exact=True)
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.title.startsWith('GPU 0')")
    assert page.evaluate("document.activeElement.localName") == "h1"
    page.wait_for_selector(".chart-live")
    chart = page.locator(".chart-plot")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    assert "used" in (chart.get_attribute("aria-valuetext") or "")


def test_colours_are_chosen_and_remembered(opened: Callable[..., Page]) -> None:
    page = opened(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    white, night = ("rgb(255, 255, 255)", "rgb(18, 22, 28)")
    assert page.evaluate(ground) == white
    page.get_by_label("Colours").select_option("dark")
    assert page.evaluate(ground) == night
    page.reload()
    page.wait_for_selector(".card")
    assert page.evaluate(ground) == night
    page.get_by_label("Colours").select_option("")
    assert page.evaluate(ground) == white


def test_a_hidden_tab_asks_nothing(served: Served, new_page: Callable[..., Page]) -> None:
    page = new_page()
    page.clock.install(time=time.time())
    page.goto(served.url)
    page.wait_for_selector(".card")
    turn = """(hidden) => {
      Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(turn, True)
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.clock.run_for(30_000)
    assert asked == []
    with live_world.asked(page, "/overview"):
        page.evaluate(turn, False)


def test_on_paper_there_is_nothing_to_press(opened: Callable[..., Page]) -> None:
    page = opened()
    pressed = page.locator(".top nav, .theme, .filter")
    assert pressed.filter(visible=True).count() == pressed.count() == 3
    page.emulate_media(media="print")
    assert pressed.filter(visible=True).count() == 0
    lefts = page.locator("h1, .live footer").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().left)"
    )
    assert max(lefts) - min(lefts) < 1
