"""Growth that ends by itself, repeats by itself or only looks bounded: near twins."""

from __future__ import annotations

import numpy as np

from tests.scenarios.blind_benign import LATEST
from tests.scenarios.blind_leaks import SPAN, plain
from tests.scenarios.blind_rig import (
    MIB,
    Array,
    Rig,
    Run,
    Steps,
    cached,
    changes,
    harmless,
    jobs,
    leaking,
    whole,
)


def buffer_without_bound(rig: Rig) -> Run:
    """A replay buffer whose length nobody set: it fills like a bounded one and goes on.

    The simulator slows as episodes lengthen, and learning takes its batches now and then.
    """
    life = rig.life(0.4, 36.0)
    boot, ready = plain(rig, life, low=0.05, high=0.3)
    count, slower = rig.n(200, 5_000), rig.u(0.0, 0.6)
    k = np.arange(1.0, SPAN * count)
    gaps = rig.ragged(1.0, rig.u(0.0, 0.5), k.size) * (1.0 + slower * k / count)
    times = ready + np.cumsum(gaps) * life / gaps[:count].sum()
    batch, period = rig.total * rig.u(0.0, 0.1), rig.log(life / 600, life / 20)
    starts = np.arange(ready, float(times[-1]), period)
    learn = jobs(starts, np.full(starts.size, 0.35 * period), np.full(starts.size, batch))
    room = rig.room(boot) - batch
    lost = cached(changes(times, np.full(k.size, room / count)), rig.segment)
    return leaking(
        boot + learn, lost, float(times[0]), float(times[-1]), "gradual",
        *(("cyclic",) if batch > 0.02 * rig.total else ()),
    )  # fmt: skip


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


LEAKS = (buffer_without_bound,)
BENIGN = (
    scene_gets_denser, shortest_first, collected_late, preempted_and_resumed,
)  # fmt: skip
