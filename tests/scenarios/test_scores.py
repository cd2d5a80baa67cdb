"""Floors under the scores, on one item of every family; ``make bench-detect`` has the rest.

The families are split into those that were tuned on and those that were not; the bounds are loose
enough for one seed of each and tight enough to catch a detector that has become worse.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.scenarios import report, worlds
from tests.scenarios.bench import figures

if TYPE_CHECKING:
    from tests.scenarios.bench.outcome import Outcome

pytestmark = pytest.mark.timeout(600)

LEAKS = ("linear_fast", "segments", "staircase", "cyclic_floor", "late_onset", "warmup_then_leak")
BENIGN = ("flat", "exp_warmup", "model_load", "high_water", "eval_spikes", "dev_day", "prealloc")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """One item of every family."""
    workers = min(2, os.cpu_count() or 1)
    tuning = [one for one in worlds.FAMILIES if one in worlds.TUNING]
    others = [one for one in worlds.FAMILIES if one not in worlds.TUNING]
    return [
        *report.run(tuning, worlds.TUNING_SEEDS[:1], workers=workers),
        *report.run(others, worlds.HELD_OUT_SEEDS[:1], workers=workers),
    ]


@pytest.mark.parametrize("tuned", [True, False], ids=["tuning", "validation"])
def test_leaks_are_found_in_time_and_harmless_runs_left_alone(
    outcomes: list[Outcome], tuned: bool
) -> None:
    found = figures.summary([one for one in outcomes if one.tuned == tuned])
    assert found["recall"] >= 0.9
    assert found["f1"] >= 0.9
    assert found["left_median"] >= 0.6
    assert found["before_half"] >= 0.75
    assert found["false_items"] <= 3


@pytest.mark.requirement("B14", "W1")
def test_plain_families_are_told_apart_without_a_mistake(outcomes: list[Outcome]) -> None:
    found = figures.summary([one for one in outcomes if one.family in {*LEAKS, *BENIGN}])
    assert (found["recall"], found["false_items"]) == (1.0, 0)
    assert found["left_median"] >= 0.6
    assert found["eta"]["error"] <= 0.1


def test_forecasts_and_names_can_be_relied_on(outcomes: list[Outcome]) -> None:
    found = figures.summary(outcomes)
    assert 0.75 <= found["eta"]["covered"] <= 0.99
    assert found["eta"]["error"] <= 0.2
    assert found["pattern_right"] >= 0.8
    assert found["watch"]["times_limit"] <= 6.0
