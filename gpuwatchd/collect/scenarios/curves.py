"""Behaviours of simulated processes: memory as a pure function of age.

Every shape answers ``at(age_s)`` in bytes from nothing but its own fields, so a world looks the
same however often it is read. Chance comes from :func:`unit`, a hash, not from a generator that
would have to be kept in step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Protocol

import msgspec

MIB = 1024**2
GIB = 1024**3

_MASK = 2**64 - 1


def unit(seed: int, index: int) -> float:
    """Return a number in [0, 1) that depends on nothing but the two arguments.

    Examples
    --------
    >>> unit(7, 1) == unit(7, 1), unit(7, 1) == unit(7, 2)
    (True, False)
    """
    # A finaliser of shifts and odd multipliers: every input bit moves every output bit.
    mixed = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1342543DE82EF95) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) / 2.0**64


class Shape(Protocol):
    """Memory of one process over its life."""

    def at(self, age_s: float) -> float:
        """Return bytes held ``age_s`` seconds after the process started."""


class Flat(msgspec.Struct, frozen=True):
    """The same all the time: a model that was loaded, or a pool taken at start."""

    level_bytes: float

    def at(self, age_s: float) -> float:  # noqa: ARG002 - that is the point of it
        """Return the level."""
        return self.level_bytes


class Linear(msgspec.Struct, frozen=True):
    """A steady rise from ``onset_s`` on; with ``gain_bytes`` it ends there (a cache that fills)."""

    start_bytes: float
    rate_bytes_per_s: float
    onset_s: float = 0.0
    gain_bytes: float = math.inf

    def at(self, age_s: float) -> float:
        """Return the start plus what has been added since the onset."""
        grown = self.rate_bytes_per_s * max(0.0, age_s - self.onset_s)
        return self.start_bytes + min(grown, self.gain_bytes)


class Stairs(msgspec.Struct, frozen=True):
    """Plateaus and risers: something is kept at every epoch, reload or evaluation.

    Riser ``n`` comes once in every ``every_s``, early or late in it by ``jitter`` (share of
    ``every_s``), and is larger or smaller by the same share.
    """

    start_bytes: float
    riser_bytes: float
    every_s: float
    onset_s: float = 0.0
    jitter: float = 0.2
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the height of the step that has been reached."""
        turns = max(0.0, age_s - self.onset_s) / self.every_s
        count = int(turns)
        moment = 0.5 + self.jitter * (unit(self.seed, count) - 0.5)
        count += turns - count >= moment
        if count == 0:
            return self.start_bytes
        wobble = self.jitter * (unit(self.seed, -count) - 0.5)
        return self.start_bytes + self.riser_bytes * (count + wobble)


class Cyclic(msgspec.Struct, frozen=True):
    """Rises and falls every ``period_s``; the floor creeps up by ``creep_bytes`` a cycle.

    With ``creep_bytes=0`` it is a sawtooth that falls back to the same floor.
    """

    floor_bytes: float
    swing_bytes: float
    period_s: float
    creep_bytes: float = 0.0
    onset_s: float = 0.0
    jitter: float = 0.15
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the floor of this cycle plus how far it has risen."""
        turns = age_s / self.period_s
        count = math.floor(turns)
        kept = max(0.0, (count * self.period_s - self.onset_s) / self.period_s)
        swing = self.swing_bytes * (1 - self.jitter * unit(self.seed, count))
        # Up over four fifths of the cycle, then everything is freed at once.
        rise = min(1.0, (turns - count) / 0.8) if turns - count < 0.8 else 0.0
        return self.floor_bytes + self.creep_bytes * math.floor(kept) + swing * rise


class WarmUp(msgspec.Struct, frozen=True):
    """A rise that ends: allocator cache, autotuning, compilation."""

    start_bytes: float
    gain_bytes: float
    tau_s: float

    def at(self, age_s: float) -> float:
        """Return the start plus the part of the gain that has been reached."""
        return self.start_bytes + self.gain_bytes * -math.expm1(-max(0.0, age_s) / self.tau_s)


class Spikes(msgspec.Struct, frozen=True):
    """Flat with a bump of ``height_bytes`` for ``hold_s`` (an evaluation, a checkpoint).

    The first comes at ``first_s``; with ``every_s`` more follow.
    """

    level_bytes: float
    height_bytes: float
    first_s: float
    hold_s: float
    every_s: float = math.inf

    def at(self, age_s: float) -> float:
        """Return the level, or the top of the bump."""
        late_s = age_s - self.first_s
        inside = late_s >= 0 and math.fmod(late_s, self.every_s) < self.hold_s
        return self.level_bytes + (self.height_bytes if inside else 0.0)


class Swap(msgspec.Struct, frozen=True):
    """Models that replace each other every ``every_s``, in an order drawn by chance."""

    levels_bytes: tuple[float, ...]
    every_s: float
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the size of the model that is loaded now."""
        turn = int(max(0.0, age_s) / self.every_s)
        return self.levels_bytes[int(unit(self.seed, turn) * len(self.levels_bytes))]


class Noisy(msgspec.Struct, frozen=True):
    """Another shape under noise: a new value between -1 and 1 times ``size_bytes`` every few s."""

    shape: Shape
    size_bytes: float
    hold_s: float = 5.0
    seed: int = 0

    def at(self, age_s: float) -> float:
        """Return the shape plus noise of roughly bell-shaped distribution."""
        slot = int(max(0.0, age_s) / self.hold_s)
        bell = unit(self.seed, 2 * slot) + unit(self.seed, 2 * slot + 1) - 1.0
        return max(0.0, self.shape.at(age_s) + self.size_bytes * bell)


class Recorded(msgspec.Struct, frozen=True):
    """What was recorded, or computed beforehand: each value holds until the next one.

    The first value counts before the first instant, the last one for ever.
    """

    age_s: tuple[float, ...]
    """Ascending instants, seconds since the process started."""
    held_bytes: tuple[float, ...]
    """Bytes from each instant on; as many as there are instants, at least one."""

    def at(self, age_s: float) -> float:
        """Return the value that was reached last."""
        return self.held_bytes[max(0, bisect_right(self.age_s, age_s) - 1)]


class Phases(msgspec.Struct, frozen=True):
    """One shape after another, each from its own age 0: ``((seconds, shape), ...)``.

    The last one stays.
    """

    parts: tuple[tuple[float, Shape], ...]

    def at(self, age_s: float) -> float:
        """Return what the current phase holds."""
        for seconds, shape in self.parts[:-1]:
            if age_s < seconds:
                return shape.at(age_s)
            age_s -= seconds
        return self.parts[-1][1].at(age_s)
