"""Does growth slow down?"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.numerics.deceleration import crow_amsaa, slowing
from tests.making import present, series

Floats = npt.NDArray[np.floating[Any]]
MIB, GIB = 2.0**20, 2.0**30
HOURS = 3.0
T = np.arange(0.0, HOURS * 3600.0, 5.0)


def view(x: Floats, noise: float = 0.0, quantum: float = 2 * MIB) -> numerics.SeriesWindow:
    rng = np.random.default_rng(7)
    x = x + (rng.normal(0.0, noise, T.size) if noise else 0.0)
    return numerics.prepare(series(T, np.round(x / quantum) * quantum))


SLOWING = {
    "logarithm": 4 * GIB + 0.6 * GIB * np.log1p(T / 60.0),
    "hyperbola": 4 * GIB + 6 * GIB * T / (T + 1800.0),
    "exponential": 4 * GIB + 5 * GIB * (1 - np.exp(-T / 3600.0)),
    "root": 4 * GIB + 5 * GIB * np.sqrt(T / T[-1]),
    "filled and stopped": 4 * GIB + 5 * GIB * np.clip(T / 4000.0, 0.0, 1.0),
}
GOING_ON = {
    "line": 4 * GIB + 5 * GIB * T / T[-1],
    "slow line": 4 * GIB + 0.2 * GIB * T / T[-1],
    "accelerating": 4 * GIB + 5 * GIB * (T / T[-1]) ** 1.7,
    "warm-up, then a line": 4 * GIB + 3 * GIB * (1 - np.exp(-T / 300)) + 3 * GIB * T / T[-1],
    "load, then a line": 4 * GIB + 5 * GIB * np.clip(T / 60, 0, 1) + 1 * GIB * T / T[-1],
    "stairs": 4 * GIB + 0.3 * GIB * np.floor(T / 700.0),
    "late": 4 * GIB + 2 * GIB * np.maximum(T / T[-1] - 0.6, 0.0),
}


@pytest.mark.parametrize("noise", [0.0, 4 * MIB, 16 * MIB])
@pytest.mark.parametrize("name", SLOWING)
def test_slowing_growth_is_proven(name: str, noise: float) -> None:
    proof = present(slowing(view(SLOWING[name], noise)))
    assert proof.rate_now <= proof.rate_before
    assert 0.0 <= proof.explained <= 1.0
    assert proof.growth_bytes == pytest.approx(np.ptp(SLOWING[name]), rel=0.1)


@pytest.mark.parametrize("noise", [0.0, 4 * MIB, 16 * MIB])
@pytest.mark.parametrize("name", GOING_ON)
def test_growth_that_goes_on_is_not(name: str, noise: float) -> None:
    assert slowing(view(GOING_ON[name], noise)) is None


@pytest.mark.parametrize("quantum", [2 * MIB, 20 * MIB])
def test_quanta_are_borne(quantum: float) -> None:
    assert slowing(view(SLOWING["hyperbola"], quantum=quantum)) is not None
    assert slowing(view(GOING_ON["line"], quantum=quantum)) is None


def test_it_says_where_growth_would_level_off() -> None:
    proof = present(slowing(view(SLOWING["exponential"])))
    assert proof.level_bytes == pytest.approx(9 * GIB, rel=0.05)
    assert proof.level_bytes is not None
    now = SLOWING["exponential"][-1]
    assert now < proof.ahead_bytes <= proof.level_bytes * 1.01
    assert proof.rate_now == pytest.approx(5 * GIB / 3600 * np.exp(-HOURS), rel=0.3)
    assert not proof.stopped


def test_a_logarithm_has_no_level() -> None:
    proof = present(slowing(view(SLOWING["logarithm"])))
    assert proof.level_bytes is None or proof.level_bytes > SLOWING["logarithm"][-1]
    assert proof.ahead_bytes > SLOWING["logarithm"][-1]


def test_what_has_stopped_says_so() -> None:
    proof = present(slowing(view(SLOWING["filled and stopped"])))
    assert proof.stopped
    assert proof.level_bytes == pytest.approx(9 * GIB, rel=0.01)


@pytest.mark.parametrize("jumps", [1, 2])
def test_a_jump_or_two_cannot_slow_down(jumps: int) -> None:
    x = 4 * GIB + GIB * np.clip(np.floor(T / 1000.0), 0, jumps)
    assert slowing(view(x)) is None


def test_bursts_at_random_are_rarely_called_slowing() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(60):
        at = np.cumsum(rng.exponential(150.0, 120))
        size = np.concatenate(([0.0], np.cumsum(rng.exponential(60 * MIB, 120))))
        x = 4 * GIB + size[np.searchsorted(at, T, side="right")]
        wrong += slowing(view(x)) is not None
    assert wrong <= 9


def test_few_and_rarer_rises_are_judged_by_their_exponent() -> None:
    at = np.array([20.0, 60, 130, 200, 300, 420, 600, 900, 1300, 2000, 3500, 6200])
    x = 4 * GIB + 0.2 * GIB * np.searchsorted(at, T, side="right")
    proof = present(slowing(view(x)))
    assert proof.level_bytes is None


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.6])
def test_the_exponent_is_found(beta: float) -> None:
    age = np.arange(1.0, 5000.0)
    found, z = crow_amsaa(age, age**beta)
    assert found == pytest.approx(beta, rel=0.15)
    assert (z > 3.0) == (beta < 0.9)


def test_nothing_grows_in_nothing() -> None:
    assert crow_amsaa(np.arange(5.0), np.full(5, 1.0)) == (1.0, 0.0)
    empty = np.empty(0)
    assert slowing(numerics.prepare(series(empty, empty))) is None
