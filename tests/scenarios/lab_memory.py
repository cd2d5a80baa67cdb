"""What the laboratory draws for every item beside its story: card, clock, allocator, guests."""

from __future__ import annotations

import numpy as np

from tests.scenarios.world import GIB, HOUR, MIB, Array, Bools, Rng, World

CARDS_GIB = (8.0, 12.0, 16.0, 24.0, 32.0, 40.0, 48.0, 80.0)
SLICES_GIB = (4.75, 9.75, 19.5)
"""Instances that a large card is cut into (MIG)."""
UNIFIED_GIB = 128.0
INTERVALS_S = (1.0, 2.0, 5.0, 5.0, 10.0, 30.0)
TAIL_S = 120 * HOUR
"""How long a leak is simulated beyond its record; what has not reached the limit by then counts
by the formula of its family."""
TAIL_STEP_S = 60.0


def draw(rng: Rng, length_s: float, *, tail: bool) -> World:
    """Return a card, a clock, a level to start from, an allocator and a noise."""
    kind = rng.random()
    if kind < 0.82:
        total = float(rng.choice(CARDS_GIB)) * GIB
    elif kind < 0.94:
        total = float(rng.choice(SLICES_GIB)) * GIB
    else:
        total = UNIFIED_GIB * GIB
    interval = float(rng.choice(INTERVALS_S))
    jitter = float(rng.choice([0.02, 0.05, 0.2]))
    t = np.arange(0.0, length_s, interval)
    late = rng.random(t.size)
    # One sample in three hundred comes late: something else kept the machine busy.
    late = jitter * late + 0.6 * (late > 0.9967)
    t = t + interval * late
    t -= t[0]
    if tail:
        t = np.concatenate((t, np.arange(length_s + TAIL_STEP_S, TAIL_S, TAIL_STEP_S)))
    torch = bool(rng.random() < 0.4)
    small = [0.0, 0.0, 2.0, 8.0, 30.0]
    noise = float(rng.choice(small)) if rng.random() < 0.93 else float(rng.uniform(60, 150))
    return World(
        rng=rng,
        total=total,
        t=t,
        base=min(float(rng.uniform(300, 600)) * MIB, 0.08 * total)
        + total * float(rng.uniform(0.03, 0.42)),
        noise=min(noise * MIB, 0.012 * total),
        interval=interval,
        length_s=length_s,
        quantum=(20 if torch else 2) * MIB,
        overhead=np.floor(float(rng.uniform(0.0005, 0.01)) * total / (2 * MIB)) * 2 * MIB,
    )


def held(x: Array, slack: float) -> Array:
    """Return what an allocator holds that follows ``x`` up at once, and down only past ``slack``.

    y[k] = clip(y[k-1], x[k], x[k] + slack). Such steps can be put together like any functions,
    so all of them are found in log2(n) passes instead of n.
    """
    low, high = x.copy(), x + slack
    reach = 1
    while reach < x.size:
        before_low, before_high = low[:-reach].copy(), high[:-reach].copy()
        low[reach:], high[reach:] = (
            np.clip(before_low, low[reach:], high[reach:]),
            np.clip(before_high, low[reach:], high[reach:]),
        )
        reach *= 2
    y: Array = np.clip(x[0], low, high)
    return y


def in_segments(x: Array, noise: Array, quantum: float) -> Array:
    """Return what the driver sees of a process that needs ``x`` under ``noise`` (n,) each.

    Where memory is taken from the driver directly every change is seen, in blocks of 2 MiB. A
    caching allocator takes larger segments and keeps them: what wobbles less than a few of them
    leaves only its maximum behind.
    """
    need: Array = x + noise
    if quantum > 2 * MIB and noise.any():
        need = held(need, float(2 * np.ptp(noise)) + quantum)
    blocks: Array = np.maximum(np.ceil(need / quantum) * quantum, 0.0)
    return blocks


def guest(w: World, room: float) -> None:
    """Add a small neighbour of at most ``room`` bytes: flat, or coming and going."""
    size = min(w.context() + w.u(0.0, 0.04) * w.total, room)
    if size < 64 * MIB:
        return
    if w.rng.random() < 0.5:
        began = w.u(-1.0, 0.6) * w.length_s
        w.process("python notebook.py", size, begin_s=began, visitor=True, framework="PyTorch")
        return
    stay, pause = w.log(1, 30) * 60, w.log(2, 60) * 60
    begin, k = w.u(0, 1) * pause, 0
    while begin < w.length_s:
        end = begin + stay * w.u(0.5, 1.5)
        w.process(
            f"python visit{k}.py", size, begin_s=begin, end_s=end, visitor=True,
            framework="PyTorch",
        )  # fmt: skip
        begin, k = end + pause * w.u(0.3, 1.7), k + 1


def seen(rng: Rng, t: Array, interval: float) -> Bools:
    """Return which of the instants were sampled: some are missed, and the daemon may be down."""
    keep = rng.random(t.size) >= float(rng.choice([0.0, 0.0, 0.01, 0.05]))
    length = float(t[-1])
    for _ in range(int(rng.choice([0, 0, 0, 0, 0, 0, 1, 2]))):
        begin = rng.uniform(0.05, 0.95) * length
        pause = float(np.exp(rng.uniform(np.log(2), np.log(25)))) * 60
        # Never more than a tenth of the run: the rest must still tell the story.
        pause = min(pause, 0.1 * length)
        keep &= (t < begin) | (t >= begin + max(pause, 4 * interval))
    keep[[0, -1]] = True
    if int(keep.sum()) < min(40, t.size):
        keep[:] = True
    return keep
