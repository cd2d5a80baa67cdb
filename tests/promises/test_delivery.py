"""Promises 6, 12: a message arrives, later if need be, across crashes and reloads.

Real history, post and courier; the clock is moved by hand.
"""

from __future__ import annotations

import threading
import time

import msgspec

from tests.promises.post_office import DOWN, WRONG, Channel, NewOffice, wait_for

HOUR_S = 3600.0


def test_retry(office: NewOffice) -> None:
    mail = Channel("email", DOWN)
    one = office(mail)
    one.send("a")
    waits = []
    for _ in range(7):
        (wait_s,) = one.waiting().values()
        assert wait_s is not None
        waits.append(wait_s)
        one.turn(wait_s - 1)
        assert mail.tries == len(waits)  # not a second too early
        one.turn(1)
    assert waits == [30, 60, 120, 300, 900, 3600, 3600]
    mail.answer = None
    one.turn(3600)
    assert mail.ids == ["a"]
    (row,) = one.rows("a")
    assert (row.state, row.attempts, row.known) == ("sent", 9, "shown by email")
    assert one.post.problems() == []


def test_a_message_is_given_up_after_two_days(office: NewOffice) -> None:
    mail = Channel("email", DOWN)
    one = office(mail)
    one.tell("a")
    for _ in range(200):
        one.turn(900)
    assert one.waiting() == {}
    (row,) = one.rows("a")
    assert (row.state, row.error) == ("failed", "given up after two days: no session bus")
    assert 50 <= mail.tries <= 60
    assert one.post.untold() == ("a",)


def test_timeout(office: NewOffice) -> None:
    hung, quick = Channel("hung"), Channel("quick")
    gate = hung.answer = threading.Event()
    one = office(hung, quick, channels=("hung",), fallback=("quick",))
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
    assert one.post.untold() == ()


def test_crash_between_send_and_mark(office: NewOffice) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a")
    wait_for(lambda: mail.ids == ["a"])
    one.crash()  # its result was never taken
    one.turn()
    assert mail.ids == ["a", "a"]
    (row,) = one.rows("a")
    assert (row.state, row.attempts, row.lease_until_s) == ("sent", 2, None)
    one.crash()
    one.turn()
    assert len(mail.ids) == 2


def test_a_claim_is_on_disk_before_the_attempt(office: NewOffice) -> None:
    mail = Channel("email")
    gate = mail.answer = threading.Event()
    one = office(mail)
    try:
        one.tell("a")
        wait_for(lambda: mail.tries == 1)
        (row,) = one.rows("a")
        assert row.state == "pending"
        assert row.lease_until_s is not None
        assert row.lease_until_s > one.time.now_s
    finally:
        gate.set()


def test_a_loop_of_crashes_does_not_send_on_and_on(office: NewOffice) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a")
    for number in range(1, 7):
        expected = min(number, 3)
        wait_for(lambda sent=expected: len(mail.ids) == sent)
        one.crash()
        one.step()  # gives it to the channel, and dies before it hears of it
    assert len(mail.ids) == 3
    one.turn(30)
    assert (len(mail.ids), one.waiting()) == (4, {})


def test_reload_does_not_send_again_what_is_just_being_sent(office: NewOffice) -> None:
    mail = Channel("email")
    gate = mail.answer = threading.Event()
    one = office(mail)
    one.tell("a")
    wait_for(lambda: mail.tries == 1)
    one.tell("b")  # waits behind it
    one.courier = one.new_courier()
    one.post.replace(one.courier)
    mail.answer = None
    one.step(1)
    wait_for(lambda: mail.ids == ["b"])
    gate.set()
    one.turn(1)
    assert (sorted(mail.ids), one.waiting()) == (["a", "b"], {})
    one.turn(HOUR_S)
    assert mail.tries == 2


def test_reload_while_a_channel_hangs_tries_again_after_its_time(office: NewOffice) -> None:
    mail = Channel("email")
    gate = mail.answer = threading.Event()
    one = office(mail)
    try:
        one.tell("a")
        wait_for(lambda: mail.tries == 1)
        one.courier = one.new_courier()
        one.post.replace(one.courier)
        mail.answer = None
        one.step(20)
        assert mail.tries == 1
        one.turn(10)
        assert mail.ids == ["a"]
    finally:
        gate.set()


def test_reload_with_a_mended_channel_tells_what_nobody_heard(office: NewOffice) -> None:
    mail = Channel("email", WRONG)
    one = office(mail)
    one.tell("a")
    one.send("over")
    one.tell("worse", thread="a", notice="escalated")
    one.send("past", thread="over", notice="resolved")
    assert (one.waiting(), one.post.untold()) == ({}, ("a",))
    mail.answer = None
    one.courier = one.new_courier()
    one.post.replace(one.courier)
    one.turn()
    # The newest of what is still so; what is over is not dug out.
    assert (mail.ids, one.post.untold()) == (["worse"], ())


def test_a_refusal_that_a_reload_did_not_wait_for_is_tried_with_the_new_settings(
    office: NewOffice,
) -> None:
    mail = Channel("email")
    begun, gate = threading.Event(), threading.Event()

    def refuse(_: object) -> str:
        begun.set()
        gate.wait(30)
        raise WRONG

    one = office(mail)
    send, mail.send = mail.send, refuse  # type: ignore[assignment, method-assign]
    try:
        one.tell("a")
        wait_for(begun.is_set)
        mail.send = send  # type: ignore[method-assign]
        one.courier = one.new_courier()
        one.post.replace(one.courier)
    finally:
        gate.set()
    one.turn(1)
    one.turn()
    assert (mail.ids, one.waiting(), one.post.untold()) == (["a"], {}, ())


def test_the_message_is_the_same_at_every_attempt(office: NewOffice) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a", facts={"Growth": "12 MB/min"})
    wait_for(lambda: mail.ids == ["a"])
    one.crash()
    one.turn()
    assert mail.got[0] == msgspec.structs.replace(mail.got[1])
