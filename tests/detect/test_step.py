"""Staircases."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.detectors import step
from gpuwatchd.analysis.detectors.step import Step
from tests.detect import fires, one

T = np.arange(0.0, 5400.0, 5.0)


@pytest.mark.requirement("B13", "G21")
def test_risers_are_counted_and_measured() -> None:
    signal = fires(Step(), 4e9 + np.floor(T / 600) * 5e8)
    assert signal.n == 8
    assert signal.rate_bytes_per_s == pytest.approx(5e8 / 600, rel=0.01)
    assert signal.facts["pause_s"] == pytest.approx(600.0)
    assert signal.facts["share"] == pytest.approx(1.0)


def test_a_model_load_before_is_not_part_of_the_stairs() -> None:
    x = np.where(T < 100, 0.0, 1.2e10) + np.floor(T / 600) * 3e8
    signal = fires(Step(), x)
    assert signal.facts["riser_bytes"] == pytest.approx(3e8)
    assert signal.since_s >= 590


@pytest.mark.parametrize("risers", [0, 1, 2])
@pytest.mark.requirement("W8")
def test_fewer_than_three_risers_are_no_stairs(risers: int) -> None:
    x = 4e9 + np.floor(T / 900).clip(max=risers) * 5e8
    assert Step().detect(one(x)) is None


def test_a_ramp_noise_and_a_returning_load_are_no_stairs() -> None:
    rng = np.random.default_rng(1)
    assert Step().detect(one(4e9 + 2e7 * T)) is None
    assert Step().detect(one(4e9 + 2e5 * T + rng.normal(0.0, 2e8, T.size))) is None
    assert Step().detect(one(4e9 + 2e9 * (T % 600 > 300))) is None


def test_small_allocator_steps_are_left_to_the_trend() -> None:
    assert Step().detect(one(4e9 + np.floor(T / 300) * 20 * 2.0**20)) is None


def test_a_load_cuts_off_what_was_before_it() -> None:
    assert step.after_loads(np.array([9e9, 1e8, 1.2e8, 0.9e8, 1e8, 1.1e8])) == 1
    assert step.after_loads(np.array([1e8, 1.2e8, 9e9, 0.9e8, 1e8, 1.1e8])) == 3
    assert step.after_loads(np.array([1e8, 1.2e8, 0.9e8, 3e8, 1e8])) == 0
    # Crumbs after a stair do not make a load of it.
    assert step.after_loads(np.array([5e8, 5e8, 5.1e8, 4e6, 8e6, 4e6]), 4e7) == 0


def test_crumbs_between_the_stairs_do_not_hide_them() -> None:
    crumbs = np.floor(T / 60) * 4 * 2.0**20
    signal = fires(Step(), 4e9 + np.floor(T / 600) * 5e8 + crumbs)
    assert signal.facts["riser_bytes"] == pytest.approx(5e8, rel=0.05)


def test_noise_on_the_plateaus_does_not_hide_the_stairs() -> None:
    rng = np.random.default_rng(3)
    x = 4e9 + np.floor(T / 600) * 5e8 + rng.normal(0.0, 5e7, T.size)
    signal = fires(Step(), np.round(x / 2**21) * 2**21)
    assert 8 <= signal.n <= 10


def test_allocator_blocks_that_follow_each_other_closely_are_a_ramp() -> None:
    assert Step().detect(one(4e9 + np.floor(T / 20) * 128 * 2.0**20)) is None


def test_touching_rises_are_one_riser() -> None:
    x = 4e9 + np.interp(T % 600, [0.0, 575.0, 595.0, 600.0], [0.0, 0.0, 5e8, 5e8])
    x = x + np.floor(T / 600) * 5e8
    at, size, lasted = step.risers(numerics.prepare(one(x)), 1e8)
    assert at.size == 9
    # The last riser is not yet complete.
    assert size[:-1] == pytest.approx(np.full(8, 5e8), rel=0.01)
    assert lasted.max() <= 30.0
