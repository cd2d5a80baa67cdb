"""Names: what a user would call the shape."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import numerics, verdict
from gpuwatchd.analysis.verdict.growth import find
from gpuwatchd.analysis.verdict.leak import intervals_risen
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import LEAK_PATTERNS, Finding
from tests.making import present, series

Array = npt.NDArray[np.floating[Any]]
MIB, GIB = 2.0**20, 2.0**30
T = np.arange(0.0, 3 * 3600.0, 5.0)


def judge(
    x: Array,
    t: Array = T,
    *,
    noise: float = 8 * MIB,
    total: float = 24 * GIB,
    framework: str | None = None,
) -> Finding:
    rng = np.random.default_rng(11)
    x = np.round((x + rng.normal(0.0, noise, t.size)) / (2 * MIB)) * 2 * MIB
    limits = {"limit_bytes": total, "total_bytes": total}
    whole = series(t + 1.7e9, np.maximum(x, 0.0), framework=framework, **limits)
    return verdict.judge(whole, DetectionSection())


def stairs(t: Array) -> Array:
    return 6e9 + np.floor(t / 600) * 3e8


def loaded(t: Array) -> Array:
    """A model that is unloaded for a moment every seven minutes."""
    return 5e9 * ((t % 420 > 30) & (t % 420 < 360))


@pytest.mark.parametrize("noise", [0.0, 4 * MIB, 16 * MIB])
@pytest.mark.parametrize(
    ("pattern", "x"),
    [
        ("gradual", 6e9 + 3e5 * T),
        ("gradual", 4e9 + 2e9 * (1 - np.exp(-T / 600)) + 3e5 * T),
        ("gradual", 4e9 + 4e9 * (T > 3000) + 3e5 * np.maximum(T - 3000, 0)),
        ("step", stairs(T)),
        ("step", stairs(T) + 2e9 * ((T % 200) < 20)),
        ("cyclic", 1e9 + np.floor(T / 420) * 298e6 + loaded(T)),
        ("cyclic", 6e9 + np.floor(T / 300) * 1.2e8 + 3e9 * ((T % 300) / 300)),
    ],
)
def test_leaks(pattern: str, x: Array, noise: float) -> None:
    found = judge(x, noise=noise)
    assert (found.pattern, found.tier) in {(pattern, "alert"), (pattern, "watch")}, found.reason


@pytest.mark.parametrize("noise", [0.0, 4 * MIB, 16 * MIB])
@pytest.mark.parametrize(
    ("pattern", "x"),
    [
        ("plateau", 4e9 + 6e8 * np.log1p(T / 60)),
        ("plateau", 4e9 + 6e9 * T / (T + 900)),
        ("plateau", 4e9 + 6e9 * (1 - np.exp(-T / 1500))),
        ("plateau", 4e9 + 1e6 * np.minimum(T, 5000.0)),
        ("plateau", 4e9 + 4e9 * (1 - np.exp(-T / 900)) + 1e9 * (T % 1200 > 1100)),
        ("spike", np.where(T < 5000, 4e9, 9e9)),
        ("spike", 4e9 + 6e9 * ((T > 4000) & (T < 4100))),
        ("sawtooth", 1e9 + loaded(T)),
        ("sawtooth", 6e9 + 3e9 * ((T % 300) / 300)),
        ("sawtooth", 6e9 + 2e9 * (T % 1500 > 1400)),
        ("stable", 6e9 + 0 * T),
        ("stable", np.where(T < 5000, 9e9, 4e9)),
        ("preallocated", 0.5e9 + 22.5e9 * (T > 100)),
        ("preallocated", 0.5e9 + 8e9 * np.clip(T / 120, 0, 1) + 11e9 * (T > 300)),
    ],
)
def test_harmless_shapes(pattern: str, x: Array, noise: float) -> None:
    found = judge(x, noise=noise)
    assert found.pattern == pattern, found.reason
    assert found.tier in {"none", "watch"}
    assert found.severity == "info"


@pytest.mark.parametrize("interval_s", [1.0, 2.0, 10.0, 30.0])
def test_names_do_not_hang_on_the_sampling(interval_s: float) -> None:
    t = np.arange(0.0, 3 * 3600.0, interval_s)
    assert judge(stairs(t), t).pattern == "step"
    assert judge(1e9 + np.floor(t / 420) * 298e6 + loaded(t), t).pattern == "cyclic"
    assert judge(1e9 + loaded(t), t).pattern == "sawtooth"
    assert judge(4e9 + 6e9 * t / (t + 900), t).pattern == "plateau"
    assert judge(6e9 + 3e5 * t, t).pattern == "gradual"


@pytest.mark.parametrize("minutes", [5.5, 8.0, 15.0])
@pytest.mark.parametrize("load_s", [5.0, 60.0])
def test_a_short_flat_record_is_known(minutes: float, load_s: float) -> None:
    t = np.arange(0.0, minutes * 60.0, 5.0)
    found = judge(1e9 + 8e9 * np.clip((t - 20.0) / load_s, 0.0, 1.0), t)
    assert found.pattern in {"stable", "plateau"}, found.reason
    assert judge(6e9 + 0.0 * t, t).pattern == "stable"


@pytest.mark.parametrize("share", [0.65, 0.7, 0.75, 0.82, 0.9])
def test_a_pool_needs_a_reason(share: float) -> None:
    at_start, later = (24 * GIB * np.where(since < T, share, 0.02) for since in (100, 4000))
    name = "preallocated" if share in {0.75, 0.9} else "plateau"
    assert judge(at_start, noise=0.0).pattern == judge(later, noise=0.0).pattern == name
    assert judge(at_start, noise=0.0, framework="vLLM").pattern == "preallocated"


def test_a_jump_at_the_start_is_no_event() -> None:
    found = judge(np.where(T < 60, 1e9, 9e9))
    assert found.pattern == "stable"
    assert present(found.onset_at_s) == pytest.approx(1.7e9 + 60, abs=30)


@pytest.mark.parametrize("interval_s", [3600.0, 7200.0])
@pytest.mark.parametrize(
    ("pattern", "tier", "x"),
    [
        ("gradual", "alert", 4e9 + 5e8 * np.arange(24.0)),
        ("stable", "none", 4e9 + 0 * np.arange(9.0)),
        ("plateau", "none", 4e9 + 6e9 * (1 - np.exp(-np.arange(12.0) / 3))),
        ("sawtooth", "none", 4e9 + 1e9 * (np.arange(24.0) % 5)),
    ],
)
def test_a_sparse_log_gets_a_verdict(interval_s: float, pattern: str, tier: str, x: Array) -> None:
    found = judge(x, np.arange(x.size) * interval_s, noise=0.0)
    assert (found.pattern, found.tier, found.samples) == (pattern, tier, x.size)


@pytest.mark.parametrize(("samples", "intervals"), [(5, 4), (12, 11), (30, 16), (300, 16)])
def test_evidence_is_counted_in_samples(samples: int, intervals: int) -> None:
    t = np.arange(samples) * 60.0
    whole = series(t + 1.7e9, 4e9 + 1e7 * t, limit_bytes=24e9)
    growth = present(find(whole, numerics.prepare(whole), 16 * MIB))
    assert intervals_risen(growth) == (intervals, intervals)


def test_a_rise_like_those_before_it_is_no_leak() -> None:
    tooth = 6e9 + 1e10 * ((T % 1500) / 1500)
    for end_s in (8200.0, 8500.0, 8900.0):
        short = T[end_s > T]
        found = judge(tooth[: short.size], short)
        assert (found.pattern, found.tier) == ("sawtooth", "none"), found.reason


def test_a_rise_that_passes_all_before_it_is_news() -> None:
    x = np.where(T < 6000, 6e9 + 2e9 * ((T % 600) / 600), 6e9 + 2.5e6 * (T - 6000))
    found = judge(x)
    assert found.pattern == "gradual"
    assert found.tier != "none"


def test_one_jump_or_two_are_events_and_three_are_stairs() -> None:
    for jumps, names in ((1, {"spike"}), (2, {"spike", "plateau"}), (5, {"step"})):
        x = 5e9 + 1.2e9 * np.clip(np.floor(T / 1700), 0, jumps)
        found = judge(x)
        assert found.pattern in names, (jumps, found.reason)
        assert (found.pattern in LEAK_PATTERNS) == (jumps >= 3)


def test_stairs_that_were_given_back_are_no_stairs() -> None:
    found = judge(np.where(T < 10000, stairs(T), 6e9))
    assert found.tier == "none"
    assert found.pattern in {"stable", "sawtooth"}


def test_a_gap_does_not_make_a_warm_up_forgotten() -> None:
    t = T[(T < 6000) | (T > 7500)]
    found = judge(4e9 + 6e9 * (1 - np.exp(-t / 600)), t)
    assert found.pattern == "plateau"
    assert judge(1e9 + loaded(t), t).pattern == "sawtooth"


def test_slowing_growth_that_fills_the_device_anyway_is_no_plateau() -> None:
    x = 4e9 + 3e9 * np.log1p(T / 60)
    found = judge(x, total=float(x[-1]) + 0.1 * GIB)
    assert found.pattern != "plateau"
    assert found.tier != "none"


@pytest.mark.slow
def test_names_are_stable_while_nothing_new_happens() -> None:
    """Judged every minute, a shape changes its name only when something has happened."""
    shapes = {
        "stairs": stairs(T),
        "sawtooth": 6e9 + 8e9 * ((T % 900) / 900),
        "line": 6e9 + 3e5 * T,
        "spikes": 6e9 + 3e9 * (T % 1200 > 1100),
        "cyclic": 1e9 + np.floor(T / 420) * 298e6 + loaded(T),
        "warm-up": 4e9 + 6e9 * (1 - np.exp(-T / 1500)),
    }
    for name, x in shapes.items():
        ends = np.arange(4200.0, T[-1], 60.0)
        names = [judge(x[: int(end / 5)], T[: int(end / 5)]).pattern for end in ends]
        changes = sum(a != b for a, b in pairwise(names))
        assert changes <= 1, (name, names)
