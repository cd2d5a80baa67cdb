"""Families of leaks: those that every evaluation must contain, then what users have reported."""

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


def request_leak(w: World) -> Shape:
    """A server that keeps a little of every request; its load follows the day and the mood.

    Reported of llama-server (ggml-org/llama.cpp issues 23446 and 27155): some 10 MB stay per
    prompt and answer. The rate of the leak is the load, and the buffers of the requests under
    way ride on the floor.
    """
    oom = w.log(2, 20) * HOUR
    day = 1 - w.u(0.1, 0.6) * np.cos(2 * np.pi * (w.t / (24 * HOUR) + w.u(0, 1)))
    load = np.clip(day * (1 + w.ar(0.3, w.log(5, 40) * 60)), 0.05, None)
    swing = w.room() * w.u(0.02, 0.08)
    rate = (w.room() - 2 * swing) / oom
    kept = w.integral(rate * load)
    w.name, w.framework = "llama-server", "llama.cpp"
    x = kept + np.minimum(swing * load, 2 * swing)
    return w.base + x, leak(0.0, rate, oom, "gradual", "cyclic", "step")


def orphans(w: World) -> Shape:
    """Workers that are killed and replaced; each leaves memory that no process owns.

    A context that the driver does not take down, memory shared with a process that has gone:
    every process is flat, and only what nobody owns grows.
    """
    life = w.u(5, 25) * 60
    keep = w.room() * w.u(0.01, 0.05)
    rate = keep / life
    size = w.context() + w.room() * w.u(0.1, 0.3)
    ends = np.cumsum(w.u(3, 40) + life * w.rng.uniform(0.8, 1.2, int(w.t[-1] / life * 1.3) + 9))
    pause = w.u(3, 30)
    begin = -w.u(0, 0.5) * life
    for k, end in enumerate(ends[: int(np.searchsorted(ends, w.length_s)) + 1].tolist()):
        w.process(f"worker#{k}", size, begin_s=begin, end_s=end, framework="PyTorch")
        begin = end + pause
    w.unowned(w.steps(ends, keep))
    w.name, w.leaker = "nvidia-cuda-mps-server", False
    return np.full(w.t.size, w.base), leak(
        float(ends[0]), rate, (w.room() - size) / rate, "step", "cyclic", "gradual"
    )  # fmt: skip


def gc_falls_behind(w: World) -> Shape:
    """Cycles of objects that the collector frees late, and never all of them.

    Python collects when it likes: teeth of random length, and a floor that creeps by a small
    part of each tooth.
    """
    mean = w.log(2, 20) * 60
    oom = w.log(2, 14) * HOUR
    swing = w.room() * w.u(0.08, 0.3)
    rate = (w.room() - 2 * swing) / oom
    at = np.concatenate(([0.0], w.times(mean, 5.0)))
    tooth = at[np.searchsorted(at, w.t, side="right") - 1]
    x = rate * tooth + np.minimum(swing / mean * (w.t - tooth), 2 * swing)
    return w.base + x, leak(0.0, rate, oom, "cyclic", "gradual")


def leak_beside_pool(w: World) -> Shape:
    """A pool that takes most of the card at start, and a leak in what it leaves free.

    Reported of vLLM (issues 8184, 12610, 15785): the pool is flat, and what runs beside it (log
    probabilities of prompts, images, communicators) eats the last tenth of the card.
    """
    fill, begin = w.u(10, 90), w.u(0, 300)
    pool = (w.u(0.8, 0.92) * w.total - w.base) * np.clip((w.t - begin) / fill, 0, 1)
    left = w.total - w.overhead - w.base - pool[-1]
    onset = begin + fill + w.u(0, 1) * HOUR
    oom = w.log(1.5, 24) * HOUR
    rate = left / oom
    w.quantum, w.noise = 2 * MIB, min(w.noise, 0.01 * left)
    w.name, w.framework = "VLLM::EngineCore", "vLLM"
    size = w.log(2, 24) * MIB
    grown = w.steps(onset + w.times(size / rate, w.u(1, 8)), size)
    return w.base + pool + grown, leak(onset, rate, onset + oom, "gradual", "step")


def work_bound(w: World) -> Shape:
    """A leak that grows only while there is work: bursts of batches, pauses between them."""
    busy_mean, idle_mean = w.log(10, 90) * 60, w.log(3, 45) * 60
    count = int(w.t[-1] / (busy_mean + idle_mean) * 1.5) + 30
    spans = np.empty(2 * count)
    spans[0::2] = w.rng.gamma(3.0, busy_mean / 3, count)
    spans[1::2] = w.rng.gamma(2.0, idle_mean / 2, count)
    ends = np.cumsum(spans)
    busy = np.searchsorted(ends, w.t, side="right") % 2 == 0
    worked = np.concatenate(([0.0], np.cumsum(busy[1:] * np.diff(w.t))))
    duty = busy_mean / (busy_mean + idle_mean)
    swing = w.room() * w.u(0.0, 0.15)
    oom = w.log(2, 14) * HOUR
    rate = (w.room() - swing) / oom
    x = rate / duty * worked + swing * busy
    return w.base + x, leak(0.0, rate, oom, "gradual", "step", "cyclic")


def notebook_cells(w: World) -> Shape:
    """A notebook whose cells are run again and again; every run binds another tensor.

    Irregular sizes at irregular times, some deleted again, pauses to think and to eat.
    """
    mean_gap = w.u(1.5, 8) * 60
    oom = w.log(1.5, 9) * HOUR
    rate = w.room() / oom
    at = w.times(mean_gap, 0.7)
    size = w.rng.lognormal(-0.32, 0.8, at.size) * rate * mean_gap * 1.25
    back = w.rng.random(at.size) < 0.2
    size[1:] = np.where(back[1:], -size[:-1], size[1:])
    size[0] = abs(size[0])
    size = np.where((size < 0) & (np.roll(size, 1) < 0), 0.0, size)
    size *= rate * at[-1] / max(float(size.sum()), 1.0)
    w.name, w.quantum = "python -m ipykernel_launcher", 2 * MIB
    x = np.maximum(w.steps(at, size), 0.0)
    return w.base + x, leak(float(at[0]), rate, oom, "step", "gradual", "cyclic")


def jit_cache_unbounded(w: World) -> Shape:
    """Compiled programs that are never thrown away: one more for every shape not seen before.

    Reported of JAX (issues 2072 and 16778) and of TensorFlow with XLA (64170): the cache has no
    bound or a huge one, and an executable holds device memory. New shapes get rarer like a power
    of time (Heaps' law) and never end.
    """
    oom = w.log(2, 16) * HOUR
    power = w.u(0.72, 0.95)
    size = w.log(4, 40) * MIB
    count = w.room() / size * (w.t / oom) ** power
    w.quantum, w.noise = 2 * MIB, 0.0
    w.framework = "JAX"
    x = np.floor(count + w.u(0, 1)) * size
    return w.base + x, leak(0.0, w.room() / oom, oom, "gradual", "step")


def failed_loads(w: World) -> Shape:
    """Loads of a model that fail half way, tried again a few times; what was loaded stays.

    Reported of Triton (server issue 8969, onnxruntime_backend issue 268): only failed loads leak,
    so the steps come in clusters.
    """
    gap = w.u(12, 45) * 60
    retries = int(w.rng.integers(1, 5))
    oom = w.log(2.5, 14) * HOUR
    rate = w.room() / oom
    at = np.repeat(w.times(gap, 2.0), retries)
    at = np.sort(at + np.tile(np.arange(retries) * w.u(10, 60), at.size // retries))
    size = rate * gap / retries * w.rng.uniform(0.7, 1.3, at.size)
    w.name, w.quantum = "tritonserver", 2 * MIB
    return w.base + w.steps(at, size), leak(float(at[0]), rate, oom, "step", "gradual")


def episodes(w: World) -> Shape:
    """A simulator rebuilt for every episode, with a graph captured anew and not released.

    Reported of Warp (issue 1429): what is allocated inside a graph outlives it. Episodes last
    longer as the agent learns; each reset gives back nearly all.
    """
    first = w.u(2, 8) * 60
    growth = w.u(1.0, 1.02)
    length = np.minimum(first * growth ** np.arange(int(w.t[-1] / first) + 3), 4 * first)
    at = np.cumsum(length * w.rng.uniform(0.85, 1.15, length.size))
    keep = w.room() * w.u(0.006, 0.03)
    swing = w.room() * w.u(0.05, 0.35)
    index = np.searchsorted(at, w.t, side="right")
    begin = np.concatenate(([0.0], at))[index]
    x = keep * index + swing * np.clip((w.t - begin) / (0.3 * first), 0, 1)
    rate = keep / first
    oom = (w.room() - swing) / rate
    return w.base + x, leak(0.0, rate, oom, "cyclic", "step", "gradual")


def worker_pool(w: World) -> Shape:
    """A pool that starts another worker now and then and forgets the old ones.

    Every worker is flat (a context and a model); only their number grows.
    """
    size = w.context() + w.room() * w.u(0.015, 0.05)
    gap = w.u(6, 30) * 60
    rate = size / gap
    at = w.times(gap, w.u(1.0, 20.0))
    for k, begin in enumerate(at[at < w.t[-1]].tolist()):
        if k * size > 1.2 * w.total:
            break
        w.process(f"ray::Actor#{k}", size, begin_s=begin, framework="PyTorch")
    w.leaker = False
    return np.full(w.t.size, w.base), leak(
        float(at[0]), rate, w.room() / rate, "step", "gradual"
    )  # fmt: skip


def fragmentation_creep(w: World) -> Shape:
    """Requests of all lengths that fit into no free block: the reserve grows, what is used not.

    Segments of heavy-tailed size, a little rarer with time, and no end.
    """
    oom = w.log(2, 16) * HOUR
    rate = w.room() / oom
    mean_gap = w.log(0.5, 6) * 60
    ticks = w.times(mean_gap)
    at = oom * (ticks / oom) ** w.u(1.0, 1.25)
    size = w.rng.lognormal(-0.5, 1.0, at.size) * rate * mean_gap
    w.quantum = 20 * MIB
    return w.base + w.steps(at, size), leak(0.0, rate, oom, "gradual", "step")


def two_leaks(w: World) -> Shape:
    """Two leaking processes on one card, one of them later and with another rate."""
    oom = w.log(2, 14) * HOUR
    share = w.u(0.25, 0.75)
    first, second = share * 0.75 * w.room() / oom, (1 - share) * 0.75 * w.room() / oom
    start = w.u(0.1, 1.0) * HOUR
    size = w.context() + 0.05 * w.room()
    for name, rate, begin in (("first", first, -600.0), ("second", second, start)):
        held = size + (0.1 * w.room() if begin < 0 else 0.0) - rate * min(begin, 0.0)
        w.process(
            f"python {name}.py", rising(held, rate), begin_s=begin, leaker=True,
            rate_bytes_per_s=rate, framework="PyTorch",
        )  # fmt: skip
    return w.nobody(), leak(0.0, first + second, oom, "gradual", "step")


def adapter_swaps(w: World) -> Shape:
    """A studio for images where every change of model or adapter leaves a part of the old one.

    Reported of ComfyUI (issue 1201): after some ten adapters or five models there is no room
    left. Changes come when the user likes, and each image takes its own memory while it is made.
    """
    gap = w.u(3, 18) * 60
    oom = w.log(1.5, 9) * HOUR
    swing = w.room() * w.u(0.08, 0.3)
    rate = (w.room() - swing) / oom
    at = w.times(gap, w.u(0.6, 2.0))
    kept = w.steps(at, w.rng.lognormal(-0.18, 0.6, at.size) * rate * gap)
    cuts = w.times(w.log(15, 90), 3.0)
    making = (w.rng.random(cuts.size + 1) < w.u(0.3, 0.8))[np.searchsorted(cuts, w.t)]
    w.name, w.quantum = "python main.py", 2 * MIB
    return w.base + kept + swing * making, leak(
        float(at[0]), rate, oom, "step", "cyclic", "gradual"
    )  # fmt: skip


def conversations(w: World) -> Shape:
    """Chats whose key-value cache grows with every token and is kept when nobody is there.

    A part is dropped at the end of a chat, the rest waits for an answer that never comes.
    """
    gap = w.u(1, 6) * 60
    oom = w.log(2, 12) * HOUR
    rate = 0.9 * w.room() / oom
    keep = w.u(0.3, 1.0)
    at = w.times(gap)
    length = w.rng.gamma(2.0, w.u(1, 4) * 60, at.size)
    size = w.rng.lognormal(-0.18, 0.6, at.size) * rate * gap / keep
    order = np.argsort(at + length + 30.0)
    gone = w.steps((at + length + 30.0)[order], ((1 - keep) * size)[order])
    w.name = "python chat_api.py"
    x = w.ramps(at, length, size) - gone
    return w.base + x, leak(0.0, rate, oom, "gradual", "cyclic", "step")


def rate_changes(w: World) -> Shape:
    """A leak whose rate changes once or twice: another data set, another hour, another client."""
    oom = w.log(2, 14) * HOUR
    rate = w.room() / oom
    edges = np.sort(w.rng.uniform(0.1, 0.8, int(w.rng.integers(1, 3)))) * oom
    factor = np.exp(w.rng.uniform(np.log(0.35), np.log(2.8), edges.size + 1))
    speed = factor[np.searchsorted(edges, w.t)]
    spans = np.diff(np.concatenate(([0.0], edges, [oom])))
    speed *= oom / float(factor @ spans)
    return w.base + w.integral(rate * speed), leak(0.0, rate, oom, "gradual")


def partial_trims(w: World) -> Shape:
    """A leak that somebody fights: a timer empties the cache, and gets back a part of it."""
    period = w.u(10, 60) * 60
    back = w.u(0.1, 0.6)
    oom = w.log(2, 12) * HOUR
    rate = 0.95 * w.room() / oom
    turns = np.floor(w.t / period)
    x = rate / (1 - back) * (w.t - back * period * turns)
    return w.base + x, leak(0.0, rate, oom, "cyclic", "gradual", "step")


def doubling_leak(w: World) -> Shape:
    """A leak that feeds itself: what is kept is copied along, the rate doubles again and again."""
    oom = w.log(1.5, 10) * HOUR
    doublings = w.u(1.5, 5)
    x = w.room() * (2 ** np.minimum(w.t / oom * doublings, 60) - 1) / (2**doublings - 1)
    return w.base + x, leak(0.0, w.room() / oom, oom, "gradual")


def phase_then_leak(w: World) -> Shape:
    """Phases of a pipeline, each on its own level; the last of them leaks."""
    count = int(w.rng.integers(1, 5))
    at = np.sort(w.rng.uniform(0.05, 3.5, count)) * HOUR
    level = w.room() * w.rng.uniform(0.0, 0.4, count + 1)
    onset, left = float(at[-1]), w.room() - float(level[-1])
    oom = w.log(1, 10) * HOUR
    rate = left / oom
    x = level[np.searchsorted(at, w.t, side="right")] + rate * np.maximum(w.t - onset, 0)
    return w.base + x, leak(onset, rate, onset + oom, "gradual")
