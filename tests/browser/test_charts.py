"""Charts in a real browser: what is drawn, read, zoomed and said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.charts import chart_model, text_description
from gpuwatchd.core.design import LOOKS, PARTS
from tests.browser import gallery
from tests.browser.gallery import html
from tests.browser.harness import assert_no_console_errors, axe, canvas_colours, overflow, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page


PHONE = {"width": 390, "height": 844}


def plot(tab: Page) -> Locator:
    return tab.locator(".chart-plot")


def at(tab: Page, share: float) -> tuple[float, float]:
    """Return a place in the middle of the chart, so far from its left end, in the window."""
    box = tab.locator(".u-over").bounding_box()
    assert box is not None
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def point(tab: Page, share: float) -> str:
    tab.mouse.move(*at(tab, share))
    return tab.locator(".chart-tip").inner_text()


def drag(tab: Page, begin: float, end: float) -> None:
    tab.mouse.move(*at(tab, begin))
    tab.mouse.down()
    tab.mouse.move(*at(tab, end), steps=4)
    tab.mouse.up()


def zoomed(tab: Page) -> bool:
    return tab.get_by_role("button", name="Show all").is_visible()


def test_every_kind_is_drawn_without_complaint_and_without_network(
    page_of: Callable[..., Page],
) -> None:
    tab = page_of(html(*gallery.everything()))
    assert tab.locator("canvas").count() == len(gallery.everything())
    assert_no_console_errors(tab)
    assert axe(tab) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_up_and_down_only(page_of: Callable[..., Page], scheme: str) -> None:
    tab = page_of(html(*gallery.everything()), viewport=PHONE, color_scheme=scheme)
    assert overflow(tab) == []
    assert axe(tab) == []


def test_without_scripts_every_chart_is_there(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(*gallery.everything()), java_script_enabled=False)
    drawings = tab.get_by_role("img")
    assert drawings.count() == len(gallery.everything())
    for drawing in drawings.all():
        assert drawing.is_visible()


def test_the_lines_have_their_colours_in_light_and_dark(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()))
    colours = canvas_colours(tab)
    for part in ("curve", "limit", "floor", "fit"):
        assert colours.get(PARTS[part].light, 0) > 20, part
        assert colours.get(PARTS[part].dark, 0) == 0, part
    assert colours.get(LOOKS["critical"].light, 0) > 20
    tab.emulate_media(color_scheme="dark")
    settle(tab)
    dark = canvas_colours(tab)
    for part in ("curve", "limit", "floor"):
        assert dark.get(PARTS[part].dark, 0) > 20, part
        assert dark.get(PARTS[part].light, 0) == 0, part
    assert_no_console_errors(tab)


def test_a_theme_chosen_by_hand_wins(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.month()), color_scheme="dark")
    tab.evaluate("document.documentElement.dataset.theme = 'light'")
    settle(tab)
    colours = canvas_colours(tab)
    assert colours.get(PARTS["curve"].light, 0) > 200
    assert colours.get(PARTS["range"].light, 0) > 200


def test_a_gap_is_not_bridged(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.gaps()))
    assert "the GPU was lost" in point(tab, 0.47)
    assert "used" in point(tab, 0.28)
    rows = tab.evaluate("""() => {
      const canvas = document.querySelector("canvas");
      const over = document.querySelector(".u-over").getBoundingClientRect();
      const left = over.left - canvas.getBoundingClientRect().left;
      const count = (share, colour) => {
        const at = Math.round((left + share * over.width) * devicePixelRatio);
        const data = canvas.getContext("2d").getImageData(at, 0, 1, canvas.height).data;
        let found = 0;
        for (let n = 0; n < data.length; n += 4) {
          if (Math.abs(data[n] - colour[0]) + Math.abs(data[n + 1] - colour[1])
            + Math.abs(data[n + 2] - colour[2]) < 12) found += 1;
        }
        return found;
      };
      return [count(0.28, [0, 0x72, 0xb2]), count(0.47, [0, 0x72, 0xb2])];
    }""")
    assert rows[0] > 0
    assert rows[1] == 0


def test_a_point_says_time_level_range_and_what_happened(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()))
    shown = chart_model.span(gallery.leak())
    share = (gallery.NOW_S - 600 - shown[0]) / (shown[1] - shown[0])
    said = point(tab, share)
    assert said.splitlines()[0].startswith("Sun 22 Nov 09:")
    assert "GiB used" in said
    assert "△ 09:50 full in under an hour" in said
    future = point(tab, (gallery.NOW_S + 1200 - shown[0]) / (shown[1] - shown[0]))
    assert "GiB forecast" in future
    tab.mouse.move(1, 1)
    assert tab.locator(".chart-tip").is_hidden()


def test_a_bucket_says_its_lowest_and_highest(page_of: Callable[..., Page]) -> None:
    said = point(page_of(html(gallery.month())), 0.2).splitlines()
    assert said[1].endswith("GiB used")
    assert " – " in said[2]


def test_dragging_zooms_and_there_are_three_ways_back(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()))
    before = canvas_colours(tab)
    for back in ("button", "Escape", "double"):
        assert not zoomed(tab)
        drag(tab, 0.3, 0.5)
        assert zoomed(tab)
        assert canvas_colours(tab) != before
        if back == "button":
            tab.get_by_role("button", name="Show all").click()
        elif back == "Escape":
            plot(tab).press("Escape")
        else:
            tab.mouse.dblclick(*at(tab, 0.4))
    assert not zoomed(tab)
    tab.mouse.move(1, 1)
    assert_no_console_errors(tab)


def test_a_click_zooms_nothing(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()))
    tab.mouse.click(*at(tab, 0.4))
    assert not zoomed(tab)


def test_keys_read_zoom_move_and_go_to_marks(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()))
    for _ in ("the link that skips", "the contents", "close up", "the chart"):
        tab.keyboard.press("Tab")
    assert plot(tab).evaluate("one => one === document.activeElement")
    assert plot(tab).evaluate("one => getComputedStyle(one).outlineStyle") == "solid"

    def said() -> str:
        return plot(tab).get_attribute("aria-valuetext") or ""

    tab.keyboard.press("End")
    last = said()
    assert last.startswith("Sun 22 Nov 09:59:")
    tab.keyboard.press("ArrowLeft")
    assert said() != last
    tab.keyboard.press("ArrowRight")
    assert said() == last
    tab.keyboard.press("Home")
    assert said().startswith("Sun 22 Nov 08:00:")
    tab.keyboard.press("n")
    assert "▸ 08:05 python train.py[4711] began" in said()
    tab.keyboard.press("n")
    assert "gradual leak of 12.4 MB/min" in said()
    for _ in range(3):
        tab.keyboard.press("+")
    assert zoomed(tab)
    tab.keyboard.press("n")
    assert "checkpoint of step 4000 saved" in tab.locator(".chart-tip").inner_text()
    settle(tab)
    cursor = tab.locator(".chart-cursor").bounding_box()
    tip = tab.locator(".chart-tip").bounding_box()
    assert cursor is not None
    assert tip is not None
    beside = (tip["x"] - cursor["x"], cursor["x"] - tip["x"] - tip["width"])
    assert any(0 < distance < 30 for distance in beside)
    tab.keyboard.press("Shift+ArrowRight")
    tab.keyboard.press("c")
    close = tab.get_by_role("button", name="Close up")
    assert close.get_attribute("aria-pressed") == "true"
    tab.keyboard.press("0")
    assert not zoomed(tab)
    assert axe(tab) == []
    assert_no_console_errors(tab)


def test_a_wheel_scrolls_the_page_until_the_chart_is_taken(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(*gallery.everything()[:1] * 3), viewport={"width": 900, "height": 500})
    over = tab.locator(".u-over").first
    over.hover()
    tab.mouse.wheel(0, 120)
    tab.wait_for_function("scrollY > 0")
    shown = tab.get_by_role("button", name="Show all")
    assert not shown.first.is_visible()
    over.click()
    tab.mouse.wheel(0, -240)
    shown.first.wait_for(state="visible", timeout=5000)


def test_two_fingers_zoom_and_one_reads(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()), viewport=PHONE, has_touch=True, is_mobile=True)
    send = """(over, [name, id, share]) => {
      const box = over.getBoundingClientRect();
      over.dispatchEvent(new PointerEvent(name, {
        pointerId: id, pointerType: "touch", bubbles: true,
        clientX: box.left + share * box.width, clientY: box.top + 40,
      }));
    }"""
    over = tab.locator(".u-over")
    over.evaluate(send, ["pointerdown", 1, 0.4])
    assert "used" in tab.locator(".chart-tip").inner_text()
    over.evaluate(send, ["pointerdown", 2, 0.6])
    over.evaluate(send, ["pointermove", 1, 0.2])
    over.evaluate(send, ["pointermove", 2, 0.8])
    for finger in (1, 2):
        over.evaluate(send, ["pointerup", finger, 0.5])
    assert zoomed(tab)
    assert_no_console_errors(tab)


def test_what_is_said_and_shown_is_what_other_pictures_say(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(*gallery.everything()))
    found = tab.evaluate("""() => {
      const data = JSON.parse(document.getElementById("gpuwatchd-data").textContent);
      return data.pictures.map((each) => {
        const facts = GpuwatchdFacts.of(each);
        const scale = GpuwatchdFacts.scale(facts, facts.begin, facts.last, false);
        return [[facts.begin, facts.last], GpuwatchdFacts.parts(facts), scale];
      });
    }""")
    said = [one.get_attribute("aria-label") for one in tab.locator(".chart").all()]
    for n, picture in enumerate(gallery.everything()):
        span, parts, scale = found[n]
        assert span == pytest.approx(chart_model.span(picture)), picture.key
        assert parts == text_description.parts(picture), picture.key
        assert scale == pytest.approx([0.0, chart_model.top_bytes(picture)]), picture.key
        assert said[n] == text_description.sentence(picture), picture.key
