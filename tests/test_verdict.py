"""The verdict: patterns, tiers, settings, words."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import verdict
from gpuwatchd.core.config import DetectionSection, Seconds
from gpuwatchd.core.model import Finding, Series, Subject
from tests import making
from tests.making import present

Array = npt.NDArray[np.floating[Any]]
MIB, GIB = 2.0**20, 2.0**30
SETTINGS = DetectionSection()


def one(
    t: Array,
    x: Array,
    *,
    total: float | None = 24 * GIB,
    framework: str | None = None,
) -> Series:
    whole = Subject(device_uid="GPU-1")
    limits = {"limit_bytes": total, "total_bytes": total}
    return making.series(t + 1.7e9, x, subject=whole, framework=framework, **limits)


def clock(minutes: float, interval_s: float = 5.0) -> Array:
    return np.arange(0.0, minutes * 60.0 + 0.1, interval_s)


def leak(minutes: float = 90.0, interval_s: float = 5.0, rate: float = 1e6) -> Series:
    t = clock(minutes, interval_s)
    return one(t, 12e9 + rate * t)


def judge(series: Series, **changes: Any) -> Finding:
    return verdict.judge(series, msgspec.structs.replace(SETTINGS, **changes))


@pytest.mark.requirement("G11", "G16", "G17")
def test_a_leak_says_everything() -> None:
    found = judge(leak())
    assert (found.pattern, found.tier, found.detector) == ("gradual", "alert", "trend")
    assert found.severity == "critical"  # more than 1 GB grown
    assert found.rate_bytes_per_s == pytest.approx(1e6, rel=1e-3)
    assert found.r_squared == pytest.approx(1.0)
    assert present(found.p_value) < 1e-6
    assert found.onset_at_s == pytest.approx(1.7e9, abs=30.0)
    assert found.growth_bytes == pytest.approx(5.4e9, rel=0.01)
    assert present(found.eta).mid_s == pytest.approx((24 * GIB - 12e9 - 5.4e9) / 1e6, rel=0.01)
    assert found.samples == 1081
    assert found.signals[0].detector == "trend"
    assert found.id == "GPU-1"
    assert 0.75 <= found.confidence <= 1.0


@pytest.mark.requirement("B12")
def test_without_a_limit_there_is_no_eta() -> None:
    t = clock(90)
    found = judge(one(t, 12e9 + 1e6 * t, total=None))
    assert found.pattern == "gradual"
    assert found.eta is None


@pytest.mark.requirement("G22", "G34")
def test_too_few_samples_are_no_verdict() -> None:
    t = np.arange(0.0, 30.0, 5.0)
    few = judge(one(t, np.full(t.size, 4e9)))
    assert (few.pattern, few.tier) == ("unknown", "none")
    empty = judge(one(np.empty(0), np.empty(0)))
    assert (empty.pattern, empty.tier) == ("unknown", "none")


@pytest.mark.requirement("G7", "G32")
def test_minimum_samples_and_duration_hold_back_the_alert_not_the_watch() -> None:
    series = leak()
    assert judge(series).tier == "alert"
    assert judge(series, minimum_samples=5000).tier == "watch"
    assert judge(series, minimum_duration=Seconds(3 * 3600)).tier == "watch"


@pytest.mark.requirement("G31")
def test_confidence_threshold_acts_on_the_confidence_that_is_shown() -> None:
    series = leak()
    shown = judge(series).confidence
    assert judge(series, confidence_threshold=shown - 0.01).tier == "alert"
    assert judge(series, confidence_threshold=min(1.0, shown + 0.01)).tier == "watch"
    assert pytest.approx(0.43, abs=0.01) == verdict.WATCH_CONFIDENCE


@pytest.mark.requirement("G6", "G30")
def test_imported_floor_of_the_slope_is_obeyed() -> None:
    assert judge(leak(rate=0.9e6), min_slope_mb_per_sec=1.0).tier == "none"
    assert judge(leak(rate=1.1e6), min_slope_mb_per_sec=1.0).tier == "alert"


@pytest.mark.requirement("B11", "G5", "G29")
def test_imported_r_squared_gates_gradual_only() -> None:
    rng = np.random.default_rng(2)
    t = clock(60)
    noisy = one(t, 12e9 + 1e6 * t + rng.normal(0.0, 1.2e9, t.size))
    quiet = one(t, 12e9 + 1e6 * t)
    assert judge(quiet, min_r_squared=0.9).tier != "none"
    free = judge(noisy)
    assert free.r_squared is None or free.r_squared < 0.9
    assert judge(noisy, min_r_squared=0.9).tier == "none"
    stairs = one(t, 6e9 + np.floor(t / 420) * 4e8)
    assert judge(stairs, min_r_squared=0.9999).pattern == "step"


@pytest.mark.requirement("G33")
def test_the_window_caps_what_is_looked_at() -> None:
    t = clock(180)
    x = 4e9 + np.minimum(t, 3600.0) * 1e6
    whole, short = judge(one(t, x)), judge(one(t, x), analysis_window_hours=1.0)
    assert whole.pattern == "plateau"
    assert short.pattern == "stable"


def test_minimum_growth_makes_the_candidate() -> None:
    t = clock(90)
    series = one(t, 12e9 + 4e4 * t)
    assert judge(series).tier != "none"
    assert judge(series, minimum_growth_mib=1024.0).tier == "none"


def test_beyond_the_horizon_it_is_information() -> None:
    found = judge(leak(), eta_horizon=Seconds(3600))
    assert (found.tier, found.severity) == ("watch", "info")


@pytest.mark.parametrize(
    ("rate", "minutes", "severity"),
    [
        (3e6, 60.0, "critical"),
        (1.5e5, 100.0, "warning"),
        (1e6, 90.0, "critical"),
        (1.2e4, 120.0, "info"),
    ],
)
@pytest.mark.requirement("M3", "M8", "M9")
def test_severity_follows_time_and_size(rate: float, minutes: float, severity: str) -> None:
    t = clock(minutes)
    found = judge(one(t, 12e9 + rate * t))
    assert found.severity == severity


@pytest.mark.requirement("G20")
def test_rising_peaks_over_a_level_floor_are_shown_not_alarmed() -> None:
    t = clock(120)
    x = 4e9 + (1e9 + 2e8 * np.floor(t / 900)) * ((t % 900) / 900)
    found = judge(one(t, x))
    assert (found.pattern, found.tier) == ("sawtooth", "none")


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "vllm", "sglang"])
def test_a_known_pool_is_preallocated(framework: str) -> None:
    t = clock(30)
    found = judge(one(t, np.full(t.size, 18e9), framework=framework))
    assert found.pattern == "preallocated"
    small = judge(one(t, np.full(t.size, 6e9), framework=framework))
    assert small.pattern == "stable"


def test_growth_above_a_pool_is_still_found() -> None:
    t = clock(90)
    found = judge(one(t, 18e9 + 5e5 * t, framework="vllm"))
    assert found.tier == "alert"


def test_a_gap_starts_anew() -> None:
    t = np.concatenate((clock(90), 9000.0 + np.arange(0.0, 40.0, 5.0)))
    found = judge(one(t, 12e9 + 1e6 * t))
    assert found.pattern == "unknown" or found.tier != "alert"
    assert found.samples == 8


@pytest.mark.parametrize("room", [1e9, 6e9, 15e9])
@pytest.mark.parametrize("until", [0.66, 0.78, 0.82])
def test_what_fills_and_stops_levels_off_where_it_is(until: float, room: float) -> None:
    t = clock(240.0, 10.0)
    x = 2.2e9 + 5e9 * np.minimum(t / t[-1], until)
    found = judge(one(t, x, total=float(x[-1]) + room))
    assert found.tier != "alert"
    assert found.pattern == "plateau"
    if found.tier == "watch":
        assert found.levels_off_bytes == pytest.approx(x[-1], rel=0.02)


@pytest.mark.parametrize("shape", ["even", "stairs", "waves", "noise"])
def test_growth_older_than_the_window_keeps_its_begin(shape: str) -> None:
    t = clock(24 * 60.0, 30.0)
    hours = t / 3600.0
    added = {
        "even": 0.8 * hours,
        "stairs": 0.56 * np.floor(hours / 0.7),
        "waves": 0.8 * hours + 0.5 * np.sin(2 * np.pi * hours / 3.0),
        "noise": 0.8 * hours + np.random.default_rng(1).normal(0, 1.0, t.size),
    }[shape]
    last: Finding | None = None
    for end in range(120, t.size, 20):
        now = one(t[:end], (4 + added[:end]) * GIB, total=44 * GIB)
        found = judge(msgspec.structs.replace(now, alerted=last))
        last = found if found.tier != "none" else last
    assert last is not None
    assert present(last.onset_at_s) - 1.7e9 < 3600.0
    assert 0.85 * 19 * GIB < present(last.growth_bytes) < 1.2 * 19 * GIB
