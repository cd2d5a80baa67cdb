"""The dispatcher: nothing blocks, nothing is lost, one channel never hurts another."""

from __future__ import annotations

import sys
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core import config
from gpuwatchd.core.codes import Failure
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Availability, Delivery, Message
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.notify.outbox import dispatcher
from gpuwatchd.notify.outbox.dispatcher import GRACE_S, MessageDispatcher
from gpuwatchd.notify.outbox.states import GIVE_UP_S, inherited, retry_at
from tests import making
from tests.store.world import T0
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuwatchd.core.model import Message

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
    named = msgspec.structs.replace(message, id=f"{message.id}-{row}")
    return making.delivery(channel=channel, message=named, row=row)


def collect(
    message_dispatcher: MessageDispatcher, n: int, within_s: float = 60.0
) -> list[Delivery]:
    """Return n results, waiting for the worker threads."""
    got: list[Delivery] = []
    until = time.monotonic() + within_s
    while len(got) < n and time.monotonic() < until:
        got += message_dispatcher.results()
        time.sleep(0.002)
    assert len(got) == n
    return got


def threads() -> int:
    return sum(thread.name == "notify" for thread in threading.enumerate())


@pytest.fixture
def dispatch() -> Iterator[Dispatch]:
    """Return what makes dispatchers, which are closed after the test."""
    made: list[tuple[MessageDispatcher, dict[str, Fake]]] = []

    def make(channels: dict[str, Fake], **options: object) -> MessageDispatcher:
        settings: dict[str, Any] = {"clock": Clock(), **options}
        made.append((MessageDispatcher(channels, **settings), channels))
        return made[-1][0]

    yield make
    for message_dispatcher, channels in made:
        for channel in channels.values():
            for gate in channel.gates:
                gate.set()
        message_dispatcher.close()


def test_a_transient_failure_says_when_to_try_again(message: Message, dispatch: Dispatch) -> None:
    fake = Fake(NotifyError("no bus\x1b[2J", permanent=False, hint="log in"), "arrived")
    clock = Clock()
    message_dispatcher = dispatch({"fake": fake}, clock=clock)
    message_dispatcher.submit(delivery(message))
    (failed,) = collect(message_dispatcher, 1)
    assert (failed.state, failed.attempts, failed.next_try_at_s) == ("pending", 1, 1030.0)
    assert failed.error == "no bus (log in)"
    clock.now_s = 1030.0
    message_dispatcher.submit(failed)
    (sent,) = collect(message_dispatcher, 1)
    assert (sent.state, sent.attempts, sent.next_try_at_s, sent.error) == ("sent", 2, None, None)


def test_a_permanent_failure_is_final(message: Message, dispatch: Dispatch) -> None:
    message_dispatcher = dispatch({"fake": Fake(NotifyError("wrong password", permanent=True))})
    message_dispatcher.submit(delivery(message))
    (failed,) = collect(message_dispatcher, 1)
    assert (failed.state, failed.next_try_at_s) == ("failed", None)


def test_a_bug_in_a_channel_is_a_transient_failure(message: Message, dispatch: Dispatch) -> None:
    fake = Fake(KeyError("secret detail"), "arrived")
    message_dispatcher = dispatch({"fake": fake})
    message_dispatcher.submit(delivery(message))
    (failed,) = collect(message_dispatcher, 1)
    assert failed.state == "pending"
    assert failed.error == "KeyError in the channel"
    message_dispatcher.submit(failed)
    assert collect(message_dispatcher, 1)[0].state == "sent"


def test_an_unknown_channel_fails_at_once(message: Message) -> None:
    message_dispatcher = MessageDispatcher({})
    assert message_dispatcher.submit(delivery(message, channel="pigeon"))
    (failed,) = message_dispatcher.results()
    assert (failed.state, failed.code) == ("failed", Failure.NOT_CONFIGURED)
    assert "pigeon is not configured" in (failed.error or "")


def test_a_dry_run_sends_nothing(message: Message, dispatch: Dispatch) -> None:
    fake = Fake()
    message_dispatcher = dispatch({"fake": fake})
    assert message_dispatcher.submit(msgspec.structs.replace(delivery(message), dry_run=True))
    (done,) = message_dispatcher.results()
    assert (done.state, done.attempts, fake.sent) == ("sent", 0, [])
    assert threads() == 0


def test_the_same_message_is_in_hand_only_once(message: Message, dispatch: Dispatch) -> None:
    gate = threading.Event()
    fake = Fake(gate, "arrived")
    message_dispatcher = dispatch({"fake": fake})
    for _ in range(5):
        assert message_dispatcher.submit(delivery(message))
    gate.set()
    wait_for(lambda: fake.sent != [])
    # Until its result has been taken, the store still calls it pending: not sent again.
    assert message_dispatcher.submit(delivery(message))
    collect(message_dispatcher, 1)
    assert fake.sent == ["a1b2c3-1"]
    message_dispatcher.submit(delivery(message))
    collect(message_dispatcher, 1)
    assert fake.sent == ["a1b2c3-1"] * 2


def test_a_stuck_worker_is_replaced_once_and_noticed_when_it_returns(
    message: Message, dispatch: Dispatch
) -> None:
    first, second = threading.Event(), threading.Event()
    fake = Fake(first, second, "arrived")
    clock = Clock()
    message_dispatcher = dispatch({"fake": fake}, deadline_s=20, monotonic=clock)
    before = threads()

    message_dispatcher.submit(delivery(message, row=1))
    wait_for(lambda: len(fake.answers) == 2)
    clock.now_s += 20 + GRACE_S
    assert message_dispatcher.results() == []
    clock.now_s += 1
    (given_up,) = message_dispatcher.results()
    assert (given_up.row, given_up.state, given_up.error) == (1, "pending", "no answer within 25 s")

    message_dispatcher.submit(delivery(message, row=2))
    wait_for(lambda: len(fake.answers) == 1)
    message_dispatcher.submit(delivery(message, row=3))
    clock.now_s += 26
    lost = message_dispatcher.results()
    assert {one.row for one in lost} == {2, 3}

    assert message_dispatcher.submit(delivery(message, row=4))
    (refused,) = message_dispatcher.results()
    assert refused.state == "pending"
    assert threads() - before == 2

    second.set()
    (late,) = collect(message_dispatcher, 1)
    assert (late.row, late.state) == (2, "sent")
    message_dispatcher.submit(delivery(message, row=5))
    (sent,) = collect(message_dispatcher, 1)
    assert (sent.row, sent.state) == (5, "sent")


def test_a_message_that_arrived_late_is_not_sent_again(
    message: Message, dispatch: Dispatch
) -> None:
    gate = threading.Event()
    fake = Fake(gate, NotifyError("down", permanent=False))
    clock = Clock()
    message_dispatcher = dispatch({"fake": fake}, monotonic=clock)
    message_dispatcher.submit(delivery(message))
    wait_for(lambda: len(fake.answers) == 1)
    clock.now_s += 60
    (given_up,) = message_dispatcher.results()
    gate.set()
    (late,) = collect(message_dispatcher, 1)
    assert late.state == "sent"
    message_dispatcher.submit(given_up)
    (again,) = collect(message_dispatcher, 1)
    assert again.state == "sent"
    assert fake.sent == ["a1b2c3-1"]


def test_a_full_queue_is_refused_and_can_be_tried_again(
    message: Message, dispatch: Dispatch
) -> None:
    gate = threading.Event()
    fake = Fake(gate, "arrived")
    message_dispatcher = dispatch({"fake": fake}, queue_size=2)
    message_dispatcher.submit(delivery(message, row=0))
    wait_for(lambda: len(fake.answers) == 1)
    assert [message_dispatcher.submit(delivery(message, row=row)) for row in (1, 2, 3)] == [
        True,
        True,
        False,
    ]
    gate.set()
    assert len(collect(message_dispatcher, 3)) == 3
    assert message_dispatcher.submit(delivery(message, row=3))
    collect(message_dispatcher, 1)


def test_close_does_not_wait_for_what_hangs(message: Message, dispatch: Dispatch) -> None:
    gate = threading.Event()
    fake, idle, hung = Fake(), Fake(), Fake(gate, "arrived")
    message_dispatcher = dispatch({"fake": fake, "idle": idle, "hung": hung})
    message_dispatcher.submit(delivery(message, "fake"))
    for row in (1, 2, 3):
        message_dispatcher.submit(delivery(message, "hung", row=row))
    wait_for(lambda: fake.sent != [] and len(hung.answers) == 1)
    began = time.monotonic()
    unfinished = message_dispatcher.close(timeout_s=0.3)
    assert message_dispatcher.close() == []
    assert time.monotonic() - began < 2
    assert [(one.channel, one.row) for one in unfinished] == [("hung", 1), ("hung", 2), ("hung", 3)]
    assert [one.state for one in message_dispatcher.results()] == ["sent"]
    assert not message_dispatcher.submit(delivery(message, "fake", row=9))
    assert (fake.closed, idle.closed, hung.closed) == (1, 1, 0)
    gate.set()
    wait_for(lambda: threads() == 0)


def test_a_channel_that_hangs_while_it_lets_go_holds_up_nobody(
    message: Message, dispatch: Dispatch
) -> None:
    gate = threading.Event()
    fake = Fake()
    fake.close = lambda: gate.wait(30)  # type: ignore[method-assign, assignment]
    message_dispatcher = dispatch({"fake": fake})
    message_dispatcher.submit(delivery(message))
    collect(message_dispatcher, 1)
    began = time.monotonic()
    assert message_dispatcher.close(timeout_s=0.1) == []
    assert time.monotonic() - began < 2
    gate.set()


def test_what_a_closed_courier_leaves_the_next_one_sends(
    message: Message, dispatch: Dispatch
) -> None:
    gate = threading.Event()
    fake = Fake(gate, "arrived")
    old, new = (dispatch({"fake": fake}) for _ in range(2))
    for row in (1, 2, 3):
        old.submit(delivery(message, row=row))
    wait_for(lambda: len(fake.answers) == 1)
    threading.Timer(0.1, gate.set).start()
    left = old.close(timeout_s=5)
    assert [one.row for one in left] == [2, 3]
    for one in left:
        new.submit(one)
    assert {one.row for one in collect(new, 2) + old.results()} == {1, 2, 3}
    assert sorted(fake.sent) == ["a1b2c3-1", "a1b2c3-2", "a1b2c3-3"]


def test_a_channel_with_a_longer_timeout_is_given_it(message: Message, dispatch: Dispatch) -> None:
    gate = threading.Event()
    fake = Fake(gate)
    fake.timeout_s = 100.0
    clock = Clock()
    message_dispatcher = dispatch({"fake": fake}, deadline_s=20, monotonic=clock)
    message_dispatcher.submit(delivery(message))
    wait_for(lambda: fake.begun == 1)
    clock.now_s += 104
    assert message_dispatcher.results() == []
    clock.now_s += 2
    assert len(message_dispatcher.results()) == 1


def test_what_waits_for_company_is_left_to_the_next_courier(
    message: Message, dispatch: Dispatch
) -> None:
    gate = threading.Event()
    hung, fake = Fake(gate), Fake()
    message_dispatcher = dispatch({"hung": hung, "fake": fake}, clock=Clock(1000.0 + 8 * 3600))
    message_dispatcher.submit(delivery(message, "hung", row=1))
    message_dispatcher.submit(delivery(message, "fake", row=2))
    wait_for(lambda: not message_dispatcher._channels["fake"]._queue)
    left = message_dispatcher.close(timeout_s=0.0)
    assert {one.row for one in left} == {1, 2}
    assert fake.sent == []


def test_without_a_thread_a_message_waits_for_one(
    message: Message, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fake = Fake()
    message_dispatcher = dispatch({"fake": fake})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert message_dispatcher.submit(delivery(message))
    assert message_dispatcher.results() == []
    monkeypatch.setattr(threading.Thread, "start", start)
    assert [one.state for one in collect(message_dispatcher, 1)] == ["sent"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_is_replaced(message: Message, dispatch: Dispatch) -> None:
    class Dying(Fake):
        def send(self, message: Message) -> str:
            if message.id.endswith("-1"):
                sys.exit(1)
            return super().send(message)

    fake = Dying()
    message_dispatcher = dispatch({"fake": fake})
    message_dispatcher.submit(delivery(message, row=1))
    assert collect(message_dispatcher, 1)[0].state == "pending"
    message_dispatcher.submit(delivery(message, row=2))
    assert collect(message_dispatcher, 1)[0].state == "sent"
    assert threads() == 1


def test_messages_that_cannot_be_merged_are_a_failure_and_not_the_end(
    message: Message, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Message:
        raise OverflowError("year is out of range")

    monkeypatch.setattr(dispatcher, "digest", broken)
    message_dispatcher = dispatch({"fake": Fake()}, clock=Clock(1000.0 + 8 * 3600))
    for row in (1, 2):
        message_dispatcher.submit(delivery(message, row=row))
    done = collect(message_dispatcher, 2)
    assert {(one.state, one.error) for one in done} == {("pending", "OverflowError in the channel")}


@given(st.floats(0, 2e9), st.floats(-1e9, 1e9))
def test_retries_end_after_two_days_whatever_the_clock_does(created_s: float, ago_s: float) -> None:
    now_s = created_s + ago_s
    times = [retry_at(attempts, created_s, now_s) for attempts in range(1, 10)]
    for at_s in times:
        if at_s is None:
            assert ago_s > GIVE_UP_S - 3600.0
        else:
            assert 29.9 <= at_s - now_s <= 3600.1
            assert at_s <= max(created_s, now_s if ago_s < 0 else created_s) + GIVE_UP_S + 1
    assert all(a is not None or b is None for a, b in pairwise(times))


@pytest.mark.parametrize(("attempts", "at_once"), [(0, True), (1, True), (40, False)])
def test_what_a_dead_daemon_was_sending_is_tried_once_more(attempts: int, at_once: bool) -> None:
    row = making.delivery(attempts=attempts, created_at_s=T0, lease_until_s=T0 + 60.0)
    again = inherited(row, T0 + 10.0)
    assert (again.attempts, again.lease_until_s) == (attempts + 1, None)
    assert (again.next_try_at_s == T0 + 10.0) is at_once


def test_build_uses_the_configuration() -> None:
    section = config.NotifySection(
        email=config.EmailSection(host="mail.example.org", to=("a@example.org",)),
        command=config.CommandSection(argv=("/bin/true",)),
    )
    built = dispatcher.build(section, ("email", "command", "pigeon"))
    assert list(built) == ["email", "command", "pigeon"]
    assert "mail.example.org:587" in repr(built["email"])
    assert built["command"].probe().ok
    assert not built["pigeon"].probe().ok


def test_one_channel_that_cannot_be_built_hurts_no_other(
    message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOTIFIERS, "desktop", "gpuwatchd.no_such_module:Nothing")
    built = dispatcher.build(
        config.NotifySection(command=config.CommandSection(argv=("/bin/true",))),
        ("desktop", "command"),
    )
    assert built["command"].probe().ok
    broken = built["desktop"].probe()
    assert not broken.ok
    assert "no_such_module" in broken.reason
    with pytest.raises(NotifyError) as caught:
        built["desktop"].send(message)
    assert caught.value.permanent
