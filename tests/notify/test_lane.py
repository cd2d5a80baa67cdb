"""One channel's queue: what waits is not lost when its worker dies, or when the courier goes."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.notify import dispatcher
from gpuwatchd.notify.dispatcher import MessageDispatcher
from tests.notify.courier import Clock, Fake, collect, delivery, threads, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Message


def test_what_waits_for_company_is_left_to_the_next_courier(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    hung, fake = Fake(gate), Fake()
    cleanup.append(gate.set)
    courier = MessageDispatcher({"hung": hung, "fake": fake}, clock=Clock(1000.0 + 8 * 3600))
    courier.submit(delivery(message, "hung", row=1))
    courier.submit(delivery(message, "fake", row=2))
    wait(lambda: not courier._lanes["fake"]._queue)
    left = courier.close(timeout_s=0.0)
    assert {one.row for one in left} == {1, 2}
    assert fake.sent == []


def test_without_a_thread_a_message_waits_for_one(
    message: Message, cleanup: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fake = Fake()
    courier = MessageDispatcher({"fake": fake}, clock=Clock())
    cleanup.append(courier.close)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert courier.submit(delivery(message))
    assert courier.results() == []
    monkeypatch.setattr(threading.Thread, "start", start)
    assert [one.state for one in collect(courier, 1)] == ["sent"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_is_replaced(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    class Dying(Fake):
        def send(self, message: Message) -> str:
            if message.id.endswith("-1"):
                sys.exit(1)
            return super().send(message)

    fake = Dying()
    courier = MessageDispatcher({"fake": fake}, clock=Clock())
    cleanup.append(courier.close)
    courier.submit(delivery(message, row=1))
    assert collect(courier, 1)[0].state == "pending"
    courier.submit(delivery(message, row=2))
    assert collect(courier, 1)[0].state == "sent"
    assert threads() == 1


def test_messages_that_cannot_be_merged_are_a_failure_and_not_the_end(
    message: Message, cleanup: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Message:
        raise OverflowError("year is out of range")

    monkeypatch.setattr(dispatcher, "digest", broken)
    courier = MessageDispatcher({"fake": Fake()}, clock=Clock(1000.0 + 8 * 3600))
    cleanup.append(courier.close)
    for row in (1, 2):
        courier.submit(delivery(message, row=row))
    done = collect(courier, 2)
    assert {(one.state, one.error) for one in done} == {("pending", "OverflowError in the channel")}
