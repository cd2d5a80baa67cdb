"""The end of the daemon while another program holds the history's lock."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tests.store.world import CARDS, KNOWN, T0, opened, rows, sample

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_EVENTS = "SELECT detail FROM event WHERE kind = 'xid'"
LEAVES_WITHIN_S = 2.0


def test_an_event_is_written_when_the_lock_is_let_go_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = opened(tmp_path)
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        history.event("xid", "XID 79", CARDS[0].uid)
        later = threading.Timer(0.6, other.execute, args=["ROLLBACK"])
        later.start()
        history.close()
        later.join()
    assert rows(tmp_path, _EVENTS) == [("XID 79",)]
    assert "the history lacks" not in caplog.text


def test_what_cannot_be_written_is_named_in_one_line_and_nobody_waits_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = opened(tmp_path)
    history.record(sample(T0), CARDS[:1], KNOWN)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        history.event("xid", "XID 79", CARDS[0].uid)
        begun_s = time.monotonic()
        history.close()
        assert time.monotonic() - begun_s < LEAVES_WITHIN_S
        other.execute("ROLLBACK")
    told = [record.getMessage() for record in caplog.records]
    assert told.pop(0).startswith("history trouble=writing cause=busy ")
    assert told == [
        "the history lacks 1 sample row, 1 event (XID 79): it is locked by another program"
    ]
    assert rows(tmp_path, _EVENTS) == []


def test_an_end_in_order_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = opened(tmp_path)
    history.record(sample(T0), CARDS[:1], KNOWN)
    history.event("xid", "XID 79", CARDS[0].uid)
    history.close()
    history.close()
    assert caplog.records == []
    assert rows(tmp_path, _EVENTS) == [("XID 79",)]
