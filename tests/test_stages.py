"""A curriculum that was climbed before: its stairs are expected, the stair beyond them is news."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from gpuwatchd.analysis import forecast, numerics
from gpuwatchd.analysis.forecast.stages import MOST_STAGES, curves, fitted_stages
from gpuwatchd.core.codes import FactName
from gpuwatchd.core.model.findings import Stage
from tests.making import present
from tests.scenarios.replay import Life, make, replay, series_at

if TYPE_CHECKING:
    from gpuwatchd.core.model import GrowthFact, Profile, Series

Array = npt.NDArray[np.float64]
GB, CARD, EVERY_S, SMALL = 1e9, 24e9, 1500.0, 0.5e9


def climb(
    stairs: int = 5,
    *,
    slower: float = 1.0,
    larger: float = 1.0,
    size: float = GB,
    seed: int = 0,
    spread: float = 0.03,
) -> Series:
    """Return 3.5 hours of a run that takes so many stairs, one each 25 minutes, then stands."""
    rng = np.random.default_rng(seed)
    t = np.arange(0.0, 12600.0 * slower, 10.0)
    used = np.full(t.size, 4.0 * GB)
    for number in range(1, stairs + 1):
        at_s = slower * EVERY_S * number * rng.normal(1.0, spread)
        used += size * rng.normal(1.0, spread) * (t >= at_s)
    return make(t + 1.7e9, np.round(larger * used / 2**21) * 2.0**21, CARD)


@functools.cache
def earlier(stairs: int = 5, spread: float = 0.03, size: float = GB) -> tuple[Profile, ...]:
    """Return three runs of it."""
    runs = [climb(stairs, seed=number, spread=spread, size=size) for number in (1, 2, 3)]
    return tuple(present(forecast.profile(run, ended_at_s=float(run.t_s[-1]))) for run in runs)


def lived(run: Series, *past: Profile) -> Life:
    return replay(msgspec.structs.replace(run, history=past))


def told(run: Series, until_s: float, *past: Profile) -> GrowthFact:
    """Return what earlier runs say of a run at an age."""
    part = series_at(run, int(until_s / 10.0))
    part = msgspec.structs.replace(part, history=past)
    prior = present(forecast.program_prior(part, numerics.prepare(part)))
    (fact,) = prior.facts
    return fact


def test_a_profile_keeps_the_stairs_and_the_ramps_of_a_run() -> None:
    (first, *_) = earlier(spread=0.0)
    assert [stage.age_s for stage in first.stages] == [1490, 2990, 4490, 5990, 7490]
    assert all(stage.rise_bytes == pytest.approx(GB, rel=0.01) for stage in first.stages)
    assert all(stage.rise_s == 10 for stage in first.stages)
    t = np.arange(0.0, 7200.0, 10.0)
    ramp = make(t, 4 * GB + 6 * GB * np.clip((t - 600.0) / 1800.0, 0.0, 1.0), CARD)
    (rise,) = present(forecast.profile(ramp, ended_at_s=0.0)).stages
    assert rise.age_s == pytest.approx(600, abs=20)
    assert rise.rise_s == pytest.approx(1800, abs=40)
    assert rise.rise_bytes == pytest.approx(6 * GB, rel=0.02)


@pytest.mark.parametrize("stairs", [0, 1, 16, 40])
def test_the_stages_of_any_run_are_few_and_in_order(stairs: int) -> None:
    age = np.arange(0.0, 20000.0, 10.0)
    level = 4 * GB + GB * np.floor(np.clip(age / 400.0, 0.0, stairs))
    found = fitted_stages(age, level, 4 * GB, 0.01 * CARD)
    assert len(found) <= min(stairs, MOST_STAGES)
    assert list(found) == sorted(found, key=lambda stage: stage.age_s)
    assert sum(stage.rise_bytes for stage in found) <= stairs * GB


@pytest.mark.parametrize(
    "run",
    [
        climb(),
        climb(seed=7),
        climb(slower=1.3, seed=8),
        climb(slower=0.8, seed=9),
        climb(larger=1.3),
    ],
    ids=["same", "again", "slower", "faster", "larger"],
)
def test_a_curriculum_that_was_climbed_before_is_silent(run: Series) -> None:
    life = lived(run, *earlier())
    assert (life.watch_s, life.alert_s) == (None, None)
    assert lived(run).watch_s is not None


def test_the_stair_beyond_the_known_ones_is_news_at_once() -> None:
    """With stairs so small that nobody would call them a leak yet."""
    run = climb(7, seed=7, size=SMALL)
    alone, known = lived(run), lived(run, *earlier(size=SMALL))
    stairs = run.t_s[np.flatnonzero(np.diff(run.used_bytes) > 0.5 * SMALL)] - run.t_s[0]
    alert_s = present(known.alert_s)
    assert stairs[5] < alert_s < stairs[6]
    assert alone.alert_s is None or alert_s < alone.alert_s


def test_runs_that_are_not_alike_are_no_curriculum() -> None:
    one, *others = earlier()
    same = [present(curves([one.stages] * n, [5 * GB] * n)).spread for n in (1, 2, 3, 5)]
    assert same[0] is None
    assert same[1:] == sorted(same[1:], key=lambda value: -present(value))
    ramp = (Stage(age_s=600.0, rise_s=1800.0, rise_bytes=5 * GB),)
    assert present(curves([one.stages, ramp], [5 * GB] * 2)).spread is None
    assert present(curves([ramp, ramp], [5 * GB] * 2)).spread is None
    wild = earlier(spread=0.3)
    assert present(curves([run.stages for run in wild], [5 * GB] * 3)).spread is None
    assert curves([(), ramp], [5 * GB, 9 * GB]) is None
    assert others


def test_what_leaked_has_no_curve_to_follow() -> None:
    run = climb(7, seed=7)
    alerted = tuple(msgspec.structs.replace(one, alerted=True) for one in earlier())
    assert told(run, 8000.0, *alerted).name is FactName.EARLIER_RUNS
    assert told(run, 8000.0, *earlier()).name is FactName.EARLIER_STAGES


def test_the_fact_says_where_it_ends_until_that_is_refuted() -> None:
    run = climb(7, seed=7)
    within, beyond = told(run, 5000.0, *earlier()), told(run, 11000.0, *earlier())
    assert within.source == "3 earlier runs"
    assert present(within.level_bytes) == pytest.approx(9 * GB, rel=0.05)
    assert within.weight == pytest.approx(0.75, abs=0.01)
    assert beyond.weight < 0.1
    assert told(run, 5000.0, *earlier()[:1]).weight == pytest.approx(0.5, abs=0.01)


def test_the_fact_of_a_larger_run_is_larger() -> None:
    grown = told(climb(size=1.3 * GB, seed=7), 6500.0, *earlier())
    assert grown.name is FactName.EARLIER_STAGES
    assert present(grown.level_bytes) == pytest.approx(10.5 * GB, rel=0.05)


def test_old_profiles_without_stages_say_what_they_said() -> None:
    bare = tuple(msgspec.structs.replace(one, stages=()) for one in earlier())
    fact = told(climb(seed=7), 5000.0, *bare)
    assert fact.name is FactName.EARLIER_RUNS
    assert present(fact.level_bytes) == pytest.approx(9 * GB, rel=0.05)
    run = climb(6, seed=7)
    assert lived(run, *bare).alert_s is None
    assert lived(run, *earlier()).alert_s is not None
