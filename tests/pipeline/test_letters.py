"""Which message goes to the next channel, and which is not needed any more."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.codes import Failure
from gpuwatchd.core.config import PolicySection
from gpuwatchd.core.model import Delivery, Message
from gpuwatchd.pipeline.fallbacks import Fallbacks, Turn
from gpuwatchd.pipeline.rule_settings import local

NOW_S = 1_800_000_000.0
BOTH = PolicySection(channels=("desktop",), fallback=("email", "chat"))


def delivery(channel: str = "desktop", **changes: Any) -> Delivery:
    values: dict[str, Any] = {"notice": "firing", "severity": "warning"}
    values |= {name: changes.pop(name) for name in ("notice", "severity") if name in changes}
    message = Message(id="m", subject="s", body="b", **values)
    made = Delivery(
        alert_key="k",
        channel=channel,
        message=message,
        state="pending",
        attempts=1,
        created_at_s=NOW_S - 60,
        next_try_at_s=NOW_S + 30,
        error="no session bus",
        row=7,
    )
    return msgspec.structs.replace(made, **changes)


def turn(
    *noted: Delivery, lost: bool = True, section: PolicySection = BOTH, busy: tuple[str, ...] = ()
) -> tuple[Turn, Fallbacks]:
    letters = Fallbacks()
    for one in noted:
        letters.note(one)
    made = letters.turn(
        section,
        lambda: local(NOW_S),
        waits=lambda one: one.channel not in busy,
        lost=lambda _: lost,
    )
    return made, letters


def test_a_channel_that_was_taken_out_leaves_its_messages_to_those_in_use() -> None:
    now = PolicySection(channels=("email",), fallback=("chat",))
    gone = delivery(state="failed", code=Failure.NOT_CONFIGURED)
    made, _ = turn(gone, section=now)
    assert [(one.channel, one.fallback_of) for one in made.new] == [("email", "desktop")]
    made, _ = turn(delivery(state="failed"), section=now)
    assert [one.channel for one in made.new] == ["chat"]


def test_what_a_fallback_told_is_told() -> None:
    email = delivery("email", state="sent", error=None, fallback_of="desktop")
    made, letters = turn(delivery(), email)
    (spare,) = made.spare
    assert (spare.channel, spare.state) == ("desktop", "failed")
    assert spare.error == "not sent: told by email instead"
    letters.note(spare)
    after = letters.turn(BOTH, lambda: local(NOW_S), waits=lambda _: True, lost=lambda _: True)
    assert (after, len(letters)) == (([], []), 0)


def test_a_digest_has_channels_of_its_own() -> None:
    assert turn(delivery(notice="digest"))[0] == ([], [])


def test_a_fallback_that_is_quiet_waits_unless_it_is_critical() -> None:
    section = msgspec.structs.replace(BOTH, quiet_hours={"all": ("00:00-24:00",)})
    (new,) = turn(delivery(), section=section)[0].new
    assert new.held.startswith("quiet hours until ")
    assert (new.next_try_at_s or 0.0) > NOW_S
    (new,) = turn(delivery(severity="critical"), section=section)[0].new
    assert (new.held, new.next_try_at_s) == ("", NOW_S)


def test_without_fallbacks_nothing_is_kept() -> None:
    none = PolicySection(channels=("desktop",))
    assert len(turn(delivery(), section=none)[1]) == 1  # it is still on its way
    assert len(turn(delivery(state="failed"), section=none)[1]) == 0
    assert len(turn(delivery(state="sent"), section=none)[1]) == 0


_STATES = st.sampled_from(["pending", "sent", "failed"])


@given(
    st.dictionaries(st.sampled_from(["desktop", "command", "email", "chat"]), _STATES, min_size=1),
    st.booleans(),
)
def test_never_two_fallbacks_at_once_nor_one_beside_a_delivery(
    states: dict[str, Any], lost: bool
) -> None:
    noted = [
        delivery(name, state=state, fallback_of="desktop" if name in BOTH.fallback else "")
        for name, state in states.items()
    ]
    made, _ = turn(*noted, lost=lost)
    assert len(made.new) <= 1
    assert not (made.new and "sent" in states.values())
    assert {one.channel for one in made.new}.isdisjoint(states)
    assert all(states[one.channel] == "pending" for one in made.spare)
    assert not made.spare or "sent" in states.values()
