"""What piled up: what is overtaken, what is due, what leaves together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.model import Delivery, Message
from gpuwatchd.notify.backlog import LATE_S, MAX_LINES, digest, is_late, plan

if TYPE_CHECKING:
    from gpuwatchd.model import NoticeKind, Severity

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
) -> Delivery:
    return Delivery(
        alert_key="k",
        channel=channel,
        message=Message(
            id=name,
            notice=notice,
            severity=severity,
            subject=f"about {name}",
            body="b",
            thread=incident,
        ),
        state="pending",
        attempts=1,
        created_at_s=NOW_S - age_s,
        next_try_at_s=NOW_S + due_in_s,
    )


def names(deliveries: list[Delivery]) -> list[str]:
    return sorted(one.message.id for one in deliveries)


def test_what_is_due_is_sent_and_the_rest_waits() -> None:
    made = plan([waiting("a"), waiting("b", due_in_s=5)], NOW_S)
    assert (names(made.submit), made.drop) == (["a"], [])


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
    (dropped,) = made.drop
    assert (dropped.message.id, dropped.state, dropped.next_try_at_s) == ("first", "failed", None)
    assert "overtaken" in (dropped.error or "")


def test_channels_do_not_overtake_each_other() -> None:
    made = plan([waiting("a", channel="email"), waiting("a", channel="desktop")], NOW_S)
    assert (len(made.submit), made.drop) == (2, [])


def test_what_began_and_ended_untold_is_not_told() -> None:
    over = waiting("over", incident="first", notice="resolved", age_s=10)
    made = plan([waiting("first", age_s=50), over], NOW_S)
    assert (made.submit, names(made.drop)) == ([], ["first", "over"])
    # Its beginning was told: then its end is told too.
    assert names(plan([over], NOW_S).submit) == ["over"]
    repeat = waiting("repeat", incident="first", notice="repeat", age_s=30)
    made = plan([repeat, over], NOW_S)
    assert (names(made.submit), names(made.drop)) == (["over"], ["repeat"])


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
    assert len(made.submit) + len(made.drop) <= len(some)
    assert all(one.state == "failed" and one.error for one in made.drop)
    given = {(one.channel, one.message.id) for one in some}
    assert {(one.channel, one.message.id) for one in made.submit + made.drop} <= given


def test_a_digest_names_all_of_them() -> None:
    late = [
        waiting("a", age_s=9000, severity="critical"),
        waiting("b", age_s=8000, notice="resolved"),
    ]
    one = digest(late, NOW_S)
    assert one.severity == "critical"
    assert one.subject == "gpuwatchd: 2 messages that could not be delivered earlier"
    lines = one.body.splitlines()
    assert lines[0] == "While this channel could not be reached:"
    assert lines[1].endswith("critical: about a")
    assert lines[2].endswith("recovered: about b")
    assert len(one.subject) <= 78


def test_a_digest_repeated_is_the_same_message() -> None:
    late = [waiting("a"), waiting("b")]
    assert digest(late, NOW_S).id == digest(late[::-1], NOW_S + 60).id
    assert digest(late, NOW_S).id != digest(late[:1], NOW_S).id


def test_a_digest_is_bounded() -> None:
    one = digest([waiting(f"m{n}", age_s=9000 - n) for n in range(500)], NOW_S)
    assert len(one.body.splitlines()) == MAX_LINES + 2
    assert "(460 older ones are left out.)" in one.body
    assert one.body.endswith("about m499")


def test_late_is_after_an_hour() -> None:
    assert not is_late(waiting("a", age_s=LATE_S), NOW_S)
    assert is_late(waiting("a", age_s=LATE_S + 1), NOW_S)
    ahead = msgspec.structs.replace(waiting("a"), created_at_s=NOW_S + 1e6)
    assert not is_late(ahead, NOW_S)
