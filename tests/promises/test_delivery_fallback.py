"""Promise 12: what one channel cannot deliver goes to the next, in time and no sooner."""

from __future__ import annotations

import time

import msgspec

from gpuwatchd.core.config import Seconds
from tests.promises.post_office import DOWN, WRONG, Channel, NewOffice
from tests.store.world import T0

HOUR_S = 3600.0


def test_a_permanent_error_goes_to_the_next_channel_at_once(office: NewOffice) -> None:
    desktop, mail, chat = Channel("desktop", WRONG), Channel("email", WRONG), Channel("chat")
    one = office(desktop, mail, chat, channels=("desktop",), fallback=("email", "chat"))
    one.send("a")
    assert (desktop.tries, mail.tries, chat.ids) == (1, 1, ["a"])
    states = {row.channel: (row.state, row.fallback_of) for row in one.rows("a")}
    assert states == {
        "desktop": ("failed", ""),
        "email": ("failed", "desktop"),
        "chat": ("sent", "desktop"),
    }
    assert one.post.untold() == ()


def test_a_fallback_waits_for_what_may_pass(office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
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
    one.send("b")
    assert (desktop.ids, mail.ids) == (["b"], ["a"])


def test_a_channel_that_has_long_failed_has_no_time_left(office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
    one.turn(HOUR_S)
    one.send("b")
    assert mail.ids == ["a", "b"]


def test_a_daemon_that_is_started_again_and_again_uses_its_fallback_in_time(
    office: NewOffice,
) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
    for _ in range(3):
        one.turn(35)
        assert mail.tries == 0
        one.crash()
    one.turn(35)
    assert mail.ids == ["a"]


def test_what_failed_before_a_start_is_tried_first_and_soon(office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
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


def test_a_fallback_is_not_used_while_another_channel_delivers(office: NewOffice) -> None:
    desktop, command, mail = Channel("desktop", WRONG), Channel("command"), Channel("email")
    one = office(desktop, command, mail, channels=("desktop", "command"), fallback=("email",))
    one.tell("a")
    one.turn(HOUR_S)
    assert (command.ids, mail.tries) == (["a"], 0)


def test_an_original_that_delivers_after_all_calls_its_fallback_off(office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email", DOWN)
    one = office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
    one.turn(120)
    assert mail.tries == 1
    desktop.answer = None
    one.turn(300)
    mail.answer = None
    one.turn(HOUR_S)
    assert (desktop.ids, mail.ids, one.waiting()) == (["a"], [], {})


def test_a_fallback_keeps_to_its_quiet_hours_and_to_what_it_is_for(office: NewOffice) -> None:
    desktop, mail, pager = Channel("desktop", WRONG), Channel("email"), Channel("pager")
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
    one.send("urgent", severity="critical")
    assert (pager.ids, mail.ids) == (["urgent"], [])
    (row,) = [row for row in one.rows("a") if row.channel == "email"]
    assert row.held.startswith("quiet hours until ")
    one.turn(HOUR_S)
    assert (pager.ids, mail.ids) == (["urgent"], ["a"])
