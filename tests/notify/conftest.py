"""Messages to send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.model import EtaRange, Message, ProcessKey, Subject
from gpuwatchd.notify.dispatcher import MessageDispatcher
from tests.making import finding
from tests.notify.courier import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.notify.courier import Dispatch, Fake

HOSTILE = 'python\x1b[2J\x00<b>bold</b>\u202e[/tag]\ud800 & "quoted"\r\nBcc: victim@example.org'


@pytest.fixture
def message() -> Message:
    judged = finding(
        subject=Subject(device_uid="GPU-1", process=ProcessKey(pid=4711, started_at_s=5.0)),
        eta=EtaRange(low_s=2340.0, mid_s=2820.0, high_s=None),
    )
    return Message(
        id="a1b2c3",
        notice="firing",
        severity="warning",
        subject="GPU 0: python[4711] of alice leaks 12.4 MB/min",
        body="GPU 0 (A100 80GB): python[4711] of alice grows.\nFull in 0h 47m.",
        facts={"GPU": "0 (A100 80GB)", "Rate": "12.4 MB/min", "Full in": "0h 47m"},
        command="gpuwatchctl explain 4711",
        finding=judged,
    )


@pytest.fixture
def dispatch() -> Iterator[Dispatch]:
    """Return what makes dispatchers, which are closed after the test."""
    made: list[tuple[MessageDispatcher, dict[str, Fake]]] = []

    def make(channels: dict[str, Fake], **options: object) -> MessageDispatcher:
        settings: dict[str, Any] = {"clock": Clock(), **options}
        made.append((MessageDispatcher(channels, **settings), channels))
        return made[-1][0]

    yield make
    for courier, channels in made:
        for channel in channels.values():
            for gate in channel.gates:
                gate.set()
        courier.close()
