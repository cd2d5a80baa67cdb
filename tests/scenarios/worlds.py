"""Labelled series: families of leaks and of harmless behaviour, parameters drawn at random.

Deterministic: an item is a function of (family, seed). ``TUNING`` families were looked at while
thresholds were chosen; ``HELD_OUT`` families were not. The split is fixed here, by family.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tests.scenarios.replay import make

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.model import Series

Array = npt.NDArray[np.floating[Any]]
Rng = np.random.Generator
MIB, GIB, HOUR = 2.0**20, 2.0**30, 3600.0
CARDS_GIB = (8, 12, 16, 24, 40, 48, 80)
INTERVALS_S = (1.0, 2.0, 5.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is planted. Times in seconds since the first sample."""

    leak: bool
    patterns: frozenset[str]
    """Names that are right."""
    onset_s: float | None = None
    rate_bytes_per_s: float | None = None
    oom_s: float | None = None
    """When the series reaches the limit, extrapolated where it is cut before."""


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


@dataclass(kw_only=True)
class World:
    """What a family draws from: a card, a clock, a base level and a noise."""

    rng: Rng
    total: float
    t: Array
    base: float
    noise: float
    interval: float

    def room(self) -> float:
        """Bytes above the base."""
        return self.total - self.base

    def u(self, low: float, high: float) -> float:
        """Uniform draw."""
        return float(self.rng.uniform(low, high))

    def log(self, low: float, high: float) -> float:
        """Log-uniform draw."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def white(self, sd: float | None = None) -> Array:
        """White noise."""
        return self.rng.normal(0.0, self.noise if sd is None else sd, self.t.size)

    def ar(self, sd: float, tau_s: float) -> Array:
        """First-order autoregressive noise with standard deviation ``sd``."""
        steps = max(2, int(self.t[-1] / max(tau_s / 8, self.interval)) + 2)
        grid = np.linspace(0.0, self.t[-1], steps)
        rho = np.exp(-(grid[1] - grid[0]) / tau_s)
        shock = self.rng.normal(0.0, sd * np.sqrt(1 - rho**2), steps)
        shock[0] = self.rng.normal(0.0, sd)
        out = np.empty(steps)
        value = 0.0
        for k, s in enumerate(shock.tolist()):
            value = rho * value + s
            out[k] = value
        return np.interp(self.t, grid, out)


Shape = tuple[Array, Truth]


def _leak(onset: float, rate: float, oom: float, *patterns: str) -> Truth:
    return Truth(
        leak=True, patterns=frozenset(patterns), onset_s=onset, rate_bytes_per_s=rate, oom_s=oom
    )


def _fine(*patterns: str) -> Truth:
    return Truth(leak=False, patterns=frozenset(patterns))


# --- leaks ---------------------------------------------------------------------------------------


def linear_fast(w: World) -> Shape:
    oom = w.u(20, 60) * 60
    onset = w.u(0.0, 0.5) * HOUR
    rate = w.room() / oom
    return w.base + rate * np.maximum(w.t - onset, 0), _leak(onset, rate, onset + oom, "gradual")


def linear_slow(w: World) -> Shape:
    oom = w.log(2, 60) * HOUR
    rate = w.room() / oom
    return w.base + rate * w.t, _leak(0.0, rate, oom, "gradual")


def segments(w: World) -> Shape:
    oom = w.log(1, 20) * HOUR
    rate = w.room() / oom
    size = float(w.rng.choice([20, 32, 64])) * MIB
    x = np.floor((rate * w.t + w.u(0, 1) * size) / size) * size
    return w.base + x, _leak(0.0, rate, oom, "gradual", "step")


def staircase(w: World) -> Shape:
    period = w.u(4, 20) * 60
    riser = w.room() * w.u(0.01, 0.05)
    rate = riser / period
    x = np.floor((w.t + w.u(0, period)) / period) * riser
    return w.base + x, _leak(0.0, rate, w.room() / rate, "step")


def bursts(w: World) -> Shape:
    oom = w.log(2, 16) * HOUR
    rate = w.room() / oom
    mean_gap = w.u(1, 8) * 60
    count = int(w.t[-1] / mean_gap) + 40
    at = np.cumsum(w.rng.exponential(mean_gap, count))
    size = w.rng.exponential(rate * mean_gap, count)
    x = np.concatenate(([0.0], np.cumsum(size)))[np.searchsorted(at, w.t, side="right")]
    return w.base + x, _leak(0.0, rate, oom, "gradual", "step")


def cyclic_floor(w: World) -> Shape:
    period = w.u(2, 15) * 60
    oom = w.log(1.5, 12) * HOUR
    swing = w.room() * w.u(0.05, 0.3)
    rate = (w.room() - swing) / oom
    phase = (w.t / period) % 1.0
    x = rate * np.floor(w.t / period) * period + swing * phase
    return w.base + x, _leak(0.0, rate, oom, "cyclic")


def residue(w: World) -> Shape:
    period = w.u(5, 20) * 60
    oom = w.log(2, 12) * HOUR
    swing = w.room() * w.u(0.05, 0.25)
    rate = (w.room() - swing) / oom
    busy = (w.t % period) > 0.8 * period
    x = rate * period * np.floor(w.t / period) + swing * busy
    return w.base + x, _leak(0.0, rate, oom, "cyclic", "step")


def late_onset(w: World) -> Shape:
    onset = w.u(1, 4) * HOUR
    oom = w.log(0.7, 6) * HOUR
    rate = w.room() / oom
    x = rate * np.maximum(w.t - onset, 0.0)
    return w.base + x, _leak(onset, rate, onset + oom, "gradual")


def warmup_then_leak(w: World) -> Shape:
    warm = w.room() * w.u(0.05, 0.3)
    tau = w.u(2, 15) * 60
    onset = w.u(0.2, 1.0) * HOUR
    oom = w.log(1.5, 12) * HOUR
    rate = (w.room() - warm) / oom
    x = warm * (1 - np.exp(-w.t / tau)) + rate * np.maximum(w.t - onset, 0.0)
    return w.base + x, _leak(onset, rate, onset + oom, "gradual")


def noisy(w: World) -> Shape:
    oom = w.log(2, 16) * HOUR
    rate = w.room() / oom
    sd = w.u(0.5, 2.0) * rate * 600
    w.noise = min(sd, 0.04 * w.total)
    return w.base + rate * w.t, _leak(0.0, rate, oom, "gradual")


def accelerating(w: World) -> Shape:
    oom = w.log(1.5, 10) * HOUR
    power = w.u(1.3, 2.2)
    x = w.room() * (w.t / oom) ** power
    return w.base + x, _leak(0.0, w.room() / oom, oom, "gradual")


def rare_2mib(w: World) -> Shape:
    rate = 2 * MIB / w.u(20, 120)
    left = rate * w.log(2, 12) * HOUR
    w.base = w.total - left
    x = np.floor((rate * w.t + w.u(0, 2 * MIB)) / (2 * MIB)) * 2 * MIB
    w.noise = 0.0
    return w.base + x, _leak(0.0, rate, left / rate, "gradual")


def model_reload(w: World) -> Shape:
    period = w.u(4, 15) * 60
    model = w.room() * w.u(0.2, 0.5)
    keep = w.u(100, 400) * MIB
    rate = keep / period
    part = (w.t % period) / period
    x = keep * np.floor(w.t / period) + model * ((part > 0.1) & (part < 0.85))
    return w.base + x, _leak(0.0, rate, (w.room() - model) / rate, "cyclic", "step")


def leaker_neighbours(w: World) -> Shape:
    oom = w.log(2, 10) * HOUR
    rate = 0.7 * w.room() / oom
    x = rate * w.t
    for _ in range(int(w.rng.integers(2, 8))):
        begin, length = w.u(0, w.t[-1]), w.u(5, 60) * 60
        x = x + w.u(0.02, 0.2) * w.room() * ((w.t > begin) & (w.t < begin + length))
    return w.base + x, _leak(0.0, rate, w.room() / rate, "gradual", "cyclic", "step")


def restarts(w: World) -> Shape:
    life = w.u(1.0, 2.5) * HOUR
    rate = w.room() * w.u(0.6, 0.95) / life
    x = rate * (w.t % life)
    return w.base + x, _leak(0.0, rate, w.room() / rate, "gradual", "cyclic")


# --- harmless ------------------------------------------------------------------------------------


def flat(w: World) -> Shape:
    return np.full(w.t.size, w.base), _fine("stable")


def exp_warmup(w: World) -> Shape:
    rise, tau = w.room() * w.u(0.05, 0.6), w.log(1, 40) * 60
    return w.base + rise * (1 - np.exp(-w.t / tau)), _fine("plateau", "stable", "spike")


def log_warmup(w: World) -> Shape:
    rise, tau = w.room() * w.u(0.05, 0.35), w.log(0.5, 20) * 60
    x = rise * np.log1p(w.t / tau) / np.log1p(w.t[-1] / tau)
    return w.base + x, _fine("plateau", "stable", "spike", "unknown")


def hyperbolic_warmup(w: World) -> Shape:
    rise, tau = w.room() * w.u(0.1, 0.6), w.log(1, 30) * 60
    return w.base + rise * w.t / (w.t + tau), _fine("plateau", "stable", "spike", "unknown")


def cache_linear_stop(w: World) -> Shape:
    rise, length = w.room() * w.u(0.05, 0.5), w.log(3, 60) * 60
    begin = w.u(0, 0.5) * HOUR
    x = rise * np.clip((w.t - begin) / length, 0.0, 1.0)
    return w.base + x, _fine("plateau", "stable", "spike")


def model_load(w: World) -> Shape:
    rise, length = w.room() * w.u(0.3, 0.9), w.log(5, 600)
    x = rise * np.clip((w.t - w.u(0, 600)) / length, 0.0, 1.0)
    return w.base + x, _fine("plateau", "stable", "spike", "preallocated")


def high_water(w: World) -> Shape:
    load = np.exp(w.rng.normal(0.0, w.u(0.2, 0.5), w.t.size // 8 + 1))
    top = np.maximum.accumulate(np.repeat(load, 8)[: w.t.size])
    top = np.round(top * w.room() * 0.08 / (20 * MIB)) * 20 * MIB
    return w.base + top, _fine("plateau", "stable", "spike", "unknown")


def sawtooth_regular(w: World) -> Shape:
    period, swing = w.log(0.5, 30) * 60, w.room() * w.u(0.05, 0.7)
    x = swing * ((w.t / period) % 1.0)
    return w.base + x, _fine("sawtooth", "stable")


def sawtooth_late_gc(w: World) -> Shape:
    mean = w.log(3, 40) * 60
    count = int(w.t[-1] / mean * 3) + 20
    at = np.concatenate(([0.0], np.cumsum(w.rng.gamma(4.0, mean / 4.0, count))))
    index = np.searchsorted(at, w.t, side="right") - 1
    x = w.room() * w.u(0.1, 0.3) / mean * (w.t - at[index])
    return w.base + np.minimum(x, 0.9 * w.room()), _fine("sawtooth", "stable", "spike")


def eval_spikes(w: World) -> Shape:
    period, swing = w.u(5, 40) * 60, w.room() * w.u(0.05, 0.4)
    x = swing * ((w.t % period) > 0.85 * period)
    return w.base + x, _fine("sawtooth", "spike", "stable")


def curriculum(w: World) -> Shape:
    stages = int(w.rng.integers(2, 6))
    at = np.sort(w.rng.uniform(0.0, w.t[-1], stages))
    size = w.room() * w.rng.uniform(0.02, 0.15, stages)
    x = np.concatenate(([0.0], np.cumsum(size)))[np.searchsorted(at, w.t, side="right")]
    return w.base + np.minimum(x, 0.9 * w.room()), _fine("spike", "plateau", "stable", "unknown")


def pipeline_phases(w: World) -> Shape:
    count = int(w.rng.integers(3, 9))
    at = np.sort(w.rng.uniform(0.0, w.t[-1], count))
    level = w.room() * w.rng.uniform(0.0, 0.7, count + 1)
    x = level[np.searchsorted(at, w.t, side="right")]
    return w.base + x, _fine("spike", "plateau", "stable", "unknown", "sawtooth")


def serving_ar(w: World) -> Shape:
    x = w.ar(w.room() * w.u(0.02, 0.1), w.log(2, 40) * 60)
    return w.base + np.clip(0.4 * w.room() + x, 0, None), _fine("stable", "sawtooth", "plateau")


def diurnal(w: World) -> Shape:
    wave = 0.5 * (1 - np.cos(2 * np.pi * (w.t / (24 * HOUR) + w.u(0, 1))))
    x = w.room() * w.u(0.05, 0.25) * wave + w.ar(w.room() * 0.01, 300.0)
    return w.base + np.clip(x, 0, None), _fine("stable", "sawtooth", "plateau", "unknown")


def model_swap(w: World) -> Shape:
    sizes = w.room() * w.rng.uniform(0.1, 0.85, 4)
    count = int(w.rng.integers(6, 30))
    at = np.sort(w.rng.uniform(0.0, w.t[-1], count))
    which = w.rng.integers(0, 4, count + 1)
    x = sizes[which][np.searchsorted(at, w.t, side="right")]
    return w.base + x, _fine("sawtooth", "spike", "stable", "plateau", "unknown")


def neighbours(w: World) -> Shape:
    x = np.zeros(w.t.size)
    for _ in range(int(w.rng.integers(3, 12))):
        begin, length = w.u(-1, w.t[-1]), w.log(3, 180) * 60
        ramp = np.clip((w.t - begin) / w.log(2, 120), 0, 1)
        x = x + w.u(0.02, 0.12) * w.room() * ramp * (w.t < begin + length)
    return w.base + np.minimum(x, 0.95 * w.room()), _fine(
        "sawtooth", "spike", "stable", "plateau", "unknown"
    )


def prealloc(w: World) -> Shape:
    begin = w.u(10, 600)
    pool = 0.9 * w.total - w.base
    x = pool * np.clip((w.t - begin) / w.u(1, 30), 0, 1)
    return w.base + x, _fine("preallocated", "spike")


def wander(w: World) -> Shape:
    x = w.ar(w.room() * w.u(0.01, 0.06), w.u(1, 3) * HOUR)
    return w.base + np.clip(0.3 * w.room() + x, 0, None), _fine(
        "stable", "sawtooth", "plateau", "unknown"
    )


def dev_day(w: World) -> Shape:
    x = np.zeros(w.t.size)
    at, k = w.u(0, 300), 1
    while at < w.t[-1]:
        length = w.log(3, 50) * 60
        peak = w.room() * min(0.9, 0.1 * k * w.u(0.7, 1.2))
        age = w.t - at
        job = peak * (0.7 + 0.3 * (1 - np.exp(-age / w.u(30, 240))))
        x = np.where((age >= 0) & (age < length), job, x)
        at += length + w.log(0.5, 20) * 60
        k += 1
    return w.base * 0.2 + x, _fine("sawtooth", "spike", "stable", "plateau", "unknown")


def frag_saturate(w: World) -> Shape:
    tau = w.log(5, 60) * 60
    x = w.room() * w.u(0.05, 0.3) * (1 - np.exp(-w.t / tau))
    x = np.floor(x / (20 * MIB)) * 20 * MIB + w.room() * 0.03 * ((w.t % 600) > 500)
    return w.base + x, _fine("plateau", "stable", "sawtooth", "spike", "unknown")


LEAKS: dict[str, Callable[[World], Shape]] = {
    f.__name__: f
    for f in (
        linear_fast, linear_slow, segments, staircase, bursts, cyclic_floor, residue, late_onset,
        warmup_then_leak, noisy, accelerating, rare_2mib, model_reload, leaker_neighbours, restarts,
    )
}  # fmt: skip
BENIGN: dict[str, Callable[[World], Shape]] = {
    f.__name__: f
    for f in (
        flat, exp_warmup, log_warmup, hyperbolic_warmup, cache_linear_stop, model_load, high_water,
        sawtooth_regular, sawtooth_late_gc, eval_spikes, curriculum, pipeline_phases, serving_ar,
        diurnal, model_swap, neighbours, prealloc, wander, dev_day, frag_saturate,
    )
}  # fmt: skip
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
