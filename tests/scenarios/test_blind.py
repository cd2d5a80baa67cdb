"""The blind corpus says of itself what the simulation did. No detector is run here."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from gpuwatchd.core.model import LEAK_PATTERNS, Pattern
from tests.conftest import present
from tests.scenarios import blind
from tests.scenarios.blind_rig import (
    GIB,
    HOUR,
    MIB,
)

SEEDS = range(4)
LEAKS = sorted(blind.LEAKS)
BENIGN = sorted(blind.BENIGN)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else on the card: the series is the program's alone."""
    monkeypatch.setattr(blind, "NEIGHBOURS", 0.0)


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
        t, used, total = item.series.t_s, item.series.used_bytes, present(item.series.total_bytes)
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
        oom = present(run.used.first_over(rig.total))
        # The record begins with the run or up to a twentieth later.
        late = oom - present(truth.oom_s)
        assert -1e-6 <= late <= 0.06 * oom + 60.0
        assert present(truth.onset_s) == pytest.approx(max((run.onset_s or 0.0) - late, 0.0))
        just_before, at = run.used.at(np.array([oom - 1e-6, oom]))
        assert just_before <= rig.total < at
        assert 600.0 <= oom - (run.onset_s or 0.0) <= 60 * HOUR


@pytest.mark.parametrize("family", LEAKS)
def test_what_leaks_is_lost_for_good_at_the_rate_that_is_said(family: str) -> None:
    for seed in SEEDS:
        rig, run = blind.simulate(family, seed)
        oom = present(run.used.first_over(rig.total))
        assert np.all(np.diff(run.kept.y) >= 0)
        before, lost = run.kept.at(np.array([present(run.onset_s) - 1e-3, oom]))
        assert before == 0
        assert lost >= 0.1 * rig.total
        assert blind.rate(run, oom) * (oom - present(run.onset_s)) == pytest.approx(lost)
        # Without what is lost the same program would have fitted for ever.
        without = run.used.at(run.used.t) - run.kept.at(run.used.t)
        assert without[run.used.t < oom].max() < rig.total


@pytest.mark.parametrize("family", BENIGN)
def test_harmless_growth_ends_inside_the_record(family: str) -> None:
    for seed in SEEDS:
        rig, run = blind.simulate(family, seed)
        assert run.onset_s is None
        assert present(run.settled_s) <= 0.8 * run.span_s
        assert run.span_s <= 24 * HOUR
        assert run.used.peak() <= 0.97 * rig.total
        after = run.kept.never_returned()
        assert after.at(np.array([present(run.settled_s)]))[0] == pytest.approx(after.peak())
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
        used, total = item.series.used_bytes, present(item.series.total_bytes)
        cut = int(0.8 * used.size)
        # The lowest of the last fifth was seen before: no floor rises to where nothing was.
        assert used[cut:].min() <= used[:cut].max() + 0.002 * total
        assert used.max() < 0.99 * total
