"""Programs that run again and again, with 5-20 % jitter from run to run, and what may go wrong.

A program is a function of (kind, seed), a run of (program, number). ``TUNING`` kinds were looked
at while the constants of the personal stop prior were chosen; ``REPORT`` kinds were not.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.scenarios.replay import make
from tests.scenarios.world import GIB, HOUR, MIB, Dice

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import FloatArray, Series
    from tests.scenarios.world import Array

CARDS_GIB = (16, 24, 40, 80)
INTERVAL_S = 10.0
LONGEST_S = 6.0 * HOUR
START_S = 1.7e9


@dataclass(kw_only=True)
class Draw(Dice):
    """Random numbers of one program, or of one run with its jitter."""

    jitter: float = 0.0

    def j(self, value: float) -> float:
        """Return a value of the program with the jitter of the run."""
        return value * float(np.exp(self.rng.normal(0.0, self.jitter)))


@dataclass(frozen=True, kw_only=True)
class Leak:
    """A leak that is added to a run."""

    onset_s: float
    full_s: float
    """Seconds from the onset until the card is full, from the highest normal level."""
    segment_bytes: float


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run of a program."""

    series: Series
    busy: FloatArray
    """GPU utilisation in per cent for each sample."""
    onset_s: float | None = None
    oom_s: float | None = None
    """When the card is full, seconds after the start; may lie behind the last sample."""


def _fill(t: Array, begin: float, length: float) -> Array:
    out: Array = np.clip((t - begin) / length, 0.0, 1.0)
    return out


def straight_fill(p: Draw) -> Callable[[Array, Draw], Array]:
    """A cache that fills in a straight line for a long time, then is full."""
    rise, length, begin = p.u(0.15, 0.6), p.log(30, 150) * 60, p.u(0, 600)
    return lambda t, r: r.j(rise) * _fill(t, r.j(begin), r.j(length))


def exp_warmup(p: Draw) -> Callable[[Array, Draw], Array]:
    """An exponential warm-up."""
    rise, tau = p.u(0.1, 0.5), p.log(3, 40) * 60
    return lambda t, r: r.j(rise) * (1.0 - np.exp(-t / r.j(tau)))


def teeth_on_ramp(p: Draw) -> Callable[[Array, Draw], Array]:
    """Batches that rise and fall, on a pool that fills first."""
    rise, length = p.u(0.1, 0.3), p.log(20, 90) * 60
    swing, period = p.u(0.05, 0.3), p.log(3, 20) * 60

    def shape(t: Array, r: Draw) -> Array:
        return r.j(rise) * _fill(t, 0.0, r.j(length)) + r.j(swing) * ((t / r.j(period)) % 1.0)

    return shape


def staged_pools(p: Draw) -> Callable[[Array, Draw], Array]:
    """Pools that fill one after another, each in a straight line."""
    count = int(p.rng.integers(2, 5))
    begins = np.sort(p.rng.uniform(0.0, 3.0 * HOUR, count)).tolist()
    sizes = p.rng.uniform(0.06, 0.18, count).tolist()
    lengths = (p.rng.uniform(10, 30, count) * 60).tolist()

    def shape(t: Array, r: Draw) -> Array:
        out = np.zeros(t.size)
        for begin, size, length in zip(begins, sizes, lengths, strict=True):
            out = out + r.j(size) * _fill(t, r.j(begin), r.j(length))
        return out

    return shape


def evaluations(p: Draw) -> Callable[[Array, Draw], Array]:
    """Flat training with an evaluation that takes more and gives it back."""
    period, swing, part = p.u(10, 40) * 60, p.u(0.05, 0.4), p.u(0.1, 0.3)
    return lambda t, r: r.j(swing) * ((t % r.j(period)) > (1.0 - part) * period)


def wander(p: Draw) -> Callable[[Array, Draw], Array]:
    """A server whose load wanders around a level."""
    level, sd, tau = p.u(0.15, 0.4), p.u(0.02, 0.08), p.log(10, 60) * 60

    def shape(t: Array, r: Draw) -> Array:
        grid = np.arange(0.0, t[-1] + tau, tau / 8.0)
        rho = float(np.exp(-1.0 / 8.0))
        value, values = r.rng.normal(0.0, sd), []
        for shock in r.rng.normal(0.0, sd * np.sqrt(1.0 - rho * rho), grid.size).tolist():
            value = rho * value + shock
            values.append(value)
        out: Array = np.clip(r.j(level) + np.interp(t, grid, values), 0.0, 0.8)
        return out

    return shape


def two_slopes(p: Draw) -> Callable[[Array, Draw], Array]:
    """Two caches that fill at different speeds; the slow one for hours."""
    fast, slow = p.u(0.1, 0.3), p.u(0.1, 0.3)
    first, second = p.log(5, 30) * 60, p.log(40, 180) * 60
    return lambda t, r: (
        r.j(fast) * _fill(t, 60.0, r.j(first)) + r.j(slow) * _fill(t, 60.0, r.j(second))
    )


def log_warmup(p: Draw) -> Callable[[Array, Draw], Array]:
    """Growth like the logarithm of time: ever slower, never quite over."""
    rise, tau = p.u(0.1, 0.35), p.log(1, 15) * 60
    return lambda t, r: r.j(rise) * np.log1p(t / r.j(tau)) / np.log1p(LONGEST_S / tau)


def late_collector(p: Draw) -> Callable[[Array, Draw], Array]:
    """Garbage that is collected at irregular times, on a pool that fills in a straight line."""
    pool, length = p.u(0.05, 0.25), p.log(30, 120) * 60
    swing, mean = p.u(0.05, 0.2), p.log(3, 30) * 60

    def shape(t: Array, r: Draw) -> Array:
        count = int(t[-1] / mean * 3) + 20
        at = np.concatenate(([0.0], np.cumsum(r.rng.gamma(4.0, mean / 4.0, count))))
        since = t - at[np.searchsorted(at, t, side="right") - 1]
        teeth = np.minimum(since / mean, 2.5)
        out: Array = r.j(pool) * _fill(t, 0.0, r.j(length)) + r.j(swing) * teeth
        return out

    return shape


def requests_fill(p: Draw) -> Callable[[Array, Draw], Array]:
    """Blocks for requests that arrive at random, until the pool has all its blocks."""
    rise, length, blocks = p.u(0.2, 0.6), p.log(30, 180) * 60, int(p.log(60, 600))

    def shape(t: Array, r: Draw) -> Array:
        at = np.cumsum(r.rng.exponential(r.j(length) / blocks, blocks))
        return r.j(rise) * np.searchsorted(at, t) / blocks

    return shape


def curriculum(p: Draw) -> Callable[[Array, Draw], Array]:
    """Longer sequences from time to time: jumps at set ages."""
    count = int(p.rng.integers(3, 8))
    at = np.sort(p.rng.uniform(0.0, 4.0 * HOUR, count)).tolist()
    size = p.rng.uniform(0.02, 0.1, count).tolist()

    def shape(t: Array, r: Draw) -> Array:
        speed = r.j(1.0)
        out = np.zeros(t.size)
        for begin, step in zip(at, size, strict=True):
            out = out + r.j(step) * (t > speed * begin)
        return out

    return shape


def buckets(p: Draw) -> Callable[[Array, Draw], Array]:
    """A workspace for each length seen for the first time; common lengths come first."""
    count, rise = int(p.rng.integers(20, 80)), p.u(0.1, 0.5)
    seldom = p.log(60, 200) * 60

    def shape(t: Array, r: Draw) -> Array:
        mean = r.j(seldom) * np.linspace(0.02, 1.0, count)
        first = np.sort(r.rng.exponential(mean))
        return r.j(rise) * np.searchsorted(first, t) / count

    return shape


TUNING: dict[str, Callable[[Draw], Callable[[Array, Draw], Array]]] = {
    f.__name__: f
    for f in (straight_fill, exp_warmup, teeth_on_ramp, staged_pools, evaluations, wander)
}
REPORT: dict[str, Callable[[Draw], Callable[[Array, Draw], Array]]] = {
    f.__name__: f
    for f in (two_slopes, log_warmup, late_collector, requests_fill, curriculum, buckets)
}
KINDS = TUNING | REPORT


@dataclass(kw_only=True)
class Program:
    """One program: what its runs have in common."""

    kind: str
    seed: int

    def __post_init__(self) -> None:
        """Draw the parameters."""
        p = Draw(rng=np.random.default_rng([zlib.crc32(self.kind.encode()), self.seed]))
        self.total = float(p.rng.choice(CARDS_GIB)) * GIB
        self.base = self.total * p.u(0.05, 0.35)
        self.jitter = p.u(0.05, 0.2)
        self.noise = float(p.rng.choice([0.0, 2.0, 8.0])) * MIB
        self.shape = KINDS[self.kind](p)
        self.leak = Leak(
            onset_s=p.u(0.05, 0.5) * LONGEST_S,
            full_s=p.log(1.0, 12.0) * HOUR,
            segment_bytes=float(p.rng.choice([2.0, 20.0, 64.0])) * MIB,
        )

    def run(
        self,
        number: int,
        *,
        length_s: float = LONGEST_S,
        scale: float = 1.0,
        growth: float = 1.0,
        leak: Leak | None = None,
        idle_s: float = 0.0,
        jitter: float | None = None,
    ) -> Ran:
        """Return the run of a ``number``, the seed of its jitter; it ends when the card is full.

        ``scale`` is a factor on everything (a bigger batch, a bigger model), ``growth`` only on
        what it grows by; ``leak`` leaks on top. For ``idle_s`` at the end it stands still and does
        nothing, holding what it has. ``jitter`` is the standard deviation of the logarithm, instead
        of the program's own.
        """
        seed = [zlib.crc32(self.kind.encode()), self.seed, 1 + number]
        r = Draw(rng=np.random.default_rng(seed), jitter=jitter or self.jitter)
        t = np.arange(0.0, length_s, INTERVAL_S)
        work = np.minimum(t, length_s - idle_s)
        base = r.j(self.base) if jitter is None else self.base
        normal = np.interp(work, t, self.shape(t, r)) * scale * growth * (self.total - self.base)
        x = scale * base + np.minimum(normal, 0.93 * self.total - scale * base)
        onset = oom = None
        if leak is not None:
            rate = max(self.total - float(x.max()), 0.05 * self.total) / leak.full_s
            lost = rate * np.maximum(work - leak.onset_s, 0.0)
            x = x + np.floor(lost / leak.segment_bytes) * leak.segment_bytes
            onset, oom = leak.onset_s, leak.onset_s + leak.full_s
        x = x + r.rng.normal(0.0, self.noise + 1.0, t.size)
        x = np.maximum(np.round(x / (2.0 * MIB)) * 2.0 * MIB, 0.0)
        full = np.flatnonzero(x >= self.total)
        end = int(full[0]) if full.size else t.size
        if leak is not None and full.size:
            oom = float(t[end])
        busy = np.where(t < length_s - idle_s, r.rng.uniform(40.0, 95.0, t.size), 0.0)
        series = make(t[:end] + START_S, x[:end], self.total)
        return Ran(series=series, busy=busy[:end], onset_s=onset, oom_s=oom)


def programs(kinds: dict[str, Any], number: int) -> list[Program]:
    """Return so many programs, the kinds in turn."""
    names = list(kinds)
    return [Program(kind=names[k % len(names)], seed=k // len(names)) for k in range(number)]


def server(seed: int, *, leak: bool) -> Ran:
    """Return two days of a server whose load follows the hour, with a leak on the second day."""
    p = Draw(rng=np.random.default_rng([zlib.crc32(b"server"), seed]))
    total = float(p.rng.choice(CARDS_GIB)) * GIB
    t = np.arange(0.0, 48.0 * HOUR, 30.0)
    base, swing = total * p.u(0.1, 0.3), total * p.u(0.2, 0.5)
    begin, length, stay = p.u(4, 9) * HOUR, p.log(1.5, 5) * HOUR, p.u(2, 6) * HOUR
    x = np.full(t.size, base)
    for day in range(2):
        size, late = swing * float(np.exp(p.rng.normal(0.0, 0.08))), p.u(-0.3, 0.3) * HOUR
        up = day * 24.0 * HOUR + begin + late
        x = x + size * (_fill(t, up, length) - _fill(t, up + length + stay, length))
    onset = oom = None
    if leak:
        onset = 24.0 * HOUR + p.u(0.0, 8.0) * HOUR
        full = p.log(3.0, 12.0) * HOUR
        x = x + (total - float(x.max())) / full * np.maximum(t - onset, 0.0)
        oom = onset + full
    x = x + p.rng.normal(0.0, 0.002 * total, t.size)
    x = np.maximum(np.round(x / (2.0 * MIB)) * 2.0 * MIB, 0.0)
    hit = np.flatnonzero(x >= total)
    end = int(hit[0]) if hit.size else t.size
    if leak and hit.size:
        oom = float(t[end])
    busy = np.full(end, 60.0)
    return Ran(series=make(t[:end] + START_S, x[:end], total), busy=busy, onset_s=onset, oom_s=oom)
