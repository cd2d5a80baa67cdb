"""How the channels do, and which open alerts have reached nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.core.codes import Failure
from gpuwatchd.notify import backlog
from gpuwatchd.pipeline.channel_health import Channels, Reach
from gpuwatchd.pipeline.outbox import Outbox
from tests.pipeline.play import Postbox
from tests.pipeline.test_letters import NOW_S, delivery
from tests.store.world import opened

if TYPE_CHECKING:
    from pathlib import Path


def about(*keys: str, **changes: Any) -> Any:
    one = delivery(**changes)
    message = msgspec.structs.replace(one.message, also=keys[1:])
    return msgspec.structs.replace(one, alert_key=keys[0], message=message)


def test_a_new_opening_is_untold_although_the_last_was_told() -> None:
    opened = {"a": 1.0}
    reach = Reach(opened.get)
    reach.note(about("a", state="sent", error=None))
    opened["a"] = 2.0
    assert reach.untold() == ()
    reach.note(about("a"))
    assert reach.untold() == ("a",)


def test_what_was_not_sent_on_purpose_has_not_failed() -> None:
    reach = Reach({"a": 1.0}.get)
    reach.note(backlog.dropped(about("a"), Failure.OVERTAKEN))
    assert reach.untold() == ()


def test_without_a_history_an_alert_is_open_until_its_end_is_told() -> None:
    reach = Reach(None)
    reach.note(about("a"))
    assert reach.untold() == ("a",)
    reach.note(about("a", notice="resolved"))
    assert reach.untold() == ()


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


# ---- exchanging the dispatcher -------------------------------------------------------------------


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
    post.send(history.apply([], [delivery(attempts=0, row=None)]))
    post.close(timeout_s=0.1)
    assert history.pending_deliveries() == []
    history.close()
