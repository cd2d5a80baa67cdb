"""The first look never hides what the verdict would watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.analysis import screen, verdict
from gpuwatchd.core.config import DetectionSection
from tests import making

if TYPE_CHECKING:
    from gpuwatchd.core.model import Series

Array = npt.NDArray[np.floating[Any]]
GIB = 2.0**30
SETTINGS = DetectionSection()


def one(t: Array, x: Array, total: float | None = 24 * GIB) -> Series:
    return making.series(t, x, limit_bytes=total, total_bytes=total)


def test_nothing_in_nothing_out() -> None:
    assert screen.first_look([], SETTINGS) == []


def test_each_kind_in_one_call() -> None:
    t = np.arange(0.0, 3600.0, 10.0)
    batch = [
        one(t, np.full(t.size, 4e9)),
        one(t[:0], t[:0]),
        one(t, 4e9 + 1e6 * t),
        one(t[:3], t[:3]),
        one(t, np.full(t.size, 20e9)),
        one(t[:10], np.full(10, 4e9)),
        one(t, np.full(t.size, 4e9), None),
    ]
    assert screen.first_look(batch, SETTINGS) == [
        "stable", "unknown", None, "unknown", None, None, "stable",
    ]  # fmt: skip


def test_neighbours_do_not_change_the_answer() -> None:
    t = np.arange(0.0, 3600.0, 10.0)
    rng = np.random.default_rng(1)
    batch = [one(t, rng.uniform(4e9, 4e9 + s, t.size)) for s in (1e6, 1e7, 1e8, 1e9)]
    alone = [screen.first_look([series], SETTINGS)[0] for series in batch]
    assert screen.first_look(batch, SETTINGS) == alone


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 24 * GIB), min_size=1, max_size=60),
    st.floats(1.0, 60.0),
)
def test_what_is_screened_out_is_not_watched(levels: list[float], interval_s: float) -> None:
    series = one(np.arange(len(levels)) * interval_s, np.array(levels))
    if screen.first_look([series], SETTINGS)[0] is not None:
        assert verdict.judge(series, SETTINGS).tier == "none"


def rows_of(*shapes: Array, dtype: Any = np.float64) -> Array:
    return np.stack([np.asarray(x, dtype=dtype) for x in shapes])


def codes(rows: Array, interval_s: float = 10.0, total: float = 24 * GIB) -> list[int]:
    t = np.arange(0.0, rows.shape[1]) * interval_s
    found = screen.look_at_array(rows, t, np.full(len(rows), total), SETTINGS)
    return [int(code) for code in found]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_each_kind(dtype: Any) -> None:
    t = np.arange(0.0, 2410.0, 10.0)
    noise = np.random.default_rng(1).normal(0.0, 5e7, t.size)
    rows = rows_of(
        4e9 + 0 * t,
        4e9 + 1e6 * t,
        4e9 + 5e8 * ((t // 100) % 2),
        4e9 + noise,
        20e9 + 0 * t,
        4e9 + 5e8 * (t == 500),
        dtype=dtype,
    )
    assert codes(rows) == [
        screen.STABLE, screen.JUDGE, screen.KEEPS_LEVEL, screen.JUDGE, screen.KEEPS_LEVEL,
        screen.KEEPS_LEVEL,
    ]  # fmt: skip
    assert codes(rows[:, :4]) == [screen.UNKNOWN] * 6
    assert codes(rows[:, :10])[:2] == [screen.KEEPS_LEVEL, screen.JUDGE]


def test_what_lies_before_a_gap_or_the_window_does_not_count() -> None:
    t = np.concatenate((np.arange(0.0, 1200.0, 10.0), np.arange(9000.0, 10200.0, 10.0)))
    rows = rows_of(np.where(t < 5000, 1e9, 4e9), np.where(t < 5000, 4e9, 1e9 + 1e6 * (t - 9000)))
    found = screen.look_at_array(rows, t, np.full(2, 24 * GIB), SETTINGS)
    assert found.tolist() == [screen.STABLE, screen.JUDGE]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(5, 450),
    st.sampled_from([1.0, 5.0, 10.0, 60.0]),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_row_that_is_let_go_would_be_watched(
    seed: int, n: int, interval_s: float, dtype: Any
) -> None:
    rng = np.random.default_rng(seed)
    u = np.linspace(0.0, 1.0, n)
    rows = np.stack(
        [
            rng.uniform(0.5, 12.0) * GIB
            + rng.choice([0.0, 0.03, 0.2, 1.0, 5.0]) * GIB * np.maximum(u - rng.choice([0, 0.5]), 0)
            + rng.choice([0.0, 0.1, 2.0]) * GIB * ((u * rng.integers(2, 40)) % 1.0)
            + rng.choice([0.0, 0.1, 2.0, 20.0, 100.0]) * 2.0**20 * rng.normal(size=n)
            for _ in range(12)
        ]
    ).astype(dtype)
    t = np.arange(0.0, n) * interval_s
    found = screen.look_at_array(rows, t, np.full(len(rows), 24 * GIB), SETTINGS)
    for row, code in zip(rows, found, strict=True):
        verdict_ = verdict.judge(one(t, row), SETTINGS)
        if code != screen.JUDGE:
            assert verdict_.tier == "none"
        if code == screen.STABLE:
            assert verdict_.pattern in {"stable", "unknown"}


def test_rows_and_series_agree_and_stay_untouched() -> None:
    rng = np.random.default_rng(3)
    t = np.arange(0.0, 2400.0, 10.0)
    rows = np.stack([rng.uniform(4e9, 4e9 + s, t.size) for s in (0.0, 1e6, 1e7, 1e8, 1e9)])
    rows.setflags(write=False)
    found = codes(rows)
    looked = screen.first_look([one(t, row) for row in rows], SETTINGS)
    assert [code == screen.STABLE for code in found] == [what == "stable" for what in looked]


def test_what_rises_is_judged_each_time_and_what_jumps_once_or_goes_round_is_not() -> None:
    rng = np.random.default_rng(5)
    t = np.arange(0.0, 361 * 60.0, 60.0)
    base = rng.uniform(2e9, 40e9, (60, 1)) + rng.normal(0.0, 2e6, (60, t.size))
    leaks = base + rng.uniform(1e6, 2e7, (60, 1)) / 60.0 * t
    jumps = base + 2e9 * (t > rng.uniform(0.0, t[-1], (60, 1)))
    cycles = base + 2e9 * ((t // 60.0 // rng.integers(2, 30, (60, 1))) % 2)
    rows = np.concatenate([leaks, base, jumps, cycles]).astype(np.float32)
    passed = screen.rising(rows, t, np.full(len(rows), 85e9), SETTINGS)
    assert passed[:60].all()
    assert passed[60:].mean() < 0.07
    assert screen.rising(rows[:, :20], t[:20], np.full(len(rows), 85e9), SETTINGS).all()
