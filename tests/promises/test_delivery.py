"""Promises 6, 12: a message arrives, later if need be, across crashes and reloads.

Real history, post and message_dispatcher; the clock is moved by hand.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from tests.promises.post_office import DOWN, WRONG, Channel, NewOffice, Office
from tests.store.world import T0
from tests.test_daemon import wait_for

HOUR_S = 3600.0


def test_retry(office: Office, mail: Channel) -> None:
    mail.answer = DOWN
    office.send("a")
    waits = []
    for _ in range(7):
        (wait_s,) = office.waiting().values()
        assert wait_s is not None
        waits.append(wait_s)
        office.turn(wait_s - 1)
        assert mail.tries == len(waits)  # not a second too early
        office.turn(1)
    assert waits == [30, 60, 120, 300, 900, 3600, 3600]
    mail.answer = None
    office.turn(3600)
    assert mail.ids == ["a"]
    (row,) = office.rows("a")
    assert (row.state, row.attempts, row.known) == ("sent", 9, "shown by email")
    assert office.post.problems() == []


def test_a_message_is_given_up_after_two_days(office: Office, mail: Channel) -> None:
    mail.answer = DOWN
    office.tell("a")
    for _ in range(200):
        office.turn(900)
    assert office.waiting() == {}
    (row,) = office.rows("a")
    assert (row.state, row.error) == ("failed", "gave up after two days: no session bus")
    assert 50 <= mail.tries <= 60
    assert office.post.reach.undelivered() == ("a",)


def test_timeout(new_office: NewOffice) -> None:
    hung, quick = Channel("hung"), Channel("quick")
    gate = hung.answer = threading.Event()
    one = new_office(hung, quick, channels=("hung",), fallback=("quick",))
    try:
        one.tell("a")
        wait_for(lambda: hung.tries == 1)
        began_s = time.monotonic()
        for _ in range(100):
            one.step(0.2)
        assert time.monotonic() - began_s < 2.0  # a hundred ticks, none of which waits
        one.step(6)
        assert one.waiting() == {"a": 30.0}
        assert one.post.problems() == ["channel hung does not deliver: no answer within 25 s"]
        one.step(120)
        wait_for(lambda: quick.ids == ["a"])
        one.step()
    finally:
        gate.set()
    assert one.post.reach.undelivered() == ()


def test_crash_between_send_and_mark(office: Office, mail: Channel) -> None:
    office.tell("a")
    wait_for(lambda: mail.ids == ["a"])
    office.crash()  # its result was never taken
    office.turn()
    assert mail.ids == ["a", "a"]
    (row,) = office.rows("a")
    assert (row.state, row.attempts, row.lease_until_s) == ("sent", 2, None)
    office.crash()
    office.turn()
    assert len(mail.ids) == 2


def test_a_claim_is_on_disk_before_the_attempt(office: Office, mail: Channel) -> None:
    gate = mail.answer = threading.Event()
    try:
        office.tell("a")
        wait_for(lambda: mail.tries == 1)
        (row,) = office.rows("a")
        assert row.state == "pending"
        assert row.lease_until_s is not None
        assert row.lease_until_s > office.time.now_s
    finally:
        gate.set()


def test_a_loop_of_crashes_does_not_send_on_and_on(office: Office, mail: Channel) -> None:
    office.tell("a")
    for number in range(1, 7):
        wait_for(lambda: len(mail.ids) == min(number, 3))  # noqa: B023 - asked within this round
        office.crash()
        office.step()  # gives it to the channel, and dies before it hears of it
    assert len(mail.ids) == 3
    office.turn(30)
    assert (len(mail.ids), office.waiting()) == (4, {})


def test_reload_does_not_send_again_what_is_just_being_sent(office: Office, mail: Channel) -> None:
    gate = mail.answer = threading.Event()
    office.tell("a")
    wait_for(lambda: mail.tries == 1)
    office.tell("b")  # waits behind it
    office.reload()
    mail.answer = None
    office.step(1)
    wait_for(lambda: mail.ids == ["b"])
    gate.set()
    office.turn(1)
    assert (sorted(mail.ids), office.waiting()) == (["a", "b"], {})
    office.turn(HOUR_S)
    assert mail.tries == 2


def test_reload_while_a_channel_hangs_tries_again_after_its_time(
    office: Office, mail: Channel
) -> None:
    gate = mail.answer = threading.Event()
    try:
        office.tell("a")
        wait_for(lambda: mail.tries == 1)
        office.reload()
        mail.answer = None
        office.step(20)
        assert mail.tries == 1
        office.turn(10)
        assert mail.ids == ["a"]
    finally:
        gate.set()


def test_reload_with_a_mended_channel_tells_what_nobody_heard(
    office: Office, mail: Channel
) -> None:
    mail.answer = WRONG
    office.tell("a")
    office.send("over")
    office.tell("worse", thread="a", notice="escalated")
    office.send("past", thread="over", notice="resolved")
    assert (office.waiting(), office.post.reach.undelivered()) == ({}, ("a",))
    mail.answer = None
    office.reload()
    office.turn()
    # The newest of what is still so; what is over is not dug out.
    assert (mail.ids, office.post.reach.undelivered()) == (["worse"], ())


def test_a_refusal_that_a_reload_did_not_wait_for_is_tried_with_the_new_settings(
    office: Office, mail: Channel
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def refuse(_: object) -> str:
        begun.set()
        gate.wait(30)
        raise WRONG

    send, mail.send = mail.send, refuse  # type: ignore[assignment, method-assign]
    try:
        office.tell("a")
        wait_for(begun.is_set)
        mail.send = send  # type: ignore[method-assign]
        office.reload()
    finally:
        gate.set()
    office.turn(1)
    office.turn()
    assert (mail.ids, office.waiting(), office.post.reach.undelivered()) == (["a"], {}, ())


def test_the_message_is_the_same_at_every_attempt(office: Office, mail: Channel) -> None:
    office.tell("a", facts={"Growth": "12 MB/min"})
    wait_for(lambda: mail.ids == ["a"])
    office.crash()
    office.turn()
    assert mail.got[0] == msgspec.structs.replace(mail.got[1])


def test_quiet_hours(office: Office, mail: Channel) -> None:
    until_s = T0 + 8 * HOUR_S
    quiet: dict[str, Any] = {"held": "quiet hours until 07:00", "until_s": until_s}
    for name in ("a", "b", "c"):
        office.tell(name, **quiet)
    office.tell("urgent", severity="critical")
    office.turn(60)
    assert mail.ids == ["urgent"]  # it never waits
    office.tell("c over", thread="c", notice="resolved", severity="info", **quiet)
    office.tell("b worse", thread="b", notice="escalated", severity="critical")
    office.turn(60)
    assert mail.ids == ["urgent", "b worse"]
    office.turn(8 * HOUR_S - 121)
    assert len(mail.got) == 2
    office.turn(1)
    assert len(mail.got) == 3
    digest = mail.got[2]
    assert digest.subject == "gpuwatchd: 2 messages that were held"
    assert "Held until now (quiet hours until 07:00):" in digest.body
    assert "warning: about a" in digest.body
    assert "recovered: about c over" in digest.body
    assert "about b" not in digest.body
    assert office.waiting() == {}
    assert [row.error for row in office.rows("b")] == [
        "not sent: overtaken by a later message of the same incident",
        None,
    ]
    assert office.post.reach.undelivered() == ()


def test_held_messages_survive_a_restart_and_are_no_failure(new_office: NewOffice) -> None:
    mail, chat = Channel("email"), Channel("chat")
    one = new_office(mail, chat, channels=("email",), fallback=("chat",))
    one.tell("a", held="quiet hours until 07:00", until_s=T0 + 7200)
    one.turn(600)
    one.crash()
    one.turn(600)
    assert (mail.tries, chat.tries, one.post.reach.undelivered()) == (0, 0, ())
    assert [one.post.channel_health()[0].ok, one.post.channel_health()[0].waiting] == [None, 1]
    one.turn(6000)
    assert (mail.ids, chat.tries) == (["a"], 0)


@pytest.mark.parametrize("by_s", [HOUR_S, -600.0, -365 * 86400.0])
def test_clock_step_while_a_retry_waits(office: Office, mail: Channel, by_s: float) -> None:
    mail.answer = DOWN
    office.send("a")
    office.turn(30)
    mail.answer = None
    office.time.now_s += by_s
    office.turn(59)
    assert mail.tries == 2  # not skipped
    office.turn(1)
    assert mail.ids == ["a"]  # nor eternal


def test_what_waits_for_quiet_hours_follows_them_when_they_are_changed(
    office: Office, mail: Channel
) -> None:
    office.tell("a", held="quiet hours until 07:00", until_s=T0 + 8 * HOUR_S)
    office.turn(60)
    here = time.localtime(office.time.now_s)
    later = f"{here.tm_hour:02d}:00-{(here.tm_hour + 3) % 24:02d}:00"
    office.post.take_rules(msgspec.structs.replace(office.policy, quiet_hours={"email": (later,)}))
    office.turn(1)
    (row,) = office.rows("a")
    assert row.held == f"quiet hours until {(here.tm_hour + 3) % 24:02d}:00"
    office.turn(60)
    assert mail.tries == 0
    office.post.take_rules(office.policy)
    office.turn(1)
    assert mail.tries == 1


@pytest.mark.parametrize("by_s", [-600.0, -365 * 86400.0])
def test_clock_set_back_while_a_message_is_held(office: Office, mail: Channel, by_s: float) -> None:
    office.tell("a", held="quiet hours until 07:00", until_s=T0 + 3600)
    office.tell("b", held="quiet hours until 07:00", until_s=T0 + 3600)
    office.turn(60)
    office.time.now_s += by_s
    office.turn(1)
    office.turn(3500)
    assert mail.tries == 0
    office.turn(60)
    assert len(mail.got) == 1
    assert office.waiting() == {}


def test_clock_set_back_while_nobody_watched(new_office: NewOffice) -> None:
    mail, desktop = Channel("email", DOWN), Channel("desktop")
    one = new_office(mail, desktop)
    one.send("a", "email")
    one.tell("b", "desktop", held="quiet hours until 07:00", until_s=T0 + 3600)
    one.die()
    one.time.now_s -= 365 * 86400.0
    mail.answer = None
    one.begin()
    one.turn(31)
    assert (mail.ids, desktop.ids) == (["a"], [])
    one.turn(3600)
    assert desktop.ids == ["b"]


def test_clock_set_back_before_the_first_turn_after_a_start(office: Office, mail: Channel) -> None:
    office.tell("a", held="quiet hours until 07:00", until_s=T0 + 3600)
    office.crash()
    office.time.now_s -= 365 * 86400.0
    office.turn(1)
    assert mail.tries == 0
    office.turn(3600)
    assert mail.ids == ["a"]


def test_what_a_fallback_has_a_later_message_of_is_not_sent_there_again(
    new_office: NewOffice,
) -> None:
    mail, spare = Channel("email", WRONG), Channel("chat", DOWN)
    office = new_office(mail, spare, channels=("email",), fallback=("chat",))
    office.send("a")
    office.turn(1.0)
    office.send("later", thread="a")
    for _ in range(5):
        office.turn(1.0)
    assert [one.message.id for one in office.rows("a")] == ["a", "a", "later", "later"]
    spare.answer = None
    office.turn(60.0)
    assert spare.ids == ["later"]


def test_a_channel_that_a_reload_has_mended_is_tried_before_its_fallback(
    new_office: NewOffice,
) -> None:
    mail, desktop, spare = Channel("email", WRONG), Channel("desktop", DOWN), Channel("chat")
    office = new_office(mail, desktop, spare, channels=("email", "desktop"), fallback=("chat",))
    office.tell("a")
    wait_for(lambda: mail.tries + desktop.tries == 2)
    office.reload()
    mail.answer = None
    office.turn(700.0)
    assert (mail.ids, spare.ids) == (["a"], [])
