"""What is said to somebody who has pressed a button."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Message
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.pipeline.action_replies import ActionReply, reply

if TYPE_CHECKING:
    from collections.abc import Iterator

ABOUT = Message(
    id="a1@gpuwatchd",
    notice="escalated",
    severity="critical",
    subject="Now CRITICAL: GPU 0: python[4711] leaks",
    body="b",
    thread="a0@gpuwatchd",
    alert_key="k",
)
GATE = threading.Event()


class Hung:
    """A desktop whose server does not answer any more."""

    name = "desktop"

    def __init__(self, **_: object) -> None:
        self.lock = threading.Lock()

    def send(self, _: Message) -> str:
        with self.lock:
            GATE.wait(30)
        raise NotifyError("no answer", permanent=False)

    def close(self) -> None:
        with self.lock:
            pass


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    GATE.clear()
    monkeypatch.setitem(NOTIFIERS, "desktop", f"{__name__}:Hung")
    yield
    GATE.set()


@pytest.mark.usefixtures("hung")
def test_an_answer_that_hangs_does_not_hold_up_the_end() -> None:
    speaker = ActionReply(None)
    thread = threading.Thread(target=speaker.send, args=(ABOUT,), daemon=True)
    thread.start()
    while speaker._close is None:
        time.sleep(0.002)
    began_s = time.monotonic()
    speaker.close()
    assert time.monotonic() - began_s < 2.0
    GATE.set()
    thread.join(10)
    assert not thread.is_alive()


def test_an_answer_names_the_incident_and_counts_as_no_alert() -> None:
    said = reply(ABOUT, "Snoozed until 15:00", "You are told when it becomes critical.", "x")
    assert (said.notice, said.severity) == ("test", "info")
    assert said.id == "answer-a0@gpuwatchd"
    assert said.body.splitlines()[0] == "GPU 0: python[4711] leaks"
