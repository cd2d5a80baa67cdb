"""Labelled series from families on which nothing was tuned: for validation.

They were reported often enough to be known; :mod:`tests.scenarios.corpus` is what nobody who works
on detection has seen. Mechanisms come from what users of frameworks, servers and desktops have
described in public; the simulation is our own. Where a family is irregular by nature it admits four
or five names: figures about names should be read on items with at most three. Every item is a
function of (family, seed).
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios import blind_benign, blind_leaks, blind_servers
from tests.scenarios.blind_rig import CARDS_MIB, GIB, HOUR, MIB, Array, Rig, Run, Steps, jobs
from tests.scenarios.replay import make
from tests.scenarios.views import LabelledSeries
from tests.scenarios.world import Truth

if TYPE_CHECKING:
    from types import ModuleType

LONGEST_S = 24.0 * HOUR
NEIGHBOURS = 0.15
"""Share of items on a card that somebody else uses too."""

Family = Callable[[Rig], Run]


@dataclass(frozen=True, kw_only=True)
class Item(LabelledSeries):
    """One labelled run, and what is behind it."""

    run: Run
    begin_s: float
    """When it was looked at first, on the clock of the run."""


def _families(module: ModuleType) -> tuple[Family, ...]:
    """Return the families of a file in which all are of one kind: what returns a run."""
    own = (f for f in vars(module).values() if inspect.isfunction(f))
    return tuple(
        f for f in own if f.__module__ == module.__name__ and f.__annotations__["return"] == "Run"
    )


LEAKS: dict[str, Family] = {f.__name__: f for f in (*_families(blind_leaks), *blind_servers.LEAKS)}
BENIGN: dict[str, Family] = {
    f.__name__: f for f in (*_families(blind_benign), *blind_servers.BENIGN)
}
FAMILIES: dict[str, Family] = LEAKS | BENIGN


def simulate(family: str, seed: int) -> tuple[Rig, Run]:
    """Return the card and what happened on it, before anybody samples it."""
    rng = np.random.default_rng([zlib.crc32(b"blind/" + family.encode()), seed])
    total = float(rng.choice(CARDS_MIB)) * MIB
    rig = Rig(rng=rng, total=total, segment=float(rng.choice([2.0, 20.0])) * MIB)
    run = FAMILIES[family](rig)
    if run.onset_s is not None and rig.by_the_clock:
        run.patterns |= {"cyclic"}
    return rig, run


def build(family: str, seed: int) -> Item:
    """Return one item. A leak ends where an allocation does not fit any more, or after 24 h."""
    rig, run = simulate(family, seed)
    used = run.used + _neighbour(rig, run) if rig.chance(NEIGHBOURS) else run.used
    oom = used.first_over(rig.total) if run.onset_s is not None else None
    if run.onset_s is not None and oom is None:
        oom = _extrapolated(rig, run)
    end = min(run.span_s, LONGEST_S, np.inf if oom is None else oom)
    begin = rig.u(0.0, 0.05) * end if rig.chance(0.25) else 0.0
    t = _clock(rig, begin, end)
    seen = np.minimum(_seen(rig, used, t), rig.total)
    series = make(t - t[0] + 1.7e9, seen, rig.total)
    truth = Truth(leak=False, patterns=run.patterns)
    if run.onset_s is not None and oom is not None:
        first = float(t[0])
        truth = Truth(
            leak=True, patterns=run.patterns, onset_s=max(run.onset_s - first, 0.0),
            rate_bytes_per_s=rate(run, oom), oom_s=oom - first,
        )  # fmt: skip
    return Item(family=family, seed=seed, series=series, truth=truth, run=run, begin_s=float(t[0]))


def rate(run: Run, oom: float) -> float:
    """Mean bytes per second lost for good between the onset and the end."""
    onset = run.onset_s or 0.0
    at = run.kept.at(np.array([onset - 1e-3, oom]))
    return float(at[1] - at[0]) / (oom - onset)


def _extrapolated(rig: Rig, run: Run) -> float:
    """When the mean rate of the whole simulation would have filled the card."""
    left = rig.total - run.used.peak()
    return run.span_s + left / rate(run, run.span_s)


def _neighbour(rig: Rig, run: Run) -> Steps:
    """Somebody else's jobs: some of what the program leaves free, taken and given back."""
    end = min(run.span_s, 2.0 * LONGEST_S)
    before = run.used if run.onset_s is None else run.used.until(run.onset_s + 1.0)
    spare = max(rig.total - before.peak(), 0.0)
    count = rig.n(1, 8)
    starts = rig.rng.uniform(-0.2 * end, 0.9 * end, count)
    lasts = rig.ragged(0.3 * end / np.sqrt(count), 0.8, count)
    sizes = rig.rng.uniform(0.2, 1.0, count) * min(0.5 * spare, 0.1 * rig.total) / count
    return jobs(starts, lasts, sizes)


def _clock(rig: Rig, begin: float, end: float) -> Array:
    """When it was looked: late by a little, sometimes not at all, now and then not for minutes."""
    length_h = (end - begin) / HOUR
    choices = [10.0, 10.0, 15.0, 30.0, 5.0]
    if length_h < 10.0:
        choices = [5.0, 5.0, 10.0, 15.0, 2.0]
    if length_h < 3.0:
        choices = [1.0, 2.0, 5.0, 5.0, 10.0]
    if length_h < 0.6:
        choices = [1.0, 1.0, 2.0, 5.0]
    interval = float(rig.rng.choice(choices))
    t = np.arange(begin, end, interval)
    late = rig.rng.exponential(0.02 * interval, t.size)
    late = np.where(rig.rng.random(t.size) < 0.003, 0.6 * interval, late)
    t = t + np.minimum(late, 0.8 * interval)
    stay = rig.rng.random(t.size) >= rig.u(0.0, 0.02)
    for _ in range(int(rig.rng.poisson(length_h / 10.0))):
        at, missed = rig.u(begin, end), rig.u(2.0, 15.0) * 60.0
        stay &= (t < at) | (t > at + min(missed, 0.06 * (end - begin)))
    stay[:2] = True
    return t[stay & (t < end)]


def _seen(rig: Rig, used: Steps, t: Array) -> Array:
    """Bytes as the driver says them: with a desktop's few MiB on top on some cards."""
    x = used.at(t)
    if rig.chance(0.35):
        sd = rig.log(1.0, 0.004 * rig.total / MIB) * MIB
        drawn = np.repeat(rig.rng.normal(0.0, 1.0, t.size // 4 + 1), 4)[: t.size]
        x = x + np.abs(drawn) * min(sd, 0.25 * GIB)
    unit = float(rig.rng.choice([MIB, MIB, 64 * 1024.0]))
    return np.maximum(np.round(x / unit) * unit, 0.0)
