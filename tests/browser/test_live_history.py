"""Thirty days of eight GPUs, opened on the live page."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd import config, design
from gpuwatchd.ctl import past
from gpuwatchd.ctl.flags import Globals
from tests import histories
from tests.browser import harness, live_world
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

LIMIT_S = 1.0
TRIES = 8


@pytest.fixture
def month() -> None:
    """Leave thirty days, and what a daemon that goes on sees now."""
    config.state_dir().mkdir(parents=True, exist_ok=True)
    histories.thirty_days(config.state_dir())
    view = past.judged(Globals(), [])
    assert view is not None
    world.write(
        pid=os.getpid(), devices=view.devices, alerts=(), taken_at_s=time.time(), interval_s=5.0
    )


@pytest.mark.usefixtures("month")
def test_a_month_of_eight_gpus_is_drawn_within_a_second(new_page: Callable[..., Page]) -> None:
    uid = histories.uid(0)
    took: list[float] = []
    with live_world.serve() as served:
        for _ in range(TRIES):
            page = new_page()
            began_s = time.perf_counter()
            page.goto(f"{served.url}&view=/gpu/{uid}?span=30d")
            page.wait_for_selector(".chart-live canvas")
            took.append(time.perf_counter() - began_s)
            assert harness.canvas_colours(page)[design.PARTS["curve"].light] > 100
            harness.assert_no_console_errors(page)
            page.close()
            if took[-1] <= LIMIT_S:
                break
    # The machine may be busy with other things; what it can do is what counts.
    assert min(took) <= LIMIT_S, took


@pytest.mark.usefixtures("month")
def test_every_gpu_of_the_month_is_foreseen_of(new_page: Callable[..., Page]) -> None:
    with live_world.serve() as served:
        page = new_page()
        page.goto(f"{served.url}&view=/predict?span=30d")
        page.wait_for_selector(".chart-live canvas")
        assert page.locator(".predict").count() == histories.GPUS
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        page.wait_for_function(
            "() => document.querySelectorAll('.predict:last-of-type canvas').length === 1"
        )
        harness.assert_no_console_errors(page)
