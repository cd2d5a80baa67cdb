"""The report in a real browser: opened from a file, drawn, dark, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core.design import PARTS
from tests.browser.harness import assert_no_console_errors, axe, canvas_colours, overflow, settle
from tests.cli import reported, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page


PHONE = {"width": 390, "height": 844}
LEAK = 'article[id^="alert-"]'
LOG = "timestamp, index, uuid, name, memory.used [MiB], memory.total [MiB]\n" + "".join(
    f"2026/03/01 1{at // 3600}:{at // 60 % 60:02}:{at % 60:02}.000, {gpu}, GPU-{gpu}, NVIDIA A100,"
    f" {20000 + 3 * at if gpu == 0 else 30000} MiB, 81920 MiB\n"
    for at in range(0, 3 * 3600, 10)
    for gpu in (0, 1)
    if not 3600 < at < 4500
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the reports once: of the world, of a hostile one, of logs."""
    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUWATCHD_COST_USD_PER_GPU_HOUR", str(reported.PRICE))
        found = {}
        for name, more in (("world", {}), ("evil", {"name": world.HOSTILE * 4, "user": "<b>u"})):
            patch.setenv("GPUWATCHD_STATE_DIR", str(folder / name / "state"))
            patch.setenv("GPUWATCHD_RUNTIME_DIR", str(folder / name / "run"))
            truth = reported.Truth(**more)
            truth.live()
            truth.close()
            found[name] = folder / f"{name}.html"
            assert main(["report", "--since", "44h", "-q", "--output", str(found[name])]) == 0
        logs = [folder / f"gpu{n}.csv" for n in range(2)]
        for log in logs:
            log.write_text(LOG, "utf-8")
        found["logs"] = folder / "logs.html"
        assert main(["analyze", *map(str, logs), "-q", "--html", str(found["logs"])]) == 3
    return found


@pytest.fixture
def opened(new_page: Callable[..., Page], files: dict[str, Path]) -> Callable[..., Page]:
    """Return what opens one of the files, as from a mail."""

    def open_file(name: str, **options: object) -> Page:
        page = new_page(**options)
        page.goto(files[name].as_uri())
        if options.get("java_script_enabled", True):
            settle(page)
        return page

    return open_file


@pytest.mark.parametrize("name", ["world", "evil", "logs"])
def test_it_opens_from_a_file_without_complaint_and_is_accessible(
    opened: Callable[..., Page], name: str
) -> None:
    tab = opened(name)
    assert tab.locator("h1").count() == 1
    assert tab.locator("main canvas").count() >= 1
    assert_no_console_errors(tab)
    assert axe(tab) == []
    assert overflow(tab) == []


@pytest.mark.parametrize("name", ["world", "evil", "logs"])
def test_on_a_phone_and_in_the_dark_it_reads_as_well(
    opened: Callable[..., Page], name: str
) -> None:
    tab = opened(name, viewport=PHONE, color_scheme="dark")
    assert overflow(tab) == []
    heads = tab.locator("table.stack caption")
    assert heads.count()
    wide = heads.evaluate_all("all => all.map((one) => one.getBoundingClientRect().width)")
    assert min(wide) > PHONE["width"] / 2  # not one letter below the other
    assert axe(tab) == []
    assert_no_console_errors(tab)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_chart_of_a_finding_is_drawn(opened: Callable[..., Page], scheme: str) -> None:
    tab = opened("world", color_scheme=scheme)
    tab.locator(f"{LEAK} .chart-plot").first.scroll_into_view_if_needed()
    colours = canvas_colours(tab, f"{LEAK} canvas")
    paint = PARTS["curve"]
    # Pixels of exactly that colour: beside a far forecast the past has a fifth of the width.
    assert colours.get(paint.dark if scheme == "dark" else paint.light, 0) > 100


def test_it_says_what_happened_and_links_lead_there(opened: Callable[..., Page]) -> None:
    tab = opened("world")
    assert "1 process probably ran out of memory" in tab.locator("#summary").inner_text()
    for link in tab.locator(".contents a").all():
        target = link.get_attribute("href")
        assert target is not None
        assert tab.locator(target).count() == 1
    assert tab.locator(LEAK).count() == 2
    assert "within the forecast interval" in tab.locator(LEAK).nth(1).inner_text()


def test_without_scripts_and_on_paper_everything_is_there(opened: Callable[..., Page]) -> None:
    tab = opened("world", java_script_enabled=False)
    drawings = tab.get_by_role("img")
    assert drawings.count() >= 4
    assert all(one.is_visible() for one in drawings.all())
    tab.emulate_media(media="print")
    assert tab.locator("#cost table").is_visible()
    assert overflow(tab) == []


def test_hostile_names_run_nothing(opened: Callable[..., Page]) -> None:
    tab = opened("evil")
    assert tab.locator("main b, main script").count() == 0
    assert "<b>" in tab.locator("#findings").inner_text()
    assert_no_console_errors(tab)
