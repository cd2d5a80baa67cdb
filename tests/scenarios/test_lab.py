"""The laboratory itself: repeatable, lawful, and honest about what it plants."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.conftest import present, ran
from tests.scenarios import worlds
from tests.scenarios.world import HOUR, MIB, Array

if TYPE_CHECKING:
    from tests.scenarios.views import Run

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
    assert worlds.HELD_OUT is worlds.VALIDATION
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
