"""The corpus says of itself what was planted. No detector is run here."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import get_args

import numpy as np
import pytest

from gpuwatchd.core.model import LEAK_PATTERNS, Pattern
from tests.conftest import present
from tests.scenarios import corpus
from tests.scenarios.bench import sets
from tests.scenarios.blind_rig import HOUR, MIB
from tests.scenarios.corpus import __main__ as base
from tests.scenarios.corpus.build import RERUNS, used_of

SEEDS = range(2)
LEAKS, BENIGN = sorted(corpus.LEAKS), sorted(corpus.BENIGN)
item = cache(corpus.build)


@pytest.mark.parametrize("family", LEAKS + BENIGN)
def test_an_item_is_a_function_of_family_and_seed(family: str) -> None:
    one, again, other = item(family, 1), corpus.build(family, 1), item(family, 2)
    assert np.array_equal(one.series.t_s, again.series.t_s)
    assert np.array_equal(one.series.used_bytes, again.series.used_bytes)
    assert (one.truth, one.facts) == (again.truth, again.facts)
    assert [v.argv for v in one.views] == [v.argv for v in again.views]
    assert not np.array_equal(one.series.t_s, other.series.t_s)


@pytest.mark.parametrize("family", LEAKS + BENIGN)
def test_processes_and_what_the_driver_keeps_make_the_device(family: str) -> None:
    for seed in SEEDS:
        one = item(family, seed)
        t, used, total = one.series.t_s, one.series.used_bytes, present(one.series.total_bytes)
        assert np.all(np.diff(t) > 0)
        assert t.size >= 100
        assert one.length_s <= 24 * HOUR
        rest = used.copy()
        for view in one.views:
            at = np.searchsorted(t, view.t_s)
            assert np.array_equal(t[at], view.t_s)
            assert view.util_pct.size == view.power_w.size == view.t_s.size == view.limits.size
            rest[at] -= view.used_bytes
        assert rest.min() >= 0
        assert used.max() <= total
        assert rest.min() <= 0.05 * total  # the reserve, and what is beside each process
        assert 0 <= one.util_pct.min() <= one.util_pct.max() <= 100 < one.power_w.max() * 2
        assert tuple(one.processes.values()) == tuple(sorted(one.views, key=lambda v: v.begin_s))


@pytest.mark.parametrize("family", LEAKS)
def test_a_leak_ends_where_the_card_is_full_or_after_a_day(family: str) -> None:
    for seed in SEEDS:
        m, scene = corpus.simulate(family, seed)
        one = item(family, seed)
        truth = one.truth
        oom, onset = present(truth.oom_s), present(truth.onset_s)
        assert truth.leak
        assert truth.patterns <= LEAK_PATTERNS
        assert 0 <= onset < oom
        assert present(truth.rate_bytes_per_s) > 0
        assert oom >= one.length_s
        # Beyond a day, or with a gap of the sampling, the record ends before.
        assert one.length_s >= min(0.93 * oom, 22.5 * HOUR) - 60
        used = used_of(m, scene, 0.03 * m.total)
        without = used.at(used.t) - scene.lost.at(used.t)
        assert without[used.t < min(scene.span_s, 1.2 * oom)].max() < m.total
        leaking = [view for view in one.views if view.leaks]
        assert bool(leaking) != bool(scene.left.t.size)
        assert all(present(view.onset_s) <= view.t_s[-1] - view.t_s[0] for view in leaking)


@pytest.mark.parametrize("family", BENIGN)
def test_what_is_harmless_fits_and_finds_no_new_floor(family: str) -> None:
    for seed in SEEDS:
        one = item(family, seed)
        used, total = one.series.used_bytes, present(one.series.total_bytes)
        assert not one.truth.leak
        assert one.truth.oom_s is None
        assert one.truth.patterns <= set(get_args(Pattern)) - LEAK_PATTERNS
        assert not any(view.leaks for view in one.views)
        assert used.max() < 0.99 * total
        cut = int(0.8 * used.size)
        assert used[cut:].min() <= used[:cut].max() + 0.002 * total


@pytest.mark.parametrize("family", LEAKS + BENIGN)
def test_what_is_declared_stands_where_it_is_said_to(family: str) -> None:
    for seed in range(4):
        one = item(family, seed)
        where, text, size = (one.facts[key] for key in ("declared", "text", "declared_bytes"))
        argv = [" ".join(view.argv + view.parent_argv) for view in one.views]
        files = {path: body for view in one.views for path, body in view.files.items()}
        places = {"argv": argv, "trap": argv, "file": list(files.values())}
        if where == "none":
            assert not text
        else:
            assert any(str(text) in place for place in places[str(where)])
        assert all(any(path in words for words in argv) for path in files)
        bounds = [v.bounded_at_bytes for v in one.views if v.bounded_at_bytes is not None]
        if one.facts["role"] in {"bound", "too large"} and bounds:
            assert bounds == [size]
            assert (bounds[0] > present(one.series.total_bytes)) == one.truth.leak


def test_a_third_declares_nothing_and_some_declare_something_else() -> None:
    m, _ = corpus.simulate("index_filled", 0)
    where = Counter(m.tell("index", "nb", "1000", 1e9).where for _ in range(2000))
    assert 0.28 < where["none"] / 2000 < 0.38
    assert 0.1 < where["trap"] / 2000 < 0.2
    roles = Counter(item(family, seed).facts["role"] for family in LEAKS for seed in SEEDS)
    assert roles["decoy"] >= 10
    assert roles["bound"] == 0


@pytest.mark.parametrize("family", LEAKS + BENIGN)
def test_earlier_runs_are_like_this_one(family: str) -> None:
    for seed in SEEDS:
        one = item(family, seed)
        endings = one.facts["endings"]
        assert isinstance(endings, tuple)
        for view in one.views:
            assert len(view.earlier) in {0, len(endings)}
            for (t, used), how in zip(view.earlier, endings, strict=False):
                assert len(view.earlier) == RERUNS
                assert t.size == used.size >= 2
                assert np.all(np.diff(t) > 0)
                most = float(used.max()) / float(view.used_bytes.max())
                if how == "ended":
                    assert 0.5 < most < 1.5
                elif how == "ended sooner":
                    assert most < 1.5
                assert (how in {"out of memory", "stopped early"}) == one.truth.leak
                assert used.max() <= present(one.series.total_bytes) + 2 * MIB


def test_harmless_items_ramp_about_as_often_as_jobs_in_the_field() -> None:
    every = base.rates(BENIGN, SEEDS)
    usual = base.rates(sorted(set(BENIGN) - corpus.HARD), SEEDS)
    print(f"straight ramps a GPU-day: {every.ramps_per_day:.2f}, usual {usual.ramps_per_day:.2f}")
    assert 0.05 < every.ramps_per_day < 0.8
    assert usual.ramps_per_day < 0.15
    assert np.median(every.settle_s) < 60


def test_the_benchmark_can_take_it() -> None:
    tasks = sets.blind("tests.scenarios.corpus", 1, 1.0)
    assert {task.family for task in tasks} == set(LEAKS + BENIGN)
    assert len(LEAKS) >= 26
    assert len(BENIGN) >= 34
    assert set(BENIGN) >= corpus.HARD
