"""Made-up channels and clocks for tests of the courier and its lanes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.model import Availability, Delivery, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.notify.dispatcher import MessageDispatcher

    Dispatch = Callable[..., MessageDispatcher]


class Fake:
    """A channel whose behaviour is a list of answers; the last one repeats."""

    name = "fake"

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers) or ["arrived"]
        self.gates = [one for one in answers if isinstance(one, threading.Event)]
        self.sent: list[str] = []
        self.closed = 0
        self.begun = 0
        self.timeout_s = 0.0

    def probe(self) -> Availability:
        return Availability(ok=True, reason="fake")

    def send(self, message: Message) -> str:
        self.begun += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, threading.Event):
            answer.wait(30)
            answer = "arrived late"
        if isinstance(answer, Exception):
            raise answer
        self.sent.append(message.id)
        return str(answer)

    def close(self) -> None:
        self.closed += 1


class Clock:
    """A clock that only moves when told to."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def delivery(message: Message, channel: str = "fake", row: int | None = 1) -> Delivery:
    return Delivery(
        alert_key="k",
        channel=channel,
        message=msgspec.structs.replace(message, id=f"{message.id}-{row}"),
        state="pending",
        attempts=0,
        created_at_s=1000.0,
        row=row,
    )


def collect(courier: MessageDispatcher, n: int, within_s: float = 60.0) -> list[Delivery]:
    """Return n results, waiting for the worker threads."""
    got: list[Delivery] = []
    until = time.monotonic() + within_s
    while len(got) < n and time.monotonic() < until:
        got += courier.results()
        time.sleep(0.002)
    assert len(got) == n
    return got


def wait(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.002)
    assert condition()


def threads() -> int:
    return sum(thread.name == "notify" for thread in threading.enumerate())
