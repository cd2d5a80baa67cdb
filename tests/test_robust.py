"""Numerics that the detectors share."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.analysis import numerics
from gpuwatchd.core.model import Series, Subject
from tests import making
from tests.making import KEY

Array = npt.NDArray[np.floating[Any]]


def floats(x: Array) -> npt.NDArray[np.float64]:
    return np.asarray(x, dtype=np.float64)


def one(t: Array, x: Array) -> Series:
    return making.series(t, x)


@pytest.mark.parametrize("interval_s", [0.25, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0])
def test_the_grid_follows_the_sampling(interval_s: float) -> None:
    t = np.arange(0.0, 4 * 3600.0, interval_s)
    view = numerics.prepare(one(t, t * 1e6))
    assert view.samples == t.size
    assert view.step_s == pytest.approx(max(interval_s, 10.0))
    assert view.t_s[-1] == 0.0
    assert view.span_s >= t[-1] - view.step_s
    assert np.all(np.diff(view.t_s) > 0)


def test_a_missed_minute_or_a_coarse_log_is_no_gap() -> None:
    t = np.delete(np.arange(0.0, 1000.0, 5.0), slice(50, 61))
    assert not numerics.pauses(t).size
    assert not numerics.pauses(np.arange(0.0, 12000.0, 120.0)).size
    rng = np.random.default_rng(3)
    assert not numerics.pauses(np.cumsum(rng.uniform(30.0, 120.0, 50))).size


def test_an_empty_series_is_an_empty_view() -> None:
    view = numerics.prepare(one(np.empty(0), np.empty(0)))
    assert (view.samples, view.span_s, view.start, view.noise_bytes) == (0, 0.0, 0, 0.0)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60))
def test_the_floor_never_falls_and_is_what_is_kept(values: list[float]) -> None:
    x = np.array(values)
    view = numerics.prepare(one(np.arange(x.size) * 10.0, x))
    floor = view.floor
    assert np.all(np.diff(floor) >= 0)
    assert np.all(floor <= view.low)
    for k in range(floor.size):
        assert floor[k] == view.low[k:].min()
    assert floor[view.start] == view.low.min()


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=50))
def test_holds_are_those_of_a_plain_search(values: list[int]) -> None:
    x = np.array(values, dtype=np.float64)
    t = np.arange(x.size) - (x.size - 1.0)
    with mock.patch.object(numerics.series, "PHASE_SHARE", float("inf")):
        found = numerics.memory_releases(floats(t), floats(x))
    wanted: dict[float, float] = {}
    for i in range(x.size):
        for j in range(i + 1, x.size):
            if x[j] < x[i]:
                wanted[x[i] - x[j]] = max(wanted.get(x[i] - x[j], 0.0), float(j - i))
                break
    for amount in (1.0, 10.0, 100.0):
        longest = max((held for a, held in wanted.items() if a >= amount), default=0.0)
        assert float(found.longest_s(np.array([amount]))[0]) == longest


def test_a_phase_that_ended_says_nothing_of_how_long_growth_is_held() -> None:
    t = np.arange(0.0, 3600.0, 10.0)
    phase = 4e9 + 2e9 * (t < 1800.0) + 1e5 * np.maximum(t - 1800.0, 0.0)
    tooth = 4e9 + 2e9 * (t / 1800.0) * (t < 1800.0)
    phases = 4e9 + 2e9 * ((t % 1200.0) < 600.0)
    amount = np.array([1e9])
    assert numerics.prepare(one(t, phase)).holds.longest_s(amount).tolist() == [0.0]
    assert numerics.prepare(one(t, tooth)).holds.longest_s(amount)[0] > 800.0
    assert numerics.prepare(one(t, phases)).holds.longest_s(amount)[0] > 500.0
    assert numerics.prepare(one(t, phase)).holds.phase_s == pytest.approx(1790.0, abs=20.0)
    assert numerics.prepare(one(t, tooth)).holds.phase_s == float("inf")


def test_what_follows_a_crash_at_the_limit_is_another_run() -> None:
    t = np.arange(0.0, 6 * 3600.0, 10.0)
    two_lives = np.where(t < 12600.0, 3e9 + 1.67e6 * t, 0.5e9 + 1.67e6 * (t - 12600.0))
    whole = msgspec.structs.replace(one(t, two_lives), limit_bytes=24e9)
    view = numerics.prepare(whole)
    assert view.span_s == pytest.approx(6 * 3600.0 - 12600.0, abs=20.0)
    assert numerics.last_crash(t, two_lives, 40e9) == 0
    often = 3e9 + 21e9 * ((t / 900.0) % 1.0)
    assert numerics.last_crash(t, often, 24e9) == 0
    mine = msgspec.structs.replace(whole, subject=Subject(device_uid="G", process=KEY))
    assert numerics.prepare(mine).span_s > 5 * 3600.0


def test_peaks_that_grow_are_no_rise_of_the_coarser_floor() -> None:
    t = np.arange(0.0, 7200.0, 10.0)
    peaks = (np.arange(t.size) % 3 == 0) * (1e9 + 2e5 * t)
    view = numerics.prepare(one(t, 4e9 + peaks)).coarser(16)
    assert view.floor[-1] == view.floor[0] == 4e9
    assert view.mean[-1] > view.mean[0] + 2e8


def test_falls_are_counted() -> None:
    t = np.arange(0.0, 3000.0, 10.0)
    x = 4e9 + 1e9 * ((t / 300) % 1.0)
    found = numerics.prepare(one(t, x)).holds
    assert found.times(np.array([5e8, 2e9])).tolist() == [9.0, 0.0]


def test_old_holds_are_forgotten() -> None:
    x = np.full(205, 1e9)
    x[:5] = 9e9
    t = (np.arange(x.size) - x.size + 1) * 10.0
    assert (
        float(numerics.memory_releases(floats(t), floats(x)).longest_s(np.array([1e9]))[0]) == 0.0
    )


@pytest.mark.parametrize("factor", [1, 2, 4, 16])
@pytest.mark.parametrize("size", [64, 67, 120])
def test_coarser_cells_are_those_of_a_plain_grouping(factor: int, size: int) -> None:
    rng = np.random.default_rng(size + factor)
    x = floats(rng.integers(0, 9, size) * 1e6)
    t = floats(np.arange(-10.0 * (size - 1), 1.0, 10.0))
    fine = numerics.SeriesWindow(
        now_s=0.0,
        t_s=t,
        low=x,
        mean=x,
        high=floats(x + 1e6),
        samples=size,
        interval_s=10.0,
        step_s=10.0,
    )
    coarse = fine.coarser(factor)
    cells = [x[k : k + factor] for k in range(size % factor, size, factor)]
    assert coarse.t_s.tolist() == t[size % factor + factor - 1 :: factor].tolist()
    assert coarse.mean == pytest.approx(np.array([cell.mean() for cell in cells]))
    assert coarse.high == pytest.approx(np.array([cell.max() + 1e6 for cell in cells]))
    half = max(1, factor // 2)
    assert coarse.low == pytest.approx(np.array([np.sort(cell)[:half].mean() for cell in cells]))


@given(st.lists(st.integers(0, 12), min_size=2, max_size=40))
def test_a_phase_is_the_one_that_a_plain_search_finds(values: list[int]) -> None:
    x = floats(np.array(values)) * 1e9
    t = np.arange(x.size) - (x.size - 1.0)
    falls = x[:-1] - x[1:]
    ended = []
    for end in range(1, x.size):
        freed = [
            i for i in range(end)
            if x[i] > x[end] and all(x[k] >= x[i] for k in range(i + 1, end))
        ]  # fmt: skip
        if not freed:
            continue
        top = max(x[i] - x[end] for i in freed)
        early = max(x[i] - x[end] for i in freed if end - i >= 0.5 * (end - freed[0]))
        if early >= numerics.series.PHASE_SHARE * top and (falls >= 0.5 * top).sum() < 2:
            ended.append(float(x.size - 1 - end))
    assert numerics.memory_releases(floats(t), x).phase_s == min(ended, default=float("inf"))


@pytest.mark.requirement("B10", "G3")
def test_least_squares() -> None:
    t = np.arange(50.0)
    slope, zero, r_squared = numerics.least_squares(t, 3.0 * t + 2.0)
    assert (slope, zero, r_squared) == pytest.approx((3.0, 2.0, 1.0))
    assert numerics.least_squares(t, np.full(50, 4.0))[2] == 0.0
    assert numerics.least_squares(t[:1], t[:1]) == (0.0, 0.0, 0.0)


@pytest.mark.requirement("M14")
def test_the_p_value_bears_autocorrelation() -> None:
    rng = np.random.default_rng(4)
    white = rng.normal(0.0, 1.0, 800)
    t = np.arange(800.0)
    assert numerics.batch_means_p(t, white + 0.05 * t)[1] < 1e-4
    assert numerics.batch_means_p(t, white)[1] > 0.01
    assert numerics.batch_means_p(t[:10], white[:10]) == (0.0, 1.0)
    assert numerics.batch_means_p(t, t)[1] == 0.0
    # Naive least squares calls nearly every random wander significant; this must not.
    hits = 0
    for seed in range(60):
        noise = np.random.default_rng(seed).normal(0.0, 1.0, 900)
        hits += numerics.batch_means_p(t, np.convolve(noise, np.ones(101), "valid"))[1] < 0.05
    assert hits <= 9


@pytest.mark.parametrize(("statistic", "p"), [(1.943, 0.05), (3.707, 0.005), (-1.943, 0.95)])
def test_student_tail(statistic: float, p: float) -> None:
    assert numerics.t_tail(statistic, 6) == pytest.approx(p, abs=2e-4)


@pytest.mark.requirement("B11")
def test_steady_rise_needs_a_rise_that_goes_on() -> None:
    t = np.arange(0.0, 3600.0, 10.0)
    rng = np.random.default_rng(5)
    noise = rng.normal(0.0, 5e7, t.size)
    looks = np.array([600.0, 1200.0, 2400.0])
    rising = numerics.prepare(one(t, 4e9 + 2e5 * t + noise))
    stopped = numerics.prepare(one(t, 4e9 + 2e5 * np.minimum(t, 2400.0) + noise))
    assert numerics.steady_rise(rising, looks, 1e8) == 2400.0
    assert not numerics.steady_rise(stopped, looks, 1e8)
    assert not numerics.steady_rise(numerics.prepare(one(t, 4e9 + noise)), looks, 1e8)
    assert not numerics.steady_rise(rising, np.array([20.0]), 1e8)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.4, 6.0))
def test_cells_are_those_of_a_plain_grouping(seed: int, interval_s: float) -> None:
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.uniform(0.3, 1.7, 2500) * interval_s)
    x = rng.uniform(0.0, 1e10, t.size)
    view = numerics.prepare(one(t, x))
    cells: dict[int, list[float]] = {}
    ends: dict[int, float] = {}
    for at, value in zip((t - t[-1]).tolist(), x.tolist(), strict=True):
        number = int(np.floor(-at / view.step_s + 1e-9))
        cells.setdefault(number, []).append(value)
        ends[number] = at
    assert view.t_s.size < t.size
    assert view.low.tolist() == [min(cell) for cell in cells.values()]
    assert view.high.tolist() == [max(cell) for cell in cells.values()]
    assert view.mean == pytest.approx([sum(cell) / len(cell) for cell in cells.values()])
    assert view.t_s == pytest.approx(list(ends.values()))


def zigzag(t: Array, x: Array, size: float) -> list[tuple[float, float, int]]:
    """Return turning points, one value after the other."""
    out: list[tuple[float, float, int]] = []
    top = low = (float(x[0]), float(t[0]))
    direction = 0
    for at, value in zip(t.tolist(), x.tolist(), strict=True):
        if direction >= 0 and value >= top[0]:
            top = (value, at)
        if direction <= 0 and value <= low[0]:
            low = (value, at)
        if direction >= 0 and top[0] - value >= size:
            out.append((top[1], top[0], 1))
            direction, low = -1, (value, at)
        elif direction <= 0 and value - low[0] >= size:
            out.append((low[1], low[0], -1))
            direction, top = 1, (value, at)
    return out


@given(st.lists(st.integers(0, 6), min_size=3, max_size=60), st.integers(1, 5))
def test_turning_points_are_those_of_a_plain_zigzag(values: list[int], size: int) -> None:
    x = floats(np.array(values))
    t = np.arange(0.0, x.size)
    wanted = zigzag(t, x, float(size)) if numerics.drawdown(x) >= size else []
    assert numerics.turns(t, x, float(size)) == wanted


@given(st.lists(st.integers(0, 50), min_size=5, max_size=80))
def test_noise_is_the_median_second_difference(values: list[int]) -> None:
    x = floats(np.array(values))
    second = sorted(abs(a - 2 * b + c) for a, b, c in zip(x, x[1:], x[2:], strict=False))
    assert numerics.noise(x) == pytest.approx(second[len(second) // 2] / (0.6745 * 6**0.5))


@given(
    values=st.lists(st.integers(-50, 50), min_size=1, max_size=60),
    share=st.floats(0.0, 1.0, exclude_max=True),
)
def test_medians_quantiles_and_deviations_are_those_of_numpy(
    values: list[int], share: float
) -> None:
    x = floats(np.array(values)) * 1e7
    before = x.copy()
    assert numerics.median(x) == float(np.median(x))
    assert numerics.quantile(x, share) == pytest.approx(float(np.quantile(x, share)), abs=1e-6)
    assert numerics.deviation(x) == pytest.approx(float(x.std()), rel=1e-12, abs=1e-6)
    assert np.array_equal(x, before)
