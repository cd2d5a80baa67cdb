"""Which message goes to the next channel, and which is not needed any more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.codes import Failure
from gpuwatchd.core.config import PolicySection
from gpuwatchd.core.units import Local
from gpuwatchd.notify.outbox.outbox import Channels, Outbox, Reach
from gpuwatchd.notify.outbox.states import Plan, expired, fallbacks
from tests import making
from tests.pipeline.play import Postbox
from tests.store.world import opened

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Delivery

NOW_S = 1_800_000_000.0
NOW = partial(float, NOW_S)
BOTH = PolicySection(channels=("desktop",), fallback=("email", "chat"))


def delivery(channel: str = "desktop", **changes: Any) -> Delivery:
    said = {name: changes.pop(name) for name in ("notice", "severity") if name in changes}
    changes = {"attempts": 1, "error": "no session bus", "row": 7, **changes}
    times = {"created_at_s": NOW_S - 60, "next_try_at_s": NOW_S + 30}
    return making.delivery(channel=channel, message=making.message(**said), **{**times, **changes})


def turn(
    *rows: Delivery, lost: bool = True, section: PolicySection = BOTH, busy: tuple[str, ...] = ()
) -> Plan:
    return fallbacks(
        [rows],
        section,
        lambda: Local.at(NOW_S),
        waits=lambda one: one.channel not in busy,
        lost=lambda _: lost,
    )


def test_a_channel_that_was_taken_out_leaves_its_messages_to_those_in_use() -> None:
    now = PolicySection(channels=("email",), fallback=("chat",))
    gone = delivery(state="failed", code=Failure.NOT_CONFIGURED)
    made = turn(gone, section=now)
    assert [(one.channel, one.fallback_of) for one in made.submit] == [("email", "desktop")]
    made = turn(delivery(state="failed"), section=now)
    assert [one.channel for one in made.submit] == ["chat"]


def test_what_a_fallback_told_is_told() -> None:
    email = delivery("email", state="sent", error=None, fallback_of="desktop")
    (spare,) = turn(delivery(), email).expired
    assert (spare.channel, spare.state) == ("desktop", "failed")
    assert spare.error == "not sent: delivered by email instead"


def test_a_digest_has_channels_of_its_own() -> None:
    assert turn(delivery(notice="digest")) == ([], [])


def test_a_fallback_that_is_quiet_waits_unless_it_is_critical() -> None:
    section = msgspec.structs.replace(BOTH, quiet_hours={"all": ("00:00-24:00",)})
    (new,) = turn(delivery(), section=section).submit
    assert new.held.startswith("quiet hours until ")
    assert (new.next_try_at_s or 0.0) > NOW_S
    (new,) = turn(delivery(severity="critical"), section=section).submit
    assert (new.held, new.next_try_at_s) == ("", NOW_S)


@pytest.mark.parametrize("state", ["sent", "failed"])
def test_what_has_ended_is_kept_while_another_channel_of_its_message_waits(state: str) -> None:
    post = Outbox(Postbox(state), None, policy=PolicySection(channels=("desktop",)), wall=NOW)
    other = delivery("email", attempts=0, error=None, held="quiet hours until 07:00")
    post.send([delivery(attempts=0), msgspec.structs.replace(other, next_try_at_s=NOW_S + 60)])
    post.collect(NOW_S)
    assert len(post._rows) == 2
    post.send([msgspec.structs.replace(other, held="", message=making.message(id="alone"))])
    post.collect(NOW_S)
    assert len(post._rows) == 2


class Hung:
    """A dispatcher whose channel hangs; of an earlier attempt it hears yet."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []
        self.done: list[Delivery] = []

    def submit(self, delivery: Delivery) -> bool:
        self.got.append(delivery)
        return True

    def results(self) -> list[Delivery]:
        done, self.done = self.done, []
        return done

    def close(self, timeout_s: float = 2.0) -> list[Delivery]:
        return [msgspec.structs.replace(one, lease_until_s=NOW_S + 25) for one in self.got]


def test_a_reload_does_not_send_again_what_has_arrived_while_it_was_tried_once_more() -> None:
    old, new = Hung(), Hung()
    mono_s = [0.0]
    policy = PolicySection(channels=("desktop",))
    post = Outbox(old, None, policy=policy, wall=NOW, mono=lambda: mono_s[0])
    other = delivery("email", attempts=0, error=None, held="quiet hours until 07:00")
    post.send([delivery(), msgspec.structs.replace(other, next_try_at_s=NOW_S + 60)])
    old.done = [delivery(state="sent", error=None)]
    post.collect(NOW_S)
    post.replace(new)
    mono_s[0] += 30.0
    post.collect(NOW_S + 30)
    assert [one.channel for one in old.got] == ["desktop"]
    assert new.got == []


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
    made = turn(*noted, lost=lost)
    assert len(made.submit) <= 1
    assert not (made.submit and "sent" in states.values())
    assert {one.channel for one in made.submit}.isdisjoint(states)
    assert all(states[one.channel] == "pending" for one in made.expired)
    assert not made.expired or "sent" in states.values()


def about(*keys: str, **changes: Any) -> Any:
    one = delivery(**changes)
    message = msgspec.structs.replace(one.message, also=keys[1:])
    return msgspec.structs.replace(one, alert_key=keys[0], message=message)


def test_a_new_opening_is_untold_although_the_last_was_told() -> None:
    opened = {"a": 1.0}
    reach = Reach(opened.get)
    reach.note(about("a", state="sent", error=None))
    opened["a"] = 2.0
    assert reach.undelivered() == ()
    reach.note(about("a"))
    assert reach.undelivered() == ("a",)


def test_what_was_not_sent_on_purpose_has_not_failed() -> None:
    reach = Reach({"a": 1.0}.get)
    reach.note(expired(about("a"), Failure.OVERTAKEN))
    assert reach.undelivered() == ()


def test_without_a_history_an_alert_is_open_until_its_end_is_told() -> None:
    reach = Reach(None)
    reach.note(about("a"))
    assert reach.undelivered() == ("a",)
    reach.note(about("a", notice="resolved"))
    assert reach.undelivered() == ()


def test_a_channel_fails_since_its_first_failure_after_a_delivery() -> None:
    channels = Channels()
    assert channels.failed("email", "down", at_s=100.0, mono_s=10.0)
    assert not channels.failed("email", "down", at_s=160.0, mono_s=70.0)
    assert channels.failed("email", "refused", at_s=170.0, mono_s=80.0, kind=(Failure.REFUSED, {}))
    assert channels.failing_for_s("email", 130.0) == 120.0
    assert channels.problems() == ["channel email does not deliver: refused"]
    (health,) = channels.channel_health((), ())
    assert (health.ok, health.why, health.failing_since_s) == (False, "refused", 100.0)
    assert channels.delivered("email", 200.0)
    assert not channels.delivered("email", 210.0)
    assert channels.failing_for_s("email", 140.0) is None
    assert channels.problems() == []


def test_a_channel_that_failed_before_the_start_goes_on_failing_from_then() -> None:
    channels = Channels()
    channels.failing_since("email", at_s=100.0, mono_s=-50.0)
    channels.failing_since("email", at_s=120.0, mono_s=-30.0)
    assert channels.failing_for_s("email", 10.0) == 60.0
    # But nobody says so before it has been tried.
    assert channels.problems() == []
    assert channels.channel_health(("email",), ())[0].failing_since_s is None
    channels.failed("email", "down", at_s=170.0, mono_s=20.0)
    assert channels.channel_health(("email",), ())[0].failing_since_s == 100.0
    channels.delivered("email", 180.0)
    assert channels.failing_for_s("email", 30.0) is None


def test_channels_are_shown_as_configured_and_others_while_they_matter() -> None:
    channels = Channels()
    channels.remember({"old": 50.0, "email": 60.0})
    channels.failed("chat", "down", at_s=1.0, mono_s=1.0)
    told = channels.channel_health(("desktop", "email"), [delivery("command")])
    assert [(one.name, one.ok, one.delivered_at_s, one.waiting) for one in told] == [
        ("desktop", None, None, 0),
        ("email", None, 60.0, 0),
        ("chat", False, None, 0),
        ("command", None, None, 1),
    ]
    channels.forgive()
    assert [one.ok for one in channels.channel_health(("chat",), ())] == [None]


def test_an_old_complaint_about_a_channel_does_not_outlive_its_settings() -> None:
    post = Outbox(Postbox("failed"), None)
    post.send([delivery(attempts=0)])
    post.collect(NOW_S)
    assert post.problems() == ["channel desktop does not deliver: refused"]
    post.replace(Postbox())
    assert post.problems() == []


def test_what_is_sent_during_the_last_seconds_is_written_down(tmp_path: Path) -> None:
    history = opened(tmp_path)
    post = Outbox(Postbox(), history)
    post.send([delivery(attempts=0, row=None)])
    post.close(timeout_s=0.1)
    assert history.pending_deliveries() == []
    history.close()
