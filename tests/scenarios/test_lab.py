"""The laboratory itself: repeatable, lawful, and honest about what it plants."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpuwatchd.collect.simulate import SimulateSource
from gpuwatchd.core.config import Config
from gpuwatchd.core.model import ProcessKey, Subject
from tests.conftest import present, ran
from tests.pipelines import make_pipeline
from tests.scenarios import views, worlds
from tests.scenarios.bench.measure import by_process
from tests.scenarios.replay import make, replay
from tests.scenarios.replay_processes import replay_processes
from tests.scenarios.world import HOUR, MIB, Array, Truth

if TYPE_CHECKING:
    from tests.scenarios.views import Run
    from tests.scenarios.worlds import Item

SEEDS = (11, 12)
NEVER_FULL = {"restarts"}
"""Leaks that end for another reason before they reach the limit."""
BUSY_BEFORE = {"warmup_then_leak", "leak_beside_pool", "phase_then_leak"}
"""Leaks that begin on top of growth that ends."""
NO_LEAKING_PROCESS = {"orphans", "worker_pool"}
"""Leaks of the device: each process by itself is flat."""
LEVEL = {
    "flat", "exp_warmup", "hyperbolic_warmup", "cache_linear_stop", "model_load", "eval_spikes",
    "sawtooth_regular", "checkpoint_spikes", "prealloc", "frag_saturate", "sequence_curriculum",
    "compile_bursts", "lru_cache_churn", "replay_buffer", "unfreeze_steps",
    "jit_buckets", "largest_sample", "staged_warmup", "sigmoid_ramp",
}  # fmt: skip
"""Harmless families whose retained floor has settled by the end of the record."""


def digest(family: str, seed: int) -> str:
    item = worlds.build(family, seed)
    mixed = hashlib.sha256(repr((item.truth.onset_s, item.truth.oom_s)).encode())
    for series in (item.series, *(view.series for view in item.processes.values())):
        mixed.update(series.t_s.tobytes() + series.used_bytes.tobytes())
    return mixed.hexdigest()


def floor(x: Array) -> Array:
    """What was never given back: the minimum of the rest of the record."""
    return np.minimum.accumulate(x[::-1])[::-1]


def summed(run: Run) -> Array:
    """What all processes, the driver and nobody hold together."""
    total = np.full(run.t.size, run.overhead) + (0.0 if run.loose is None else run.loose)
    for part in run.parts:
        blocks = np.ceil(part.held / (2 * MIB)) * 2 * MIB
        total[part.first : part.first + part.held.size] += blocks
    return total


def test_every_family_is_in_exactly_one_split() -> None:
    assert not worlds.TUNING & worlds.VALIDATION
    assert set(worlds.FAMILIES) == worlds.TUNING | worlds.VALIDATION
    assert set(worlds.LEAKS).isdisjoint(worlds.BENIGN)
    for half in (worlds.TUNING, worlds.VALIDATION):
        assert len(half & set(worlds.LEAKS)) >= 14
        assert len(half & set(worlds.BENIGN)) >= 14


def test_the_same_seed_is_the_same_run_in_any_order() -> None:
    names = list(worlds.FAMILIES)[::7]
    there = {name: digest(name, 5) for name in names}
    back = {name: digest(name, 5) for name in reversed(names)}
    assert there == back
    assert digest(names[0], 5) != digest(names[0], 6)


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    code = (
        "from tests.scenarios.test_lab import digest\n"
        "print(digest('kv_cache', 3), digest('two_leaks', 4))"
    )
    told = ran(
        [sys.executable, "-c", code],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": "."},
    ).stdout.split()
    assert told == [digest("kv_cache", 3), digest("two_leaks", 4)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", sorted(worlds.LEAKS))
def test_a_leak_reaches_the_limit_when_it_says(family: str, seed: int) -> None:
    item = worlds.build(family, seed)
    truth, run = item.truth, item.run
    assert truth.leak
    assert truth.oom_s is not None
    assert truth.onset_s is not None
    assert truth.onset_s < truth.oom_s
    full = np.flatnonzero(summed(run) > run.total)
    if family in NEVER_FULL:
        assert not full.size
        return
    first = float(run.t[full[0]])
    assert truth.oom_s == first
    last = item.series.t_s[-1] - item.series.t_s[0]
    # The record ends with its length or with the card, whichever comes first.
    assert abs(last - min(first, 8 * HOUR)) <= 50.0
    if first <= last + 50.0:
        assert item.series.used_bytes.max() >= 0.8 * run.total
    assert item.series.used_bytes.max() <= run.total
    grown = run.device[full[0]] - run.device[np.searchsorted(run.t, truth.onset_s)]
    mean = grown / (truth.oom_s - truth.onset_s)
    assert 0.3 < mean / present(truth.rate_bytes_per_s) < 3.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", sorted(set(worlds.LEAKS) - NEVER_FULL))
def test_the_floor_of_a_leak_rises_after_its_onset_and_not_before(family: str, seed: int) -> None:
    item = worlds.build(family, seed)
    truth, run = item.truth, item.run
    assert truth.onset_s is not None
    begin, end = np.searchsorted(run.t, (truth.onset_s, present(truth.oom_s)))
    kept = floor(run.device[begin:end])
    edges = np.linspace(truth.onset_s, present(truth.oom_s), 5)
    at = np.minimum(np.searchsorted(run.t[begin:end], edges), kept.size - 1)
    rises = np.diff(kept[at])
    # Every quarter of the way the floor has risen; never by less than a tenth of its share.
    assert np.all(rises > 0.02 * rises.sum())
    early = run.device[run.t < truth.onset_s - 60.0]
    if truth.onset_s > HOUR and family not in BUSY_BEFORE:
        assert np.ptp(floor(early)) <= 0.06 * run.total


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", sorted(worlds.BENIGN))
def test_what_is_harmless_never_fills_the_card(family: str, seed: int) -> None:
    item = worlds.build(family, seed)
    assert not item.truth.leak
    assert item.truth.oom_s is None
    assert item.series.used_bytes.max() <= worlds.FULLEST * item.run.total
    assert not any(view.leaker or view.truth.leak for view in item.processes.values())
    kept = floor(item.series.used_bytes)
    if family in LEVEL:
        # A late fifth of the record adds next to nothing to what is retained.
        last = kept[int(0.85 * kept.size)] - kept[int(0.65 * kept.size)]
        assert last <= 0.1 * max(kept[-1] - kept[0], 0.0) + 0.03 * item.run.total


@pytest.mark.parametrize("family", sorted(worlds.FAMILIES))
def test_the_views_add_up_to_the_device(family: str) -> None:
    item = worlds.build(family, 13)
    run = item.run
    assert np.array_equal(item.series.used_bytes, np.minimum(summed(run), run.total)[run.kept])
    assert item.processes
    for name, view in item.processes.items():
        series = view.series
        assert series.subject.process is not None, name
        where = np.searchsorted(item.series.t_s, series.t_s)
        assert np.array_equal(item.series.t_s[where], series.t_s)
        assert np.all(series.used_bytes <= item.series.used_bytes[where])
        assert np.all(view.limits >= series.used_bytes)
        assert np.all(view.limits <= run.total)
        if item.truth.leak and view.leaker:
            assert view.truth.onset_s is not None
            assert view.truth.oom_s is not None
    leakers = [view for view in item.processes.values() if view.leaker and view.truth.leak]
    if item.truth.leak:
        assert bool(leakers) == (family not in NO_LEAKING_PROCESS)


def source_of(item: Item) -> SimulateSource:
    source = SimulateSource("lab", world=views.world(item), epoch_s=views.EPOCH_S)
    source.advance(0.0)
    return source


@pytest.mark.parametrize("family", ["late_onset", "job_array", "orphans", "restarts", "kv_cache"])
def test_the_simulated_source_shows_what_was_recorded(family: str) -> None:
    item = worlds.build(family, 4, longest_h=1.0)
    source = source_of(item)
    run = item.run
    changes = np.array([edge for part in run.parts for edge in (part.begin_s, part.end_s)])
    step = 2 * float(np.diff(run.t[:40]).max())
    compared = 0
    for at in np.linspace(60.0, item.length_s - 60.0, 80).tolist():
        if np.abs(changes - at).min() < step:
            continue
        compared += 1
        source.advance(at - source.elapsed_s)
        sample = source.read()
        index = int(np.searchsorted(run.t, np.floor(at), side="right")) - 1
        near = run.device[max(0, index - 1) : index + 2]
        used = present(sample.readings[0].used_bytes)
        assert near.min() - 2 * MIB <= used <= near.max() + 2 * MIB
        uses = present(sample.readings[0].uses)
        assert len(uses) == sum(part.begin_s < at < part.end_s for part in run.parts)
    assert compared > 20


@pytest.mark.parametrize(
    ("family", "seed"), [("linear_fast", 1), ("cyclic_floor", 3), ("leaker_neighbours", 2)]
)
def test_the_simulated_leaker_dies_when_the_laboratory_says(family: str, seed: int) -> None:
    item = worlds.build(family, seed)
    planted = [one for one in source_of(item).truth() if one.leak]
    assert len(planted) == 1
    told = planted[0]
    assert item.truth.oom_s == pytest.approx(present(told.oom_at_s) - views.EPOCH_S, abs=1.5)
    assert item.truth.onset_s == pytest.approx(present(told.onset_at_s) - views.EPOCH_S, abs=1e-3)
    assert told.rate_bytes_per_s == item.truth.rate_bytes_per_s
    assert told.pattern in item.truth.patterns


def test_harmless_items_plant_no_leak() -> None:
    source = source_of(worlds.build("rolling_update", 3, longest_h=1.0))
    assert source.truth()
    assert not [one for one in source.truth() if one.leak]


@pytest.mark.parametrize(("family", "seed"), [("late_onset", 3), ("segments", 3)])
def test_the_daemon_sees_in_the_simulated_world_what_the_replay_sees(
    family: str, seed: int
) -> None:
    item = worlds.build(family, seed)
    leaker = next(view for view in item.processes.values() if view.leaker)
    life = replay(leaker.series, stop_at_alert=True)
    source = source_of(item)
    pipeline = make_pipeline(config=Config(), sources=[source])
    first: dict[str, float] = {}
    interval = float(np.median(np.diff(item.series.t_s)))
    while "firing" not in first and source.elapsed_s < present(item.truth.oom_s):
        for change in pipeline.tick().changes:
            if change.subject.process is not None:
                first.setdefault(change.state, source.elapsed_s)
        source.advance(interval)
    pipeline.close()
    assert first["watch"] == pytest.approx(present(life.watch_s), abs=300.0)
    assert first["firing"] == pytest.approx(present(life.alert_s), abs=300.0)


def test_two_leaks_are_two_truths() -> None:
    item = worlds.build("two_leaks", 0)
    one, two = (view for view in item.processes.values() if view.leaker)
    both = present(one.truth.rate_bytes_per_s) + present(two.truth.rate_bytes_per_s)
    assert both == pytest.approx(item.truth.rate_bytes_per_s)
    assert two.begin_s > one.begin_s
    # The later one counts from its own first sample.
    assert one.truth.oom_s == item.truth.oom_s
    assert present(two.truth.oom_s) == pytest.approx(
        present(item.truth.oom_s) - two.begin_s, abs=31.0
    )
    slope = np.polyfit(one.series.t_s - one.series.t_s[0], one.series.used_bytes, 1)[0]
    assert slope == pytest.approx(present(one.truth.rate_bytes_per_s), rel=0.1)


def test_every_life_of_a_restarted_leaker_is_a_process() -> None:
    item = worlds.build("restarts", 2)
    lives = [view for view in item.processes.values() if view.leaker]
    assert len(lives) >= 3
    for life in lives:
        assert life.truth.leak
        assert life.truth.onset_s == 0.0
        assert life.truth.oom_s == pytest.approx(item.truth.oom_s, abs=31.0)
    assert [life.end_s is None for life in lives[:-1]] == [False] * (len(lives) - 1)


def test_what_was_known_of_a_process_holds_no_later_limit() -> None:
    item = worlds.build("leaker_neighbours", 2)
    leaker = next(view for view in item.processes.values() if view.leaker)
    count = leaker.series.t_s.size // 2
    known = leaker.at(count)
    assert known.t_s.size == count
    assert known.limit_bytes == leaker.limits[count - 1]
    assert known.age_s == pytest.approx(known.t_s[-1] - views.EPOCH_S - leaker.begin_s)
    assert present(known.subject.process).started_at_s == views.EPOCH_S + leaker.begin_s


def test_a_leak_that_nobody_owns_shows_on_the_device_only() -> None:
    item = worlds.build("orphans", 5)
    run = item.run
    assert np.all(np.diff(present(run.loose)) >= 0)
    for view in item.processes.values():
        assert not view.leaker
        assert np.ptp(view.series.used_bytes) <= 0.05 * run.total
    card = views.world(item).cards[0]
    at = item.length_s / 2
    index = int(np.searchsorted(run.t, at, side="right")) - 1
    assert card.loose.at(at) == present(run.loose)[index]


def handed_around() -> views.LabelledSeries:
    """Six processes hand a growing pool to one another; after 75 min one of them grows alone."""
    t = views.EPOCH_S + np.arange(0.0, 5 * HOUR, 30.0)
    minute = (t - views.EPOCH_S) / 60.0
    share = np.repeat(np.random.default_rng(3).dirichlet(np.full(6, 2.0), 50), 12, axis=0)
    grown = np.clip(minute - 20.0, 0.0, 55.0) * 300 * MIB
    held = (20 * 1024 * MIB + grown)[:, None] * share
    late = minute > 75.0
    held[late] = held[~late][-1]
    held[late, 0] += (minute[late] - 75.0) * 200 * MIB
    truth = Truth(leak=True, patterns=frozenset({"gradual"}), onset_s=1200.0)
    parts = {}
    for k, own in enumerate(held.T):
        key = ProcessKey(pid=k + 1, started_at_s=views.EPOCH_S)
        series = msgspec.structs.replace(
            make(t, own, 80e9), subject=Subject(device_uid="GPU-test", process=key)
        )
        parts[f"worker {k}"] = views.View(
            name=f"worker {k}", series=series, limits=own, leaker=False, begin_s=0.0, end_s=None,
            truth=replace(truth, leak=False),
        )  # fmt: skip
    return views.LabelledSeries(
        family="handed_around", seed=0, series=make(t, held.sum(axis=1), 80e9), truth=truth,
        processes=parts,
    )  # fmt: skip


def test_growth_of_a_device_counts_once_beside_its_processes() -> None:
    courses = replay_processes(handed_around())
    found = by_process(courses)
    assert present(found.alert_s) >= 1200.0
    assert found.false_alerts == 0, "the process goes on with the alert of the device"
    harmless = by_process([replace(one, truth=replace(one.truth, leak=False)) for one in courses])
    assert (harmless.alert_s, harmless.false_alerts) == (None, 1)


def test_what_a_crowd_of_workers_brings_is_growth_beside_processes() -> None:
    item = worlds.build("worker_pool", 1000)
    found = by_process(replay_processes(item))
    assert present(item.truth.onset_s) < present(found.alert_s) < present(item.truth.oom_s)
