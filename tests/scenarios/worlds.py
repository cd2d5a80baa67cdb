"""Labelled series: families of leaks and of harmless behaviour, parameters drawn at random.

Deterministic: an item is a function of (family, seed). ``TUNING`` families were looked at while
thresholds were chosen; ``HELD_OUT`` families were not. The split is fixed here, by family.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios import benign, leaks
from tests.scenarios.replay import make
from tests.scenarios.world import GIB, HOUR, MIB, Truth, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.model import Series
    from tests.scenarios.world import Shape

CARDS_GIB = (8, 12, 16, 24, 40, 48, 80)
INTERVALS_S = (1.0, 2.0, 5.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, kw_only=True)
class Item:
    """One labelled series."""

    family: str
    seed: int
    series: Series
    truth: Truth

    @property
    def length_s(self) -> float:
        """Length of the series in seconds."""
        return float(self.series.t_s[-1] - self.series.t_s[0])


LEAKS: dict[str, Callable[[World], Shape]] = {
    f.__name__: f
    for f in (
        leaks.linear_fast,
        leaks.linear_slow,
        leaks.segments,
        leaks.staircase,
        leaks.bursts,
        leaks.cyclic_floor,
        leaks.residue,
        leaks.late_onset,
        leaks.warmup_then_leak,
        leaks.noisy,
        leaks.accelerating,
        leaks.rare_2mib,
        leaks.model_reload,
        leaks.leaker_neighbours,
        leaks.restarts,
    )
}
BENIGN: dict[str, Callable[[World], Shape]] = {
    f.__name__: f
    for f in (
        benign.flat,
        benign.exp_warmup,
        benign.log_warmup,
        benign.hyperbolic_warmup,
        benign.cache_linear_stop,
        benign.model_load,
        benign.high_water,
        benign.sawtooth_regular,
        benign.sawtooth_late_gc,
        benign.eval_spikes,
        benign.curriculum,
        benign.pipeline_phases,
        benign.serving_ar,
        benign.diurnal,
        benign.model_swap,
        benign.neighbours,
        benign.prealloc,
        benign.wander,
        benign.dev_day,
        benign.frag_saturate,
    )
}
FAMILIES = LEAKS | BENIGN
TUNING: frozenset[str] = frozenset({
    "linear_slow", "segments", "staircase", "cyclic_floor", "late_onset", "noisy", "restarts",
    "flat", "exp_warmup", "cache_linear_stop", "sawtooth_regular", "eval_spikes", "serving_ar",
    "dev_day", "neighbours", "high_water", "model_load",
})  # fmt: skip
HELD_OUT: frozenset[str] = frozenset(FAMILIES) - TUNING
TUNING_SEEDS = range(1000, 2000)
HELD_OUT_SEEDS = range(1000)


def build(family: str, seed: int, *, longest_h: float = 8.0) -> Item:
    """Return one item. Leaks end at the limit or after ``longest_h`` hours, whichever is first."""
    rng = np.random.default_rng([zlib.crc32(family.encode()), seed])
    total = float(rng.choice(CARDS_GIB)) * GIB
    interval = float(rng.choice(INTERVALS_S))
    length = longest_h * HOUR if family in LEAKS else rng.uniform(0.5, 1.0) * longest_h * HOUR
    t = np.arange(0.0, length, interval)
    t = t + rng.uniform(0.0, 0.05 * interval, t.size)
    noise = float(rng.choice([0.0, 2.0, 8.0, 30.0])) * MIB
    world = World(
        rng=rng, total=total, t=t, base=total * float(rng.uniform(0.1, 0.5)), noise=noise,
        interval=interval,
    )  # fmt: skip
    x, truth = FAMILIES[family](world)
    x = x + world.white()
    quantum = float(rng.choice([2.0, 2.0, 20.0])) * MIB
    x = np.maximum(np.round(x / quantum) * quantum, 0.0)
    full = np.flatnonzero(x >= total - quantum)
    end = int(full[0]) if full.size else t.size
    if truth.oom_s is not None and end < t.size:
        truth = Truth(
            leak=truth.leak, patterns=truth.patterns, onset_s=truth.onset_s,
            rate_bytes_per_s=truth.rate_bytes_per_s, oom_s=float(t[end]),
        )  # fmt: skip
    end = max(end, 40)
    series = make(t[:end] + 1.7e9, np.minimum(x[:end], total), total)
    return Item(family=family, seed=seed, series=series, truth=truth)
