"""The blind corpus says of itself what the simulation did. No detector is run here."""

from __future__ import annotations

import time
from typing import get_args

import numpy as np
import pytest

from gpuwatchd.core.model import LEAK_PATTERNS, Pattern
from tests.scenarios import blind
from tests.scenarios.blind_rig import (
    GIB,
    HOUR,
    MIB,
    Rig,
    Steps,
    cached,
    changes,
    doubling,
    harmless,
    jobs,
)

SEEDS = range(4)
LEAKS = sorted(blind.LEAKS)
BENIGN = sorted(blind.BENIGN)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else on the card: the series is the program's alone."""
    monkeypatch.setattr(blind, "NEIGHBOURS", 0.0)


def steps(*points: tuple[float, float]) -> Steps:
    t, y = zip(*points, strict=True)
    return Steps(np.array(t, dtype=float), np.array(y, dtype=float))


def test_there_are_enough_families_and_each_says_what_it_is() -> None:
    assert len(blind.LEAKS) >= 14
    assert len(blind.BENIGN) >= 18
    assert not set(blind.LEAKS) & set(blind.BENIGN)
    assert all(len(family.__doc__ or "") > 40 for family in blind.FAMILIES.values())


@pytest.mark.parametrize("family", sorted(blind.FAMILIES))
def test_an_item_is_a_function_of_family_and_seed(family: str) -> None:
    one, two, other = blind.build(family, 7), blind.build(family, 7), blind.build(family, 8)
    assert np.array_equal(one.series.t_s, two.series.t_s)
    assert np.array_equal(one.series.used_bytes, two.series.used_bytes)
    assert one.truth == two.truth
    assert not np.array_equal(one.series.t_s, other.series.t_s)


@pytest.mark.parametrize("family", sorted(blind.FAMILIES))
def test_series_and_truth_are_well_formed(family: str) -> None:
    for seed in SEEDS:
        item = blind.build(family, seed)
        t, used, total = item.series.t_s, item.series.used_bytes, item.series.total_bytes
        assert total is not None
        assert 8 * GIB <= total <= 80 * GIB
        assert t.size >= 100
        assert np.all(np.diff(t) > 0)
        assert 0.9 <= float(np.median(np.diff(t))) <= 31.0
        assert item.length_s <= 24 * HOUR
        assert 0 <= used.min() <= used.max() <= total
        assert item.truth.leak == (family in blind.LEAKS)
        assert item.truth.patterns <= set(get_args(Pattern))
        allowed = LEAK_PATTERNS if item.truth.leak else set(get_args(Pattern)) - LEAK_PATTERNS
        assert item.truth.patterns
        assert item.truth.patterns <= allowed


@pytest.mark.parametrize("family", LEAKS)
@pytest.mark.usefixtures("alone")
def test_a_leak_fills_the_card_when_it_says(family: str) -> None:
    for seed in SEEDS:
        rig, run = blind.simulate(family, seed)
        truth = blind.build(family, seed).truth
        oom = run.used.first_over(rig.total)
        assert oom is not None
        assert truth.oom_s is not None
        assert truth.onset_s is not None
        # The record begins with the run or up to a twentieth later.
        late = oom - truth.oom_s
        assert -1e-6 <= late <= 0.06 * oom + 60.0
        assert truth.onset_s == pytest.approx(max((run.onset_s or 0.0) - late, 0.0))
        just_before, at = run.used.at(np.array([oom - 1e-6, oom]))
        assert just_before <= rig.total < at
        assert 600.0 <= oom - (run.onset_s or 0.0) <= 60 * HOUR


@pytest.mark.parametrize("family", LEAKS)
def test_what_leaks_is_lost_for_good_at_the_rate_that_is_said(family: str) -> None:
    for seed in SEEDS:
        rig, run = blind.simulate(family, seed)
        assert run.onset_s is not None
        oom = run.used.first_over(rig.total)
        assert oom is not None
        assert np.all(np.diff(run.kept.y) >= 0)
        before, lost = run.kept.at(np.array([run.onset_s - 1e-3, oom]))
        assert before == 0
        assert lost >= 0.1 * rig.total
        assert blind.rate(run, oom) * (oom - run.onset_s) == pytest.approx(lost)
        # Without what is lost the same program would have fitted for ever.
        without = run.used.at(run.used.t) - run.kept.at(run.used.t)
        assert without[run.used.t < oom].max() < rig.total


@pytest.mark.parametrize("family", LEAKS)
@pytest.mark.usefixtures("alone")
def test_a_leak_is_in_the_series_and_the_record_ends_with_it(family: str) -> None:
    for seed in SEEDS:
        item = blind.build(family, seed)
        t = item.series.t_s - item.series.t_s[0]
        used = item.series.used_bytes
        total = item.series.total_bytes
        truth = item.truth
        assert total is not None
        assert truth.oom_s is not None
        assert truth.onset_s is not None
        assert t[-1] < truth.oom_s
        if truth.oom_s < 22 * HOUR:
            assert truth.oom_s - t[-1] < 0.07 * truth.oom_s + 60.0
        if truth.onset_s > 0.6 * t[-1]:
            continue
        since = used[t >= truth.onset_s]
        quarter = since.size // 4
        assert since[-quarter:].min() - since[:quarter].min() > 0.01 * total


@pytest.mark.parametrize("family", BENIGN)
def test_harmless_growth_ends_inside_the_record(family: str) -> None:
    for seed in SEEDS:
        rig, run = blind.simulate(family, seed)
        assert run.onset_s is None
        assert run.settled_s is not None
        assert run.settled_s <= 0.8 * run.span_s
        assert run.span_s <= 24 * HOUR
        assert run.used.peak() <= 0.97 * rig.total
        after = run.kept.never_returned()
        assert after.at(np.array([run.settled_s]))[0] == pytest.approx(after.peak())
        inside = run.used.t < run.span_s
        held = after.at(run.used.t)[inside]
        assert np.all(held <= run.used.y[inside] + 2 * MIB)


@pytest.mark.parametrize("family", BENIGN)
@pytest.mark.usefixtures("alone")
def test_harmless_series_find_no_new_floor_at_the_end(family: str) -> None:
    for seed in SEEDS:
        item = blind.build(family, seed)
        assert item.truth.oom_s is None
        assert item.truth.rate_bytes_per_s is None
        used, total = item.series.used_bytes, item.series.total_bytes
        assert total is not None
        cut = int(0.8 * used.size)
        # The lowest of the last fifth was seen before: no floor rises to where nothing was.
        assert used[cut:].min() <= used[:cut].max() + 0.002 * total
        assert used.max() < 0.99 * total


@pytest.mark.parametrize("family", BENIGN)
def test_neighbours_leave_a_harmless_card_with_room(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blind, "NEIGHBOURS", 1.0)
    for seed in SEEDS:
        crowded = blind.build(family, seed)
        assert crowded.series.total_bytes is not None
        assert crowded.series.used_bytes.max() < crowded.series.total_bytes


def test_neighbours_change_some_items_and_what_they_take_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = LEAKS[0]
    ends = {}
    for share in (0.0, 1.0):
        monkeypatch.setattr(blind, "NEIGHBOURS", share)
        ends[share] = [blind.build(family, seed).truth.oom_s for seed in range(8)]
    assert ends[0.0] != ends[1.0]


def test_a_corpus_of_twelve_seeds_has_two_hundred_harmless_days() -> None:
    items = [blind.build(family, seed) for family in BENIGN for seed in range(2)]
    days = sum(item.length_s for item in items) / 86_400
    assert 12 / 2 * days >= 200
    waits = np.array([np.median(np.diff(item.series.t_s)) for item in items])
    assert np.mean(waits >= 4.5) > 0.8


def test_some_records_have_holes_of_minutes() -> None:
    items = [blind.build(family, 0) for family in BENIGN]
    holes = [int((np.diff(item.series.t_s) > 115.0).sum()) for item in items]
    assert 0 < sum(hole > 0 for hole in holes) < len(holes)


def test_lives_of_leaks_are_spread_from_minutes_to_days() -> None:
    hours = []
    for family in LEAKS:
        for seed in SEEDS:
            truth = blind.build(family, seed).truth
            assert truth.oom_s is not None
            assert truth.onset_s is not None
            hours.append((truth.oom_s - truth.onset_s) / 3600.0)
    low, middle, high = np.quantile(hours, [0.1, 0.5, 0.9])
    assert low < 1.5
    assert 2.0 < middle < 8.0
    assert high > 15.0


def test_an_item_is_made_in_less_than_a_tenth_of_a_second() -> None:
    took = []
    for family in sorted(blind.FAMILIES):
        begin = time.process_time()
        blind.build(family, 3)
        took.append(time.process_time() - begin)
    assert np.median(took) < 0.1


def test_jobs_give_everything_back() -> None:
    level = jobs(np.array([1.0, 2.0]), np.array([4.0, 1.0]), np.array([10.0, 5.0]))
    seen = level.at(np.array([0.0, 1.0, 2.5, 3.0, 4.9, 5.0, 9.0]))
    assert seen.tolist() == [0.0, 10.0, 15.0, 10.0, 10.0, 0.0, 0.0]


def test_step_functions_add_up() -> None:
    both = steps((1.0, 2.0), (3.0, 1.0)) + steps((2.0, 10.0))
    assert both.at(np.array([0.5, 1.0, 2.0, 3.0])).tolist() == [0.0, 2.0, 12.0, 11.0]
    assert both.first_over(11.5) == 2.0
    assert both.first_over(12.0) is None
    assert both.until(2.0).peak() == 2.0


def test_an_allocator_keeps_segments_until_the_cache_is_emptied() -> None:
    live = steps((0.0, 3.0), (1.0, 25.0), (2.0, 1.0), (6.0, 12.0))
    never = cached(live, 10.0)
    emptied = cached(live, 10.0, np.array([4.0]))
    when = np.array([0.0, 1.0, 3.0, 5.0, 7.0])
    assert never.at(when).tolist() == [10.0, 30.0, 30.0, 30.0, 30.0]
    assert emptied.at(when).tolist() == [10.0, 30.0, 30.0, 10.0, 20.0]


def test_an_arena_grows_by_regions_twice_the_last() -> None:
    arena = doubling(steps((0.0, 1.0), (1.0, 40.0), (2.0, 2.0)), 16.0)
    assert arena.at(np.array([0.0, 1.0, 2.0])).tolist() == [16.0, 48.0, 48.0]


def test_what_is_given_back_later_was_never_lost() -> None:
    level = changes(np.array([0.0, 1.0, 2.0]), np.array([5.0, 4.0, -3.0]))
    assert level.never_returned().y.tolist() == [5.0, 6.0, 6.0]


def test_a_harmless_run_says_when_it_settled() -> None:
    run = harmless(steps((0.0, 1.0), (5.0, 3.0)), steps((0.0, 1.0), (5.0, 3.0)), 10.0, "plateau")
    assert run.settled_s == 5.0
    flat = steps((2.0, 1.0))
    assert harmless(flat, flat, 10.0, "stable").settled_s == 2.0


def test_requests_follow_the_load() -> None:
    rig = Rig(rng=np.random.default_rng(1), total=8 * GIB)
    times = rig.arrivals(1.0, 0.0, 20_000.0, lambda t: np.where(t < 10_000.0, 1.0, 0.1))
    assert np.sum(times < 10_000.0) > 5 * np.sum(times >= 10_000.0)
    assert np.all(np.diff(times) >= 0)
