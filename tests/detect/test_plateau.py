"""Growth that ends."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwatchd.analysis.detectors.plateau import Plateau
from tests.detect import Floats, T, fires, one


@pytest.mark.parametrize(
    "x",
    [
        4e9 + 3e9 * (1 - np.exp(-T / 300)),
        4e9 + 1e7 * np.minimum(T, 600.0),
        4e9 + 2e9 * T / (T + 120),
    ],
)
@pytest.mark.requirement("M34")
def test_warm_ups_and_caches(x: Floats) -> None:
    signal = fires(Plateau(), x)
    assert signal.rate_bytes_per_s == 0.0
    assert signal.facts["late_share"] < 0.12
    assert signal.facts["level_bytes"] == pytest.approx(x[-1], rel=0.03)


@pytest.mark.parametrize(
    "x",
    [4e9 + 1e6 * T, 4e9 + 300 * T**2, 4e9 + 1e6 * np.maximum(T - 1800, 0), np.full(T.size, 4e9)],
)
def test_growth_that_goes_on_is_no_plateau(x: Floats) -> None:
    assert Plateau().detect(one(x)) is None


def test_growth_that_slows_down_says_where_it_is_heading() -> None:
    x = 4e9 + 5e9 * (1 - np.exp(-T / 2400))
    signal = fires(Plateau(), x)
    assert signal.facts["ended"] == 0.0
    assert signal.facts["late_share"] > 0.12
    assert 0.0 < signal.rate_bytes_per_s < 5e9 / 2400
    assert signal.facts["level_bytes"] == pytest.approx(9e9, rel=0.1)


def test_what_has_ended_says_so() -> None:
    signal = fires(Plateau(), 4e9 + 1e7 * np.minimum(T, 600.0))
    assert signal.facts["ended"] == 1.0
