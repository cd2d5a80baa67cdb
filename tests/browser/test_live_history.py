"""Thirty days of eight GPUs on the live page; `tests/bench/bench_page.py` prints how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from gpuwatchd.core import design
from tests import histories
from tests.browser import harness, live_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

POINTS = 400
"""The most that a picture has, and one more for each gap."""


@pytest.fixture(autouse=True)
def month() -> None:
    """Leave thirty days, and what a daemon that goes on sees now."""
    live_world.month()


def test_a_month_of_eight_gpus_takes_two_questions_and_few_points(
    new_page: Callable[..., Page],
) -> None:
    asked: list[str] = []
    with live_world.serve() as served:
        page = new_page()
        page.on("request", lambda one: asked.append(urlsplit(one.url).path))
        with live_world.asked(page, "/page/picture?") as drawn:
            page.goto(f"{served.url}&view=/gpu/{histories.uid(0)}?span=30d")
        page.wait_for_selector(".chart-live canvas")
        before = [path for path in asked if path.startswith("/api/")]
        picture = drawn.value.json()["picture"]
        assert harness.canvas_colours(page)[design.PARTS["curve"].light] > 100
        harness.assert_no_console_errors(page)
    assert before.count("/api/v1/page/picture") == 1
    assert set(before) == {"/api/v1/page/gpu", "/api/v1/page/picture"}
    assert len(histories.GAPS) <= len(picture["gaps"])
    assert POINTS / 2 < len(picture["curve"]["at_s"]) <= POINTS + len(picture["gaps"])


def test_every_gpu_of_the_month_is_foreseen_of(new_page: Callable[..., Page]) -> None:
    with live_world.serve() as served:
        page = new_page()
        page.goto(f"{served.url}&view=/predict?span=30d")
        page.wait_for_selector(".chart-live canvas")
        assert page.locator(".predict").count() == histories.GPUS
        assert harness.axe(page) == []
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        page.wait_for_function(
            "() => document.querySelectorAll('.predict:last-of-type canvas').length === 1"
        )
        harness.assert_no_console_errors(page)


def test_what_nobody_scrolled_to_is_drawn_for_paper_too(new_page: Callable[..., Page]) -> None:
    asked: list[str] = []
    with live_world.serve() as served:
        page = new_page()
        page.on("request", lambda one: asked.append(urlsplit(one.url).path))
        page.goto(f"{served.url}&view=/predict?span=30d")
        page.wait_for_function(
            f"() => document.querySelectorAll('.predict canvas').length === {histories.GPUS}"
        )
        assert page.evaluate("window.scrollY") == 0
        assert asked.count("/api/v1/page/picture") < 2 * histories.GPUS
        harness.assert_no_console_errors(page)
