"""Pop-ups on a real bus, a real screen and a real notification server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify.channels.desktop.channel import DesktopNotifier
from tests import making
from tests.real.stage import Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.model import Message

pytestmark = pytest.mark.real_dbus

MESSAGE = making.message(severity="critical")


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
