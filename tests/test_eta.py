"""The time to the limit: its middle, its interval, and the limit that binds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import numerics
from gpuwatchd.analysis.forecast.eta import (
    NARROWEST,
    WIDEST,
    Forecast,
    eta,
    forecast_median,
    offsets,
    pace,
)
from gpuwatchd.analysis.forecast.eta_coefficients import COEFFICIENTS, FEATURES, LEVELS
from gpuwatchd.analysis.forecast.windows import Saturation, saturation
from gpuwatchd.analysis.verdict import judge
from gpuwatchd.core.config import DetectionSection
from tests import making
from tests.making import present
from tests.scenarios import eta_fit

if TYPE_CHECKING:
    from gpuwatchd.core.model import Finding, Series

Array = npt.NDArray[np.float64]
GIB = 2.0**30
TIMES = np.arange(0.0, 7200.0, 5.0)


def series(x: Array, *, limit: float = 24 * GIB, others: float = 0.0) -> Series:
    return making.series(
        TIMES[: x.size], x, limit_bytes=limit, neighbours_bytes_per_s=(others,) if others else ()
    )


def forecast(x: Array, headroom: float, rate: float) -> Forecast:
    view = numerics.prepare(series(x))
    seen = pace(view, float(view.t_s[0]))
    return forecast_median(
        seen, age_s=7200.0, headroom=headroom, rate=rate, parcel=2.0**21, law_s=headroom / rate
    )


def judged(x: Array, *, limit: float = 24 * GIB, others: float = 0.0) -> Finding:
    found = judge(series(x, limit=limit, others=others), DetectionSection())
    assert found.eta is not None
    return found


def test_a_straight_line_has_no_change_of_pace() -> None:
    view = numerics.prepare(series(8e9 + 1e6 * TIMES))
    seen = pace(view, -7000.0)
    assert seen.mean == pytest.approx(1e6 * 7000.0 / 16, rel=0.02)
    assert seen.proven == pytest.approx(0.0, abs=0.02)
    assert forecast(8e9 + 1e6 * TIMES, 3e9, 1e6).mid_s == pytest.approx(3000.0, rel=0.02)


def test_noise_alone_does_not_bend_the_forecast() -> None:
    rng = np.random.default_rng(3)
    bends = []
    for _ in range(20):
        x = 8e9 + 1e6 * TIMES + rng.normal(0.0, 4e8, TIMES.size)
        bends.append(abs(pace(numerics.prepare(series(x)), -7000.0).proven))
    assert np.median(bends) == 0.0


def test_growth_that_doubles_is_carried_on_exponentially() -> None:
    x = 8e9 + 1e9 * np.expm1(TIMES / 4800.0)
    left = 4800.0 * math.log((20e9 - 8e9) / 1e9 + 1.0) - TIMES[-1]
    room = 20e9 - x[-1]
    straight = (x[-1] - x[0]) / TIMES[-1]
    assert room / straight > 1.8 * left
    assert forecast(x, room, straight).mid_s == pytest.approx(left, rel=0.12)


def test_growth_that_slows_down_is_carried_on_as_a_power() -> None:
    x = 8e9 + 5e9 * np.sqrt(TIMES / 7200.0)
    straight = (x[-1] - x[0]) / TIMES[-1]
    left = 7200.0 * 2.0**2 - TIMES[-1]
    assert 5e9 / straight < 0.4 * left
    assert 1.5 * 5e9 / straight < forecast(x, 5e9, straight).mid_s < 1.2 * left


def test_a_rate_that_changed_at_once_is_the_last_one() -> None:
    x = 8e9 + 1e6 * np.minimum(TIMES, 4000.0) + 3e6 * np.maximum(TIMES - 4000.0, 0.0)
    seen = pace(numerics.prepare(series(x)), -7195.0)
    assert seen.after == pytest.approx(3e6 * 7195.0 / 16, rel=0.05)
    straight = (x[-1] - x[0]) / TIMES[-1]
    assert forecast(x, 6e9, straight).mid_s == pytest.approx(2000.0, rel=0.05)
    bent = pace(numerics.prepare(series(8e9 + 1e3 * TIMES**2 / 8)), -7195.0)
    assert bent.after == 0.0


@pytest.mark.parametrize("headroom", [0.0, 1e6, 1e10, 1e15])
@pytest.mark.parametrize("rate", [1.0, 1e6, 1e12])
@pytest.mark.requirement("B12")
def test_the_interval_is_ordered_finite_and_never_collapses(headroom: float, rate: float) -> None:
    one = forecast(8e9 + 1e6 * TIMES, headroom, rate)
    found = eta(one)
    assert found.high_s is not None
    assert 0.0 < found.low_s <= found.mid_s * math.exp(-NARROWEST) * 1.0001
    assert found.mid_s * math.exp(NARROWEST) * 0.9999 <= found.high_s < math.inf
    assert found.high_s <= found.mid_s * math.exp(WIDEST) * 1.0001


def test_growth_that_may_stop_is_open_ended() -> None:
    assert eta(forecast(8e9 + 1e6 * TIMES, 3e9, 1e6), may_stop=True).high_s is None


def test_less_is_known_of_noisy_growth_and_of_far_limits() -> None:
    rng = np.random.default_rng(5)
    clean = 8e9 + 1e6 * TIMES
    jumps = 8e9 + np.cumsum(rng.exponential(1.0, TIMES.size) * (rng.random(TIMES.size) < 0.01))
    jumps = 8e9 + (jumps - 8e9) / (jumps[-1] - 8e9) * 1e6 * TIMES[-1]

    def width(x: Array, headroom: float) -> float:
        ends = eta(forecast(x, headroom, 1e6))
        return math.log((ends.high_s or math.inf) / ends.low_s)

    assert width(jumps, 3e9) > width(clean, 3e9)
    assert width(clean, 1e11) > width(clean, 3e9)


def test_the_calibration_fits_its_features() -> None:
    assert np.shape(COEFFICIENTS) == (len(LEVELS), len(FEATURES))
    assert list(LEVELS) == sorted(LEVELS)
    assert {0.05, 0.95} <= set(LEVELS)
    one = forecast(8e9 + 1e6 * TIMES, 3e9, 1e6)
    quantiles = offsets(one.features).tolist()
    assert quantiles == sorted(quantiles)


def test_what_the_neighbours_leak_shortens_the_time_left() -> None:
    x = 8e9 + 1e6 * TIMES
    alone, crowded = judged(x), judged(x, others=1e6)
    assert alone.eta is not None
    assert present(crowded.eta).mid_s == pytest.approx(0.5 * alone.eta.mid_s, rel=0.01)
    assert crowded.rate_bytes_per_s == alone.rate_bytes_per_s
    assert judged(x, others=-1e6).eta == alone.eta


def test_the_fit_finds_quantiles_that_depend_on_a_feature() -> None:
    rng = np.random.default_rng(1)
    wide = rng.uniform(0.0, 1.0, 4000)
    features = np.column_stack([np.ones(4000), wide])
    target = rng.normal(0.0, 0.1 + wide)
    family = np.array(list("abcdefgh"))[rng.integers(0, 8, 4000)]
    low, high = eta_fit.fit(features, target, family, (0.05, 0.95))
    assert high[1] == pytest.approx(1.645, abs=0.25)
    assert low[1] == pytest.approx(-1.645, abs=0.25)
    inside = (features @ low <= target) & (target <= features @ high)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)


def curve(kind: str, until: float) -> Array:
    """Growth of 8 GiB from 4 GiB that has come ``until`` of the way."""
    t = np.arange(0.0, 24_000.0, 5.0)
    share = 1.0 - np.exp(-t / 2400.0) if kind == "exponential" else t / (t + 1600.0)
    x = 4 * GIB + 8 * GIB * share[share <= until]
    return np.asarray(np.ceil(x / 2**21) * 2**21)


def saturate(x: Array, end_s: float = 0.0) -> Saturation | None:
    t = np.arange(float(x.size)) * 5.0
    view = numerics.prepare(making.series(t, x, limit_bytes=24 * GIB))
    return saturation(view, float(view.t_s[0]), end_s)


@pytest.mark.parametrize("kind", ["exponential", "hyperbolic"])
@pytest.mark.parametrize("until", [0.7, 0.8, 0.9])
def test_growth_that_slows_down_is_told_where_it_ends(kind: str, until: float) -> None:
    found = present(saturate(curve(kind, until)))
    left = 12 * GIB - (4 + 8 * until) * GIB
    assert found.low <= 12 * GIB * 1.01
    assert found.high >= 12 * GIB * 0.99
    assert abs(found.mid - 12 * GIB) < 1.2 * left
    assert found.low <= found.mid <= found.high
    assert 0.5 < found.ends <= 1.0


def test_growth_that_does_not_slow_down_has_no_level() -> None:
    t = np.arange(0.0, 7200.0, 5.0)
    assert saturate(4e9 + 1e6 * t) is None
    assert saturate(4e9 + 1e2 * t * t) is None
    assert saturate(4e9 + 1e6 * t[:60]) is None
    root = saturate(4e9 + 1e8 * np.sqrt(t))
    assert root is None or root.high == math.inf


def test_a_floor_of_few_samples_has_no_level() -> None:
    t = np.arange(0.0, 1200.0, 5.0)
    x = (12.0 - 8.0 * np.exp(-t / 40.0)) * GIB
    assert present(saturate(x, 125.0 - t[-1])).mid == pytest.approx(12 * GIB, rel=0.05)
    assert saturate(x, 110.0 - t[-1]) is None


def test_what_rose_and_fell_has_no_level() -> None:
    t = np.arange(0.0, 3600.0, 5.0)
    bump = np.where((t > 120.0) & (t < 800.0), 10.0, 0.0)
    assert saturate((4.0 + 0.5 * (t > 120.0) + 0.25 * (t > 3400.0) + bump) * GIB) is None


def test_scaling_bytes_scales_the_level() -> None:
    x = curve("exponential", 0.8)
    small, large = saturate(x), saturate(4.0 * x)
    assert present(large).mid == pytest.approx(4.0 * present(small).mid, rel=0.01)


def test_a_warm_up_is_said_to_level_off_and_has_no_false_time() -> None:
    x = curve("exponential", 0.75)
    t = np.arange(float(x.size)) * 5.0
    one = making.series(t, x, limit_bytes=80 * GIB, total_bytes=80 * GIB)
    found = judge(one, DetectionSection())
    assert found.tier != "alert"
    assert found.eta is None or found.eta.high_s is None
    assert found.levels_off_bytes == pytest.approx(12 * GIB, rel=0.15)
