"""The alerts of the live screen: listed, told in full, snoozed, taken back."""

from __future__ import annotations

import time

import pytest

from gpuwatchd.core import config
from gpuwatchd.core.errors import NotAllowed
from gpuwatchd.core.model import AlertSubject, Matcher, Silence
from gpuwatchd.store import tables
from gpuwatchd.store.checked_connection import transaction
from gpuwatchd.store.reader import Reader
from gpuwatchd.tui.screens.alerts import AlertDetailScreen, AlertsScreen, SnoozeScreen
from gpuwatchd.view.queries import alert_changes
from tests import making
from tests.cli import world
from tests.tui.leaky import view as seen
from tests.tui.viewing import opened, press, screen, settled, shown, words

KEY = "leak:GPU-1/4711@1000.0"
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def recorded() -> None:
    """Leave a history with an open alert of pid 4711 and one of pid 5 that is over; and a state."""
    now_s = time.time()
    over = world.over(
        opened_at_s=now_s - 9000, resolved_at_s=now_s - 8000, ended="it gave the memory back",
        title="GPU 0 (A100): python[5] of bob",
    )  # fmt: skip
    about = AlertSubject(gpu="0", user="alice", process="python", framework="PyTorch")
    opened = world.firing(about=about, finding=world.leak(onset_at_s=now_s - 3600))
    world.remember(opened, over)
    world.write(alerts=(opened,))


def stored() -> list[Silence]:
    with Reader.open(config.state_dir()) as reader:
        return reader.silences()


async def test_enter_tells_the_whole_story_and_escape_comes_back() -> None:
    async with opened(seen(), "a", "down", "enter") as (app, pilot):
        screen(app, AlertDetailScreen)
        await press(pilot, "escape")
        chosen = screen(app, AlertsScreen).alert
        assert chosen is not None
        assert chosen.state == "resolved", "what was chosen is not chosen any more"


@pytest.mark.slow
async def test_a_snooze_is_kept_with_its_reason_and_shown_at_once() -> None:
    view = seen()
    async with opened(view, "a", "s", "2", "tab", *"known", "space", *"s5q", "backspace") as (
        app, pilot,
    ):  # fmt: skip
        assert "Why? known s5_" in shown(app), "keys that mean something else are typed here"
        await press(pilot, "enter")
        screen(app, AlertsScreen)
        assert "1 snoozed" in shown(app)
        assert "silent until" in words(app)
        assert [one.matcher.key for one in view.silences] == [KEY], "nor on other screens"
    (kept,) = stored()
    assert kept.matcher == Matcher(key=KEY)
    assert kept.until_at_s - kept.from_at_s == pytest.approx(8 * HOUR_S)
    assert kept.why == "known s5"
    assert kept.who
    assert not kept.until_resolved


async def test_until_it_is_over() -> None:
    async with opened(seen(), "a", "s", "4", "enter"):
        pass
    (kept,) = stored()
    assert kept.until_resolved


@pytest.mark.slow
async def test_u_takes_a_snooze_back() -> None:
    view = seen()
    async with opened(view, "a", "s", "enter") as (app, pilot):
        assert len(stored()) == 1
        await press(pilot, "u")
        assert "snoozed" not in shown(app).splitlines()[1]
        assert "removed" in shown(app)
        assert view.silences == ()
    assert stored() == []


async def test_a_rule_is_taken_back_only_when_asked_twice() -> None:
    transaction(
        config.state_dir(), tables.write_silence, world.silence(matcher=Matcher(user="alice"))
    )
    async with opened(seen(), "a", "u") as (app, pilot):
        assert "whole rule (user alice)" in shown(app)
        assert len(stored()) == 1
        await press(pilot, "u")
    assert stored() == []


async def test_what_is_not_snoozed_cannot_be_taken_back() -> None:
    async with opened(seen(), "a", "u") as (app, _):
        assert "it is not snoozed" in shown(app)


async def test_who_may_not_write_is_told_whom_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Silence) -> Silence:
        raise NotAllowed("only root may write to it", hint="sudo gpuwatchctl top")

    monkeypatch.setattr(alert_changes, "keep", refuse)
    async with opened(seen(), "a", "s", "enter", size=(120, 24)) as (app, _):
        form = screen(app, SnoozeScreen)
        assert "only root may write to it (sudo gpuwatchctl top)" in shown(app)
        assert form.trouble
    assert stored() == []


async def test_an_alert_that_is_over_cannot_be_snoozed_until_it_is() -> None:
    async with opened(seen(), "a", "down", "s", "4", "enter") as (app, _):
        screen(app, SnoozeScreen)
        assert "it is resolved already" in shown(app)
    assert stored() == []


async def test_s_on_the_overview_means_the_process_under_the_cursor() -> None:
    view = seen()
    async with opened(view) as (app, pilot):
        app.shared.selected_device_uid, app.shared.selected_process = "GPU-1", making.KEY
        app.open("s")
        await settled(pilot)
        assert "python[4711] of alice" in shown(app)
        await press(pilot, "enter")
    assert [one.matcher.key for one in stored()] == [KEY]


async def test_a_click_chooses_and_a_double_click_tells() -> None:
    async with opened(seen(), "a", size=(100, 24)) as (app, pilot):
        row = next(y for y, row in enumerate(shown(app).splitlines()) if "of bob" in row)
        await pilot.click(offset=(5, row))
        await settled(pilot)
        chosen = screen(app, AlertsScreen).alert
        assert chosen is not None
        assert chosen.state == "resolved"
        await pilot.click(offset=(5, row), times=2)
        await settled(pilot)
        screen(app, AlertDetailScreen)


async def test_without_an_open_alert_there_is_nothing_to_snooze() -> None:
    world.write(alerts=())
    world.remember(world.firing(key=KEY, state="resolved", opened_at_s=1.0, resolved_at_s=2.0))
    async with opened(seen()) as (app, pilot):
        app.open("s")
        await settled(pilot)
        assert "no open alert that could be snoozed" in words(app)
        await press(pilot, "enter")
        screen(app, SnoozeScreen)
    assert stored() == []
