"""Harmless behaviour of training runs, tools and desktops, by mechanism.

Where something grows, the record shows that it ends: a data set has been seen, a pool is full, the
last stage has begun, the trials are over.
"""

from __future__ import annotations

import numpy as np

from tests.scenarios.blind_rig import (
    GIB,
    HOUR,
    MIB,
    Array,
    Rig,
    Run,
    Steps,
    cached,
    changes,
    doubling,
    harmless,
    jobs,
    whole,
)

LATEST = 0.72
"""Share of the record after which nothing is retained any more."""


def first_step_state(rig: Rig) -> Run:
    """Weights, then gradients and optimizer state at the first step, then the same step for hours.

    The autotuner tries workspaces in the first minutes; a few come and go.
    """
    span = rig.day()
    weights = rig.total * rig.u(0.05, 0.2)
    boot, ready = rig.boot(weights)
    at = ready + rig.u(1.0, 200.0)
    states = changes(at + np.array([0.0, 2.0, 5.0]), weights * np.array([1.0, rig.u(1, 2), 0.2]))
    tries = rig.arrivals(0.3, at, at + rig.u(30.0, 300.0))
    trial = jobs(tries, np.full(tries.size, 1.0), rig.ragged(0.02 * rig.total, 0.8, tries.size))
    act = changes(np.array([at]), np.array([rig.total * rig.u(0.05, 0.2)]))
    used = cached(boot + states + trial + act, 2 * MIB)
    used = Steps(used.t, np.minimum(used.y, 0.96 * rig.total))
    return harmless(used, used, span, "plateau", "stable", "preallocated")


def size_classes(rig: Rig) -> Run:
    """Sequences of every length: each size class keeps as many blocks as it ever needed at once.

    Classes and concurrency are bounded, so the sum of the marks is; stragglers come late.
    """
    span, boot, ready = rig.loaded_day(0.1, 0.4)
    classes = rig.n(8, 50)
    block = rig.total * rig.u(0.05, 0.35) / classes / 3.0
    settle = span * rig.u(0.02, 0.3)
    marks = [
        rig.first_asked(classes, settle * level, ready, LATEST * span) for level in (0.4, 1.0, 1.6)
    ]
    times = np.concatenate(marks)
    used = boot + changes(times, whole(rig.ragged(block, 0.7, times.size), 2 * MIB))
    return harmless(used, used, span, "plateau", "stable")


def pipeline_mark(rig: Rig) -> Run:
    """A GPU data pipeline: each of its buffers grows to the largest sample that it has met.

    The data set is finite: once every sample has passed through every buffer, nothing grows.
    """
    span, boot, ready = rig.loaded_day(0.1, 0.4)
    buffers, samples = rig.n(3, 24), rig.n(60, 1_000)
    largest = rig.rng.pareto(rig.u(2.0, 4.0), samples) + 1.0
    passed_s = LATEST * span * rig.u(0.1, 0.95)
    draws = np.stack([rig.rng.permutation(largest) for _ in range(buffers)])
    high = np.maximum.accumulate(draws, axis=1).sum(axis=0) / (buffers * largest.max())
    times = ready + passed_s / samples * np.arange(1.0, high.size + 1)
    size = rig.total * rig.u(0.05, 0.35)
    used = boot + Steps(times, whole(high * size, rig.segment))
    return harmless(used, used, span, "plateau", "stable")


def recompile_limit(rig: Rig) -> Run:
    """A compiler that specialises on shapes, up to its limit of recompilations, then gives up."""
    span, boot, ready = rig.loaded_day(0.15, 0.5)
    limit = rig.n(4, 16)
    times = rig.first_asked(limit, span * rig.u(0.02, 0.35), ready, LATEST * span)
    pools = whole(rig.ragged(rig.total * rig.u(0.005, 0.02), 0.5, times.size), 20 * MIB)
    tuning = jobs(times - 20.0, np.full(times.size, 20.0), 2.0 * pools)
    keep = boot + changes(times, pools)
    return harmless(keep + tuning, keep, span, "plateau", "stable", "spike")


def evaluation_rounds(rig: Rig) -> Run:
    """Training with an evaluation every so many steps; the cache is emptied after each."""
    span, boot, ready = rig.loaded_day(0.15, 0.5)
    period = rig.log(180.0, 2.0 * HOUR)
    starts = np.arange(ready + period, span, period)
    starts = starts + rig.rng.normal(0.0, 0.01 * period, starts.size)
    lasts = period * rig.u(0.03, 0.3)
    high = rig.ragged(rig.total * rig.u(0.03, 0.3), 0.05, starts.size)
    batches = rig.n(1, 12)
    into = lasts * np.linspace(0.0, 0.6, batches)
    many = (starts[:, None] + into).ravel()
    ends = np.repeat(starts + lasts, batches)
    peaks = jobs(many, ends - many, np.repeat(high / batches, batches))
    return harmless(boot + peaks, boot, span, "spike", "sawtooth", "stable")


def checkpoint_gather(rig: Rig) -> Run:
    """A sharded model is gathered on one card for a checkpoint: a short, high, rare peak."""
    span, boot, ready = rig.loaded_day(0.2, 0.6)
    period = rig.u(0.25, 2.5) * HOUR
    starts = np.arange(ready + period, span, period)
    high = np.full(starts.size, (rig.total - boot.peak()) * rig.u(0.3, 0.9))
    layers = 6
    times = (starts[:, None] + rig.u(0.5, 8.0) * np.arange(layers)).ravel()
    lasts = np.repeat(starts + rig.u(20.0, 200.0) + 8.0 * layers, layers) - times
    peaks = jobs(times, lasts, np.repeat(high / layers, layers))
    return harmless(boot + peaks, boot, span, "spike", "sawtooth", "stable")


def length_curriculum(rig: Rig) -> Run:
    """Sequence length doubles by stages; the last stage begins well before the record ends."""
    span, boot, ready = rig.loaded_day(0.1, 0.35)
    stages = rig.n(2, 6)
    begins = ready + np.sort(rig.rng.uniform(0.0, LATEST, stages)) * (span - ready) * 0.97
    sizes = 2.0 ** np.arange(stages)
    sizes = sizes / sizes.sum() * rig.total * rig.u(0.1, 0.45)
    keep = boot + changes(begins, whole(sizes, 20 * MIB))
    warm = jobs(begins, np.full(stages, 30.0), 0.1 * sizes)
    return harmless(keep + warm, keep, span, "plateau", "stable")


def ring_of_experience(rig: Rig) -> Run:
    """A replay buffer on the card: filled transition by transition, then overwritten."""
    span, boot, ready = rig.loaded_day(0.03, 0.2)
    full = rig.u(0.08, LATEST) * span
    capacity = rig.total * rig.u(0.15, 0.6)
    chunks = rig.n(40, 3_000)
    pace = rig.ragged(1.0, rig.u(0.0, 0.5), chunks)
    times = ready + 30.0 + np.cumsum(pace) / pace.sum() * (full - ready - 30.0)
    ring = changes(times, np.full(chunks, capacity / chunks))
    keep = boot + Steps(ring.t, whole(ring.y, rig.segment))
    learn = rig.total * rig.u(0.0, 0.08)
    period = rig.log(60.0, 1_800.0)
    starts = np.arange(ready + 60.0, span, period)
    work = jobs(starts, np.full(starts.size, 0.4 * period), np.full(starts.size, learn))
    return harmless(keep + work, keep, span, "plateau", "sawtooth", "stable")


def uneven_experts(rig: Rig) -> Run:
    """Experts get what the router sends: the mark wanders up until the cache is emptied."""
    span, boot, ready = rig.loaded_day(0.25, 0.55)
    every = rig.u(2.0, 20.0)
    starts = np.arange(ready, span, every)
    load = rig.rng.dirichlet(np.full(rig.n(4, 16), rig.u(3.0, 30.0)), starts.size).max(axis=1)
    work = jobs(starts, np.full(starts.size, 0.95 * every), load / load.max() * 0.25 * rig.total)
    empties = np.arange(ready, span, rig.log(120.0, 2.0 * HOUR))
    used = cached(boot + work, 20 * MIB, empties)
    return harmless(used, boot, span, "sawtooth", "stable", "spike")


def fresh_trials(rig: Rig) -> Run:
    """A sweep that frees everything: every trial another model, another batch size."""
    span = rig.day()
    boot, ready = rig.boot(rig.total * 0.005)
    count = rig.n(6, 80)
    lasts = rig.ragged(span / count, 0.5, 2 * count)
    starts = ready + np.concatenate(([0.0], np.cumsum(lasts)[:-1]))
    sizes = np.minimum(rig.ragged(0.35 * rig.total, 0.5, lasts.size), 0.85 * rig.total)
    parts = np.array([0.4, 0.35, 0.25])
    times = (starts[:, None] + np.array([1.0, 8.0, 30.0])).ravel()
    over = np.repeat(starts + np.maximum(0.96 * lasts, 40.0), 3)
    used = boot + jobs(times, over - times, (sizes[:, None] * parts).ravel())
    used = Steps(used.t, np.minimum(used.y, 0.95 * rig.total))
    return harmless(used, boot, span, "sawtooth", "spike", "unknown", "stable", "plateau")


def notebook_day(rig: Rig) -> Run:
    """Cells by hand: variables pile up, are overwritten, and the kernel is started anew."""
    span = rig.day()
    bouts = np.sort(rig.rng.uniform(0.0, 0.7 * span, rig.n(1, 5)))
    bouts = np.concatenate(([10.0], bouts))
    ends = np.append(bouts[1:], 2.0 * span)
    used = Steps(np.zeros(1), np.array([rig.u(0.0, 400.0) * MIB]))
    for begin, end in zip(bouts.tolist(), ends.tolist(), strict=True):
        tired = min(end, begin + 2.5 * HOUR, 0.74 * span)
        cells = rig.arrivals(rig.u(6.0, 40.0) / HOUR, begin, tired)
        sizes = np.minimum(rig.ragged(0.02 * rig.total, 1.0, cells.size), 0.1 * rig.total)
        sizes = sizes * min(1.0, 0.6 * rig.total / max(sizes.sum(), 1.0))
        context = np.array([rig.u(300.0, 500.0) * MIB])
        alive = np.where(rig.rng.random(cells.size) < 0.5, end, cells + rig.u(60.0, 2_000.0))
        alive = np.minimum(alive, end) - cells
        live = jobs(cells, alive, sizes) + jobs(np.array([begin]), np.array([end - begin]), context)
        used = used + cached(live, 2 * MIB, np.append(cells[::4], end))
    return harmless(used, used, span, "unknown", "plateau", "sawtooth", "spike", "stable")


def rollout_and_learn(rig: Rig) -> Run:
    """On-policy learning: rollouts fill a store, the update empties it."""
    span, boot, ready = rig.loaded_day(0.1, 0.4)
    period = rig.log(40.0, 3_000.0)
    rounds = np.arange(ready, span, period)
    parts = min(24, max(4, int(20_000 / rounds.size)))
    into = period * np.linspace(0.02, rig.u(0.5, 0.9), parts)
    times = (rounds[:, None] + into).ravel()
    ends = np.repeat(rounds + 0.97 * period, parts)
    high = rig.ragged(rig.total * rig.u(0.05, 0.4), 0.06, rounds.size)
    used = boot + jobs(times, ends - times, np.repeat(high / parts, parts))
    return harmless(used, boot, span, "sawtooth", "stable", "spike")


def game_evening(rig: Rig) -> Run:
    """A desktop and its games: levels stream in up to a texture budget and go with the game."""
    span = rig.day()
    desk = Steps(np.zeros(1), np.array([rig.u(300.0, 1_200.0) * MIB]))
    starts = np.sort(rig.rng.uniform(0.02, 0.7, rig.n(1, 4))) * span
    stops = np.append(starts[1:], span * rig.u(0.75, 0.9))
    stops = starts + (stops - starts) * rig.rng.uniform(0.5, 0.98, starts.size)
    used = desk
    for begin, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        budget = rig.total * rig.u(0.2, 0.6)
        levels = np.sort(np.append(rig.rng.uniform(begin, stop, rig.n(1, 10)), begin))
        tiles = rig.n(20, 200)
        times = (levels[:, None] + np.cumsum(rig.rng.exponential(2.0, tiles))).ravel()
        times = times[times < stop]
        live = changes(times, np.full(times.size, budget * rig.u(0.3, 1.0) / tiles))
        held = Steps(live.t, np.minimum(live.y, budget)).until(stop)
        used = used + held + Steps(np.array([stop]), np.array([-held.peak()]))
    apps = rig.arrivals(3.0 / HOUR, 0.0, 0.9 * span)
    tabs = jobs(apps, rig.ragged(0.5 * HOUR, 0.8, apps.size), np.full(apps.size, 0.006 * rig.total))
    return harmless(used + tabs, desk, span, "plateau", "spike", "sawtooth", "unknown", "stable")


def transcoding(rig: Rig) -> Run:
    """A media server: viewers come and go, each line takes its surfaces; lines are limited."""
    span = rig.day()
    boot, ready = rig.boot(50.0 * MIB)
    lines = rig.n(2, 12)
    each = min(rig.u(120.0, 600.0) * MIB, 0.7 * rig.total / lines)
    lasts = rig.u(0.05, 1.5) * HOUR
    starts = rig.arrivals(rig.u(0.1, 0.7) * lines / lasts, ready, 0.97 * span)
    viewers = jobs(starts, rig.ragged(lasts, 0.7, starts.size), np.ones(starts.size))
    used = boot + Steps(viewers.t, np.minimum(np.round(viewers.y), lines) * each)
    return harmless(used, boot, span, "unknown", "sawtooth", "spike", "stable", "plateau")


def idle_or_mining(rig: Rig) -> Run:
    """An idle box, or a miner whose data set is replaced once by one a page larger."""
    span = rig.day()
    idle = Steps(np.zeros(1), np.array([rig.u(3.0, 400.0) * MIB]))
    if rig.chance(0.5):
        return harmless(idle, idle, span, "stable")
    dag, at, later = rig.u(2.0, 6.0) * GIB, rig.u(5.0, 200.0), span * rig.u(0.1, LATEST)
    parts = np.array([dag, -dag, dag + 8 * MIB])
    work = changes(np.array([at, later, later + rig.u(5.0, 20.0)]), parts)
    return harmless(idle + work, (idle + work), span, "stable", "plateau", "preallocated")


def functions_on_demand(rig: Rig) -> Run:
    """A runtime without preallocation: arena regions double as functions are compiled."""
    span = rig.day()
    boot, ready = rig.boot(0.0)
    functions = rig.n(6, 40)
    times = rig.first_asked(functions, span * rig.u(0.01, 0.25), ready, LATEST * span)
    sizes = rig.ragged(0.3 * rig.total / functions, 0.9, times.size)
    sizes = sizes * min(1.0, 0.36 * rig.total / sizes.sum())
    live = changes(times, sizes)
    used = boot + doubling(live, rig.log(16.0, 512.0) * MIB)
    used = Steps(used.t, np.minimum(used.y, 0.92 * rig.total))
    return harmless(used, used, span, "plateau", "stable")


def partition_by_partition(rig: Rig) -> Run:
    """Data frames by partition in a pool that grows to its cap; the rest spills to the host."""
    span, boot, ready = rig.loaded_day(0.0, 0.05)
    cap = rig.total * rig.u(0.4, 0.8)
    lasts = rig.log(20.0, 900.0)
    starts = rig.arrivals(min(rig.u(1.0, 6.0) / lasts, 15_000 / span), ready, span)
    work = jobs(starts, rig.rng.exponential(lasts, starts.size),
                rig.ragged(0.08 * rig.total, 0.8, starts.size))  # fmt: skip
    # The cap binds early: what the pool holds then is all that it will ever hold.
    cap = min(cap, 0.95 * work.until(0.6 * span).peak())
    work = Steps(work.t, np.minimum(work.y, cap))
    ends = np.sort(rig.rng.uniform(ready, span, rig.n(0, 8)))
    used = boot + cached(work, rig.log(64.0, 1024.0) * MIB, ends)
    used = Steps(used.t, np.minimum(used.y, boot.peak() + cap))
    return harmless(used, boot, span, "plateau", "stable", "unknown", "sawtooth", "spike")


def whole_card_at_once(rig: Rig) -> Run:
    """A runtime that takes most of the card at start and hands it out itself."""
    span = rig.day()
    at = rig.u(0.0, 300.0)
    context = changes(np.array([0.5 * at]), np.array([rig.u(250.0, 500.0) * MIB]))
    pool = changes(np.array([at]), np.array([rig.total * rig.u(0.7, 0.9)]))
    libs = np.sort(rig.rng.uniform(at, at + 900.0, rig.n(1, 8)))
    extra = changes(libs, np.full(libs.size, rig.u(8.0, 120.0) * MIB))
    used = context + pool + extra
    used = Steps(used.t, np.minimum(used.y, 0.965 * rig.total))
    return harmless(used, used, span, "preallocated", "stable", "plateau")


def travelling_front(rig: Rig) -> Run:
    """An adaptive mesh: cells are refined as the front spreads and coarsened as it leaves.

    The mesh grows for hours, turns, and shrinks; the peak lies inside the record.
    """
    span, boot, ready = rig.loaded_day(0.03, 0.15)
    cells, high = rig.n(300, 3_000), rig.total * rig.u(0.15, 0.6)
    middle, width = rig.u(0.25, 0.5) * span, rig.u(0.05, 0.12) * span
    enter = np.maximum(rig.rng.normal(middle, width, cells), ready)
    stay = np.maximum(rig.rng.normal(0.6 * width, 0.2 * width, cells), 60.0)
    live = jobs(enter, stay, np.ones(cells))
    live = Steps(live.t, live.y / live.y.max() * high)
    regrids = np.arange(ready, span, rig.log(60.0, 1_200.0))
    used = cached(boot + live, 2 * MIB, regrids)
    return harmless(used, boot, span, "plateau", "spike", "unknown", "sawtooth", "stable")


def index_build(rig: Rig) -> Run:
    """Vectors are added to an index batch by batch; then it is only searched."""
    span, boot, ready = rig.loaded_day(0.0, 0.1)
    batches = rig.n(20, 600)
    done = rig.u(0.05, 0.7) * span
    gaps = rig.ragged(1.0, rig.u(0.1, 0.9), batches)
    times = ready + np.cumsum(gaps) / gaps.sum() * (done - ready)
    size = rig.total * rig.u(0.15, 0.6) / batches
    keep = boot + changes(times, np.full(batches, whole(np.array([size]), MIB)[0]))
    encode = jobs(times, np.minimum(gaps, 5.0), np.full(batches, 0.03 * rig.total))
    asks = rig.arrivals(0.02, done, span)
    search = jobs(asks, np.full(asks.size, 4.0), np.full(asks.size, 0.01 * rig.total))
    return harmless(keep + encode + search, keep, span, "plateau", "stable", "spike")


def micro_batches(rig: Rig) -> Run:
    """Slow accumulation: gradient buckets come with the first micro-batch and go with the step."""
    span, boot, ready = rig.loaded_day(0.15, 0.45)
    period = rig.log(10.0, 400.0)
    starts = np.arange(ready, span, period)
    size = rig.total * rig.u(0.05, 0.2)
    keep_s = np.full(starts.size, rig.u(0.6, 0.95) * period)
    grads = jobs(starts, keep_s, np.full(starts.size, size))
    act = rig.ragged(0.08 * rig.total, 0.15, starts.size)
    acts = jobs(starts + 0.05 * period, np.full(starts.size, 0.3 * period), act)
    return harmless(boot + grads + acts, boot, span, "sawtooth", "stable", "spike")


def scene_gets_denser(rig: Rig) -> Run:
    """Splatting: points are cloned where the picture is poor, for the first half of each scene.

    Every tenth of the run opacities are reset and pruning takes some away. Scene after scene, each
    a process of its own; then the card is free.
    """
    span = rig.day()
    desk = Steps(np.zeros(1), np.array([rig.u(5.0, 500.0) * MIB]))
    scenes = rig.n(1, 5)
    bounds = np.linspace(0.01, rig.u(0.6, 0.78), scenes + 1) * span
    used = desk
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        points, room, most = 1.0, rig.log(4.0, 40.0), rig.total * rig.u(0.2, 0.7)
        growth, prune = rig.u(0.02, 0.08), rig.u(0.8, 0.97)
        counts = np.empty(300)
        for k in range(counts.size):
            if k < 150:
                points += points * growth * max(1.0 - points / room, 0.0) * rig.u(0.5, 1.5)
                points *= prune if k % 30 == 29 else 1.0
            counts[k] = points
        # A step takes longer the more points there are.
        pace = np.cumsum(0.3 + counts / counts.max())
        times = begin + pace / pace[-1] * 0.96 * (end - begin)
        bytes_ = whole(counts / counts.max() * most, 2 * MIB)
        used = used + Steps(np.append(times, end), np.append(bytes_, 0.0))
    return harmless(used, desk, span, "plateau", "sawtooth", "unknown", "spike", "stable")


def shortest_first(rig: Rig) -> Run:
    """Speech sorted by length: memory climbs through the epoch as the longer ones come.

    Some programs empty the cache after an epoch and climb again, others keep the first climb.
    """
    span, boot, ready = rig.loaded_day(0.1, 0.4)
    batches = rig.n(100, 1_200)
    length = np.sort(rig.ragged(1.0, rig.u(0.3, 0.7), batches))
    high = rig.total * rig.u(0.1, 0.45)
    emptied = rig.chance(0.6)
    epoch = span * (rig.log(0.03, 0.25) if emptied else rig.u(0.03, 0.65))
    pace = np.cumsum(0.2 + length / length.max())
    starts = np.arange(ready, span, epoch)
    times = (starts[:, None] + pace / pace[-1] * 0.97 * epoch).ravel()
    need = np.tile(length / length.max() * high, starts.size)
    live = Steps(times, need)
    if emptied:
        over = starts + 0.99 * epoch
        both, order = np.concatenate((times, over)), np.argsort(np.concatenate((times, over)))
        live = Steps(both[order], np.concatenate((need, np.zeros(over.size)))[order])
        return harmless(
            boot + cached(live, 20 * MIB, over), boot, span, "sawtooth", "spike", "unknown"
        )
    used = boot + cached(live, 20 * MIB)
    return harmless(used, used, span, "plateau", "stable")


def collected_late(rig: Rig) -> Run:
    """Objects in reference cycles wait for the collector, which comes when enough has piled up.

    With the cache emptied the card shows teeth; without, the mark of the tallest, an early one.
    """
    span, boot, ready = rig.loaded_day(0.15, 0.5)
    tooth = rig.log(120.0, 2_400.0)
    count = int((span - ready) / tooth) + 2
    heights = np.minimum(rig.ragged(1.0, rig.u(0.1, 0.4), count), 2.0)
    tallest, early = int(heights.argmax()), rig.n(0, int(0.6 * count))
    heights[[tallest, early]] = heights[[early, tallest]]
    lasts = heights * tooth
    ends = ready + np.cumsum(lasts)
    per = min(20, max(3, 20_000 // count))
    parts = np.linspace(0.05, 1.0, per)
    times = (ends[:, None] - lasts[:, None] * (1.0 - 0.99 * parts)).ravel()
    high = rig.total * rig.u(0.04, 0.2)
    sizes = np.repeat(heights * high / per, per)
    live = jobs(times, np.repeat(ends, per) - times, sizes)
    if rig.chance(0.6):
        used = boot + cached(live, 2 * MIB, ends + 1e-3)
        return harmless(used, boot, span, "sawtooth", "stable", "spike")
    used = boot + cached(live, 20 * MIB)
    return harmless(used, used, span, "plateau", "stable")


def preempted_and_resumed(rig: Rig) -> Run:
    """A job on borrowed time: it loads, warms up, is stopped, and starts again after a while."""
    span = rig.day()
    desk = Steps(np.zeros(1), np.array([rig.u(3.0, 300.0) * MIB]))
    turns = rig.n(3, 14)
    begins = np.sort(rig.rng.uniform(0.0, 0.97, turns)) * span
    ends = np.append(begins[1:], 2.0 * span)
    shapes = rig.n(5, 40)
    weights, state = rig.total * rig.u(0.05, 0.2), rig.total * rig.u(0.1, 0.3)
    spaces = rig.ragged(rig.total * rig.u(0.03, 0.15) / shapes, 0.5, shapes)
    settle = span / turns * rig.u(0.02, 0.3)
    used = desk
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        stop = end if end > span else begin + (end - begin) * rig.u(0.7, 0.98)
        first = np.array([0.0, 20.0, 40.0]) + rig.u(5.0, 60.0)
        found: Array = rig.first_asked(shapes, settle, 120.0, LATEST * (span - begin))
        times = begin + np.concatenate((first, found))
        sizes = np.concatenate(([0.5 * weights, 0.5 * weights, state], spaces[: found.size]))
        alive = times < stop
        used = used + jobs(times[alive], stop - times[alive], sizes[alive])
    return harmless(used, desk, span, "plateau", "unknown", "stable", "sawtooth", "spike")
