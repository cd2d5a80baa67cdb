"""Families of leaks: the kinds that every evaluation must contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.world import HOUR, MIB, leak, rising

if TYPE_CHECKING:
    from tests.scenarios.world import Shape, World


def linear_fast(w: World) -> Shape:
    """A tensor kept per iteration by a fast job: out of memory within the hour."""
    oom = w.u(20, 60) * 60
    onset = w.u(0.0, 0.5) * HOUR
    rate = w.room() / oom
    return w.base + rate * np.maximum(w.t - onset, 0), leak(onset, rate, onset + oom, "gradual")


def linear_slow(w: World) -> Shape:
    """The same in a slow job: hours or days to out of memory."""
    oom = w.log(2, 60) * HOUR
    rate = w.room() / oom
    return w.base + rate * w.t, leak(0.0, rate, oom, "gradual")


def segments(w: World) -> Shape:
    """A steady leak that the caching allocator shows in segments of 20 to 64 MiB."""
    oom = w.log(1, 20) * HOUR
    rate = w.room() / oom
    size = float(w.rng.choice([20, 32, 64])) * MIB
    w.quantum = 2 * MIB
    x = np.floor((rate * w.t + w.u(0, 1) * size) / size) * size
    return w.base + x, leak(0.0, rate, oom, "gradual", "step")


def staircase(w: World) -> Shape:
    """Something kept once per epoch: an optimizer, a graph, a list of metrics."""
    period = w.u(4, 20) * 60
    riser = w.room() * w.u(0.01, 0.05)
    rate = riser / period
    x = np.floor((w.t + w.u(0, period)) / period) * riser
    return w.base + x, leak(0.0, rate, w.room() / rate, "step")


def bursts(w: World) -> Shape:
    """Kept pieces of random size at random times: the odd request that fails."""
    oom = w.log(2, 16) * HOUR
    rate = w.room() / oom
    mean_gap = w.u(1, 8) * 60
    at = w.times(mean_gap)
    x = w.steps(at, w.rng.exponential(rate * mean_gap, at.size))
    return w.base + x, leak(0.0, rate, oom, "gradual", "step")


def cyclic_floor(w: World) -> Shape:
    """Cycles that fall back a little less each time: the floor rises with them."""
    period = w.u(2, 15) * 60
    oom = w.log(1.5, 12) * HOUR
    swing = w.room() * w.u(0.05, 0.3)
    rate = (w.room() - swing) / oom
    phase = (w.t / period) % 1.0
    x = rate * np.floor(w.t / period) * period + swing * phase
    return w.base + x, leak(0.0, rate, oom, "cyclic")


def residue(w: World) -> Shape:
    """An evaluation that leaves something behind each time it has run."""
    period = w.u(5, 20) * 60
    oom = w.log(2, 12) * HOUR
    swing = w.room() * w.u(0.05, 0.25)
    rate = (w.room() - swing) / oom
    busy = (w.t % period) > 0.8 * period
    x = rate * period * np.floor(w.t / period) + swing * busy
    return w.base + x, leak(0.0, rate, oom, "cyclic", "step")


def late_onset(w: World) -> Shape:
    """Hours of health, then a leak: a code path that is reached late."""
    onset = w.u(1, 4) * HOUR
    oom = w.log(0.7, 6) * HOUR
    rate = w.room() / oom
    x = rate * np.maximum(w.t - onset, 0.0)
    return w.base + x, leak(onset, rate, onset + oom, "gradual")


def warmup_then_leak(w: World) -> Shape:
    """A warm-up like any other, and a leak that begins under it."""
    warm = w.room() * w.u(0.05, 0.3)
    tau = w.u(2, 15) * 60
    onset = w.u(0.2, 1.0) * HOUR
    oom = w.log(1.5, 12) * HOUR
    rate = (w.room() - warm) / oom
    x = warm * (1 - np.exp(-w.t / tau)) + rate * np.maximum(w.t - onset, 0.0)
    return w.base + x, leak(onset, rate, onset + oom, "gradual")


def noisy(w: World) -> Shape:
    """A leak under noise that is larger than what leaks in ten minutes."""
    oom = w.log(2, 16) * HOUR
    rate = w.room() / oom
    sd = w.u(0.5, 2.0) * rate * 600
    w.noise = min(sd, 0.04 * w.total)
    w.quantum = 2 * MIB
    return w.base + rate * w.t, leak(0.0, rate, oom, "gradual")


def accelerating(w: World) -> Shape:
    """A leak that gets faster: what is kept makes more to be kept."""
    oom = w.log(1.5, 10) * HOUR
    power = w.u(1.3, 2.2)
    x = w.room() * (w.t / oom) ** power
    return w.base + x, leak(0.0, w.room() / oom, oom, "gradual")


def rare_2mib(w: World) -> Shape:
    """0.05 MB an iteration, seen as one block of 2 MiB now and then, on a card nearly full."""
    rate = 2 * MIB / w.u(20, 120)
    left = rate * w.log(2, 12) * HOUR
    w.base = w.total - w.overhead - left
    w.quantum, w.noise = 2 * MIB, 0.0
    x = np.floor((rate * w.t + w.u(0, 2 * MIB)) / (2 * MIB)) * 2 * MIB
    return w.base + x, leak(0.0, rate, left / rate, "gradual")


def model_reload(w: World) -> Shape:
    """A model loaded and unloaded in turn; 100 to 400 MiB stay each time."""
    period = w.u(4, 15) * 60
    model = w.room() * w.u(0.2, 0.5)
    keep = w.u(100, 400) * MIB
    rate = keep / period
    part = (w.t % period) / period
    x = keep * np.floor(w.t / period) + model * ((part > 0.1) & (part < 0.85))
    return w.base + x, leak(0.0, rate, (w.room() - model) / rate, "cyclic", "step")


def leaker_neighbours(w: World) -> Shape:
    """One leaking process among others that come and go."""
    oom = w.log(2, 10) * HOUR
    rate = 0.7 * w.room() / oom
    for k in range(int(w.rng.integers(2, 8))):
        begin, length = w.u(0, w.length_s), w.u(5, 60) * 60
        size = w.u(0.02, 0.2) * w.room()
        w.process(f"python job{k}.py", size, begin_s=begin, end_s=begin + length, visitor=True)
    return w.base + rate * w.t, leak(
        0.0, rate, w.room() / rate, "gradual", "cyclic", "step"
    )  # fmt: skip


def restarts(w: World) -> Shape:
    """A leaking server that is restarted on schedule before it runs out."""
    life = w.u(1.0, 2.5) * HOUR
    rate = w.room() * w.u(0.6, 0.95) / life
    oom = w.room() / rate
    down = w.u(3, 40)
    begin, k = 0.0, 0
    while begin < w.length_s:
        w.process(
            f"uvicorn#{k}", rising(w.base, rate), begin_s=begin,
            end_s=begin + life - down, leaker=True, oom_s=begin + oom, framework=w.framework,
        )  # fmt: skip
        begin, k = begin + life, k + 1
    return w.nobody(), leak(0.0, rate, oom, "gradual", "cyclic")


def outside_allocator(w: World) -> Shape:
    """A leak outside the framework's allocator: its own reserve is flat, the driver's view grows.

    Workspaces of cuBLAS per thread and stream (8 MiB and a little; PyTorch issue 99196),
    communicators (NCCL issue 604), captured graphs: each new thread or process group leaves one,
    in blocks of the driver.
    """
    oom = w.log(2, 24) * HOUR
    size = float(w.rng.choice([8.125, 16.0, 34.0, 50.0])) * MIB
    rate = w.room() / oom
    w.quantum, w.noise = 2 * MIB, 0.0
    at = w.times(size / rate, w.u(1.0, 6.0))
    return w.base + w.steps(at, size), leak(float(at[0]), rate, oom, "gradual", "step")
