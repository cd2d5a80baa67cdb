"""Leaks whose pace is drawn in many ways, for the calibration of the time left.

They are no test of detection: nothing here is harmless. Each family moves the rate, the size of the
parcels or what lies on top in another way, and each item is simulated until it runs full. Families
are functions of a :class:`Path`; an item is a function of (family, seed).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.replay import make
from tests.scenarios.world import GIB, HOUR, MIB, Array, Dice

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Series

LONGEST = 3.0
"""A leak that has not run full after so many times its nominal length is drawn anew."""
TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Leak:
    """One leak; times in seconds since the first sample."""

    family: str
    seed: int
    series: Series
    onset_s: float
    oom_s: float


@dataclass(kw_only=True)
class Path(Dice):
    """What a family draws from. ``t`` (n,) in seconds, amounts in shares of the room."""

    t: Array
    nominal_s: float
    """Time to out-of-memory at the nominal rate."""
    unit: float
    """Largest parcel that the allocator takes, as a share of the room."""
    onset_s: float = 0.0

    def whole(self, rate: Array | float) -> Array:
        """Integrate a rate, in multiples of the nominal one; growth arrives in random parcels."""
        step = float(self.t[1] - self.t[0])
        share = np.broadcast_to(np.maximum(rate, 0.0) * step / self.nominal_s, self.t.shape)
        if self.unit <= 0.0:
            return np.cumsum(share)
        return np.cumsum(self.rng.gamma(np.maximum(share / self.unit, 1e-9)) * self.unit)

    def wave(self, sd: float, tau_s: float) -> Array:
        """Autoregressive noise of the first order."""
        count = max(3, int(self.t[-1] / max(tau_s / 6, 10.0)) + 2)
        grid = np.linspace(0.0, self.t[-1], count)
        rho = float(np.exp(-(grid[1] - grid[0]) / tau_s))
        out = [self.rng.normal(0.0, sd)]
        for shock in self.rng.normal(0.0, sd * np.sqrt(1.0 - rho**2), count - 1):
            out.append(rho * out[-1] + shock)
        return np.interp(self.t, grid, out)


def steady(p: Path) -> Array:
    return p.whole(1.0)


def wander(p: Path) -> Array:
    return p.whole(np.exp(p.wave(p.u(0.15, 0.6), p.nominal_s * p.log(0.08, 1.0))))


def changes(p: Path) -> Array:
    number = int(p.rng.integers(1, 5))
    at = np.sort(p.rng.uniform(0.0, 1.2 * p.nominal_s, number))
    rates = np.exp(p.rng.normal(0.0, p.u(0.3, 0.8), number + 1))
    return p.whole(rates[np.searchsorted(at, p.t)])


def faster(p: Path) -> Array:
    power = p.u(1.2, 2.6)
    return p.whole(power * (p.t / p.nominal_s) ** (power - 1.0))


def doubling(p: Path) -> Array:
    fold = p.nominal_s / p.u(0.7, 3.0)
    return p.whole(np.exp(np.minimum(p.t / fold, 8.0)) * fold / p.nominal_s * 0.3)


def slower(p: Path) -> Array:
    power = p.u(0.5, 0.85)
    return p.whole(power * (np.maximum(p.t, 60.0) / p.nominal_s) ** (power - 1.0))


def daily(p: Path) -> Array:
    phase = p.u(0.0, 2.0 * np.pi)
    return p.whole(1.0 + p.u(0.3, 0.9) * np.cos(2.0 * np.pi * p.t / (24.0 * HOUR) + phase))


def shifts(p: Path) -> Array:
    """Work and pauses: nothing leaks while nothing is done."""
    mean_s, duty = p.log(600.0, 5400.0), p.u(0.35, 0.85)
    count = int(p.t[-1] / mean_s * 2) + 20
    length = p.rng.gamma(3.0, mean_s / 3.0, count) * np.where(np.arange(count) % 2, 1 - duty, duty)
    index = np.searchsorted(np.cumsum(length * 2.0), p.t)
    return p.whole(np.where(index % 2, 0.0, 1.0 / duty))


def parcels(p: Path) -> Array:
    """Few requests leak much, most of them little."""
    gap_s, spread = p.log(60.0, 1200.0), p.u(0.5, 1.4)
    count = int(p.t[-1] / gap_s * 1.5) + 40
    at = np.cumsum(p.rng.exponential(gap_s, count))
    size = np.exp(p.rng.normal(-0.5 * spread**2, spread, count)) * gap_s / p.nominal_s
    out: Array = np.concatenate(([0.0], np.cumsum(size)))[np.searchsorted(at, p.t)]
    return out


def stairs(p: Path) -> Array:
    period_s = p.log(180.0, min(2400.0, p.nominal_s / 8.0))
    count = int(p.t[-1] / period_s * 2) + 20
    at = np.cumsum(p.rng.gamma(p.log(6.0, 400.0), 1.0, count))
    at *= period_s * count / at[-1]
    size = period_s / p.nominal_s * np.exp(p.rng.normal(0.0, p.u(0.0, 0.4), count + 1))
    out: Array = np.concatenate(([0.0], np.cumsum(size[:count])))[np.searchsorted(at, p.t)]
    return out


def breathing(p: Path) -> Array:
    """Cycles of random height over a floor that creeps; the limit is met at a peak."""
    period_s, swing = p.log(90.0, min(1200.0, p.nominal_s / 8.0)), p.u(0.05, 0.35)
    phase = p.t / period_s
    height = swing * np.exp(p.rng.normal(0.0, p.u(0.02, 0.2), int(phase[-1]) + 2))
    keep = p.whole(np.exp(p.wave(p.u(0.0, 0.3), 0.3 * p.nominal_s)) * (1.0 - swing))
    cycle = np.floor(phase).astype(np.intp)
    shape = phase % 1.0 if p.rng.random() < 0.5 else (phase % 1.0 > p.u(0.3, 0.9)).astype(float)
    out: Array = keep[np.searchsorted(p.t, cycle * period_s)] + height[cycle] * shape
    return out


def pulses(p: Path) -> Array:
    """A leak under neighbours that come and go, seen on the device."""
    x = p.whole(p.u(0.6, 1.0))
    for _ in range(int(p.rng.integers(2, 14))):
        begin, length = p.u(0.0, p.t[-1]), p.log(240.0, 5400.0)
        x = x + p.u(0.01, 0.15) * ((p.t > begin) & (p.t < begin + length))
    return x


def crowd(p: Path) -> Array:
    """A leak under a load that wanders."""
    load: Array = np.maximum(0.1 + p.wave(p.u(0.01, 0.05), p.log(60.0, 1800.0)), 0.0)
    return p.whole(0.85) + load


def shaky(p: Path) -> Array:
    """White noise as large as minutes of growth."""
    p.onset_s = p.u(0.0, 0.3) * HOUR
    sd = min(p.log(30.0, 900.0) / p.nominal_s, 0.05)
    return p.whole((p.t > p.onset_s) * 1.0) + np.abs(p.rng.normal(0.0, sd, p.t.size))


def second(p: Path) -> Array:
    """A start-up that ends, some health, then the leak."""
    warm, tau = p.u(0.03, 0.25), p.log(60.0, 900.0)
    p.onset_s = p.u(0.3, 3.0) * HOUR
    late = p.whole((p.t > p.onset_s) * (1.0 - warm))
    out: Array = warm * (1.0 - np.exp(-p.t / tau)) + late
    return out


FAMILIES: dict[str, Callable[[Path], Array]] = {
    f.__name__: f
    for f in (
        steady, wander, changes, faster, doubling, slower, daily, shifts, parcels, stairs,
        breathing, pulses, crowd, shaky, second,
    )
}  # fmt: skip


def build(family: str, seed: int) -> Leak:
    """Return one leak, simulated until it runs full."""
    for attempt in range(TRIES):
        rng = np.random.default_rng([zlib.crc32(family.encode()), seed, attempt])
        total = float(rng.choice([8, 16, 24, 48, 80])) * GIB
        interval = float(rng.choice([2.0, 5.0, 10.0, 30.0]))
        nominal_s = float(np.exp(rng.uniform(np.log(0.5), np.log(20.0)))) * HOUR
        interval = max(interval, nominal_s / 20_000.0)
        t = np.arange(0.0, LONGEST * nominal_s + 3.0 * HOUR, interval)
        unit = float(rng.choice([0.0, 2.0, 20.0, 64.0])) * MIB
        base = total * float(rng.uniform(0.1, 0.7))
        path = Path(rng=rng, t=t, nominal_s=nominal_s, unit=unit / (total - base))
        x = base + FAMILIES[family](path) * (total - base)
        x = x + rng.normal(0.0, float(rng.choice([0.0, 0.0, 4.0, 16.0])) * MIB, t.size)
        full = np.flatnonzero(x >= total)
        if full.size and full[0] >= 60 and t[full[0]] - path.onset_s >= 900.0:
            end = int(full[0])
            x = np.round(x[:end] / (2.0 * MIB)) * 2.0 * MIB
            return Leak(
                family=family, seed=seed, series=make(t[:end] + 1.7e9, x, total),
                onset_s=path.onset_s, oom_s=float(t[end]),
            )  # fmt: skip
    raise AssertionError(f"{family} {seed} never runs full")
