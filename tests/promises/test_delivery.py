"""Promises 6, 10, 12, 13: a message arrives, elsewhere if need be, later if need be, and is known.

Real history, post and courier; the clock is moved by hand.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuwatchd.config import Seconds
from tests.promises.post_office import DOWN, WRONG, Channel, Office, wait_for
from tests.store.world import T0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOUR_S = 3600.0


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Callable[..., Office]]:
    made: list[Office] = []

    def make(*channels: Channel, **rules: object) -> Office:
        made.append(Office(tmp_path, channels, rules))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_retry(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    mail.answer = DOWN
    one = office(mail)
    one.tell("a")
    one.turn()
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


def test_a_message_is_given_up_after_two_days(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    mail.answer = DOWN
    one = office(mail)
    one.tell("a")
    for _ in range(200):
        one.turn(900)
    assert one.waiting() == {}
    (row,) = one.rows("a")
    assert (row.state, row.error) == ("failed", "given up after two days: no session bus")
    assert 50 <= mail.tries <= 60
    assert one.post.untold() == ("a",)


def test_a_permanent_error_goes_to_the_next_channel_at_once(office: Callable[..., Office]) -> None:
    desktop, mail, chat = Channel("desktop"), Channel("email"), Channel("chat")
    desktop.answer = mail.answer = WRONG
    one = office(desktop, mail, chat, channels=("desktop",), fallback=("email", "chat"))
    one.tell("a")
    one.turn()
    assert (desktop.tries, mail.tries, chat.ids) == (1, 1, ["a"])
    states = {row.channel: (row.state, row.fallback_of) for row in one.rows("a")}
    assert states == {
        "desktop": ("failed", ""),
        "email": ("failed", "desktop"),
        "chat": ("sent", "desktop"),
    }
    assert one.post.untold() == ()


def test_a_fallback_waits_for_what_may_pass(office: Callable[..., Office]) -> None:
    desktop, mail = Channel("desktop"), Channel("email")
    desktop.answer = DOWN
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.tell("a")
    one.turn()
    one.turn(119)
    assert (mail.ids, one.post.untold()) == ([], ("a",))
    one.turn(1)
    assert (mail.ids, one.post.untold()) == (["a"], ())
    # Told is told: it does not pop up as well when the session is back.
    desktop.answer = None
    one.turn(2 * HOUR_S)
    assert (desktop.ids, one.waiting()) == ([], {})
    first = next(row for row in one.rows("a") if row.channel == "desktop")
    assert (first.state, first.error) == ("failed", "not sent: told by email instead")
    one.tell("b")
    one.turn()
    assert (desktop.ids, mail.ids) == (["b"], ["a"])


def test_a_channel_that_has_long_failed_has_no_time_left(office: Callable[..., Office]) -> None:
    desktop, mail = Channel("desktop"), Channel("email")
    desktop.answer = DOWN
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.tell("a")
    one.turn()
    one.turn(HOUR_S)
    one.tell("b")
    one.turn()
    assert mail.ids == ["a", "b"]


def test_a_daemon_that_is_started_again_and_again_uses_its_fallback_in_time(
    office: Callable[..., Office],
) -> None:
    desktop, mail = Channel("desktop"), Channel("email")
    desktop.answer = DOWN
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.tell("a")
    one.turn()
    for _ in range(3):
        one.turn(35)
        assert mail.tries == 0
        one.die()
        one.begin()
    one.turn(35)
    assert mail.ids == ["a"]


def test_what_failed_before_a_start_is_tried_first_and_soon(office: Callable[..., Office]) -> None:
    desktop, mail = Channel("desktop"), Channel("email")
    desktop.answer = DOWN
    one = office(desktop, mail, channels=("desktop",), fallback=("email",), fallback_after=1e9)
    one.tell("a")
    for _ in range(8):
        one.turn(HOUR_S)
    one.die()
    one.time.pass_s(1)
    one.policy = msgspec.structs.replace(one.policy, fallback_after=Seconds(120))
    desktop.answer = None  # somebody has logged in
    one.begin()
    one.turn()
    assert (mail.tries, desktop.ids) == (0, [])
    one.turn(30)
    assert (mail.tries, desktop.ids) == (0, ["a"])


def test_a_fallback_is_not_used_while_another_channel_delivers(
    office: Callable[..., Office],
) -> None:
    desktop, command, mail = Channel("desktop"), Channel("command"), Channel("email")
    desktop.answer = WRONG
    one = office(desktop, command, mail, channels=("desktop", "command"), fallback=("email",))
    one.tell("a")
    one.turn(HOUR_S)
    assert (command.ids, mail.tries) == (["a"], 0)


def test_an_original_that_delivers_after_all_calls_its_fallback_off(
    office: Callable[..., Office],
) -> None:
    desktop, mail = Channel("desktop"), Channel("email")
    desktop.answer = mail.answer = DOWN
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.tell("a")
    one.turn()
    one.turn(120)
    assert mail.tries == 1
    desktop.answer = None
    one.turn(300)
    mail.answer = None
    one.turn(HOUR_S)
    assert (desktop.ids, mail.ids, one.waiting()) == (["a"], [], {})


def test_a_fallback_keeps_to_its_quiet_hours_and_to_what_it_is_for(
    office: Callable[..., Office],
) -> None:
    desktop, mail, pager = Channel("desktop"), Channel("email"), Channel("pager")
    desktop.answer = WRONG
    here = time.localtime(T0)
    quiet = f"{here.tm_hour:02d}:00-{(here.tm_hour + 1) % 24:02d}:00"
    one = office(
        *(desktop, mail, pager),
        channels=("desktop",),
        fallback=("pager", "email"),
        severity={"pager": "critical"},
        quiet_hours={"email": (quiet,)},
    )
    one.tell("a")
    one.tell("urgent", severity="critical")
    one.turn()
    assert (pager.ids, mail.ids) == (["urgent"], [])
    (row,) = [row for row in one.rows("a") if row.channel == "email"]
    assert row.held.startswith("quiet hours until ")
    one.turn(HOUR_S)
    assert (pager.ids, mail.ids) == (["urgent"], ["a"])


def test_timeout(office: Callable[..., Office]) -> None:
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


def test_crash_between_send_and_mark(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a")
    wait_for(lambda: mail.ids == ["a"])
    one.die()  # its result was never taken
    one.begin()
    one.turn()
    assert mail.ids == ["a", "a"]
    (row,) = one.rows("a")
    assert (row.state, row.attempts, row.lease_until_s) == ("sent", 2, None)
    one.die()
    one.begin()
    one.turn()
    assert len(mail.ids) == 2


def test_a_claim_is_on_disk_before_the_attempt(office: Callable[..., Office]) -> None:
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


def test_a_loop_of_crashes_does_not_send_on_and_on(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a")
    for number in range(1, 7):
        expected = min(number, 3)
        wait_for(lambda sent=expected: len(mail.ids) == sent)
        one.die()
        one.begin()
        one.step()  # gives it to the channel, and dies before it hears of it
    assert len(mail.ids) == 3
    one.turn(30)
    assert (len(mail.ids), one.waiting()) == (4, {})


def test_reload_does_not_send_again_what_is_just_being_sent(office: Callable[..., Office]) -> None:
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


def test_reload_while_a_channel_hangs_tries_again_after_its_time(
    office: Callable[..., Office],
) -> None:
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


def test_reload_with_a_mended_channel_tells_what_nobody_heard(
    office: Callable[..., Office],
) -> None:
    mail = Channel("email")
    mail.answer = WRONG
    one = office(mail)
    one.tell("a")
    one.tell("over")
    one.turn()
    one.tell("worse", thread="a", notice="escalated")
    one.tell("past", thread="over", notice="resolved")
    one.turn()
    assert (one.waiting(), one.post.untold()) == ({}, ("a",))
    mail.answer = None
    one.courier = one.new_courier()
    one.post.replace(one.courier)
    one.turn()
    # The newest of what is still so; what is over is not dug out.
    assert (mail.ids, one.post.untold()) == (["worse"], ())


def test_quiet_hours(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    one = office(mail)
    until_s = T0 + 8 * HOUR_S
    quiet: dict[str, Any] = {"held": "quiet hours until 07:00", "until_s": until_s}
    for name in ("a", "b", "c"):
        one.tell(name, **quiet)
    one.tell("urgent", severity="critical")
    one.turn(60)
    assert mail.ids == ["urgent"]  # it never waits
    one.tell("c over", thread="c", notice="resolved", **quiet)
    one.tell("b worse", thread="b", notice="escalated", severity="critical")
    one.turn(60)
    assert mail.ids == ["urgent", "b worse"]
    one.turn(8 * HOUR_S - 121)
    assert len(mail.got) == 2
    one.turn(1)
    assert len(mail.got) == 3
    digest = mail.got[2]
    assert digest.subject == "gpuwatchd: 2 messages that were held back"
    assert "Held back until now (quiet hours until 07:00):" in digest.body
    assert "warning: about a" in digest.body
    assert "over: about c over" in digest.body
    assert "about b" not in digest.body
    assert one.waiting() == {}
    assert [row.error for row in one.rows("b")] == [
        "not sent: overtaken by a later message of the same incident",
        None,
    ]
    assert one.post.untold() == ()


def test_held_messages_survive_a_restart_and_are_no_failure(office: Callable[..., Office]) -> None:
    mail, chat = Channel("email"), Channel("chat")
    one = office(mail, chat, channels=("email",), fallback=("chat",))
    one.tell("a", held="quiet hours until 07:00", until_s=T0 + 7200)
    one.turn(600)
    one.die()
    one.begin()
    one.turn(600)
    assert (mail.tries, chat.tries, one.post.untold()) == (0, 0, ())
    assert [one.post.health()[0].ok, one.post.health()[0].waiting] == [None, 1]
    one.turn(6000)
    assert (mail.ids, chat.tries) == (["a"], 0)


def test_batching(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    mail.answer = DOWN
    one = office(mail)
    for number in range(30):
        one.tell(f"n{number}")
        one.turn(60)
    one.turn(8 * HOUR_S)
    mail.answer = None
    one.turn(HOUR_S)
    assert len(mail.got) == 1
    assert mail.got[0].subject == "gpuwatchd: 30 messages that could not be delivered earlier"
    assert all(f"about n{number}" in mail.got[0].body for number in range(30))
    assert one.waiting() == {}
    assert "(one of 30 messages in one)" in one.rows("n7")[0].known


@pytest.mark.parametrize("by_s", [HOUR_S, -600.0, -365 * 86400.0])
def test_clock_step_while_a_retry_waits(office: Callable[..., Office], by_s: float) -> None:
    mail = Channel("email")
    mail.answer = DOWN
    one = office(mail)
    one.tell("a")
    one.turn()
    one.turn(30)
    mail.answer = None
    one.time.now_s += by_s
    one.turn(59)
    assert mail.tries == 2  # not skipped
    one.turn(1)
    assert mail.ids == ["a"]  # nor eternal


@pytest.mark.parametrize("by_s", [-600.0, -365 * 86400.0])
def test_clock_set_back_while_a_message_is_held(office: Callable[..., Office], by_s: float) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a", held="quiet hours until 07:00", until_s=T0 + 3600)
    one.tell("b", held="quiet hours until 07:00", until_s=T0 + 3600)
    one.turn(60)
    one.time.now_s += by_s
    one.turn(1)
    one.turn(3500)
    assert mail.tries == 0
    one.turn(60)
    assert len(mail.got) == 1
    assert one.waiting() == {}


def test_clock_set_back_while_nobody_watched(office: Callable[..., Office]) -> None:
    mail, desktop = Channel("email"), Channel("desktop")
    mail.answer = DOWN
    one = office(mail, desktop)
    one.tell("a", "email")
    one.turn()
    one.tell("b", "desktop", held="quiet hours until 07:00", until_s=T0 + 3600)
    one.die()
    one.time.now_s -= 365 * 86400.0
    mail.answer = None
    one.begin()
    one.turn(31)
    assert (mail.ids, desktop.ids) == (["a"], [])
    one.turn(3600)
    assert desktop.ids == ["b"]


def test_an_alert_that_reached_nobody_is_known_after_a_restart(
    office: Callable[..., Office],
) -> None:
    mail = Channel("email")
    mail.answer = DOWN
    one = office(mail)
    one.tell("a")
    one.turn()
    assert one.post.untold() == ("a",)
    one.die()
    one.begin()
    assert one.post.untold() == ("a",)
    mail.answer = None
    one.turn(30)
    assert one.post.untold() == ()
    one.die()
    one.begin()
    assert one.post.untold() == ()


def test_every_alert_of_a_shared_message_counts_as_told(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    mail.answer = DOWN
    one = office(mail)
    one.tell("b")
    one.turn()
    one.tell("a", also=("b",))
    one.turn()
    assert set(one.post.untold()) == {"a", "b"}
    mail.answer = None
    one.turn(60)
    assert one.post.untold() == ()


def test_an_alert_that_is_over_is_no_longer_untold(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    mail.answer = WRONG
    one = office(mail)
    one.tell("a")
    one.turn()
    assert one.post.untold() == ("a",)
    one.tell("a over", thread="a", notice="resolved")
    one.turn()
    assert one.post.untold() == ()


def test_the_health_of_channels(office: Callable[..., Office]) -> None:
    desktop, mail = Channel("desktop"), Channel("email")
    desktop.answer = DOWN
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    before = one.post.health()
    assert [(c.name, c.ok, c.waiting) for c in before] == [
        ("desktop", None, 0),
        ("email", None, 0),
    ]
    assert one.post.health() is before
    one.tell("a")
    one.turn()
    one.turn(30)
    first, second = one.post.health()
    assert (first.ok, first.why, first.failing_since_s) == (False, "no session bus", T0)
    assert (first.waiting, second.ok) == (1, None)
    one.turn(90)
    first, second = one.post.health()
    assert (first.waiting, second.ok, second.delivered_at_s) == (0, True, T0 + 120)
    one.die()
    one.begin()
    assert one.post.health()[1].delivered_at_s == T0 + 120


def test_the_message_is_the_same_at_every_attempt(office: Callable[..., Office]) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a", facts={"Growth": "12 MB/min"})
    wait_for(lambda: mail.ids == ["a"])
    one.die()
    one.begin()
    one.turn()
    assert mail.got[0] == msgspec.structs.replace(mail.got[1])
