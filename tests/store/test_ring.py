"""The recent past of one subject, bounded, extremes kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.store.ring import CELL_S, Ring, thin

# Memory comes in 2 MiB pieces; a 32-bit float holds them exactly.
VALUES = st.lists(
    st.integers(0, 100_000).map(lambda pieces: pieces * 2**21), min_size=1, max_size=300
)


def filled(values: list[int], step_s: float = 1.0, start_s: float = 1_000.0) -> Ring:
    ring = Ring(10_000.0)
    for position, value in enumerate(values):
        ring.add(start_s + position * step_s, float(value))
    return ring


@given(VALUES, st.sampled_from([0.25, 1.0, 2.0, 5.0, 30.0]))
def test_lowest_highest_and_last_survive(values: list[int], step_s: float) -> None:
    t_s, kept = filled(values, step_s).window()
    assert kept.min() == min(values)
    assert kept.max() == max(values)
    assert kept[-1] == values[-1]
    assert np.all(np.diff(t_s) > 0)


@given(VALUES)
def test_points_as_far_apart_as_a_cell_are_all_kept(values: list[int]) -> None:
    _, kept = filled(values, step_s=CELL_S).window()
    assert kept.tolist() == values


@given(VALUES, st.sampled_from([0.5, 1.0, 2.0]))
def test_thinning_a_recording_keeps_the_same_extremes_as_a_ring(
    values: list[int], step_s: float
) -> None:
    t_s = np.asarray(1_000.0 + np.arange(len(values)) * step_s, dtype=np.float64)
    thin_t, thin_v = thin(t_s, np.array(values, float))
    ring_t, ring_v = filled(values, step_s).window()
    cells = np.unique((thin_t / CELL_S).astype(int))
    for cell in cells:
        mine = ring_v[(ring_t / CELL_S).astype(int) == cell]
        theirs = thin_v[(thin_t / CELL_S).astype(int) == cell]
        assert (mine.min(), mine.max()) == (theirs.min(), theirs.max())


def test_memory_is_bounded_however_fast_the_sampling() -> None:
    ring = Ring(600.0)
    for position in range(20_000):
        ring.add(position * 0.1, float(position % 7))
    t_s, _ = ring.window()
    assert t_s[0] >= 2_000.0 - 600.0 - 1
    assert len(ring) <= 2 * 600 / CELL_S + 1030


def test_any_value_is_kept_to_a_part_in_sixteen_million() -> None:
    ring = filled([12_345_678_901, 98_765_432_109, 55_555_555_555])
    _, kept = ring.window()
    assert np.allclose(kept[:1], 12_345_678_901, rtol=1e-7)
    assert kept[-1] == 55_555_555_555


def test_it_runs_for_years() -> None:
    ring = Ring(3600.0)
    for day in range(0, 4000, 10):
        ring.add(86_400.0 * day, float(day))
        ring.add(86_400.0 * day + 60, float(day + 1))
    t_s, kept = ring.window()
    assert t_s.tolist() == [86_400.0 * 3990, 86_400.0 * 3990 + 60]
    assert kept.tolist() == [3990.0, 3991.0]


def test_time_never_goes_back() -> None:
    ring = filled([1, 2, 3], step_s=10.0)
    ring.add(1_000.0, 99.0)
    assert ring.last == (1_020.0, 3.0)
    assert ring.count == 3


def test_a_cleared_ring_is_empty() -> None:
    ring = filled([1, 2, 3])
    ring.clear()
    assert len(ring) == 0
    assert ring.last is None
    assert ring.window()[0].size == 0
    assert ring.recent(5, 1.0) == ()


def test_recent_shows_gaps_as_unknown() -> None:
    ring = Ring(10_000.0)
    for t_s in (0.0, 10.0, 20.0, 100.0, 110.0):
        ring.add(t_s, t_s)
    assert ring.recent(12, 10.0) == (0, 10, 20, 20, *[None] * 6, 100, 110)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 2**21, 2**22]), st.integers(0, 40), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([0.5, 2.0, 4.99, 5.0, 5.01, 30.0]),
)
def test_a_ring_that_follows_a_clock_is_as_if_each_value_had_been_added(
    parts: list[tuple[int, int, bool]], step_s: float
) -> None:
    """Each part: a value, how often it is repeated, and whether somebody looks then."""
    plain, lazy = Ring(10_000.0), Ring(10_000.0)
    now_s = 1_000.0
    for value, again, looks in parts:
        now_s += step_s
        plain.add(now_s, float(value))
        lazy.add(now_s, float(value))
        clock: list[float] = []
        lazy.follow(clock)
        for _ in range(again):
            now_s += step_s
            plain.add(now_s, float(value))
            clock.append(now_s)
            assert lazy.last == plain.last
        if looks:
            assert lazy.recent(32, 60.0) == plain.recent(32, 60.0)
        assert (lazy.count, lazy.moves) == (plain.count, plain.moves)
    for mine, theirs in zip(lazy.window(), plain.window(), strict=True):
        assert mine.tolist() == theirs.tolist()


def test_a_follower_stays_bounded_and_moves_with_its_clock() -> None:
    ring = Ring(600.0)
    ring.add(1000.0, 7.0)
    for start in range(200):
        clock: list[float] = []
        ring.follow(clock)
        clock += [1000.0 + 5.0 * (64 * start + k + 1) for k in range(64)]
    assert len(ring) <= 1030
    ring.shift(100.0)
    assert ring.last == (1000.0 + 5.0 * 64 * 200 + 100.0, 7.0)
    t_s, _ = ring.window()
    assert t_s[-1] - t_s[0] <= 600.0
