"""Families of harmless behaviour: the usual kinds, then what frameworks and servers really do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.world import GIB, HOUR, MIB, fine, loaded, warmed

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


def jit_buckets(w: World) -> Shape:
    """A compiler with a finite set of shapes: the rare ones are met late, then there are no more.

    Coupons to collect: a step for each bucket, most in the first minutes, the last after hours.
    """
    buckets = int(w.rng.integers(6, 40))
    weight = np.arange(1, buckets + 1) ** -w.u(0.5, 1.3)
    at = np.sort(w.rng.exponential(w.log(0.5, 8) * 60 / weight))
    size = w.room() * w.u(0.08, 0.4) / buckets * w.rng.uniform(0.5, 1.5, buckets)
    w.framework = "JAX"
    return w.base + w.steps(at, size), fine("plateau", "spike", "stable", "unknown")


def compile_bursts(w: World) -> Shape:
    """Recompilations in the first minutes: a workspace for seconds, a little that stays.

    After a set number of recompilations the framework gives up and runs without them.
    """
    count = int(w.rng.integers(3, 9))
    at = np.sort(w.rng.gamma(1.2, w.log(2, 20) * 60, count))
    width = w.log(10, 150)
    stays = w.steps(at, w.room() * w.u(0.01, 0.05) * w.rng.uniform(0.5, 1.5, count))
    since = w.t - np.concatenate(([-np.inf], at))[np.searchsorted(at, w.t, side="right")]
    burst = w.room() * w.u(0.05, 0.3) * (since < width)
    return w.base + stays + burst, fine("plateau", "spike", "stable", "sawtooth", "unknown")


def lru_cache_churn(w: World) -> Shape:
    """A cache of plans, adapters or images with a bound: fills ever slower, then churns."""
    cap = w.room() * w.u(0.1, 0.5)
    fill_s = w.log(10, 100) * 60
    filled = cap * np.minimum((w.t / fill_s) ** w.u(0.6, 0.95), 1.0)
    piece = np.clip(cap * w.u(0.01, 0.08), 4 * MIB, 2 * GIB)
    churn = piece * np.abs(w.ar(0.7, w.log(0.5, 4) * 60)) * (w.t > fill_s)
    x = np.floor(filled / piece) * piece - np.minimum(churn, 0.3 * cap)
    return w.base + np.maximum(x, 0), fine("plateau", "stable", "spike", "sawtooth", "unknown")


def autoscaled_replicas(w: World) -> Shape:
    """Replicas of a model added one by one when the load rises, removed when it falls."""
    most = int(w.rng.integers(3, 7))
    size = min(w.context() + w.room() * w.u(0.05, 0.12), 0.85 * w.room() / most)
    peak, half = w.u(0.25, 0.75) * w.length_s, w.u(0.15, 0.5) * w.length_s
    for k in range(most):
        reach = half * (1 - (k + w.u(0.0, 0.8)) / most)
        begin, end = peak - reach, peak + reach + w.u(2, 30) * 60
        load = w.log(4, 90)
        w.process(
            f"replica#{k}", loaded(size, load),
            begin_s=begin, end_s=end, framework="vLLM",
        )  # fmt: skip
    w.name = "ray::ServeController"
    return np.full(w.t.size, w.base), fine("sawtooth", "spike", "plateau", "stable", "unknown")


def replay_buffer(w: World) -> Shape:
    """A buffer of experience on the card that fills to its capacity, under phases of learning."""
    rise, length = w.room() * w.u(0.1, 0.4), w.log(10, 100) * 60
    period, swing = w.u(1, 10) * 60, w.room() * w.u(0.03, 0.15)
    learn = swing * ((w.t % period) > w.u(0.4, 0.8) * period)
    x = rise * np.clip(w.t / length, 0, 1) + learn
    return w.base + x, fine("plateau", "sawtooth", "stable", "spike", "unknown")


def unfreeze_steps(w: World) -> Shape:
    """Layers unfrozen one group at a time: equal steps at equal times, three to six of them."""
    steps, period = int(w.rng.integers(3, 7)), w.u(5, 35) * 60
    riser = w.room() * w.u(0.02, 0.06)
    at = w.u(0.05, 0.5) * HOUR + period * np.arange(steps)
    return w.base + w.steps(at, riser), fine("plateau", "spike", "stable", "step", "unknown")


def sorted_by_length(w: World) -> Shape:
    """A pass over a data set sorted by length: memory follows, falls back at the end of the pass.

    Usual in evaluation and speech recognition; longest last, so that the last is the most.
    """
    period = w.log(8, 70) * 60
    power = w.u(1.0, 2.5)
    swing = w.room() * w.u(0.1, 0.5)
    part = (w.t / period + w.u(0, 1)) % 1.0
    return w.base + swing * part**power, fine("sawtooth", "stable", "spike", "unknown")


def desktop_session(w: World) -> Shape:
    """A display: windows and tabs that open and close all day, a few MiB each."""
    at = w.times(w.u(20, 180))
    stay = w.rng.lognormal(np.log(w.log(4, 60) * 60), 1.0, at.size)
    size = w.rng.lognormal(np.log(w.u(4, 30) * MIB), 0.9, at.size)
    order = np.argsort(at + stay)
    x = w.steps(at, size) - w.steps((at + stay)[order], size[order])
    w.name, w.framework, w.quantum = "Xorg", None, 2 * MIB
    x = np.clip(x, 0, 0.5 * w.room())
    return min(w.base, 900 * MIB) + x, fine("stable", "sawtooth", "plateau", "spike", "unknown")


def idle_unload(w: World) -> Shape:
    """A runner that loads a model on demand and unloads it when nobody has asked for minutes."""
    sizes = w.room() * w.rng.uniform(0.15, 0.85, int(w.rng.integers(1, 4)))
    at = w.times(w.log(3, 40) * 60)
    keep = w.u(3, 6) * 60
    last = np.searchsorted(at, w.t, side="right") - 1
    since = np.where(last >= 0, w.t - at[np.maximum(last, 0)], np.inf)
    which = w.rng.integers(0, sizes.size, at.size)[np.maximum(last, 0)]
    x = sizes[which] * (since < keep)
    w.name, w.framework = "ollama runner", "Ollama"
    return w.context() + x, fine("sawtooth", "spike", "stable", "plateau", "unknown")


def job_array(w: World) -> Shape:
    """An array of short jobs that a scheduler packs onto the card: all alike, all warming up."""
    slots = int(w.rng.integers(2, 5))
    size = 0.8 * w.room() / slots * w.u(0.5, 1.0)
    mean, tau = w.log(6, 60) * 60, w.log(0.3, 3) * 60
    k = 0
    for _ in range(slots):
        begin = w.u(-0.5, 0.3) * mean
        while begin < w.length_s:
            end = begin + mean * w.u(0.6, 1.4)
            top = size * w.u(0.85, 1.0)
            w.process(
                f"python array_task.py {k}",
                warmed(top, tau, 0.4), begin_s=begin, end_s=end, framework="PyTorch",
            )  # fmt: skip
            begin, k = end + w.log(2, 120), k + 1
    w.unowned(np.full(w.t.size, 0.02 * w.total))
    return w.nobody(), fine("sawtooth", "spike", "stable", "plateau", "unknown")


def largest_sample(w: World) -> Shape:
    """A decoder whose buffers keep the size of the largest image seen: rarer and rarer steps.

    Reported of DALI (issue 278): memory grows until the data set has been seen once.
    """
    pass_s = w.log(0.3, 4) * HOUR
    count = 400
    size = np.minimum(w.rng.pareto(w.u(2.0, 4.0), count) + 1, w.u(4, 10))
    top = np.maximum.accumulate(size)
    at = np.linspace(0, pass_s, count)
    unit_bytes = w.room() * w.u(0.02, 0.06)
    x = unit_bytes * top[np.minimum(np.searchsorted(at, w.t, side="right"), count - 1)]
    return w.base + x, fine("plateau", "spike", "stable", "unknown")


def staged_warmup(w: World) -> Shape:
    """Warm-ups one after another: activations, optimizer at the first step, averages later."""
    stages = int(w.rng.integers(2, 5))
    begin = np.sort(w.rng.uniform(0, 0.45 * w.length_s, stages))
    begin[0] = w.u(0, 300)
    x = np.zeros(w.t.size)
    for at in begin.tolist():
        tau = w.log(0.3, 12) * 60
        x += w.room() * w.u(0.03, 0.18) * (1 - np.exp(-np.maximum(w.t - at, 0) / tau))
    return w.base + x, fine("plateau", "spike", "stable", "unknown")


def rolling_update(w: World) -> Shape:
    """A new version loaded beside the old one, which goes when the new one has its traffic."""
    versions = int(w.rng.integers(2, 6))
    at = np.sort(w.rng.uniform(0.05, 0.95, versions - 1)) * w.length_s
    begin = np.concatenate(([-600.0], at))
    size = w.room() * w.rng.uniform(0.15, 0.42, versions)
    for k in range(versions):
        end = begin[k + 1] + w.u(1, 25) * 60 if k + 1 < versions else np.inf
        load, top = w.log(5, 120), float(size[k])
        w.process(
            f"serve v{k + 1}", loaded(top, load),
            begin_s=float(begin[k]), end_s=float(end), framework="PyTorch",
        )  # fmt: skip
    w.name = "nvidia-cuda-mps-server"
    return np.full(w.t.size, 60 * MIB), fine("spike", "sawtooth", "stable", "plateau", "unknown")


def bfc_doubling(w: World) -> Shape:
    """An allocator that doubles its region whenever it is full, until the largest batch fits."""
    need = w.room() * w.u(0.15, 0.45)
    tau = w.log(1, 25) * 60
    demand = need * (1 - np.exp(-w.t / tau)) * (1 + 0.05 * np.abs(w.ar(1.0, 60.0)))
    demand = np.maximum.accumulate(demand)
    first = w.room() * w.u(0.01, 0.03)
    x = first * 2 ** np.ceil(np.log2(np.maximum(demand, first) / first))
    w.framework = "TensorFlow"
    x = np.minimum(x, 0.9 * w.room())
    return w.base + x, fine("plateau", "spike", "stable", "preallocated", "unknown")


def sigmoid_ramp(w: World) -> Shape:
    """Traffic moved over to a new server: slow at first, then fast, then all of it is there."""
    rise, span = w.room() * w.u(0.08, 0.5), w.log(4, 35) * 60
    middle = w.u(2, 3) * span + w.u(0, 0.3) * HOUR
    x = rise / (1 + np.exp(-np.clip((w.t - middle) / (0.4 * span), -60, 60)))
    return w.base + x, fine("plateau", "stable", "spike", "unknown")


def ramp_up_down(w: World) -> Shape:
    """A wave of work: queues fill over an hour or so, and empty again."""
    x = np.zeros(w.t.size)
    for _ in range(int(w.rng.integers(1, 4))):
        begin, up = w.u(0, 0.7) * w.length_s, w.log(10, 100) * 60
        stay, down = w.u(0, 60) * 60, w.log(5, 90) * 60
        knots = begin + np.cumsum([0.0, up, stay, down])
        x += w.room() * w.u(0.05, 0.25) * np.interp(w.t, knots, [0.0, 1.0, 1.0, 0.0])
    return w.base + x, fine("sawtooth", "plateau", "spike", "stable", "unknown")


def growing_peaks(w: World) -> Shape:
    """Batches of documents of growing length, each given back: peaks rise, the floor does not."""
    period = w.u(3, 20) * 60
    turn = np.floor(w.t / period)
    top = np.minimum(0.1 + 0.6 * (turn * period / w.length_s) ** w.u(0.5, 1.5), 0.7)
    wobble = w.rng.uniform(0.7, 1.0, int(w.t[-1] / period) + 2)[turn.astype(int)]
    part = (w.t / period) % 1.0
    x = w.room() * top * wobble * w.u(0.3, 1.0) * (part > w.u(0.1, 0.6))
    return w.base + x, fine("sawtooth", "spike", "stable", "unknown")


def bounded_walk(w: World) -> Shape:
    """Sessions that come and go one by one under a quota: up and down in steps, never beyond."""
    at = w.times(w.log(15, 240))
    step, places = w.room() * w.u(0.01, 0.05), int(w.rng.integers(5, 14))
    moves = w.rng.choice([-1, 1], at.size)
    free = np.cumsum(moves)
    # A walk between two walls is a free walk folded over and over.
    folded = np.abs((free + places) % (2 * places) - places)
    x = step * np.concatenate(([0], folded))[np.searchsorted(at, w.t, side="right")]
    return w.base + x, fine("sawtooth", "stable", "plateau", "spike", "unknown")


def long_fill(w: World) -> Shape:
    """A cache with a bound that takes hours to fill: embeddings of what users ask for."""
    rise, length = w.room() * w.u(0.03, 0.2), w.log(0.5, 3.5) * HOUR
    filled = rise * np.minimum((w.t / length) ** w.u(0.5, 1.0), 1.0)
    x = filled + np.clip(w.ar(0.01 * w.room(), 120.0), 0, None)
    return w.base + x, fine("plateau", "stable", "spike", "sawtooth", "unknown")
