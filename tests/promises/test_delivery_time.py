"""Promises 10, 13: what waits leaves when its time has come, together, whatever the clock says."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from tests.promises.post_office import DOWN, Channel, NewOffice
from tests.store.world import T0

HOUR_S = 3600.0


def test_quiet_hours(office: NewOffice) -> None:
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


def test_held_messages_survive_a_restart_and_are_no_failure(office: NewOffice) -> None:
    mail, chat = Channel("email"), Channel("chat")
    one = office(mail, chat, channels=("email",), fallback=("chat",))
    one.tell("a", held="quiet hours until 07:00", until_s=T0 + 7200)
    one.turn(600)
    one.crash()
    one.turn(600)
    assert (mail.tries, chat.tries, one.post.untold()) == (0, 0, ())
    assert [one.post.channel_health()[0].ok, one.post.channel_health()[0].waiting] == [None, 1]
    one.turn(6000)
    assert (mail.ids, chat.tries) == (["a"], 0)


def test_batching(office: NewOffice) -> None:
    mail = Channel("email", DOWN)
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
def test_clock_step_while_a_retry_waits(office: NewOffice, by_s: float) -> None:
    mail = Channel("email", DOWN)
    one = office(mail)
    one.send("a")
    one.turn(30)
    mail.answer = None
    one.time.now_s += by_s
    one.turn(59)
    assert mail.tries == 2  # not skipped
    one.turn(1)
    assert mail.ids == ["a"]  # nor eternal


def test_what_waits_for_quiet_hours_follows_them_when_they_are_changed(office: NewOffice) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a", held="quiet hours until 07:00", until_s=T0 + 8 * HOUR_S)
    one.turn(60)
    here = time.localtime(one.time.now_s)
    later = f"{here.tm_hour:02d}:00-{(here.tm_hour + 3) % 24:02d}:00"
    one.post.policy = msgspec.structs.replace(one.policy, quiet_hours={"email": (later,)})
    one.turn(1)
    (row,) = one.rows("a")
    assert row.held == f"quiet hours until {(here.tm_hour + 3) % 24:02d}:00"
    one.turn(60)
    assert mail.tries == 0
    one.post.policy = one.policy
    one.turn(1)
    assert mail.tries == 1


@pytest.mark.parametrize("by_s", [-600.0, -365 * 86400.0])
def test_clock_set_back_while_a_message_is_held(office: NewOffice, by_s: float) -> None:
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


def test_clock_set_back_while_nobody_watched(office: NewOffice) -> None:
    mail, desktop = Channel("email", DOWN), Channel("desktop")
    one = office(mail, desktop)
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


def test_clock_set_back_before_the_first_turn_after_a_start(office: NewOffice) -> None:
    mail = Channel("email")
    one = office(mail)
    one.tell("a", held="quiet hours until 07:00", until_s=T0 + 3600)
    one.crash()
    one.time.now_s -= 365 * 86400.0
    one.turn(1)
    assert mail.tries == 0
    one.turn(3600)
    assert mail.ids == ["a"]
