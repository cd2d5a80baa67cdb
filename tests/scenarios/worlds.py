"""Labelled runs: families of leaks and of harmless behaviour, parameters drawn at random.

Deterministic: an item is a function of (family, seed). ``TUNING`` families were looked at while
thresholds were chosen; ``VALIDATION`` families were not. The split is fixed here, by family.
"""

from __future__ import annotations

import inspect
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios import benign, leaks
from tests.scenarios.lab_memory import draw, guest, in_segments, seen
from tests.scenarios.replay import make
from tests.scenarios.views import EPOCH_S, LabelledSeries, Run, views_of
from tests.scenarios.world import HOUR, MIB, Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tests.scenarios.world import Array, Shape, World

    Family = Callable[[World], Shape]


@dataclass(frozen=True, kw_only=True)
class Item(LabelledSeries):
    """One labelled run, as the device and as each process shows it."""

    run: Run
    """What is behind both, on to the moment of out-of-memory."""


def _families(module: ModuleType) -> dict[str, Family]:
    """Return the families of a file, in the order of its lines."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    }


LEAKS: dict[str, Family] = _families(leaks)
BENIGN: dict[str, Family] = _families(benign)
FAMILIES = LEAKS | BENIGN
TUNING: frozenset[str] = frozenset({
    "linear_slow", "segments", "staircase", "cyclic_floor", "late_onset", "noisy", "restarts",
    "outside_allocator", "request_leak", "orphans", "gc_falls_behind", "leak_beside_pool",
    "work_bound", "notebook_cells", "adapter_swaps", "rate_changes",
    "phase_then_leak",
    "flat", "exp_warmup", "cache_linear_stop", "sawtooth_regular", "eval_spikes", "serving_ar",
    "dev_day", "neighbours", "high_water", "model_load",
    "sawtooth_jittered", "checkpoint_spikes", "kv_cache", "jit_buckets", "replay_buffer",
    "unfreeze_steps", "idle_unload", "job_array", "bfc_doubling", "sigmoid_ramp",
    "growing_peaks", "long_fill",
})  # fmt: skip
VALIDATION: frozenset[str] = frozenset(FAMILIES) - TUNING
TUNING_SEEDS = range(1000, 2000)
HELD_OUT_SEEDS = range(1000)
FULLEST = 0.985
"""Harmless items never pass this share of the card."""


def build(family: str, seed: int, *, longest_h: float = 8.0) -> Item:
    """Return one item. Leaks end at the limit or after ``longest_h`` hours, whichever is first."""
    rng = np.random.default_rng([zlib.crc32(family.encode()), seed])
    leaking = family in LEAKS
    length = longest_h * HOUR if leaking else float(rng.uniform(0.5, 1.0)) * longest_h * HOUR
    w = draw(rng, length, tail=leaking)
    x, truth = FAMILIES[family](w)
    first = in_segments(x, w.white() * (x > 0), w.quantum)
    device = w.overhead + first + (0.0 if w.loose is None else _blocks(w.loose))
    parts = _fill(device, w)
    if rng.random() < 0.1:
        # A card that is about to be full has no room for guests.
        w.parts = []
        guest(w, 0.2 * (w.total - float(device[0] if leaking else device.max())))
        parts += _fill(device, w)
    record = int(np.searchsorted(w.t, length))
    full = np.flatnonzero(device > w.total)
    if leaking and full.size:
        truth = replace(truth, oom_s=float(w.t[full[0]]))
    end = max(min(int(full[0]) if full.size else record, record), 40)
    device = np.minimum(device, w.total if leaking else FULLEST * w.total)
    keep = np.flatnonzero(seen(rng, w.t[:end], w.interval))
    run = Run(
        t=w.t, device=device, total=w.total, parts=(*_main(w, x, first, leaking), *parts),
        loose=None if w.loose is None else _blocks(w.loose), overhead=w.overhead,
        kept=keep, truth=truth,
    )  # fmt: skip
    series = make(w.t[keep] + EPOCH_S, device[keep], w.total)
    return Item(
        family=family, seed=seed, series=series, truth=truth, processes=views_of(run), run=run
    )


def _blocks(held: Array) -> Array:
    blocks: Array = np.ceil(held / (2 * MIB)) * 2 * MIB
    return blocks


def _fill(device: Array, w: World) -> list[Part]:
    """Add the processes to what the device holds; return those that found room."""
    there = []
    for part in sorted(w.parts, key=lambda part: (part.visitor, part.begin_s)):
        span = slice(part.first, part.first + part.held.size)
        held = _blocks(part.held)
        if part.visitor and device[part.first] + held[0] > w.total:
            continue
        device[span] += held
        there.append(part)
    return there


def _main(w: World, x: Array, first: Array, leaking: bool) -> tuple[Part, ...]:
    """Return the first process as a part; none where the family has added all by itself."""
    if not x.any():
        return ()
    return (
        Part(
            name=w.name, first=0, held=first, begin_s=-600.0, end_s=np.inf,
            leaker=leaking and w.leaker, onset_s=0.0, framework=w.framework, need=x,
        ),
    )  # fmt: skip
