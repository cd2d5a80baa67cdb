"""Pop-ups on a real bus, a real screen and a real notification server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Message
from gpuwatchd.notify.channels.desktop.channel import DesktopNotifier
from gpuwatchd.notify.channels.desktop.connection import REBUILD_AFTER
from tests.real import popup
from tests.real.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.real_dbus

MESSAGE = Message(
    id="m1",
    notice="firing",
    severity="critical",
    subject="GPU 0: python[4711] leaks",
    body="It grows 12.4 MB/min.\nFull in 0h 47m.",
    command="gpuwatchctl explain 4711",
)


@pytest.fixture
def desktop() -> Iterator[DesktopNotifier]:
    notifier = DesktopNotifier(timeout=10)
    yield notifier
    notifier.close()


def _up(stage: Stage) -> None:
    stage.start_bus()
    stage.start_server()


def _message(n: int, **changes: object) -> Message:
    return msgspec.structs.replace(MESSAGE, id=f"m{n}", **changes)


def test_it_is_really_shown(stage: Stage, desktop: DesktopNotifier, tmp_path: Path) -> None:
    _up(stage)
    assert desktop.probe().ok
    assert "dunst 1." in desktop.send(MESSAGE)
    assert until(lambda: stage.windows() == 1), "no window on the screen"
    before = tmp_path / "shown.png"
    stage.picture(before)
    (seen,) = stage.take()
    assert (seen["appname"], seen["summary"]) == ("gpuwatchd", MESSAGE.subject)
    assert seen["body"].splitlines() == [*MESSAGE.body.splitlines(), MESSAGE.command]
    assert seen["urgency"] == "critical"
    assert until(lambda: stage.windows() == 0)
    after = tmp_path / "empty.png"
    stage.picture(after)
    assert before.read_bytes() != after.read_bytes()


def test_hostile_text_is_shown_as_text(stage: Stage, desktop: DesktopNotifier) -> None:
    _up(stage)
    hostile = "p\x1b[2J\x00<b>bold</b><img src='x'>\u202e \ud800&amp; 5 > 4"
    desktop.send(_message(1, subject=hostile, body=hostile))
    (seen,) = stage.take()
    assert seen["summary"] == "p<b>bold</b><img src='x'> &amp; 5 > 4"
    assert seen["body"].splitlines()[0] == (
        "p&lt;b&gt;bold&lt;/b&gt;&lt;img src='x'&gt; &amp;amp; 5 &gt; 4"
    )


def test_one_incident_is_one_popup(stage: Stage, desktop: DesktopNotifier) -> None:
    _up(stage)
    desktop.send(_message(1))
    desktop.send(_message(2, thread="m1", notice="escalated", subject="worse"))
    desktop.send(_message(3, subject="another"))
    assert until(lambda: stage.count() == 2)
    desktop.send(_message(4, thread="m1", notice="resolved", subject="over"))
    assert until(lambda: stage.count() == 2)
    shown = {one["summary"]: one["urgency"] for one in stage.take()[-2:]}
    # Good news does not stay until it is clicked away, whatever the alert was.
    assert shown == {"another": "critical", "over": "normal"}


def test_no_bus_at_first_then_one_appears(stage: Stage, desktop: DesktopNotifier) -> None:
    available = desktop.probe()
    assert (available.ok, available.reason) == (False, "no session bus")
    assert "graphical session" in available.hint
    with pytest.raises(NotifyError, match="no session bus") as caught:
        desktop.send(MESSAGE)
    assert not caught.value.permanent
    _up(stage)
    assert desktop.send(MESSAGE)
    assert stage.count() == 1


def test_no_server_at_first_then_one_appears(stage: Stage, desktop: DesktopNotifier) -> None:
    stage.start_bus()
    assert desktop.probe().reason == "no notification server on the session bus"
    with pytest.raises(NotifyError, match="no notification server") as caught:
        desktop.send(MESSAGE)
    assert not caught.value.permanent
    stage.start_server()
    desktop.send(MESSAGE)
    assert stage.count() == 1


def test_the_server_dies_and_returns(stage: Stage, desktop: DesktopNotifier) -> None:
    _up(stage)
    desktop.send(_message(1))
    stage.stop_server()
    with pytest.raises(NotifyError, match="no notification server"):
        desktop.send(_message(2))
    stage.start_server()
    desktop.send(_message(2))
    assert [one["summary"] for one in stage.take()] == [MESSAGE.subject]


def test_the_bus_dies_and_returns(stage: Stage, desktop: DesktopNotifier) -> None:
    _up(stage)
    desktop.send(_message(1))
    stage.stop_server()
    stage.stop_bus()
    with pytest.raises(NotifyError, match="no session bus"):
        desktop.send(_message(2))
    _up(stage)
    desktop.send(_message(2))
    assert stage.count() == 1


def test_the_bus_returns_between_two_messages(stage: Stage, desktop: DesktopNotifier) -> None:
    _up(stage)
    desktop.send(_message(1))
    stage.stop_server()
    stage.stop_bus()
    _up(stage)
    # The connection is dead, and nothing has told us: the one repetition must do.
    desktop.send(_message(2))
    assert stage.count() == 1


def test_hundreds_of_messages_leave_nothing_behind(stage: Stage, desktop: DesktopNotifier) -> None:
    _up(stage)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    desktop.send(_message(0))
    before = descriptors()
    for n in range(2 * REBUILD_AFTER + 20):
        desktop.send(_message(n, thread="m0"))
    assert abs(descriptors() - before) <= 1
    assert stage.count() == 1


def test_the_picture_script(tmp_path: Path, stage: Stage) -> None:
    stage.close()
    out = tmp_path / "popup.png"
    assert popup.main([str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
