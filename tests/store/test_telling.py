"""What is on record of alerts and of who was told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.store.alert_writer import Notice
from gpuwatchd.store.reader import Reader
from tests.making import alert
from tests.store.world import T0, Time, delivery, opened, rows

if TYPE_CHECKING:
    from pathlib import Path


def test_how_a_delivery_stands_comes_back_whole(tmp_path: Path) -> None:
    history = opened(tmp_path)
    held = delivery("a", held="quiet hours until 07:00", next_try_at_s=T0 + 60.5)
    leased = delivery("a", 1, lease_until_s=T0 + 25.25, fallback_of="desktop", channel="chat")
    noted = history.apply([alert(key="a")], [held, leased])
    history.close()
    again = opened(tmp_path)
    assert again.pending_deliveries() == noted
    sent = msgspec.structs.replace(
        noted[1], state="sent", sent_at_s=T0 + 3, lease_until_s=None, known="accepted by chat"
    )
    again.update_delivery(sent)
    assert again.pending_deliveries() == [noted[0]]
    again.close()
    with Reader.open(tmp_path) as reader:
        assert reader.deliveries("a") == [noted[0], sent]


def test_one_message_about_several_alerts_is_found_under_each(tmp_path: Path) -> None:
    history = opened(tmp_path)
    shared = delivery("a")
    shared = msgspec.structs.replace(
        shared, message=msgspec.structs.replace(shared.message, also=("b", "c"))
    )
    three = [alert(key=key, opened_at_s=T0 - 5) for key in "abc"]
    (noted,) = history.apply(three, [shared])
    history.update_delivery(noted)
    assert rows(tmp_path, "SELECT alert_key FROM told ORDER BY 1") == [("b",), ("c",)]
    assert history.told_of_open() == [noted]
    history.close()
    with Reader.open(tmp_path) as reader:
        assert [reader.deliveries(key) for key in "abcd"] == [[noted], [noted], [noted], []]


def test_what_was_told_of_an_earlier_opening_is_not_told_of_this_one(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.apply([alert(key="a", opened_at_s=T0)], [delivery("a", state="sent")])
    over = alert(key="a", opened_at_s=T0, state="resolved", resolved_at_s=T0 + 60)
    history.apply([over], [])
    assert history.told_of_open() == []
    (second,) = history.apply([alert(key="a", opened_at_s=T0 + 90)], [delivery("a", 1)])
    assert history.told_of_open() == [second]
    assert history.opened_at_s("a") == T0 + 90
    assert history.opened_at_s("b") is None
    history.close()


def test_notices_of_the_last_hour_survive_a_restart(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    both = [delivery("a"), delivery("a", channel="desktop"), delivery("b", created_at_s=T0 - 4000)]
    history.apply([alert(key="a"), alert(key="b")], both)
    history.close()
    history = opened(tmp_path, time)
    assert history.recent_notices(T0 - 3600) == [Notice(T0, "a", "firing", "<a-0@host>")]
    assert len(history.recent_notices(0.0)) == 2
    history.close()


def test_when_a_channel_last_delivered(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.apply(
        [alert(key="a")],
        [
            delivery("a", 1, state="sent", sent_at_s=T0 + 1),
            delivery("a", 2, state="sent", sent_at_s=T0 + 7),
            delivery("a", 3, state="sent", sent_at_s=T0 + 9, dry_run=True),
            delivery("a", 4, state="failed", channel="desktop"),
        ],
    )
    assert history.last_delivered() == {"email": T0 + 7}
    history.close()
