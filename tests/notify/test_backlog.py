"""What piled up: what is overtaken, what is due, what leaves together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.codes import Failure
from gpuwatchd.notify.outbox.states import (
    LATE_S,
    MAX_LINES,
    State,
    clock_moved,
    digest,
    expired,
    is_held,
    is_late,
    leaves_with_others,
    plan,
    state_of,
)
from tests import making

if TYPE_CHECKING:
    from gpuwatchd.core.model import Delivery, NoticeKind, Severity

NOW_S = 1_800_000_000.0


def waiting(
    name: str,
    *,
    age_s: float = 60.0,
    due_in_s: float = 0.0,
    incident: str | None = None,
    notice: NoticeKind = "firing",
    severity: Severity = "warning",
    channel: str = "email",
    keys: str = "k",
) -> Delivery:
    key, also = keys[0], tuple(keys[1:])
    said = {"notice": notice, "severity": severity, "alert_key": key, "also": also}
    return making.delivery(
        alert_key=key,
        channel=channel,
        message=making.message(id=name, subject=f"about {name}", thread=incident, **said),
        attempts=1,
        created_at_s=NOW_S - age_s,
        next_try_at_s=NOW_S + due_in_s,
    )


def names(deliveries: list[Delivery]) -> list[str]:
    return sorted(one.message.id for one in deliveries)


def test_what_is_due_is_sent_and_the_rest_waits() -> None:
    made = plan([waiting("a"), waiting("b", due_in_s=5)], NOW_S)
    assert (names(made.submit), made.expired) == (["a"], [])


def test_a_later_message_of_the_incident_overtakes() -> None:
    made = plan(
        [
            waiting("later", incident="first", notice="escalated", age_s=10, due_in_s=9),
            waiting("first", age_s=50),
            waiting("other"),
        ],
        NOW_S,
    )
    assert names(made.submit) == ["other"]
    (dropped,) = made.expired
    assert (dropped.message.id, dropped.state, dropped.next_try_at_s) == ("first", "failed", None)
    assert "overtaken" in (dropped.error or "")


def test_channels_do_not_overtake_each_other() -> None:
    made = plan([waiting("a", channel="email"), waiting("a", channel="desktop")], NOW_S)
    assert (len(made.submit), made.expired) == (2, [])


def test_what_began_and_ended_untold_is_not_told() -> None:
    over = waiting("over", incident="first", notice="resolved", severity="info", age_s=10)
    made = plan([waiting("first", age_s=50), over], NOW_S)
    assert (made.submit, names(made.expired)) == ([], ["first", "over"])
    # Its beginning was told: then its end is told too.
    assert names(plan([over], NOW_S).submit) == ["over"]
    repeat = waiting("repeat", incident="first", notice="repeat", age_s=30)
    made = plan([repeat, over], NOW_S)
    assert (names(made.submit), names(made.expired)) == (["over"], ["repeat"])


def test_what_probably_ran_out_of_memory_is_told_however_late() -> None:
    crashed = waiting("over", incident="first", notice="resolved", severity="warning", age_s=10)
    made = plan([waiting("first", age_s=50), crashed], NOW_S)
    assert (names(made.submit), names(made.expired)) == (["over"], ["first"])


def test_what_tells_of_others_is_overtaken_when_each_of_them_is_told() -> None:
    first = waiting("first", age_s=50, keys="ab")
    worse = waiting("worse", incident="first", notice="escalated", age_s=40, keys="a")
    made = plan([first, worse], NOW_S)
    assert ([one.message.id for one in made.submit], made.expired) == (["first", "worse"], [])
    both = waiting("both", incident="first", notice="repeat", age_s=20, keys="ab")
    made = plan([first, worse, both], NOW_S)
    assert (names(made.submit), names(made.expired)) == (["both"], ["first", "worse"])


def test_of_two_that_began_untold_the_end_of_one_does_not_hide_the_other() -> None:
    first = waiting("first", age_s=50, keys="ab")
    a_over = waiting(
        "a-over", incident="first", notice="resolved", severity="info", age_s=10, keys="a"
    )
    b_over = waiting(
        "b-over", incident="first", notice="resolved", severity="info", age_s=5, keys="b"
    )
    made = plan([first, a_over], NOW_S)
    assert (names(made.submit), made.expired) == (["a-over", "first"], [])
    made = plan([first, a_over, b_over], NOW_S)
    assert (made.submit, names(made.expired)) == ([], ["a-over", "b-over", "first"])
    # One that became worse in the meantime is told, and then that it is over.
    worse = waiting("worse", incident="first", notice="escalated", age_s=40, keys="ab")
    made = plan([first, worse, a_over], NOW_S)
    assert (names(made.submit), names(made.expired)) == (["a-over", "worse"], ["first"])


def test_late_ones_are_due_together() -> None:
    made = plan(
        [
            waiting("a", age_s=LATE_S + 1),
            waiting("b", age_s=LATE_S + 9, due_in_s=1800),
            waiting("young", due_in_s=20),
            waiting("elsewhere", age_s=LATE_S + 9, due_in_s=1800, channel="desktop"),
        ],
        NOW_S,
    )
    assert names(made.submit) == ["a", "b"]


def test_a_clock_set_back_does_not_put_a_message_off_for_ever() -> None:
    assert names(plan([waiting("a", due_in_s=30 * 86400)], NOW_S).submit) == ["a"]


@given(
    st.lists(
        st.builds(
            waiting,
            st.sampled_from(["a", "b", "c", "d"]),
            age_s=st.floats(0, 1e5),
            due_in_s=st.floats(-1e5, 1e5),
            incident=st.sampled_from([None, "a", "b"]),
            notice=st.sampled_from(["firing", "repeat", "resolved"]),
            channel=st.sampled_from(["x", "y"]),
        ),
        max_size=12,
    )
)
def test_nothing_is_lost_and_nothing_is_twice(some: list[Delivery]) -> None:
    made = plan(some, NOW_S)
    incidents = [(one.channel, one.message.thread or one.message.id) for one in made.submit]
    assert len(incidents) == len(set(incidents))
    assert len(made.submit) + len(made.expired) <= len(some)
    assert all(one.state == "failed" and one.error for one in made.expired)
    given = {(one.channel, one.message.id) for one in some}
    assert {(one.channel, one.message.id) for one in made.submit + made.expired} <= given


def test_a_digest_repeated_is_the_same_message() -> None:
    late = [waiting("a"), waiting("b")]
    assert digest(late, NOW_S).id == digest(late[::-1], NOW_S + 60).id
    assert digest(late, NOW_S).id != digest(late[:1], NOW_S).id


def test_a_digest_is_bounded() -> None:
    urgent = waiting("urgent", age_s=9999, severity="critical")
    one = digest([urgent, *(waiting(f"m{n}", age_s=9000 - n) for n in range(499))], NOW_S)
    assert one.severity == "critical"
    assert len(one.subject) <= 78
    assert len(one.body.splitlines()) == MAX_LINES + 2
    assert "(460 older ones are left out.)" in one.body
    assert one.body.endswith("about m498")
    whole = digest([waiting(f"m{n}", age_s=9000 - n) for n in range(MAX_LINES)], NOW_S)
    assert len(whole.body.splitlines()) == MAX_LINES + 1


def test_late_is_after_an_hour() -> None:
    assert not is_late(waiting("a", age_s=LATE_S), NOW_S)
    assert is_late(waiting("a", age_s=LATE_S + 1), NOW_S)
    ahead = msgspec.structs.replace(waiting("a"), created_at_s=NOW_S + 1e6)
    assert not is_late(ahead, NOW_S)


def held(name: str, *, for_s: float = 7200.0, **fields: Any) -> Delivery:
    """Return what quiet hours keep."""
    made = waiting(name, due_in_s=for_s, **fields)
    return msgspec.structs.replace(made, held="quiet hours until 07:00", attempts=0)


def test_what_is_held_waits_for_its_time_however_far_away() -> None:
    late = waiting("late", age_s=LATE_S + 1)
    one = held("a", for_s=60 * 3600.0, age_s=LATE_S + 1)
    assert names(plan([one, late], NOW_S).submit) == ["late"]
    assert names(plan([one], NOW_S + 60 * 3600.0).submit) == ["a"]
    assert leaves_with_others(held("b", age_s=0.0), NOW_S)
    tried = msgspec.structs.replace(one, attempts=1)
    assert (is_held(one), is_held(tried)) == (True, False)


def test_a_digest_says_what_was_held_and_why() -> None:
    late, kept = [waiting("a"), waiting("b")], [held("c"), held("d")]
    none, some, every = (digest(each, NOW_S) for each in (late, [late[0], kept[0]], kept))
    assert none.subject == some.subject != every.subject
    assert ["quiet hours until 07:00" in one.body for one in (none, some, every)] == [
        False, True, True,
    ]  # fmt: skip


def test_what_recovered_while_it_was_held_is_told_as_recovered() -> None:
    over = held("over", incident="first", notice="resolved", age_s=10)
    made = plan([held("first", age_s=50), over], NOW_S + 7200.0)
    assert (names(made.submit), names(made.expired)) == (["over"], ["first"])
    assert all(state_of(one) is State.EXPIRED for one in made.expired)


def test_a_summary_is_never_part_of_another() -> None:
    assert not leaves_with_others(waiting("daily", notice="digest", age_s=LATE_S + 1), NOW_S)


def test_a_step_of_the_clock_changes_no_wait_for_a_retry() -> None:
    for by_s in (3600.0, -600.0, -1e8):
        now_s = NOW_S + by_s
        later = clock_moved(waiting("a", age_s=60, due_in_s=25), by_s, now_s)
        assert (later.created_at_s, later.next_try_at_s) == (now_s - 60, now_s + 25)
    sent = msgspec.structs.replace(waiting("a"), next_try_at_s=None)
    assert clock_moved(sent, 3600.0, NOW_S).next_try_at_s is None


def test_a_step_of_the_clock_keeps_to_the_hour_that_something_is_held_for() -> None:
    seven_s = NOW_S + 7200.0
    assert clock_moved(held("a"), 3600.0, NOW_S + 3600.0).next_try_at_s == seven_s
    # Never longer than it would have been.
    assert clock_moved(held("a"), -600.0, NOW_S - 600.0).next_try_at_s == NOW_S - 600.0 + 7200.0


def test_what_is_not_sent_on_purpose_is_told_from_what_failed() -> None:
    one = expired(waiting("a"), Failure.FALLBACK_SENT, channel="email")
    assert (one.state, one.next_try_at_s) == ("failed", None)
    assert state_of(one) is State.EXPIRED
    assert state_of(msgspec.structs.replace(one, code=Failure.REFUSED)) is State.FAILED
    assert state_of(waiting("a")) is State.PENDING
