"""The courier: nothing blocks, nothing is lost, one channel never hurts another."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify.dispatcher import GRACE_S, MessageDispatcher
from tests.notify.courier import Clock, Fake, collect, delivery, threads, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Message


def test_a_message_is_sent(message: Message, cleanup: list[Callable[[], object]]) -> None:
    fake = Fake()
    courier = MessageDispatcher({"fake": fake}, clock=Clock(1234.0))
    cleanup.append(courier.close)
    assert courier.submit(delivery(message))
    (done,) = collect(courier, 1)
    assert (done.state, done.attempts, done.sent_at_s, done.error) == ("sent", 1, 1234.0, None)
    assert fake.sent == ["a1b2c3-1"]
    assert courier.results() == []


def test_a_transient_failure_says_when_to_try_again(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    fake = Fake(NotifyError("no bus\x1b[2J", permanent=False, hint="log in"), "arrived")
    clock = Clock()
    courier = MessageDispatcher({"fake": fake}, clock=clock)
    cleanup.append(courier.close)
    courier.submit(delivery(message))
    (failed,) = collect(courier, 1)
    assert (failed.state, failed.attempts, failed.next_try_at_s) == ("pending", 1, 1030.0)
    assert failed.error == "no bus (log in)"
    clock.now_s = 1030.0
    courier.submit(failed)
    (sent,) = collect(courier, 1)
    assert (sent.state, sent.attempts, sent.next_try_at_s, sent.error) == ("sent", 2, None, None)


def test_a_permanent_failure_is_final(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    courier = MessageDispatcher(
        {"fake": Fake(NotifyError("wrong password", permanent=True))}, clock=Clock()
    )
    cleanup.append(courier.close)
    courier.submit(delivery(message))
    (failed,) = collect(courier, 1)
    assert (failed.state, failed.next_try_at_s) == ("failed", None)


def test_a_bug_in_a_channel_is_a_transient_failure(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    fake = Fake(KeyError("secret detail"), "arrived")
    courier = MessageDispatcher({"fake": fake}, clock=Clock())
    cleanup.append(courier.close)
    courier.submit(delivery(message))
    (failed,) = collect(courier, 1)
    assert failed.state == "pending"
    assert failed.error == "KeyError in the channel"
    courier.submit(failed)
    assert collect(courier, 1)[0].state == "sent"


def test_an_unknown_channel_fails_at_once(message: Message) -> None:
    courier = MessageDispatcher({})
    assert courier.submit(delivery(message, channel="pigeon"))
    (failed,) = courier.results()
    assert failed.state == "failed"
    assert "pigeon is not configured" in (failed.error or "")


def test_a_dry_run_sends_nothing(message: Message) -> None:
    fake = Fake()
    courier = MessageDispatcher({"fake": fake}, clock=Clock())
    courier.submit(msgspec.structs.replace(delivery(message), dry_run=True))
    (done,) = courier.results()
    assert (done.state, done.attempts, fake.sent) == ("sent", 0, [])
    assert threads() == 0


def test_the_same_message_is_in_hand_only_once(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    fake = Fake(gate, "arrived")
    courier = MessageDispatcher({"fake": fake}, clock=Clock())
    cleanup += [gate.set, courier.close]
    for _ in range(5):
        assert courier.submit(delivery(message))
    gate.set()
    wait(lambda: fake.sent != [])
    # Until its result has been taken, the store still calls it pending: not sent again.
    assert courier.submit(delivery(message))
    collect(courier, 1)
    assert fake.sent == ["a1b2c3-1"]
    courier.submit(delivery(message))
    collect(courier, 1)
    assert fake.sent == ["a1b2c3-1"] * 2


def test_a_hung_channel_delays_no_other(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    hung, quick = Fake(gate), Fake()
    courier = MessageDispatcher({"hung": hung, "quick": quick}, clock=Clock())
    cleanup += [gate.set, courier.close]
    courier.submit(delivery(message, "hung"))
    began = time.monotonic()
    courier.submit(delivery(message, "quick"))
    (done,) = collect(courier, 1)
    assert (done.channel, done.state) == ("quick", "sent")
    assert time.monotonic() - began < 2


def test_a_stuck_worker_is_replaced_once_and_noticed_when_it_returns(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    first, second = threading.Event(), threading.Event()
    fake = Fake(first, second, "arrived")
    clock = Clock()
    courier = MessageDispatcher({"fake": fake}, deadline_s=20, clock=Clock(), monotonic=clock)
    cleanup += [first.set, second.set, courier.close]
    before = threads()

    courier.submit(delivery(message, row=1))
    wait(lambda: len(fake.answers) == 2)
    clock.now_s += 20 + GRACE_S
    assert courier.results() == []
    clock.now_s += 1
    (given_up,) = courier.results()
    assert (given_up.row, given_up.state, given_up.error) == (1, "pending", "no answer within 25 s")
    assert courier.problems == {}

    courier.submit(delivery(message, row=2))
    wait(lambda: len(fake.answers) == 1)
    courier.submit(delivery(message, row=3))
    clock.now_s += 26
    lost = courier.results()
    assert {one.row for one in lost} == {2, 3}
    assert set(courier.problems) == {"fake"}

    courier.submit(delivery(message, row=4))
    (refused,) = courier.results()
    assert refused.state == "pending"
    assert threads() - before == 2

    second.set()
    (late,) = collect(courier, 1)
    assert (late.row, late.state) == (2, "sent")
    assert courier.problems == {}
    courier.submit(delivery(message, row=5))
    (sent,) = collect(courier, 1)
    assert (sent.row, sent.state) == (5, "sent")


def test_a_message_that_arrived_late_is_not_sent_again(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    fake = Fake(gate, NotifyError("down", permanent=False))
    clock = Clock()
    courier = MessageDispatcher({"fake": fake}, clock=Clock(), monotonic=clock)
    cleanup += [gate.set, courier.close]
    courier.submit(delivery(message))
    wait(lambda: len(fake.answers) == 1)
    clock.now_s += 60
    (given_up,) = courier.results()
    gate.set()
    (late,) = collect(courier, 1)
    assert late.state == "sent"
    courier.submit(given_up)
    (again,) = collect(courier, 1)
    assert again.state == "sent"
    assert fake.sent == ["a1b2c3-1"]


def test_a_full_queue_is_refused_and_can_be_tried_again(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    fake = Fake(gate, "arrived")
    courier = MessageDispatcher({"fake": fake}, queue_size=2, clock=Clock())
    cleanup += [gate.set, courier.close]
    courier.submit(delivery(message, row=0))
    wait(lambda: len(fake.answers) == 1)
    assert [courier.submit(delivery(message, row=row)) for row in (1, 2, 3)] == [True, True, False]
    gate.set()
    assert len(collect(courier, 3)) == 3
    assert courier.submit(delivery(message, row=3))
    collect(courier, 1)


def test_close_does_not_wait_for_what_hangs(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    fake, idle, hung = Fake(), Fake(), Fake(gate, "arrived")
    cleanup.append(gate.set)
    courier = MessageDispatcher({"fake": fake, "idle": idle, "hung": hung}, clock=Clock())
    courier.submit(delivery(message, "fake"))
    for row in (1, 2, 3):
        courier.submit(delivery(message, "hung", row=row))
    wait(lambda: fake.sent != [] and len(hung.answers) == 1)
    began = time.monotonic()
    unfinished = courier.close(timeout_s=0.3)
    assert courier.close() == []
    assert time.monotonic() - began < 2
    assert [(one.channel, one.row) for one in unfinished] == [("hung", 1), ("hung", 2), ("hung", 3)]
    assert [one.state for one in courier.results()] == ["sent"]
    assert not courier.submit(delivery(message, "fake", row=9))
    assert (fake.closed, idle.closed, hung.closed) == (1, 1, 0)
    gate.set()
    wait(lambda: threads() == 0)


def test_a_channel_that_hangs_while_it_lets_go_holds_up_nobody(message: Message) -> None:
    gate = threading.Event()
    fake = Fake()
    fake.close = lambda: gate.wait(30)  # type: ignore[method-assign, assignment]
    courier = MessageDispatcher({"fake": fake}, clock=Clock())
    courier.submit(delivery(message))
    collect(courier, 1)
    began = time.monotonic()
    assert courier.close(timeout_s=0.1) == []
    assert time.monotonic() - began < 2
    gate.set()


def test_what_a_closed_courier_leaves_the_next_one_sends(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    fake = Fake(gate, "arrived")
    old, new = (MessageDispatcher({"fake": fake}, clock=Clock()) for _ in range(2))
    cleanup += [gate.set, new.close]
    for row in (1, 2, 3):
        old.submit(delivery(message, row=row))
    wait(lambda: len(fake.answers) == 1)
    threading.Timer(0.1, gate.set).start()
    left = old.close(timeout_s=5)
    assert [one.row for one in left] == [2, 3]
    for one in left:
        new.submit(one)
    assert {one.row for one in collect(new, 2) + old.results()} == {1, 2, 3}
    assert sorted(fake.sent) == ["a1b2c3-1", "a1b2c3-2", "a1b2c3-3"]


def test_a_channel_with_a_longer_timeout_is_given_it(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    fake = Fake(gate)
    fake.timeout_s = 100.0
    clock = Clock()
    courier = MessageDispatcher({"fake": fake}, deadline_s=20, clock=Clock(), monotonic=clock)
    cleanup += [gate.set, courier.close]
    courier.submit(delivery(message))
    wait(lambda: fake.begun == 1)
    clock.now_s += 104
    assert courier.results() == []
    clock.now_s += 2
    assert len(courier.results()) == 1


def test_what_is_late_leaves_as_one_message(
    message: Message, cleanup: list[Callable[[], object]]
) -> None:
    gate = threading.Event()
    fake = Fake(gate, NotifyError("still down", permanent=False), "arrived")
    courier = MessageDispatcher({"fake": fake}, clock=Clock(1000.0 + 8 * 3600))
    cleanup += [gate.set, courier.close]
    fresh = msgspec.structs.replace(delivery(message, row=9), created_at_s=1000.0 + 8 * 3600)
    courier.submit(fresh)
    wait(lambda: len(fake.answers) == 2)
    for row in range(1, 6):
        courier.submit(delivery(message, row=row))
    courier.submit(msgspec.structs.replace(fresh, message=message, row=10))
    gate.set()
    done = collect(courier, 7)
    # The late ones failed together, in one attempt; the fresh ones went on their own.
    assert {one.row for one in done if one.state == "pending"} == {1, 2, 3, 4, 5}
    assert fake.sent == ["a1b2c3-9", "a1b2c3"]
    for one in done:
        if one.state == "pending":
            courier.submit(one)
    again = collect(courier, 5)
    assert {one.state for one in again} == {"sent"}
    assert len(fake.sent) == 3
    assert fake.sent[2].startswith("digest-")
