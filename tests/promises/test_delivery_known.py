"""Whom nobody could reach, and which channel does not deliver, is known, also after a restart."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.core.codes import Ending, Failure
from gpuwatchd.core.config import Seconds
from tests.making import alert
from tests.promises.post_office import DOWN, WRONG, Channel, NewOffice, Office
from tests.store.world import T0


def test_an_alert_that_reached_nobody_is_known_after_a_restart(
    office: Office, mail: Channel
) -> None:
    mail.answer = DOWN
    office.send("a")
    assert office.post.reach.undelivered() == ("a",)
    office.crash()
    assert office.post.reach.undelivered() == ("a",)
    mail.answer = None
    office.turn(30)
    assert office.post.reach.undelivered() == ()
    office.crash()
    assert office.post.reach.undelivered() == ()


def test_every_alert_of_a_shared_message_counts_as_told(office: Office, mail: Channel) -> None:
    mail.answer = DOWN
    office.send("b")
    office.send("a", also=("b",))
    assert set(office.post.reach.undelivered()) == {"a", "b"}
    mail.answer = None
    office.turn(60)
    assert office.post.reach.undelivered() == ()


def test_an_alert_that_is_over_is_no_longer_untold(office: Office, mail: Channel) -> None:
    mail.answer = WRONG
    office.send("a")
    assert office.post.reach.undelivered() == ("a",)
    office.send("a over", thread="a", notice="resolved")
    assert office.post.reach.undelivered() == ()


def test_the_health_of_channels(new_office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = new_office(desktop, mail, channels=("desktop",), fallback=("email",))
    before = one.post.channel_health()
    assert [(c.name, c.ok, c.waiting) for c in before] == [
        ("desktop", None, 0),
        ("email", None, 0),
    ]
    assert one.post.channel_health() is before
    one.send("a")
    one.turn(30)
    first, second = one.post.channel_health()
    assert (first.ok, first.why, first.failing_since_s) == (False, "no session bus", T0)
    assert (first.waiting, second.ok) == (1, None)
    one.turn(90)
    first, second = one.post.channel_health()
    assert (first.waiting, second.ok, second.delivered_at_s) == (0, True, T0 + 120)
    one.crash()
    assert one.post.channel_health()[1].delivered_at_s == T0 + 120


def _over(one: Office, key: str, ended: Ending, **fields: Any) -> None:
    """End an alert that nobody heard of: nobody is told of that either."""
    values = {"opened_at_s": T0, "firing_at_s": T0, "changed_at_s": one.time.now_s, **fields}
    values |= wording.ending(ended)
    told = alert(key=key, state="resolved", resolved_at_s=one.time.now_s, **values)
    one.history.apply([told], [])
    one.turn()


def _lost(one: Office) -> list[str]:
    one.post.reach.undelivered()  # as each tick asks first
    return [lost.key for lost in one.undelivered.lost(one.time.now_s)]


def test_what_ran_out_of_memory_before_anybody_could_be_told_is_said_for_a_day(
    office: Office, mail: Channel
) -> None:
    mail.answer = DOWN
    for key in ("calm", "crashed", "page"):
        office.tell(key)
    office.turn()
    assert (len(office.post.reach.undelivered()), _lost(office)) == (3, [])
    _over(office, "calm", Ending.STOPPED_GROWING)
    _over(office, "crashed", Ending.ENDED_NEAR_LIMIT)
    _over(office, "page", Ending.PROCESS_ENDED, severity="critical")
    expected = ["crashed", "page"]
    assert (office.post.reach.undelivered(), _lost(office)) == ((), expected)
    office.crash()
    assert _lost(office) == expected
    # What was about others is no word on these.
    mail.answer = None
    office.send("other")
    assert _lost(office) == expected
    office.send("summary", thread="crashed", notice="digest")
    assert _lost(office) == [expected[1]]
    office.time.pass_s(86400.0)
    assert _lost(office) == []
    office.crash()
    assert _lost(office) == []


def test_what_was_told_before_its_end_is_not_lost(office: Office, mail: Channel) -> None:
    office.send("b", also=("a",))
    _over(office, "a", Ending.ENDED_NEAR_LIMIT)
    assert _lost(office) == []
    office.crash()
    assert _lost(office) == []


def test_the_clock_of_a_source_may_go_ahead_of_ours(office: Office, mail: Channel) -> None:
    mail.answer = DOWN
    ahead_s = T0 + 3600.0
    office.send("x", thread="a", about_s=ahead_s)
    _over(office, "a", Ending.ENDED_NEAR_LIMIT, opened_at_s=ahead_s)
    assert _lost(office) == ["a"]


HOUR_S = 3600.0


def test_a_permanent_error_goes_to_the_next_channel_at_once(new_office: NewOffice) -> None:
    desktop, mail, chat = Channel("desktop", WRONG), Channel("email", WRONG), Channel("chat")
    one = new_office(desktop, mail, chat, channels=("desktop",), fallback=("email", "chat"))
    one.send("a")
    assert (desktop.tries, mail.tries, chat.ids) == (1, 1, ["a"])
    states = {row.channel: (row.state, row.fallback_of) for row in one.rows("a")}
    assert states == {
        "desktop": ("failed", ""),
        "email": ("failed", "desktop"),
        "chat": ("sent", "desktop"),
    }
    assert one.post.reach.undelivered() == ()


def test_a_fallback_waits_for_what_may_pass(new_office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = new_office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
    one.turn(119)
    assert (mail.ids, one.post.reach.undelivered()) == ([], ("a",))
    one.turn(1)
    assert (mail.ids, one.post.reach.undelivered()) == (["a"], ())
    # Told is told: it does not pop up as well when the session is back.
    desktop.answer = None
    one.turn(2 * HOUR_S)
    assert (desktop.ids, one.waiting()) == ([], {})
    first = next(row for row in one.rows("a") if row.channel == "desktop")
    assert (first.state, first.code) == ("failed", Failure.FALLBACK_SENT)
    one.send("b")
    assert (desktop.ids, mail.ids) == (["b"], ["a"])


def test_a_channel_that_has_long_failed_has_no_time_left(new_office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = new_office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
    one.turn(HOUR_S)
    one.send("b")
    assert mail.ids == ["a", "b"]


def test_a_daemon_that_is_started_again_and_again_uses_its_fallback_in_time(
    new_office: NewOffice,
) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = new_office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
    for _ in range(3):
        one.turn(35)
        assert mail.tries == 0
        one.crash()
    one.turn(35)
    assert mail.ids == ["a"]


def test_what_failed_before_a_start_is_tried_first_and_soon(new_office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email")
    one = new_office(desktop, mail, channels=("desktop",), fallback=("email",), fallback_after=1e9)
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


def test_a_fallback_is_not_used_while_another_channel_delivers(new_office: NewOffice) -> None:
    desktop, command, mail = Channel("desktop", WRONG), Channel("command"), Channel("email")
    one = new_office(desktop, command, mail, channels=("desktop", "command"), fallback=("email",))
    one.tell("a")
    one.turn(HOUR_S)
    assert (command.ids, mail.tries) == (["a"], 0)


def test_an_original_that_delivers_after_all_calls_its_fallback_off(new_office: NewOffice) -> None:
    desktop, mail = Channel("desktop", DOWN), Channel("email", DOWN)
    one = new_office(desktop, mail, channels=("desktop",), fallback=("email",))
    one.send("a")
    one.turn(120)
    assert mail.tries == 1
    desktop.answer = None
    one.turn(300)
    mail.answer = None
    one.turn(HOUR_S)
    assert (desktop.ids, mail.ids, one.waiting()) == (["a"], [], {})


def test_a_fallback_keeps_to_its_quiet_hours_and_to_what_it_is_for(new_office: NewOffice) -> None:
    desktop, mail, pager = Channel("desktop", WRONG), Channel("email"), Channel("pager")
    here = time.localtime(T0)
    quiet = f"{here.tm_hour:02d}:00-{(here.tm_hour + 1) % 24:02d}:00"
    one = new_office(
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
