"""Parts of a tick: one that fails or takes too long is logged, and the others go on."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from gpuwatchd.pipeline.live_pipeline import Chore, Guard, When
from tests.store.world import Time

if TYPE_CHECKING:
    import pytest


def _fails() -> None:
    raise ValueError("odd")


def test_a_part_that_fails_is_remembered_while_it_does_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = Time()
    guard = Guard(now.monotonic)
    for _ in range(12):
        assert guard("digest", _fails) is None
        assert guard("outbox", lambda: 5) == 5
        assert guard.problems == ["digest: odd"]
        now.pass_s(10)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert guard("digest", lambda: 6) == 6
    assert guard.problems == []


def test_a_part_that_takes_longer_than_its_budget_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Time()
    monkeypatch.setattr("gpuwatchd.pipeline.live_pipeline.time.perf_counter", now.monotonic)
    guard = Guard(now.monotonic)
    for taken_s in (0.2, 0.3, 60.0, 0.3):
        guard("history", partial(now.pass_s, taken_s), budget_s=0.25)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert guard.problems == []


def test_a_chore_is_done_when_it_is_due_or_has_failed() -> None:
    done, due, guard = list[int](), [False], Guard(Time().monotonic)

    def odd(now_s: float) -> None:
        done.append(int(now_s))
        due[0] = False
        if len(done) == 1:
            raise ValueError("odd")

    guard.add([Chore("odd", When.AFTER, odd, due=lambda: due[0])])
    for tick in range(6):
        due[0] = tick == 2
        for when in When:
            guard.do(when, float(tick))
    assert done == [2, 3]
