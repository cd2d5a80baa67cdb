"""What is told of one incident on one channel arrives in its order, or not at all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.promises.post_office import DOWN, Channel, Office
from tests.test_daemon import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Message


class Slow(Channel):
    """Its first attempt lasts until the gate opens, and then fails or not."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.gate = threading.Event()
        self.fails = True

    def send(self, message: Message) -> str:
        if self.tries == 0:
            self.tries = 1
            self.gate.wait(30)
            if self.fails:
                raise DOWN
            self.tries = 0
        return super().send(message)


@pytest.fixture
def mail() -> Iterator[Slow]:
    channel = Slow("email")
    yield channel
    channel.gate.set()


def begin_and_end(office: Office, mail: Slow) -> None:
    office.tell("a")
    wait_for(lambda: mail.tries == 1)
    office.tell("a over", thread="a", notice="resolved", severity="info")
    office.step(1)
    assert office.post.channel_health()[0].waiting == 2


def test_an_end_is_not_told_before_its_beginning(office: Office, mail: Slow) -> None:
    mail.fails = False
    begin_and_end(office, mail)
    mail.gate.set()
    office.turn(1)
    assert mail.ids == ["a", "a over"]
    assert office.waiting() == {}


def test_a_beginning_that_failed_is_not_told_after_its_end(office: Office, mail: Slow) -> None:
    begin_and_end(office, mail)
    mail.gate.set()
    office.turn(1)
    office.turn(3600)
    assert mail.ids == []
    assert office.waiting() == {}
    assert {row.error for row in office.rows("a")} == {
        "not sent: overtaken by a later message of the same incident",
        "not sent: resolved before it was sent",
    }


def test_what_got_worse_meanwhile_is_told_instead(office: Office, mail: Slow) -> None:
    office.tell("a")
    wait_for(lambda: mail.tries == 1)
    office.tell("a worse", thread="a", notice="escalated", severity="critical")
    office.step(1)
    mail.gate.set()
    office.turn(1)
    assert mail.ids == ["a worse"]
    office.turn(3600)
    assert mail.ids == ["a worse"]


def test_other_incidents_do_not_wait(office: Office, mail: Slow) -> None:
    mail.fails = False
    begin_and_end(office, mail)
    office.tell("b")
    assert {waiting.message.id for waiting in office.leased()} == {"a", "b"}
    mail.gate.set()
    office.turn(1)
    assert mail.ids == ["a", "b", "a over"]


@pytest.mark.parametrize("by_s", [-600.0, -365 * 86400.0, 3600.0])
def test_a_clock_that_is_set_meanwhile_does_not_turn_it_round(
    office: Office, mail: Slow, by_s: float
) -> None:
    office.tell("a")
    wait_for(lambda: mail.tries == 1)
    office.step(1)
    office.time.now_s += by_s
    office.tell("a over", thread="a", notice="resolved", severity="info")
    mail.gate.set()
    office.turn(1)
    office.turn(3600)
    assert mail.ids == []
    assert office.waiting() == {}


def test_a_clock_that_jumps_by_years_meanwhile_gives_nothing_up(office: Office, mail: Slow) -> None:
    office.tell("a")
    wait_for(lambda: mail.tries == 1)
    office.step(1)
    office.time.now_s += 365 * 86400.0  # a machine without a clock has just asked the network
    mail.gate.set()
    office.turn(1)
    assert office.waiting() == {"a": pytest.approx(30, abs=2)}
    (row,) = office.rows("a")
    assert (row.state, row.error) == ("pending", "no session bus")
    office.turn(30)
    assert mail.ids == ["a"]
