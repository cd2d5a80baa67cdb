"""What the blind corpus is made of: step functions, an allocator, arrivals, a card.

Nothing here is a curve. A family lists events (a request, a trial, a capture), what each takes and
gives back, and sends them through an allocator; the series is what a sampler would have seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.scenarios.world import GIB, HOUR, MIB, Array, Dice

Load = Callable[[Array], Array]
"""Share of the full rate, 0-1, at times in seconds."""

_BLOCK = 2.0**41
"""Above every card, so that blocks of a running maximum do not see each other."""


@dataclass(frozen=True)
class Steps:
    """Bytes over time: ``y[k]`` holds from ``t[k]`` (ascending seconds) on; zero before."""

    t: Array
    y: Array

    def at(self, when: Array) -> Array:
        """Level at each time."""
        index = np.searchsorted(self.t, when, side="right")
        return np.concatenate(([0.0], self.y))[index]

    def __add__(self, other: Steps) -> Steps:
        t = np.sort(np.concatenate((self.t, other.t)), kind="stable")
        return Steps(t, self.at(t) + other.at(t))

    def first_over(self, limit: float) -> float | None:
        """When the level first exceeds ``limit``."""
        over = self.y > limit
        return float(self.t[over.argmax()]) if over.any() else None

    def peak(self) -> float:
        """Highest level."""
        return float(self.y.max()) if self.y.size else 0.0

    def until(self, end: float) -> Steps:
        """The part before ``end``."""
        k = int(np.searchsorted(self.t, end))
        return Steps(self.t[:k], self.y[:k])

    def never_returned(self) -> Steps:
        """What the level never falls below again."""
        return Steps(self.t, np.minimum.accumulate(self.y[::-1])[::-1])


NOTHING = Steps(np.zeros(0), np.zeros(0))


def changes(t: Array, deltas: Array) -> Steps:
    """Sum of changes in any order."""
    order = np.argsort(t, kind="stable")
    return Steps(t[order], np.cumsum(deltas[order]))


def jobs(starts: Array, lasts: Array, sizes: Array) -> Steps:
    """Memory of jobs that take ``sizes`` for ``lasts`` seconds and give all of it back."""
    level = changes(np.concatenate((starts, starts + lasts)), np.concatenate((sizes, -sizes)))
    return Steps(level.t, np.maximum(level.y, 0.0))


def cached(live: Steps, segment: float, releases: Array | None = None) -> Steps:
    """What a caching allocator holds for ``live``: segments that only ``releases`` give back.

    The allocator asks the driver for whole segments (2 or 20 MiB in PyTorch), keeps what is freed
    and returns it when the program empties the cache.
    """
    times = np.zeros(0) if releases is None else np.sort(releases)
    t = np.sort(np.concatenate((live.t, times)), kind="stable")
    y = np.ceil(live.at(t) / segment) * segment
    block = np.searchsorted(times, t, side="right") * _BLOCK
    return Steps(t, np.maximum.accumulate(y + block) - block)


def doubling(live: Steps, first: float) -> Steps:
    """What an arena holds that grows by regions, each twice the last, and never shrinks (BFC)."""
    sizes = first * (2.0 ** np.arange(40) - 1.0)
    high = np.maximum.accumulate(live.y)
    return Steps(live.t, np.where(high > 0, sizes[np.searchsorted(sizes, high)], 0.0))


@dataclass(kw_only=True)
class Run:
    """What a family has simulated, before anybody samples it."""

    used: Steps
    kept: Steps
    """The part that nothing gives back: of a leak what is lost, of others what is retained."""
    patterns: frozenset[str]
    span_s: float
    """How far it was simulated."""
    onset_s: float | None = None
    """Of a leak: when the first byte is lost."""
    settled_s: float | None = None
    """Of others: nothing is retained that was not retained then."""


@dataclass(kw_only=True)
class Rig(Dice):
    """A card and the dice."""

    total: float
    segment: float = 2.0 * MIB
    by_the_clock: bool = False
    """Whether something regular goes on beside the family's own mechanism."""

    def n(self, low: int, high: int) -> int:
        """Whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        """Whether it happens."""
        return bool(self.rng.random() < share)

    def life(self, low_h: float = 0.25, high_h: float = 40.0) -> float:
        """Seconds that a leak is meant to need; the simulation decides."""
        return self.log(low_h, high_h) * HOUR

    def day(self) -> float:
        """Seconds that a harmless record lasts."""
        return self.u(4.0, 24.0) * HOUR

    def ragged(self, mean: float, spread: float, size: int) -> Array:
        """Lognormal sizes with the given mean."""
        return self.rng.lognormal(-0.5 * spread**2, spread, size) * mean

    def arrivals(self, rate: float, start: float, end: float, load: Load | None = None) -> Array:
        """Poisson arrivals per second, thinned by ``load``."""
        count = self.rng.poisson(max(rate * (end - start), 0.0))
        t = np.sort(self.rng.uniform(start, end, count))
        return t if load is None else t[self.rng.random(t.size) < load(t)]

    def boot(self, weights: float) -> tuple[Steps, float]:
        """A context, then weights read chunk by chunk; and when that is done."""
        idle, took = self.u(0.0, 90.0), self.log(4.0, 120.0)
        count = max(1, int(weights / self.log(20.0 * MIB, 600.0 * MIB)))
        times = idle + np.sort(self.rng.uniform(0.2 * took, took, count))
        sizes = np.full(count, weights / count)
        context = self.u(250.0, 550.0) * MIB
        first = np.array([idle])
        return (
            changes(np.concatenate((first, times)), np.concatenate(([context], sizes))),
            idle + took,
        )

    def loaded_day(self, low: float, high: float) -> tuple[float, Steps, float]:
        """How long a harmless record lasts, and a program whose weights are such a share."""
        span = self.day()
        return span, *self.boot(self.total * self.u(low, high))

    def first_asked(self, kinds: int, settle_s: float, start: float, end: float) -> Array:
        """When each of ``kinds`` request shapes is first asked for; those after ``end`` never are.

        Popularity falls as the rank does (Zipf), so the first waits are exponential with very
        different means: many early, stragglers late.
        """
        rank = self.rng.permutation(kinds) + 1.0
        waits = self.rng.exponential(settle_s * rank / kinds)
        times = np.sort(start + waits)
        return times[times < end]

    def warm_up(self, ready: float, life: float) -> Steps:
        """Workspaces that appear the first time that a shape comes, early in a leak's life."""
        count = self.n(6, 60)
        times = self.first_asked(count, life * self.u(0.02, 0.12), ready, ready + life)
        sizes = self.ragged(self.total * self.u(0.05, 0.2) / count, 0.8, times.size)
        return changes(times, np.ceil(sizes / self.segment) * self.segment)

    def setting(self, ready: float, life: float) -> Steps:
        """What else a leaking program does: a warm-up, visible come and go, or nothing."""
        kind = self.rng.random()
        if kind < 0.5:
            return self.warm_up(ready, life)
        if kind < 0.7:
            return self.traffic(ready, ready + 2.0 * life, self.total * self.u(0.03, 0.15))
        return NOTHING

    def traffic(self, start: float, end: float, high: float) -> Steps:
        """Come and go that gives everything back, up to about ``high``: random or by the clock."""
        if self.chance(0.5):
            self.by_the_clock = True
            period = self.log(max(40.0, (end - start) / 400), max(120.0, (end - start) / 15))
            starts = np.arange(start + self.u(0, period), end, period)
            starts = starts + self.rng.normal(0.0, 0.03 * period, starts.size)
            sizes = self.ragged(0.85 * high, 0.08, starts.size)
            return jobs(starts, period * self.rng.uniform(0.15, 0.5, starts.size), sizes)
        last = self.log(10.0, max(60.0, (end - start) / 60))
        busy = self.u(1.0, 5.0)
        starts = self.arrivals(min(busy / last, 20_000 / (end - start)), start, end)
        lasts = self.rng.exponential(last, starts.size)
        return jobs(starts, lasts, self.ragged(high / (2.5 * busy + 2), 0.4, starts.size))

    def room(self, under: Steps) -> float:
        """Bytes between the highest level and the end of the card."""
        return self.total - under.peak()


def daily(rig: Rig, peak_s: float, low: float) -> Load:
    """Load of people: highest at ``peak_s`` and every 24 h from it, ``low`` at night."""
    sharp = rig.u(0.8, 2.5)

    def load(t: Array) -> Array:
        wave = (0.5 + 0.5 * np.cos(2 * np.pi * (t - peak_s) / (24 * HOUR))) ** sharp
        swell: Array = low + (1.0 - low) * wave
        return swell

    return load


def whole(values: Array, unit: float) -> Array:
    """Rounded up to whole units, as a driver or an allocator does."""
    whole: Array = np.ceil(values / unit) * unit
    return whole


def leaking(
    under: Steps, lost: Steps, onset: float, span: float, *patterns: str, shown: Steps | None = None
) -> Run:
    """A leak: ``lost`` on top of ``under``; ``shown`` where an allocator changes the sum."""
    return Run(
        used=under + lost if shown is None else shown,
        kept=lost.never_returned(), patterns=frozenset(patterns), span_s=span, onset_s=onset,
    )  # fmt: skip


def harmless(used: Steps, kept: Steps, span: float, *patterns: str) -> Run:
    """No leak: ``kept`` stops growing, and the run says when."""
    after = kept.never_returned()
    grown = np.flatnonzero(np.diff(after.y) > 0)
    settled = float(after.t[grown[-1] + 1]) if grown.size else float(after.t[0])
    return Run(
        used=used.until(span), kept=kept, patterns=frozenset(patterns), span_s=span,
        settled_s=settled,
    )  # fmt: skip


CARDS_MIB = (8192, 10240, 11264, 12288, 16384, 24564, 32607, 40960, 46068, 49140, 81559)
"""Memory of common cards as the driver says it, in MiB, between 8 and 80 GB."""

__all__ = [
    "CARDS_MIB", "GIB", "HOUR", "MIB", "NOTHING", "Array", "Load", "Rig", "Run", "Steps",
    "cached", "changes", "daily", "doubling", "harmless", "jobs", "leaking", "whole",
]  # fmt: skip
