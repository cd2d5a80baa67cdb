"""Families of harmless behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.world import HOUR, MIB, fine

if TYPE_CHECKING:
    from tests.scenarios.world import Shape, World


def flat(w: World) -> Shape:
    return np.full(w.t.size, w.base), fine("stable")


def exp_warmup(w: World) -> Shape:
    rise, tau = w.room() * w.u(0.05, 0.6), w.log(1, 40) * 60
    return w.base + rise * (1 - np.exp(-w.t / tau)), fine("plateau", "stable", "spike")


def log_warmup(w: World) -> Shape:
    rise, tau = w.room() * w.u(0.05, 0.35), w.log(0.5, 20) * 60
    x = rise * np.log1p(w.t / tau) / np.log1p(w.t[-1] / tau)
    return w.base + x, fine("plateau", "stable", "spike", "unknown")


def hyperbolic_warmup(w: World) -> Shape:
    rise, tau = w.room() * w.u(0.1, 0.6), w.log(1, 30) * 60
    return w.base + rise * w.t / (w.t + tau), fine("plateau", "stable", "spike", "unknown")


def cache_linear_stop(w: World) -> Shape:
    rise, length = w.room() * w.u(0.05, 0.5), w.log(3, 60) * 60
    begin = w.u(0, 0.5) * HOUR
    x = rise * np.clip((w.t - begin) / length, 0.0, 1.0)
    return w.base + x, fine("plateau", "stable", "spike")


def model_load(w: World) -> Shape:
    rise, length = w.room() * w.u(0.3, 0.9), w.log(5, 600)
    x = rise * np.clip((w.t - w.u(0, 600)) / length, 0.0, 1.0)
    return w.base + x, fine("plateau", "stable", "spike", "preallocated")


def high_water(w: World) -> Shape:
    load = np.exp(w.rng.normal(0.0, w.u(0.2, 0.5), w.t.size // 8 + 1))
    top = np.maximum.accumulate(np.repeat(load, 8)[: w.t.size])
    top = np.round(top * w.room() * 0.08 / (20 * MIB)) * 20 * MIB
    return w.base + top, fine("plateau", "stable", "spike", "unknown")


def sawtooth_regular(w: World) -> Shape:
    period, swing = w.log(0.5, 30) * 60, w.room() * w.u(0.05, 0.7)
    x = swing * ((w.t / period) % 1.0)
    return w.base + x, fine("sawtooth", "stable")


def sawtooth_late_gc(w: World) -> Shape:
    mean = w.log(3, 40) * 60
    count = int(w.t[-1] / mean * 3) + 20
    at = np.concatenate(([0.0], np.cumsum(w.rng.gamma(4.0, mean / 4.0, count))))
    index = np.searchsorted(at, w.t, side="right") - 1
    x = w.room() * w.u(0.1, 0.3) / mean * (w.t - at[index])
    return w.base + np.minimum(x, 0.9 * w.room()), fine("sawtooth", "stable", "spike")


def eval_spikes(w: World) -> Shape:
    period, swing = w.u(5, 40) * 60, w.room() * w.u(0.05, 0.4)
    x = swing * ((w.t % period) > 0.85 * period)
    return w.base + x, fine("sawtooth", "spike", "stable")


def curriculum(w: World) -> Shape:
    stages = int(w.rng.integers(2, 6))
    at = np.sort(w.rng.uniform(0.0, w.t[-1], stages))
    size = w.room() * w.rng.uniform(0.02, 0.15, stages)
    x = np.concatenate(([0.0], np.cumsum(size)))[np.searchsorted(at, w.t, side="right")]
    return w.base + np.minimum(x, 0.9 * w.room()), fine("spike", "plateau", "stable", "unknown")


def pipeline_phases(w: World) -> Shape:
    count = int(w.rng.integers(3, 9))
    at = np.sort(w.rng.uniform(0.0, w.t[-1], count))
    level = w.room() * w.rng.uniform(0.0, 0.7, count + 1)
    x = level[np.searchsorted(at, w.t, side="right")]
    return w.base + x, fine("spike", "plateau", "stable", "unknown", "sawtooth")


def serving_ar(w: World) -> Shape:
    x = w.ar(w.room() * w.u(0.02, 0.1), w.log(2, 40) * 60)
    return w.base + np.clip(0.4 * w.room() + x, 0, None), fine("stable", "sawtooth", "plateau")


def diurnal(w: World) -> Shape:
    wave = 0.5 * (1 - np.cos(2 * np.pi * (w.t / (24 * HOUR) + w.u(0, 1))))
    x = w.room() * w.u(0.05, 0.25) * wave + w.ar(w.room() * 0.01, 300.0)
    return w.base + np.clip(x, 0, None), fine("stable", "sawtooth", "plateau", "unknown")


def model_swap(w: World) -> Shape:
    sizes = w.room() * w.rng.uniform(0.1, 0.85, 4)
    count = int(w.rng.integers(6, 30))
    at = np.sort(w.rng.uniform(0.0, w.t[-1], count))
    which = w.rng.integers(0, 4, count + 1)
    x = sizes[which][np.searchsorted(at, w.t, side="right")]
    return w.base + x, fine("sawtooth", "spike", "stable", "plateau", "unknown")


def neighbours(w: World) -> Shape:
    x = np.zeros(w.t.size)
    for _ in range(int(w.rng.integers(3, 12))):
        begin, length = w.u(-1, w.t[-1]), w.log(3, 180) * 60
        ramp = np.clip((w.t - begin) / w.log(2, 120), 0, 1)
        x = x + w.u(0.02, 0.12) * w.room() * ramp * (w.t < begin + length)
    return w.base + np.minimum(x, 0.95 * w.room()), fine(
        "sawtooth", "spike", "stable", "plateau", "unknown"
    )


def prealloc(w: World) -> Shape:
    begin = w.u(10, 600)
    pool = 0.9 * w.total - w.base
    x = pool * np.clip((w.t - begin) / w.u(1, 30), 0, 1)
    return w.base + x, fine("preallocated", "spike")


def wander(w: World) -> Shape:
    x = w.ar(w.room() * w.u(0.01, 0.06), w.u(1, 3) * HOUR)
    return w.base + np.clip(0.3 * w.room() + x, 0, None), fine(
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
    return w.base * 0.2 + x, fine("sawtooth", "spike", "stable", "plateau", "unknown")


def frag_saturate(w: World) -> Shape:
    tau = w.log(5, 60) * 60
    x = w.room() * w.u(0.05, 0.3) * (1 - np.exp(-w.t / tau))
    x = np.floor(x / (20 * MIB)) * 20 * MIB + w.room() * 0.03 * ((w.t % 600) > 500)
    return w.base + x, fine("plateau", "stable", "sawtooth", "spike", "unknown")
