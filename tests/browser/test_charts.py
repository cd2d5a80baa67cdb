"""Charts in a real browser: what is drawn, read, zoomed and said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.design import PARTS
from gpuwatchd.pictures import page
from gpuwatchd.pictures.elements import element
from tests.browser import gallery
from tests.browser.harness import assert_no_console_errors, axe, canvas_colours, overflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from gpuwatchd.pictures.chart import Picture

pytestmark = pytest.mark.real_browser


def html(*pictures: Picture) -> str:
    figures = [page.figure(picture, n) for n, picture in enumerate(pictures)]
    return page.document("Pictures", [element("h1", None, "Pictures"), figures], pictures=pictures)


def test_every_kind_is_drawn_without_complaint_and_without_network(
    page_of: Callable[..., Page],
) -> None:
    tab = page_of(html(*gallery.everything()))
    assert tab.locator("canvas").count() == len(gallery.everything())
    assert_no_console_errors(tab)
    assert axe(tab) == []


def test_the_curve_has_its_colour(page_of: Callable[..., Page]) -> None:
    tab = page_of(html(gallery.leak()))
    colours = canvas_colours(tab)
    for part in ("curve", "limit", "floor"):
        assert colours.get(PARTS[part].light, 0) > 20, part
    assert_no_console_errors(tab)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_up_and_down_only(page_of: Callable[..., Page], scheme: str) -> None:
    phone = {"width": 390, "height": 844}
    tab = page_of(html(*gallery.everything()), viewport=phone, color_scheme=scheme)
    assert overflow(tab) == []
    assert axe(tab) == []
