"""Families of harmless behaviour: the kinds that every evaluation must contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.world import HOUR, MIB, fine, loaded, warmed

if TYPE_CHECKING:
    from tests.scenarios.world import Shape, World


def flat(w: World) -> Shape:
    """Weights and buffers taken once, then nothing."""
    return np.full(w.t.size, w.base), fine("stable")


def exp_warmup(w: World) -> Shape:
    """Allocator, autotuning and compilation warm up, fast at first, then slower."""
    rise, tau = w.room() * w.u(0.05, 0.6), w.log(1, 40) * 60
    return w.base + rise * (1 - np.exp(-w.t / tau)), fine("plateau", "stable", "spike")


def log_warmup(w: World) -> Shape:
    """A warm-up that slows for hours: ever rarer shapes still ask for a little more."""
    rise, tau = w.room() * w.u(0.05, 0.35), w.log(0.5, 20) * 60
    x = rise * np.log1p(w.t / tau) / np.log1p(w.length_s / tau)
    return w.base + x, fine("plateau", "stable", "spike", "unknown")


def hyperbolic_warmup(w: World) -> Shape:
    """A warm-up with a long tail: what is missing halves and halves, late."""
    rise, tau = w.room() * w.u(0.1, 0.6), w.log(1, 30) * 60
    return w.base + rise * w.t / (w.t + tau), fine("plateau", "stable", "spike", "unknown")


def cache_linear_stop(w: World) -> Shape:
    """A bounded cache that fills in a straight line and then stops."""
    rise, length = w.room() * w.u(0.05, 0.5), w.log(3, 60) * 60
    begin = w.u(0, 0.5) * HOUR
    x = rise * np.clip((w.t - begin) / length, 0.0, 1.0)
    return w.base + x, fine("plateau", "stable", "spike")


def model_load(w: World) -> Shape:
    """Weights read from disk for seconds or minutes, then nothing."""
    rise, length = w.room() * w.u(0.3, 0.9), w.log(5, 600)
    x = rise * np.clip((w.t - w.u(0, 600)) / length, 0.0, 1.0)
    return w.base + x, fine("plateau", "stable", "spike", "preallocated")


def high_water(w: World) -> Shape:
    """Records of the allocator under random shapes: every new maximum stays reserved."""
    load = np.exp(w.rng.normal(0.0, w.u(0.2, 0.5), w.t.size // 8 + 1))
    top = np.maximum.accumulate(np.repeat(load, 8)[: w.t.size])
    top = np.round(top * w.room() * 0.08 / (20 * MIB)) * 20 * MIB
    return w.base + top, fine("plateau", "stable", "spike", "unknown")


def sawtooth_regular(w: World) -> Shape:
    """A buffer that fills and is flushed, the same each time."""
    period, swing = w.log(0.5, 30) * 60, w.room() * w.u(0.05, 0.7)
    x = swing * ((w.t / period) % 1.0)
    return w.base + x, fine("sawtooth", "stable")


def sawtooth_late_gc(w: World) -> Shape:
    """Objects that are freed when the collector comes round: teeth of random length."""
    mean = w.log(3, 40) * 60
    count = int(w.length_s / mean * 3) + 20
    at = np.concatenate(([0.0], np.cumsum(w.rng.gamma(4.0, mean / 4.0, count))))
    index = np.searchsorted(at, w.t, side="right") - 1
    x = w.room() * w.u(0.1, 0.3) / mean * (w.t - at[index])
    return w.base + np.minimum(x, 0.9 * w.room()), fine("sawtooth", "stable", "spike")


def eval_spikes(w: World) -> Shape:
    """An evaluation every few hundred steps: more memory for its duration."""
    period, swing = w.u(5, 40) * 60, w.room() * w.u(0.05, 0.4)
    x = swing * ((w.t % period) > 0.85 * period)
    return w.base + x, fine("sawtooth", "spike", "stable")


def curriculum(w: World) -> Shape:
    """Larger batches at a few set moments: a step each, then flat."""
    stages = int(w.rng.integers(2, 6))
    at = np.sort(w.rng.uniform(0.0, w.length_s, stages))
    size = w.room() * w.rng.uniform(0.02, 0.15, stages)
    x = np.concatenate(([0.0], np.cumsum(size)))[np.searchsorted(at, w.t, side="right")]
    return w.base + np.minimum(x, 0.9 * w.room()), fine("spike", "plateau", "stable", "unknown")


def pipeline_phases(w: World) -> Shape:
    """Phases of a pipeline with a level of their own: load, train, export."""
    count = int(w.rng.integers(3, 9))
    at = np.sort(w.rng.uniform(0.0, w.length_s, count))
    level = w.room() * w.rng.uniform(0.0, 0.7, count + 1)
    x = level[np.searchsorted(at, w.t, side="right")]
    return w.base + x, fine("spike", "plateau", "stable", "unknown", "sawtooth")


def serving_ar(w: World) -> Shape:
    """A server under a load that wanders around its mean."""
    x = w.ar(w.room() * w.u(0.02, 0.1), w.log(2, 40) * 60)
    return w.base + np.clip(0.4 * w.room() + x, 0, None), fine("stable", "sawtooth", "plateau")


def diurnal(w: World) -> Shape:
    """A server under the load of a day."""
    wave = 0.5 * (1 - np.cos(2 * np.pi * (w.t / (24 * HOUR) + w.u(0, 1))))
    x = w.room() * w.u(0.05, 0.25) * wave + w.ar(w.room() * 0.01, 300.0)
    return w.base + np.clip(x, 0, None), fine("stable", "sawtooth", "plateau", "unknown")


def model_swap(w: World) -> Shape:
    """A server that replaces one model by another on demand."""
    sizes = w.room() * w.rng.uniform(0.1, 0.85, 4)
    count = int(w.rng.integers(6, 30))
    at = np.sort(w.rng.uniform(0.0, w.length_s, count))
    which = w.rng.integers(0, 4, count + 1)
    x = sizes[which][np.searchsorted(at, w.t, side="right")]
    return w.base + x, fine("sawtooth", "spike", "stable", "plateau", "unknown")


def neighbours(w: World) -> Shape:
    """Several people's jobs that come and go on one card."""
    left = 0.9 * w.room()
    for k in range(int(w.rng.integers(3, 12))):
        begin, length = w.u(-1, w.length_s), w.log(3, 180) * 60
        size, rise = w.u(0.02, 0.12) * w.room(), w.log(2, 120)
        # Who finds no room does not start.
        if size > left:
            break
        left -= size
        w.process(
            f"python job{k}.py", loaded(size, rise),
            begin_s=begin, end_s=begin + length, framework="PyTorch",
        )  # fmt: skip
    return np.full(w.t.size, w.base), fine("sawtooth", "spike", "stable", "plateau", "unknown")


def prealloc(w: World) -> Shape:
    """A pool of nine tenths of the card, taken at start."""
    begin = w.u(10, 600)
    pool = 0.9 * w.total - w.base
    x = pool * np.clip((w.t - begin) / w.u(1, 30), 0, 1)
    return w.base + x, fine("preallocated", "spike")


def wander(w: World) -> Shape:
    """A level that drifts slowly up and down."""
    x = w.ar(w.room() * w.u(0.01, 0.06), w.u(1, 3) * HOUR)
    return w.base + np.clip(0.3 * w.room() + x, 0, None), fine(
        "stable", "sawtooth", "plateau", "unknown"
    )


def dev_day(w: World) -> Shape:
    """A developer's day: one run after another, each larger than the one before."""
    at, k = w.u(0, 300), 1
    while at < w.length_s:
        length = w.log(3, 50) * 60
        peak = w.room() * min(0.9, 0.1 * k * w.u(0.7, 1.2))
        tau = w.u(30, 240)
        w.process(
            f"python try{k}.py", warmed(peak, tau, 0.3), begin_s=at, end_s=at + length,
            framework="PyTorch",
        )  # fmt: skip
        at += length + w.log(0.5, 20) * 60
        k += 1
    w.name, w.framework = "gnome-shell", None
    return np.full(w.t.size, min(w.base * 0.2, 800 * MIB)), fine(
        "sawtooth", "spike", "stable", "plateau", "unknown"
    )


def frag_saturate(w: World) -> Shape:
    """Fragmentation that ends when the free blocks fit, under small spikes."""
    tau = w.log(5, 60) * 60
    x = w.room() * w.u(0.05, 0.3) * (1 - np.exp(-w.t / tau))
    x = np.floor(x / (20 * MIB)) * 20 * MIB + w.room() * 0.03 * ((w.t % 600) > 500)
    return w.base + x, fine("plateau", "stable", "sawtooth", "spike", "unknown")


def sawtooth_jittered(w: World) -> Shape:
    """Teeth of random height and length, sometimes a few in a row that are freed together."""
    mean = w.log(1, 20) * 60
    at = np.concatenate(([0.0], w.times(mean, 6.0)))
    index = np.searchsorted(at, w.t, side="right") - 1
    height = w.room() * w.u(0.05, 0.4) * w.rng.uniform(0.4, 1.4, at.size)
    x = height[index] * np.clip((w.t - at[index]) / mean, 0.0, 1.2)
    return w.base + x, fine("sawtooth", "stable", "spike")


def checkpoint_spikes(w: World) -> Shape:
    """A checkpoint every half hour or so: weights and optimizer gathered for some seconds."""
    period, width = w.u(8, 60) * 60, w.log(8, 180)
    height = w.room() * w.u(0.1, 0.6)
    at = np.cumsum(period * w.rng.uniform(0.95, 1.05, int(w.t[-1] / period * 1.1) + 5))
    since = w.t - np.concatenate(([-np.inf], at))[np.searchsorted(at, w.t, side="right")]
    return w.base + height * (since < width), fine("spike", "sawtooth", "stable")


def sequence_curriculum(w: World) -> Shape:
    """Sequences that get longer by schedule until they are as long as the model allows.

    The reserve follows the longest sequence seen, in segments, for a part of the run.
    """
    begin, length = w.u(0.1, 1) * HOUR, w.log(0.3, 2.5) * HOUR
    rise = w.room() * w.u(0.08, 0.45)
    stages = int(w.rng.integers(4, 40))
    done = np.clip((w.t - begin) / length, 0, 1)
    x = rise * np.floor(done * stages) / stages
    return w.base + x, fine("plateau", "spike", "stable", "unknown")


def kv_cache(w: World) -> Shape:
    """Key-value caches of chats: each grows with its tokens and goes when the chat ends.

    The sum is capped: who comes when the cache is full waits or evicts the oldest.
    """
    gap = w.u(0.5, 4) * 60
    length_mean = w.u(2, 12) * 60
    at = w.times(gap)
    length = w.rng.gamma(2.0, length_mean / 2, at.size)
    cap = w.room() * w.u(0.2, 0.7)
    size = w.rng.lognormal(-0.18, 0.6, at.size) * cap * gap / length_mean * w.u(0.4, 1.6)
    order = np.argsort(at + length)
    x = w.ramps(at, length, size) - w.steps((at + length)[order], size[order])
    w.name = "llama-server"
    return w.base + np.clip(x, 0, cap), fine("sawtooth", "stable", "plateau", "spike", "unknown")
