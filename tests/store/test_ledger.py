"""What stands, in memory: the file is older than what is known here, whenever it is read again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuwatchd.store import schema
from gpuwatchd.store.alert_buffer import Ledger
from tests.making import alert
from tests.store.world import T0, delivery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Alert, Delivery


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection)
        yield connection


def no_subject(_: Alert) -> None:
    """Write nothing besides the alert."""


def write(ledger: Ledger, file: sqlite3.Connection) -> dict[int, int]:
    moved, refused = ledger.write(file, no_subject)
    assert refused == 0
    ledger.written(moved)
    return moved


def sent(one: Delivery) -> Delivery:
    return msgspec.structs.replace(one, state="sent", sent_at_s=T0)


def test_a_message_that_got_another_row_is_not_pending_once_it_is_sent(
    file: sqlite3.Connection,
) -> None:
    before = Ledger()
    before.add_delivery(delivery("a"))
    write(before, file)
    ledger = Ledger()  # begun while the file could not be read
    ledger.number_from(1000)
    noted = ledger.add_delivery(delivery("a"))
    assert write(ledger, file) == {1000: 1}
    assert set(ledger.pending) == {1}
    ledger.add_delivery(sent(noted))  # by whoever still calls it 1000
    write(ledger, file)
    assert ledger.pending == {}
    assert file.execute("SELECT id, state FROM delivery").fetchall() == [(1, "sent")]


def test_what_is_over_does_not_come_back_with_an_older_file(file: sqlite3.Connection) -> None:
    ledger = Ledger()
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
    before = Ledger()
    before.add_alert(alert(key="a", opened_at_s=T0))
    before.add_delivery(delivery("a"))
    write(before, file)
    ledger = Ledger()
    assert ledger.load(file) == 0
    assert (set(ledger.open_alerts), set(ledger.pending)) == ({"a"}, {1})
    assert ledger.add_delivery(delivery("b")).row == 2


def test_a_message_never_takes_the_row_of_another(file: sqlite3.Connection) -> None:
    """As in an older copy of the history that was put in the place of the one in use."""
    before = Ledger()
    before.add_delivery(delivery("other", state="sent"))
    write(before, file)
    ledger = Ledger()
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
