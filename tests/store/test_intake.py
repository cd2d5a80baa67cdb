"""Samples in memory: the change-only rule, and nothing that grows without end."""

from __future__ import annotations

import math
import sqlite3

import msgspec
import pytest

from gpuwatchd.core.model import ProcessInfo, ProcessKey, ProcessUse, Sample
from gpuwatchd.store import database
from gpuwatchd.store.write_buffers import SampleBuffer
from tests.store.world import CARDS, KNOWN, T0, sample


def _other(number: int) -> tuple[ProcessUse, ProcessInfo]:
    key = ProcessKey(pid=number, started_at_s=T0 + number)
    return ProcessUse(key=key, used_bytes=number), ProcessInfo(key=key, name=f"p{number}")


def test_processes_that_come_and_go_are_forgotten(file: sqlite3.Connection) -> None:
    intake = SampleBuffer()
    for number in range(5000):
        taken = sample(T0 + 5 * number)
        use, info = _other(number)
        reading = msgspec.structs.replace(taken.readings[0], uses=(use,))
        taken = msgspec.structs.replace(taken, readings=(reading,))
        intake.note(taken, CARDS, {info.key: info})
        if number % 12 == 11:
            if number < 2500:  # the disk fails in the second half
                intake.write(file)
                intake.written()
            intake.forget_gone()
            assert sum(len(card.tracks) for card in intake._cards.values()) <= 2
    assert len(intake) <= 2 * 2600


def test_a_new_minute_is_a_new_row_even_without_a_change() -> None:
    intake = SampleBuffer()
    for second, rows in ((0, 1), (59, 1), (60, 2), (61, 2), (200, 3)):
        intake.note(sample(T0 + second, uses=(5,)), CARDS, KNOWN)
        assert len(intake._process_rows) == rows


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_unknown(value: float) -> None:
    intake = SampleBuffer()
    intake.note(sample(T0, 5, power_w=value, temp_c=value), CARDS, {})
    assert intake._device_rows[0][5:7] == (None, None)


def test_a_device_that_nobody_named_still_has_rows() -> None:
    intake = SampleBuffer()
    intake.note(sample(T0), (), {})
    assert len(intake) == 1
    assert intake.oldest_ms == int(T0 * 1000)
    intake.drop()
    assert intake.oldest_ms is None


def _same_list_at(seconds: float) -> Sample:
    taken = sample(T0 + seconds, uses=(5, 6))
    reading = msgspec.structs.replace(taken.readings[0], uses=_LIST)
    return msgspec.structs.replace(taken, readings=(reading,))


_LIST = sample(T0, uses=(5, 6)).readings[0].uses


def _seen(connection: sqlite3.Connection) -> list[tuple[int, float]]:
    return [
        (pid, last_ms / 1000 - T0)
        for pid, last_ms in connection.execute("SELECT pid, last_ts_ms FROM process ORDER BY pid")
    ]


def test_the_very_same_list_costs_nothing_and_the_last_sight_is_still_known(
    file: sqlite3.Connection,
) -> None:
    intake = SampleBuffer()
    for second, rows in ((0, 2), (5, 2), (55, 2), (60, 4), (65, 4)):
        intake.note(_same_list_at(second), CARDS, KNOWN)
        assert len(intake._process_rows) == rows
    intake.write(file)
    intake.written()
    assert _seen(file) == [(100, 65.0), (101, 65.0)]
    # What is known already is only touched; one that has gone keeps its last sight.
    for second in (70, 75):
        intake.note(_same_list_at(second), CARDS, KNOWN)
    intake.note(sample(T0 + 80, uses=(5,)), CARDS, KNOWN)
    intake.write(file)
    intake.written()
    intake.forget_gone()
    assert _seen(file) == [(100, 80.0), (101, 75.0)]
    assert file.execute("SELECT count(*) FROM process_raw").fetchone() == (4,)


def test_who_was_written_to_another_file_is_written_again() -> None:
    intake = SampleBuffer()
    for number in range(2):
        connection = sqlite3.connect(":memory:", isolation_level=None)
        database.migrate(connection)
        connection.execute("DELETE FROM process")
        intake.note(_same_list_at(5 + 60 * number), CARDS, KNOWN)
        intake.write(connection)
        intake.written()
        assert [pid for pid, _ in _seen(connection)] == [100, 101]
        found = connection.execute(
            "SELECT count(*) FROM process_raw r JOIN process p ON p.id = r.process"
        )
        assert found.fetchone() == (2,)
        connection.close()


def test_a_row_that_has_gone_meanwhile_is_written_again(file: sqlite3.Connection) -> None:
    intake = SampleBuffer()
    intake.note(_same_list_at(0), CARDS, KNOWN)
    intake.write(file)
    intake.written()
    file.execute("DELETE FROM process WHERE pid = 101")
    intake.note(_same_list_at(60), CARDS, KNOWN)
    intake.write(file)
    assert [pid for pid, _ in _seen(file)] == [100, 101]
    found = file.execute("SELECT count(*) FROM process_raw WHERE ts_ms > ?", (T0 * 1000,))
    assert found.fetchone() == (2,)
