"""Samples in memory: the change-only rule, and nothing that grows without end."""

from __future__ import annotations

import math
import sqlite3

import msgspec
import pytest

from gpuwatchd.model import ProcessInfo, ProcessKey, ProcessUse
from gpuwatchd.store import schema
from gpuwatchd.store.intake import Intake
from tests.store.world import CARDS, KNOWN, T0, sample


def _other(number: int) -> tuple[ProcessUse, ProcessInfo]:
    key = ProcessKey(pid=number, started_at_s=T0 + number)
    return ProcessUse(key=key, used_bytes=number), ProcessInfo(key=key, name=f"p{number}")


def test_processes_that_come_and_go_are_forgotten() -> None:
    intake = Intake()
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    for number in range(5000):
        taken = sample(T0 + 5 * number)
        use, info = _other(number)
        reading = msgspec.structs.replace(taken.readings[0], uses=(use,))
        taken = msgspec.structs.replace(taken, readings=(reading,))
        intake.note(taken, CARDS, {info.key: info})
        if number % 12 == 11:
            if number < 2500:  # the disk fails in the second half
                intake.write(connection)
                intake.written()
            intake.forget_gone()
            assert sum(len(card.tracks) for card in intake._cards.values()) <= 2
    assert len(intake) <= 2 * 2600
    connection.close()


def test_a_new_minute_is_a_new_row_even_without_a_change() -> None:
    intake = Intake()
    for second, rows in ((0, 1), (59, 1), (60, 2), (61, 2), (200, 3)):
        intake.note(sample(T0 + second, uses=(5,)), CARDS, KNOWN)
        assert len(intake._process_rows) == rows


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_unknown(value: float) -> None:
    intake = Intake()
    intake.note(sample(T0, 5, power_w=value, temp_c=value), CARDS, {})
    assert intake._device_rows[0][5:7] == (None, None)


def test_a_device_that_nobody_named_still_has_rows() -> None:
    intake = Intake()
    intake.note(sample(T0), (), {})
    assert len(intake) == 1
    assert intake.oldest_ms == int(T0 * 1000)
    intake.drop()
    assert intake.oldest_ms is None
