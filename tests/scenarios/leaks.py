"""Families of leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.world import HOUR, MIB, leak

if TYPE_CHECKING:
    from tests.scenarios.world import Shape, World


def linear_fast(w: World) -> Shape:
    oom = w.u(20, 60) * 60
    onset = w.u(0.0, 0.5) * HOUR
    rate = w.room() / oom
    return w.base + rate * np.maximum(w.t - onset, 0), leak(onset, rate, onset + oom, "gradual")


def linear_slow(w: World) -> Shape:
    oom = w.log(2, 60) * HOUR
    rate = w.room() / oom
    return w.base + rate * w.t, leak(0.0, rate, oom, "gradual")


def segments(w: World) -> Shape:
    oom = w.log(1, 20) * HOUR
    rate = w.room() / oom
    size = float(w.rng.choice([20, 32, 64])) * MIB
    x = np.floor((rate * w.t + w.u(0, 1) * size) / size) * size
    return w.base + x, leak(0.0, rate, oom, "gradual", "step")


def staircase(w: World) -> Shape:
    period = w.u(4, 20) * 60
    riser = w.room() * w.u(0.01, 0.05)
    rate = riser / period
    x = np.floor((w.t + w.u(0, period)) / period) * riser
    return w.base + x, leak(0.0, rate, w.room() / rate, "step")


def bursts(w: World) -> Shape:
    oom = w.log(2, 16) * HOUR
    rate = w.room() / oom
    mean_gap = w.u(1, 8) * 60
    count = int(w.t[-1] / mean_gap) + 40
    at = np.cumsum(w.rng.exponential(mean_gap, count))
    size = w.rng.exponential(rate * mean_gap, count)
    x = np.concatenate(([0.0], np.cumsum(size)))[np.searchsorted(at, w.t, side="right")]
    return w.base + x, leak(0.0, rate, oom, "gradual", "step")


def cyclic_floor(w: World) -> Shape:
    period = w.u(2, 15) * 60
    oom = w.log(1.5, 12) * HOUR
    swing = w.room() * w.u(0.05, 0.3)
    rate = (w.room() - swing) / oom
    phase = (w.t / period) % 1.0
    x = rate * np.floor(w.t / period) * period + swing * phase
    return w.base + x, leak(0.0, rate, oom, "cyclic")


def residue(w: World) -> Shape:
    period = w.u(5, 20) * 60
    oom = w.log(2, 12) * HOUR
    swing = w.room() * w.u(0.05, 0.25)
    rate = (w.room() - swing) / oom
    busy = (w.t % period) > 0.8 * period
    x = rate * period * np.floor(w.t / period) + swing * busy
    return w.base + x, leak(0.0, rate, oom, "cyclic", "step")


def late_onset(w: World) -> Shape:
    onset = w.u(1, 4) * HOUR
    oom = w.log(0.7, 6) * HOUR
    rate = w.room() / oom
    x = rate * np.maximum(w.t - onset, 0.0)
    return w.base + x, leak(onset, rate, onset + oom, "gradual")


def warmup_then_leak(w: World) -> Shape:
    warm = w.room() * w.u(0.05, 0.3)
    tau = w.u(2, 15) * 60
    onset = w.u(0.2, 1.0) * HOUR
    oom = w.log(1.5, 12) * HOUR
    rate = (w.room() - warm) / oom
    x = warm * (1 - np.exp(-w.t / tau)) + rate * np.maximum(w.t - onset, 0.0)
    return w.base + x, leak(onset, rate, onset + oom, "gradual")


def noisy(w: World) -> Shape:
    oom = w.log(2, 16) * HOUR
    rate = w.room() / oom
    sd = w.u(0.5, 2.0) * rate * 600
    w.noise = min(sd, 0.04 * w.total)
    return w.base + rate * w.t, leak(0.0, rate, oom, "gradual")


def accelerating(w: World) -> Shape:
    oom = w.log(1.5, 10) * HOUR
    power = w.u(1.3, 2.2)
    x = w.room() * (w.t / oom) ** power
    return w.base + x, leak(0.0, w.room() / oom, oom, "gradual")


def rare_2mib(w: World) -> Shape:
    rate = 2 * MIB / w.u(20, 120)
    left = rate * w.log(2, 12) * HOUR
    w.base = w.total - left
    x = np.floor((rate * w.t + w.u(0, 2 * MIB)) / (2 * MIB)) * 2 * MIB
    w.noise = 0.0
    return w.base + x, leak(0.0, rate, left / rate, "gradual")


def model_reload(w: World) -> Shape:
    period = w.u(4, 15) * 60
    model = w.room() * w.u(0.2, 0.5)
    keep = w.u(100, 400) * MIB
    rate = keep / period
    part = (w.t % period) / period
    x = keep * np.floor(w.t / period) + model * ((part > 0.1) & (part < 0.85))
    return w.base + x, leak(0.0, rate, (w.room() - model) / rate, "cyclic", "step")


def leaker_neighbours(w: World) -> Shape:
    oom = w.log(2, 10) * HOUR
    rate = 0.7 * w.room() / oom
    x = rate * w.t
    for _ in range(int(w.rng.integers(2, 8))):
        begin, length = w.u(0, w.t[-1]), w.u(5, 60) * 60
        x = x + w.u(0.02, 0.2) * w.room() * ((w.t > begin) & (w.t < begin + length))
    return w.base + x, leak(0.0, rate, w.room() / rate, "gradual", "cyclic", "step")


def restarts(w: World) -> Shape:
    life = w.u(1.0, 2.5) * HOUR
    rate = w.room() * w.u(0.6, 0.95) / life
    x = rate * (w.t % life)
    return w.base + x, leak(0.0, rate, w.room() / rate, "gradual", "cyclic")
