"""Parts of a tick: one that fails or takes too long is logged, and the others go on."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from gpuwatchd.core.config import Config, CostSection
from gpuwatchd.pipeline.live_pipeline import Chore, Guard, When
from tests.pipelines import make_pipeline
from tests.store.world import Time


def _fails() -> bool:
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

    guard.add([Chore("broken", When.AFTER, odd, due=_fails)])
    guard.add([Chore("odd", When.AFTER, odd, due=lambda: due[0])])
    for tick in range(6):
        due[0] = tick == 2
        for when in When:
            guard.do(when, float(tick))
    assert done == [2, 3]
    assert guard.problems == ["broken: odd"]


@pytest.mark.parametrize("part", ["serving", "checkpoints"])
def test_what_failed_once_is_done_again_in_the_next_tick(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, tries = make_pipeline(config=Config(), sources=[]), list[object]()
    pipeline.tick()

    def step(news: object) -> None:
        tries.append(news)
        if len(tries) == 1:
            raise ValueError("odd")

    monkeypatch.setattr(getattr(pipeline.context, part), "step", step)
    pipeline.context.serving.active = False  # as without a server
    pipeline.reconfigure(Config(cost=CostSection(electricity_per_kwh=0.3)))
    pipeline.tick()
    assert len(pipeline.guard.problems) == 1
    if part == "checkpoints":
        pipeline.reconfigure(Config())
    for _ in range(3):
        pipeline.tick()
    assert pipeline.guard.problems == []
    assert len(tries) == 2
