"""Gradual growth."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.detectors.trend import Trend
from tests.detect import T, fires, one


@pytest.mark.requirement("M15", "G4")
def test_facts_carry_what_people_ask_for() -> None:
    signal = fires(Trend(), 4e9 + 1e6 * T)
    assert signal.facts["r_squared"] == pytest.approx(1.0)
    assert signal.facts["p_value"] == 0.0
    assert signal.facts["second_half_share"] == pytest.approx(0.5, abs=0.02)
    assert signal.confidence > 0.95


def test_since_moves_the_window() -> None:
    x = 4e9 + 1e6 * np.maximum(T - 1800.0, 0.0)
    view = numerics.prepare(one(x))
    signal = Trend().look_at(view, -1795.0)
    assert signal is not None
    assert signal.rate_bytes_per_s == pytest.approx(1e6, rel=0.01)
    assert signal.since_s == pytest.approx(1800.0, abs=15.0)


def test_noise_as_large_as_the_growth_is_silent() -> None:
    rng = np.random.default_rng(1)
    assert Trend().detect(one(4e9 + 1e4 * T + rng.normal(0.0, 5e7, T.size))) is None


def test_a_jump_a_stop_and_a_fall_are_no_trend() -> None:
    assert Trend().detect(one(np.where(T < 1800, 4e9, 8e9))) is None
    assert Trend().detect(one(4e9 + 1e7 * np.minimum(T, 600.0))) is None
    assert Trend().detect(one(9e9 - 1e6 * T)) is None
