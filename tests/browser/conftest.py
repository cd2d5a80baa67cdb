"""A browser for every file of tests that asks for one; nothing leaves the machine."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.browser import harness, live_world
from tests.conftest import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from playwright.sync_api import Browser, Page

    from tests.web.serving import Served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return Chromium, shared by the tests of one file.

    Not longer: while Playwright runs, no event loop of another test can.
    """
    need(find_spec("playwright"), "Playwright is not here")
    program = harness.chromium()
    need(program, "Chromium is not here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as drive:
        found = drive.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


@pytest.fixture
def served() -> Iterator[Served]:
    """Return the server of the live page, before a world with a leak, an alert and a history."""
    live_world.remember()
    live_world.tick()
    with live_world.serve() as found:
        yield found


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return what opens an empty page; options are those of a Playwright context."""
    contexts = []

    def open_page(**options: Any) -> Page:
        wanted = {"viewport": {"width": 1000, "height": 700}, "timezone_id": "UTC", **options}
        context = browser.new_context(**wanted)
        contexts.append(context)
        context.route("**/*", harness.only_this_machine)
        page = context.new_page()
        harness.listen(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def page_of(new_page: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Return what opens HTML as a file, as from a mail; options are those of a context."""

    def show(html: str, **options: Any) -> Page:
        path = tmp_path / "page.html"
        path.write_text(html, "utf-8")
        page = new_page(**options)
        page.goto(path.as_uri())
        return page

    return show
