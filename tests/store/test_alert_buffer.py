"""What is on record of alerts and of who was told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core.codes import Hold
from gpuwatchd.core.model import Decision
from gpuwatchd.store import tables
from gpuwatchd.store.reader import Reader
from gpuwatchd.store.write_buffers import AlertBuffer, SampleBuffer
from gpuwatchd.store.writer import Notice
from tests.making import alert
from tests.store.world import T0, Time, delivery, opened, rows

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    import pytest

    from gpuwatchd.core.model import Delivery
    from gpuwatchd.store.writer import History


def test_how_a_delivery_stands_comes_back_whole(tmp_path: Path, history: History) -> None:
    held = delivery("a", held="quiet hours until 07:00", next_try_at_s=T0 + 60.5)
    leased = delivery("a", 1, lease_until_s=T0 + 25.25, fallback_of="desktop", channel="chat")
    noted = history.apply([alert(key="a")], [held, leased])
    history.close()
    again = opened(tmp_path)
    assert again.pending_deliveries() == noted
    sent = msgspec.structs.replace(
        noted[1], state="sent", sent_at_s=T0 + 3, lease_until_s=None, known="accepted by chat"
    )
    again.apply((), (sent,))
    assert again.pending_deliveries() == [noted[0]]
    again.close()
    with Reader.open(tmp_path) as reader:
        assert reader.deliveries("a") == [noted[0], sent]


def test_one_message_about_several_alerts_is_found_under_each(
    tmp_path: Path, history: History
) -> None:
    shared = delivery("a")
    shared = msgspec.structs.replace(
        shared, message=msgspec.structs.replace(shared.message, also=("b", "c"))
    )
    three = [alert(key=key, opened_at_s=T0 - 5) for key in "abc"]
    (noted,) = history.apply(three, [shared])
    history.apply((), (noted,))
    assert rows(tmp_path, "SELECT alert_key FROM told ORDER BY 1") == [("b",), ("c",)]
    assert history.deliveries_of_open() == [noted]
    history.close()
    with Reader.open(tmp_path) as reader:
        assert [reader.deliveries(key) for key in "abcd"] == [[noted], [noted], [noted], []]


def test_what_was_told_of_an_earlier_opening_is_not_told_of_this_one(history: History) -> None:
    history.apply([alert(key="a", opened_at_s=T0)], [delivery("a", state="sent")])
    over = alert(key="a", opened_at_s=T0, state="resolved", resolved_at_s=T0 + 60)
    history.apply([over], [])
    assert history.deliveries_of_open() == []
    (second,) = history.apply([alert(key="a", opened_at_s=T0 + 90)], [delivery("a", 1)])
    assert history.deliveries_of_open() == [second]
    assert history.opened_at_s("a") == T0 + 90
    assert history.opened_at_s("b") is None


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


def test_when_a_channel_last_delivered(history: History) -> None:
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


def decision(number: int = 0, key: str = "leak:a", **changes: object) -> Decision:
    values: dict[str, object] = {
        "finding_id": "",
        "alert_key": key,
        "kind": "hold",
        "target": "email",
        "notice": "firing",
        "reason": f"quiet hours {number}",
        "at_s": T0 + number,
        "code": Hold.QUIET_HOURS,
        "facts": {"clock": "07:00"},
    }
    return Decision(**{**values, **changes})  # type: ignore[arg-type]


def test_it_is_written_with_the_alert_in_one_transaction(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []
    commit = history._commit

    def counted() -> dict[int, int]:
        commits.append(True)
        return commit()

    monkeypatch.setattr(history, "_commit", counted)
    history.decide([decision(), decision(1, kind="notify", target="desktop")])
    assert rows(tmp_path, "SELECT count(*) FROM decision") == [(0,)]
    history.apply([alert(key="leak:a")], [])
    assert len(commits) == 1
    with Reader.open(tmp_path) as reader:
        assert reader.decisions("leak:a") == [
            decision(),
            decision(1, kind="notify", target="desktop"),
        ]
        assert reader.decisions("leak:b") == []
        assert len(reader.decisions()) == 2
        assert [one.reason for one in reader.decisions(since_s=T0 + 1)] == ["quiet hours 1"]


def test_without_an_alert_it_is_written_at_the_end_of_the_tick(
    tmp_path: Path, history: History, time: Time
) -> None:
    history.flush(time.now_s)
    time.pass_s(10)
    history.decide([decision()])
    history.flush_due(time.now_s)
    assert rows(tmp_path, "SELECT reason FROM decision") == [("quiet hours 0",)]


def test_only_the_newest_of_one_alert_are_kept(tmp_path: Path, history: History) -> None:
    many = tables.KEPT_PER_ALERT + 7
    history.decide([decision(i) for i in range(many)])
    history.decide([decision(0, key="leak:b")])
    history.flush(T0)
    with Reader.open(tmp_path) as reader:
        kept = reader.decisions("leak:a")
        assert len(kept) == tables.KEPT_PER_ALERT
        assert kept[-1] == decision(many - 1)
        assert reader.decisions("leak:b") == [decision(0, key="leak:b")]


def test_what_is_old_is_forgotten(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time, events=1000)
    history.decide([decision(0), decision(5000)])
    history.flush(time.now_s)
    for _ in range(30):
        time.pass_s(50)
        history.chores(T0 + 5500 - 1500 + (time.now_s - T0))
    with Reader.open(tmp_path) as reader:
        assert [one.at_s for one in reader.decisions()] == [T0 + 5000]
    history.close()


def write(ledger: AlertBuffer, file: sqlite3.Connection) -> dict[int, int]:
    moved, refused = ledger.commit(file, SampleBuffer())
    assert refused == 0
    return moved


def sent(one: Delivery) -> Delivery:
    return msgspec.structs.replace(one, state="sent", sent_at_s=T0)


def test_a_message_that_got_another_row_is_not_pending_once_it_is_sent(
    file: sqlite3.Connection,
) -> None:
    before = AlertBuffer()
    before.add_delivery(delivery("a"))
    write(before, file)
    ledger = AlertBuffer()  # begun while the file could not be read
    ledger.number_from(1000)
    noted = ledger.add_delivery(delivery("a"))
    assert write(ledger, file) == {1000: 1}
    assert set(ledger.pending) == {1}
    ledger.add_delivery(sent(noted))  # by whoever still calls it 1000
    write(ledger, file)
    assert ledger.pending == {}
    assert file.execute("SELECT id, state FROM delivery").fetchall() == [(1, "sent")]


def test_what_is_over_does_not_come_back_with_an_older_file(file: sqlite3.Connection) -> None:
    ledger = AlertBuffer()
    opened = alert(key="a", opened_at_s=T0 + 0.123)
    ledger.add_alert(opened)
    noted = ledger.add_delivery(delivery("a"))
    write(ledger, file)
    ledger.add_alert(msgspec.structs.replace(opened, state="resolved", resolved_at_s=T0 + 60))
    ledger.add_delivery(sent(noted))
    assert ledger.load(file) == 0  # what has just been noted is not in it yet
    assert (ledger.open_alerts, ledger.pending) == ({}, {})
    write(ledger, file)
    assert ledger.load(file) == 0
    assert (ledger.open_alerts, ledger.pending) == ({}, {})


def test_what_the_file_alone_knows_is_taken_over(file: sqlite3.Connection) -> None:
    before = AlertBuffer()
    before.add_alert(alert(key="a", opened_at_s=T0))
    before.add_delivery(delivery("a"))
    write(before, file)
    ledger = AlertBuffer()
    assert ledger.load(file) == 0
    assert (set(ledger.open_alerts), set(ledger.pending)) == ({"a"}, {1})
    assert ledger.add_delivery(delivery("b")).row == 2


def test_a_message_never_takes_the_row_of_another(file: sqlite3.Connection) -> None:
    """As in an older copy of the history that was put in the place of the one in use."""
    before = AlertBuffer()
    before.add_delivery(delivery("other", state="sent"))
    write(before, file)
    ledger = AlertBuffer()
    noted = ledger.add_delivery(delivery("a"))
    assert noted.row == 1
    assert write(ledger, file) == {1: 2}
    assert file.execute("SELECT id, alert_key, state FROM delivery").fetchall() == [
        (1, "other", "sent"),
        (2, "a", "pending"),
    ]
    ledger.add_delivery(sent(noted))  # by whoever still calls it 1
    write(ledger, file)
    assert ledger.pending == {}
    assert file.execute("SELECT alert_key, state FROM delivery").fetchall() == [
        ("other", "sent"),
        ("a", "sent"),
    ]
