"""Swings: cyclic leaks and sawtooth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from gpuwatchd.analysis.detectors.cycle import Cycle, concordance
from gpuwatchd.analysis.verdict import growth
from gpuwatchd.core.model import Signal
from tests.detect import T, fires, one

TOOTH = 2e9 * ((T % 300) / 300)


@pytest.mark.requirement("B13", "G20")
def test_a_rising_floor_is_cyclic() -> None:
    signal = fires(Cycle(), 4e9 + TOOTH + np.floor(T / 300) * 1.2e8)
    assert signal.pattern == "cyclic"
    assert signal.rate_bytes_per_s == pytest.approx(1.2e8 / 300, rel=0.02)
    assert signal.facts["period_s"] == pytest.approx(300.0, abs=5.0)


@pytest.mark.parametrize("phase", [0.2, 0.5, 0.8])
def test_a_window_that_begins_within_a_tooth_sees_the_same(phase: float) -> None:
    at = T / 300 + phase
    signal = fires(Cycle(), 4e9 + 2e9 * (at % 1.0) + np.floor(at) * 1.2e8)
    assert signal.pattern == "cyclic"
    assert signal.rate_bytes_per_s == pytest.approx(1.2e8 / 300, rel=0.05)


@pytest.mark.parametrize("wave", [0.0, 3e8])
def test_a_level_floor_is_a_sawtooth(wave: float) -> None:
    x = 4e9 + TOOTH + wave * np.sin(np.floor(T / 300) * 2.4)
    signal = fires(Cycle(), x)
    assert signal.pattern == "sawtooth"
    assert signal.rate_bytes_per_s == 0.0


def test_rising_peaks_alone_are_a_sawtooth() -> None:
    signal = fires(Cycle(), 4e9 + TOOTH * (1 + np.floor(T / 300) / 5))
    assert signal.pattern == "sawtooth"
    assert signal.facts["peaks_slope_bytes_per_s"] > 0


def test_noise_a_line_and_two_swings_are_nothing() -> None:
    rng = np.random.default_rng(1)
    assert Cycle().detect(one(4e9 + rng.normal(0.0, 3e8, T.size))) is None
    assert Cycle().detect(one(4e9 + 1e6 * T)) is None
    assert Cycle().detect(one(4e9 + 2e9 * ((T % 1500) / 1500))) is None


def test_a_large_odd_one_does_not_hide_the_rest() -> None:
    odd = 2e10 * ((T > 1000) & (T < 1100))
    signal = fires(Cycle(), 4e9 + 0.3 * TOOTH + odd)
    assert signal.pattern == "sawtooth"
    assert signal.facts["period_s"] == pytest.approx(300.0, abs=10.0)


def test_equal_troughs_do_not_speak_against_a_rise() -> None:
    # What a cycle leaves behind shows in quanta: every third trough is higher.
    signal = fires(Cycle(), 4e9 + TOOTH + np.floor(T / 900) * 3e8)
    assert signal.facts["rising_share"] < 0.5
    assert signal.facts["order"] == 1.0
    assert signal.pattern == "cyclic"


def test_facts_tell_spikes_from_swings() -> None:
    short = fires(Cycle(), np.where(T % 300 > 270, 6e9, 4e9))
    long = fires(Cycle(), np.where(T % 300 > 60, 6e9, 4e9))
    assert short.facts["busy_share"] == pytest.approx(0.1, abs=0.05)
    assert long.facts["busy_share"] == pytest.approx(0.8, abs=0.05)
    assert short.facts["longest_rise_s"] <= 40.0
    assert short.facts["last_fall_s"] <= 300.0


def test_scatter_is_that_of_the_troughs() -> None:
    wave = 4e8 * np.sin(np.floor(T / 300) * 2.4)
    even, uneven = fires(Cycle(), 4e9 + TOOTH), fires(Cycle(), 5e9 + TOOTH + wave)
    assert even.facts["scatter_bytes"] < 1e7 < uneven.facts["scatter_bytes"]


@pytest.mark.parametrize("size", [1, 2, 5, 24, 40])
def test_concordance_is_the_share_of_pairs_that_rise(size: int) -> None:
    values = np.random.default_rng(size).integers(0, 6, size).astype(np.float64)
    pairs = [(values[i], values[j]) for i in range(size) for j in range(i + 1, size)]
    differ = [late > early for early, late in pairs if early != late]
    assert concordance(values) == pytest.approx(sum(differ) / len(differ) if differ else 0.5)


SWINGS = {
    "period_s": 100.0, "last_fall_s": 150.0, "slope_bytes_per_s": 0.4, "swing_bytes": 100.0,
    "floor_growth_bytes": 0.0, "r_squared": 0.0, "rising_share": 0.0,
}  # fmt: skip
"""Troughs that hardly rise, under a growth of 1000 bytes in 1000 seconds."""


@pytest.mark.parametrize(
    ("changes", "confidence", "creeping"),
    [
        ({}, 0.0, False),
        ({"slope_bytes_per_s": 0.5}, 0.0, True),  # half the rate of the growth
        ({"slope_bytes_per_s": 0.5, "last_fall_s": 200.0}, 0.0, True),
        ({"slope_bytes_per_s": 0.5, "last_fall_s": 201.0}, 0.0, False),  # no swing of late
        ({"last_fall_s": 700.0}, 0.7, True),
        ({"last_fall_s": 701.0}, 0.7, False),  # not three swings
        ({"last_fall_s": 700.0}, 0.69, False),
        ({"slope_bytes_per_s": 0.15}, 0.7, True),
        ({"slope_bytes_per_s": 0.14}, 0.7, False),
        ({"floor_growth_bytes": 2.0, "r_squared": 0.4}, 0.0, True),
        ({"floor_growth_bytes": 1.9, "r_squared": 0.4}, 0.0, False),
        ({"floor_growth_bytes": 2.0, "r_squared": 0.39}, 0.0, False),
        ({"floor_growth_bytes": 2.0, "rising_share": 1.0}, 0.0, True),
        ({"floor_growth_bytes": 2.0, "rising_share": 1.0, "slope_bytes_per_s": 0.0}, 0.0, False),
    ],
)
def test_when_a_growth_is_the_creeping_floor_of_swings(
    changes: dict[str, float], confidence: float, creeping: bool
) -> None:
    windows = SimpleNamespace(age_s=np.array([9.0, 1000.0]), growth=np.array([9.0, 1000.0]))
    found: Any = SimpleNamespace(found=windows, best=1, confidence=confidence)
    swings = Signal(
        detector="cycle", pattern="sawtooth", rate_bytes_per_s=0.0, confidence=1.0, since_s=0.0,
        n=9, facts=SWINGS | changes,
    )  # fmt: skip
    assert growth.creeps(swings, found) is creeping
    assert growth.creeps(msgspec.structs.replace(swings, pattern="cyclic"), found)
