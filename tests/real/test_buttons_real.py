"""Buttons that are really pressed, on pop-ups that the real daemon has raised for real jobs."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.model import Button
from gpuwatchd.notify.channels.desktop.channel import DesktopNotifier
from tests import making
from tests.conftest import need, present
from tests.fakenvml import FakeNvml
from tests.real.desk import Desk, Jobs, missing
from tests.real.stage import shown, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.model import ButtonName

pytestmark = pytest.mark.real_dbus

BUTTONS = (
    Button(name="snooze", label="Snooze 1 h", command="gpuwatchctl snooze 4711 1h"),
    Button(name="show", label="Show", command="gpuwatchctl explain 4711"),
)
FIRST = making.message(alert_key="leak:x", buttons=BUTTONS)
LIFE = (
    FIRST,
    msgspec.structs.replace(FIRST, id="m2", thread="m1", notice="repeat"),
    msgspec.structs.replace(FIRST, id="m3", thread="m1", notice="escalated", severity="critical"),
    msgspec.structs.replace(
        FIRST, id="m4", thread="m1", notice="resolved", severity="info", buttons=BUTTONS[1:]
    ),
)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    need(not missing(), f"missing on this machine: {', '.join(missing())}")
    with shown(Desk(tmp_path), monkeypatch) as desk:
        (tmp_path / "run").mkdir()
        desk.start_bus()
        yield desk


class Finger:
    """A notifier, and what was pressed on what it has shown."""

    def __init__(self) -> None:
        self.pressed: list[tuple[ButtonName, str]] = []
        self.notifier = DesktopNotifier(timeout=10)
        self.notifier.on_action = lambda name, message: self.pressed.append((name, message.id))


@pytest.fixture
def finger(desk: Desk) -> Iterator[Finger]:
    finger = Finger()
    yield finger
    finger.notifier.close()


@pytest.fixture
def jobs(desk: Desk, tmp_path: Path) -> Iterator[Jobs]:
    need(FakeNvml.available(), "the stand-in library needs Linux and a C compiler")
    jobs = Jobs(tmp_path, desk, count=3)
    jobs.world(leak=False)
    yield jobs
    jobs.close()


def _keep(desk: Desk, folder: Path, name: str) -> None:
    """Save a picture, and where somebody wants to look at it, a copy."""
    desk.picture(folder / name)
    if os.environ.get("KEEP_PICTURES"):
        shutil.copy(folder / name, os.environ["KEEP_PICTURES"])


@pytest.mark.timeout(400)
def test_each_button_of_a_daemon_that_was_there_first_does_what_it_says(
    desk: Desk, jobs: Jobs, tmp_path: Path
) -> None:
    # Nobody is logged in yet, and as in a service no variable names a bus.
    desk.stop_bus()
    with jobs.daemon(DBUS_SESSION_BUS_ADDRESS=None):
        time.sleep(6)
        jobs.leak()
        assert until(lambda: "no session bus" in jobs.log(), 200), jobs.log()
        # The log has it a moment before the live state.
        assert until(lambda: any("no session bus" in one for one in jobs.problems()), 20)
        desk.start_bus()
        desk.start_xfce()
        assert until(lambda: len(desk.alerts()) == 3, 90), jobs.log()
        assert until(lambda: not any("no session bus" in one for one in jobs.problems()))
        time.sleep(0.5)
        _keep(desk, tmp_path, "three.png")
        _checkpoint(desk, jobs, tmp_path)
        _show(desk, jobs)
        assert jobs.ctl("snooze", "list")["data"] == []
    # The daemon has ended; what it left on the screen works with the next one.
    with jobs.daemon():
        assert until(lambda: "start version" in jobs.log().split("stopped")[-1], 30)
        assert until(lambda: len(jobs.alerts()) >= 3, 60), jobs.log()
        time.sleep(1)
        desk.press(desk.alerts()[0], 0, of=3)
        assert until(lambda: jobs.ctl("snooze", "list")["data"], 20), jobs.log()
        (silence,) = jobs.ctl("snooze", "list")["data"]
        assert silence["who"]
        time.sleep(0.5)
        _keep(desk, tmp_path, "snoozed.png")
    assert "Traceback" not in jobs.log()


def _checkpoint(desk: Desk, jobs: Jobs, folder: Path) -> None:
    """Press "Ask to checkpoint": the signal arrives, at that job alone, and is written down."""
    desk.press(desk.alerts()[2], 2, of=3)
    assert until(lambda: any(folder.glob("saved-?")), 10), jobs.log()
    assert until(lambda: len(jobs.actions()) == 2)
    assert [row.phase for row in jobs.actions()] == ["asked", "done"]
    assert len(list(folder.glob("saved-?"))) == 1
    assert all(job.poll() is None for job in jobs.jobs)
    time.sleep(0.5)
    _keep(desk, folder, "asked.png")


def _show(desk: Desk, jobs: Jobs) -> None:
    """Press "Show": a terminal with the explanation of that very alert."""
    desk.press(desk.alerts()[1], 1, of=3)
    assert until(jobs.shown.exists, 20), jobs.log()
    told = jobs.shown.read_text().splitlines()
    assert told[:3] == ["-e", "sh", "-c"]
    assert told[-2] == "explain"
    assert told[-1].startswith("leak:GPU-00000000")
    said = jobs.shown.with_name(f"{jobs.shown.name}.output").read_text()
    assert "GPU" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("server", ["xfce", "dunst"])
def test_an_incident_is_one_pop_up_from_its_first_notice_to_its_last(
    desk: Desk, finger: Finger, server: str
) -> None:
    desk.start_xfce() if server == "xfce" else desk.start_server()
    for message in LIFE:
        finger.notifier.send(message)
        time.sleep(0.3)
        assert len(desk.popups()) == 1, message.notice
    # Another one, and a new notifier as after a restart: it still knows what is on the screen.
    finger.notifier.send(msgspec.structs.replace(FIRST, id="other"))
    again = Finger()
    try:
        again.notifier.send(msgspec.structs.replace(LIFE[2], id="m5"))
        assert until(lambda: len(desk.popups()) == (2 if server == "xfce" else 1))
        time.sleep(0.3)
        assert len(desk.popups()) == (2 if server == "xfce" else 1)
        assert server == "xfce" or desk.count() == 2
    finally:
        again.notifier.close()


def test_a_button_of_xfce_is_heard_once(desk: Desk, finger: Finger) -> None:
    desk.start_xfce()
    finger.notifier.send(FIRST)
    desk.press_only(0, of=2)
    assert until(lambda: finger.pressed)
    time.sleep(0.3)
    assert finger.pressed == [("snooze", "m1")]
    # It is gone from the screen; what comes next is a pop-up of its own.
    assert until(lambda: not desk.popups())
    finger.notifier.send(LIFE[1])
    desk.press_only(1, of=2)
    assert until(lambda: len(finger.pressed) == 2)
    assert finger.pressed[1] == ("show", "m2")
    assert until(lambda: not desk.popups())
    end = Button(name="act", label="End it", command="gpuwatchctl reap 4711 --yes")
    finger.notifier.send(msgspec.structs.replace(LIFE[2], buttons=(*BUTTONS, end)))
    desk.press_only(2, of=3)
    assert until(lambda: len(finger.pressed) == 3)
    assert finger.pressed[2] == ("act", "m3")


def test_a_click_on_a_pop_up_of_dunst_shows_it(desk: Desk, finger: Finger) -> None:
    desk.start_server()
    finger.notifier.send(FIRST)
    assert until(lambda: len(desk.popups()) == 1)
    time.sleep(0.3)
    x, y, width, height = desk.popups()[0]
    desk.click(x + width // 2, y + height // 2)
    assert until(lambda: finger.pressed), "no press was heard"
    assert finger.pressed == [("show", "m1")]


def test_a_server_without_actions_says_what_to_type(desk: Desk, finger: Finger) -> None:
    desk.start_plain()
    for message in LIFE:
        finger.notifier.send(message)
    told = desk.plain()
    assert [one["replaces"] for one in told] == [0, 1, 1, 1]
    assert told[0]["body"].splitlines()[-2:] == [
        "gpuwatchctl explain 4711",
        "Snooze 1 h: gpuwatchctl snooze 4711 1h",
    ]
    assert "snooze" not in told[3]["body"]
    assert [one["urgency"] for one in told] == [1, 1, 2, 1]
    assert {one["icon"] for one in told} == {"dialog-warning", "dialog-error", "dialog-information"}
    assert not any(set(one["actions"]) & {"snooze", "checkpoint"} for one in told)


def test_another_server_is_asked_what_it_can(desk: Desk, finger: Finger) -> None:
    desk.start_plain()
    assert "Plain" in finger.notifier.send(FIRST)
    desk.stop_server()
    desk.start_xfce()
    assert "Xfce" in finger.notifier.send(LIFE[1])
    desk.press_only(0, of=2)
    assert until(lambda: finger.pressed == [("snooze", "m2")]), finger.pressed
    desk.stop_server()
    desk.start_plain()
    assert "Plain" in finger.notifier.send(LIFE[2])
    # Its numbers are its own: nothing of the other server's is replaced.
    assert desk.plain()[-1]["replaces"] == 0


@pytest.mark.parametrize("variable", ["", "unix:path=/nonexistent/bus"])
def test_the_bus_is_found_without_its_variable(
    desk: Desk, finger: Finger, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a service of systemd: no display, and at best the address of an older session."""
    monkeypatch.delenv("DISPLAY")
    if variable:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", variable)
    else:
        monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS")
    desk.start_plain()
    assert "Plain" in finger.notifier.send(FIRST)
    desk.stop_server()
    desk.stop_bus()
    with pytest.raises(Exception, match="no session bus"):
        finger.notifier.send(LIFE[1])
    desk.start_bus()
    desk.start_plain()
    assert "Plain" in finger.notifier.send(LIFE[1])


def test_the_bus_dies_and_buttons_work_again(desk: Desk, finger: Finger) -> None:
    desk.start_xfce()
    finger.notifier.send(FIRST)
    desk.stop_server()
    desk.stop_bus()
    desk.start_bus()
    desk.start_xfce()
    finger.notifier.send(LIFE[1])
    desk.press_only(0, of=2)
    assert until(lambda: finger.pressed == [("snooze", "m2")]), finger.pressed


def test_hundreds_of_notices_leave_nothing_behind(desk: Desk, finger: Finger) -> None:
    desk.start_plain()

    def kept() -> tuple[int, int]:
        link = present(finger.notifier._link)
        backend = link._library._backend
        numbers = backend._platform_to_interface_notification_identifier
        return len(backend._notification_cache), len(numbers)

    sizes = []
    for n in range(300):
        finger.notifier.send(msgspec.structs.replace(FIRST, id=f"n{n}", thread=f"t{n % 5}"))
        if n in {100, 190, 299}:
            sizes.append(kept())
    assert all(size <= (5, 5) for size in sizes), sizes
    shown = {one["number"] for one in desk.plain() if "number" in one}
    assert len(shown) == 5, "something piled up"
