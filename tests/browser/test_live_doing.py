"""The live page: its token, a server and a daemon that die and come back, snoozing for real."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core import config
from gpuwatchd.store.reader import Reader
from tests import making
from tests.browser import harness, live_world
from tests.cli import world
from tests.cli.test_reap import ACTIONS, CARD, OTHER, Stage, stage
from tests.store.world import rows
from tests.web import serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from gpuwatchd.core.model import Silence
    from tests.web.serving import Served

__all__ = ["stage"]

TITLE = "GPU 0 (A100): python[4711] of alice"


@pytest.fixture
def page(served: Served, new_page: Callable[..., Page]) -> Page:
    """Return the page, at its overview."""
    opened = new_page()
    opened.goto(served.url)
    opened.wait_for_selector(".card")
    return opened


def silences() -> list[Silence]:
    """Return every silence that was ever set."""
    with Reader.open(config.state_dir()) as history:
        return history.silences(all_of_them=True)


def listed() -> Any:
    """Return what `snooze list` says."""
    return json.loads(world.run("snooze", "list", "--json").stdout)["data"]


def test_the_token_leaves_the_address_and_is_kept_in_this_tab_alone(
    served: Served, page: Page
) -> None:
    assert served.token not in page.url
    assert page.url == f"{served.address}/#/"
    assert page.evaluate("sessionStorage.length") == 1
    assert page.evaluate("localStorage.length") == 0
    assert page.evaluate("document.cookie") == ""
    assert served.token not in page.content()
    page.go_back()  # what was there before has no token either
    assert served.token not in page.url


def test_without_a_token_the_page_asks_for_it_and_names_the_command(
    served: Served, new_page: Callable[..., Page]
) -> None:
    page = new_page()
    page.goto(f"{served.address}/#/alerts")
    field = page.get_by_label("Token")
    field.wait_for()
    assert "gpuwatchctl web --token" in page.locator("main").inner_text()
    assert harness.axe(page) == []
    field.fill("wrong")
    field.press("Enter")
    page.get_by_role("alert").wait_for()
    assert "not the right one" in page.get_by_role("alert").inner_text()
    page.get_by_label("Token").fill(served.url)  # the whole line is as good as the token
    page.get_by_role("button", name="Open").click()
    page.wait_for_selector("h1:text('Alerts')")
    harness.assert_no_console_errors(page, but=("401",))


def test_a_link_with_the_token_may_lead_to_a_view(
    served: Served, new_page: Callable[..., Page]
) -> None:
    page = new_page()
    page.goto(f"{served.url}&view=/held")
    page.wait_for_selector("h1:text('Idle memory')")
    assert page.url == f"{served.address}/#/held"


def test_a_server_that_is_gone_is_told_of_and_found_again(new_page: Callable[..., Page]) -> None:
    live_world.tick()
    page = new_page()
    with live_world.serve() as first:
        page.goto(first.url)
        page.wait_for_selector(".card")
    # On a busy machine the daemon's own silence may be said first.
    page.wait_for_selector(".state:has-text('the server does not answer; trying again')")
    assert page.locator(".dead").count() == 1
    assert page.locator(".card").count() == 2, "what was seen last stays"
    live_world.tick()
    with live_world.serve(first.port):
        page.wait_for_selector(".dead", state="detached")
    harness.assert_no_console_errors(page, but=("ERR_CONNECTION", "Failed to load resource"))


def test_a_daemon_that_is_gone_is_told_of_and_found_again(page: Page) -> None:
    assert page.locator(".dead").count() == 0
    live_world.tick(stopped=True)
    page.wait_for_selector(".dead:text('not live since')")
    assert "the daemon was stopped" in page.locator(".state").inner_text()
    assert harness.axe(page) == []
    live_world.tick()
    page.wait_for_selector(".dead", state="detached")
    harness.assert_no_console_errors(page)


def test_without_any_gpu_the_page_says_what_to_do(
    new_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCHD_SOURCES_ENABLED", "replay")
    with live_world.serve() as served:
        page = new_page()
        page.goto(served.url)
        page.get_by_role("alert").wait_for()
        assert "no GPU found" in page.get_by_role("alert").inner_text()
        assert "gpuwatchctl doctor" in page.get_by_role("alert").inner_text()
        for view, heading in (
            ("held", "Idle memory"), ("gpu/GPU-1", "GPU"), ("predict", "Predict"),
        ):  # fmt: skip
            page.evaluate("view => { location.hash = `#/${view}`; }", view)
            page.locator("h1", has_text=heading).wait_for()
            page.get_by_role("alert").wait_for()
            assert page.title() == f"{heading} - gpuwatchd"
        page.evaluate("() => { location.hash = '#/'; }")
        live_world.tick()
        page.wait_for_selector(".card")


def test_an_empty_history_is_an_empty_chart_and_no_error(new_page: Callable[..., Page]) -> None:
    live_world.tick()
    with live_world.serve() as served:
        page = new_page()
        page.goto(f"{served.url}&view=/process/{making.CARD.uid}/4711/1000000")
        page.wait_for_selector(".chart-live")
        page.wait_for_selector("h2:text('Why')")
        assert page.locator("h1").inner_text() == "python[4711] of alice"
        page.evaluate("() => { location.hash = '#/alerts'; }")
        page.wait_for_selector("h1:text('Alerts')")
        assert page.get_by_text("Snooze", exact=True).count() == 0, "it could not be kept"
        harness.assert_no_console_errors(page)


def test_a_gpu_that_is_not_here_is_told_of_at_once(page: Page) -> None:
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.evaluate("() => { location.hash = '#/gpu/none'; }")
    page.get_by_role("alert").filter(has_text="GPU none is not here").wait_for()
    assert not faults


def test_snoozing_really_snoozes_and_can_be_taken_back(page: Page) -> None:
    page.get_by_role("link", name="Alerts").click()
    page.wait_for_selector("h1:text('Alerts')")
    page.locator(f"summary[aria-label='Snooze {TITLE}']").click()
    form = page.locator("form")
    form.get_by_label("Silence").select_option("8h")
    form.get_by_label("Why").fill("runs out <b>tonight</b>")
    live_world.used(60)
    with live_world.asked(page, "/alerts"):
        pass
    assert form.get_by_label("Why").input_value() == "runs out <b>tonight</b>"
    assert form.get_by_label("Silence").input_value() == "8h"
    form.get_by_role("button", name="Snooze").click()
    back = page.get_by_role("button", name=f"Unsnooze {TITLE}")
    back.first.wait_for()
    (kept,) = silences()
    assert kept.why == "runs out <b>tonight</b>"
    assert kept.until_at_s - kept.from_at_s == 8 * 3600
    assert [one["state"] for one in listed()] == ["in-force"]
    page.wait_for_function("() => document.activeElement.textContent === 'Unsnooze'")
    assert "Snoozed: GPU 0" in page.locator("#heard").inner_text()

    page.reload()
    back.first.wait_for()
    assert "runs out <b>tonight</b>" in page.locator("main").inner_text()
    assert harness.axe(page) == []
    back.first.click()
    page.get_by_text("No silences.").wait_for()
    page.wait_for_function("() => document.activeElement.localName === 'summary'")
    assert silences()[0].cleared_at_s is not None
    assert listed() == []
    harness.assert_no_console_errors(page)


def test_what_cannot_be_snoozed_says_why_and_keeps_what_was_typed(page: Page) -> None:
    page.evaluate("() => { location.hash = '#/alerts'; }")
    page.locator("summary[aria-label^=Snooze]").click()
    page.route("**/api/v1/snoozes", lambda route: route.fulfill(
        status=503, content_type="application/json",
        body='{"error": {"message": "the disk is full", "hint": "make room"}}',
    ))  # fmt: skip
    page.get_by_label("Why").fill("later")
    page.locator("form").get_by_role("button", name="Snooze").click()
    page.locator("form [role=alert]").wait_for()
    assert page.locator("form [role=alert]").inner_text() == "the disk is full - make room"
    assert page.get_by_label("Why").input_value() == "later"
    assert silences() == []


def test_all_about_an_alert_leads_to_its_gpu_and_process(page: Page) -> None:
    page.locator(".strip a").click()
    page.wait_for_selector("h2:text('What is known of it')")
    assert "the floor rose in 14 of 16 windows" in page.locator("main").inner_text()
    page.get_by_role("link", name="python[4711] of alice").first.click()
    page.wait_for_selector("h1:text('python[4711] of alice')")
    page.wait_for_selector("h2:text('What to do')")
    page.go_back()
    page.wait_for_selector("h2:text('What is known of it')")


@pytest.mark.usefixtures("own_pids")
def test_idle_memory_is_freed_after_a_confirmation(
    stage: Stage, new_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        stage.holder("SIGTERM", "SIGINT") as job,
        stage.daemon(),
        serving.within(monkeypatch) as served,
        stage.driver(job, CARD, OTHER),
    ):
        stage.listed("idle")
        page = new_page()
        page.goto(f"{served.url}&view=/held")
        page.get_by_role("button", name="Free it").click()
        confirm = page.get_by_role("button", name=f"[{job.pid}]")
        confirm.wait_for()
        assert "SIGTERM" in page.locator(".doing").inner_text()
        assert harness.axe(page) == []
        focused = page.evaluate("document.activeElement.textContent")
        assert f"[{job.pid}]" not in focused, "a key pressed twice would confirm"
        assert rows(stage.folder / "state", ACTIONS) == []
        confirm.click()
        page.get_by_text("SIGTERM, its memory").first.wait_for(timeout=60_000)
        assert job.wait(5) is not None
        harness.assert_no_console_errors(page)
    assert [row[:2] for row in rows(stage.folder / "state", ACTIONS)] == [
        ("asked", "idle"), ("done", "ended"),
    ]  # fmt: skip


@pytest.mark.usefixtures("own_pids")
def test_what_may_not_be_ended_names_the_command(
    stage: Stage, new_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {**os.environ, "SLURM_JOB_ID": "4711"}
    with (
        stage.holder("SIGTERM", env=env) as job,
        stage.daemon(),
        serving.within(monkeypatch) as served,
    ):
        stage.listed("idle")
        page = new_page()
        page.goto(f"{served.url}&view=/held")
        page.get_by_role("button", name="Free it").click()
        page.get_by_role("alert").wait_for()
        assert "scancel -b --signal=TERM 4711" in page.locator(".doing").inner_text()
        assert page.get_by_role("button", name=f"[{job.pid}]").count() == 0
        assert job.poll() is None
