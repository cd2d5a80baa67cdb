"""After a restart the daemon sees the window that it had."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import settings as laws
from hypothesis import strategies as st

from gpuwatchd.store.ring import CELL_S, Ring, thin
from tests.store.world import BOOT, CARDS, INFOS, KNOWN, T0, Time, opened, sample


@laws(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 5, 5, 5, 5, 40, 300]),
            st.integers(0, 3),
            st.tuples(*[st.sampled_from([None, 100, 100, 200])] * 3),
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([10, 60]),
)
def test_every_point_of_every_process_comes_back(
    ticks: list[tuple[int, int, tuple[int | None, ...]]], flush_s: int
) -> None:
    """Though an unchanged process is written once a minute only."""
    with TemporaryDirectory() as folder:
        time = Time()
        history = opened(Path(folder), time, flush=flush_s)
        expected: dict[int | None, list[tuple[float, int]]] = {}
        seen: dict[int, list[float]] = {}
        for pause_s, count, held in ticks:
            time.pass_s(pause_s)
            uses = held[:count]
            history.record(sample(time.now_s, 7, uses=uses), CARDS, KNOWN)
            history.flush_due(time.now_s)
            expected.setdefault(None, []).append((time.now_s, 7))
            for info, used in zip(INFOS, uses, strict=False):
                seen.setdefault(info.key.pid, []).append(time.now_s)
                if used is not None:
                    expected.setdefault(info.key.pid, []).append((time.now_s, used))
        history.close()
        history = opened(Path(folder), time)
        found = {
            None if (key := subject.process) is None else key.pid: points
            for subject, points in history.recent_series(T0)
        }
        history.close()
        assert found[None] == expected[None]
        for pid, sights in seen.items():
            points = set(expected.get(pid, ()))
            back = set(found.get(pid, ()))
            assert points <= back
            # Being away for less than a minute may be bridged; nothing is made up at the ends.
            assert all(min(sights) < at_s < max(sights) for at_s, _ in back - points)


def test_keys_are_exactly_those_of_before(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    history.record(sample(T0, uses=(5, 6)), CARDS, KNOWN)
    history.close()
    history = opened(tmp_path, time)
    keys = [subject.process for subject, _ in history.recent_series(0)]
    history.close()
    assert keys == [None, INFOS[0].key, INFOS[1].key]


def test_another_boot_is_not_continued(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    history.record(sample(T0, uses=(5,), boot_id="boot-0"), CARDS, KNOWN)
    history.close()
    time.pass_s(60)
    history = opened(tmp_path, time)
    assert list(history.recent_series(0)) == []
    history.record(sample(time.now_s, boot_id=BOOT), CARDS, KNOWN)
    history.flush(time.now_s)
    assert [points for _, points in history.recent_series(0)] == [[(T0 + 60, 1000)]]
    history.close()


def test_only_what_was_taken_since_the_clock_was_set(tmp_path: Path) -> None:
    time = Time()
    history = opened(tmp_path, time)
    history.record(sample(T0), CARDS, {})
    time.now_s = T0 - 600
    history.segment("clock-step", wall_step_s=-600.0)
    history.record(sample(T0 - 590), CARDS, {})
    time.now_s = T0 - 580
    history.close()
    history = opened(tmp_path, time)
    assert [points for _, points in history.recent_series(0)] == [[(T0 - 590, 1000)]]
    history.close()


def test_since_bounds_it(tmp_path: Path) -> None:
    time = Time(T0 + 100)
    history = opened(tmp_path, time)
    for tick in range(10):
        history.record(sample(T0 + 5 * tick), CARDS, {})
    history.flush(T0 + 50)
    ((_, points),) = history.recent_series(T0 + 30)
    assert [at_s - T0 for at_s, _ in points] == [30, 35, 40, 45]
    history.close()


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
