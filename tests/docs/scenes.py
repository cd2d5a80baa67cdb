"""One scene for each pattern: the series that its picture shows, and when it is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.replay import make

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Series
    from tests.scenarios.world import Array

MIB, GIB, MB = 2.0**20, 2.0**30, 1e6
MINUTE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a picture shows."""

    pattern: str
    title: str
    words: str
    """For those who cannot see it."""
    shape: Callable[[Array], Array]
    """Bytes over seconds."""
    minutes: float
    """How much of it has been seen."""
    total_gib: float = 24.0
    noise_mib: float = 8.0
    interval_s: float = 5.0

    def series(self) -> Series:
        """Return the series as it was sampled, in quanta of 2 MiB."""
        t = np.arange(0.0, self.minutes * MINUTE_S, self.interval_s)
        noise = np.random.default_rng(11).normal(0.0, self.noise_mib * MIB, t.size)
        x = np.round((self.shape(t) + noise) / (2 * MIB)) * 2 * MIB
        return make(t + 1.7e9, np.clip(x, 0.0, self.total_gib * GIB), self.total_gib * GIB)


SCENES = (
    Scene(
        pattern="gradual", title="Gradual: the retained floor rises and does not slow down",
        words="Memory rises in a straight line from 12 to 17 gigabytes; the retained floor and "
        "the fitted line lie on it, and the line goes on to the limit of the card.",
        shape=lambda t: 12e9 + 50 * MB / 60 * t, minutes=100.0, noise_mib=40.0,
    ),
    Scene(
        pattern="step", title="Step: jumps that are never given back, again and again",
        words="Memory stands still between jumps of half a gigabyte every ten minutes. The line "
        "through the jumps goes on to the limit.",
        shape=lambda t: 11e9 + np.floor(t / 600) * 600 * MB, minutes=100.0,
    ),
    Scene(
        pattern="cyclic", title="Cyclic: it falls back each time, but never as far",
        words="Memory swings by three gigabytes every nine minutes; the lowest point of each swing "
        "is higher than the one before. The line of the peaks goes on to the limit.",
        shape=lambda t: 9e9 + 230 * MB * np.floor(t / 540) + 3e9 * ((t % 540) / 540),
        minutes=100.0,
    ),
    Scene(
        pattern="spike", title="Spike: one jump, and then it stands still",
        words="Memory jumps once by four gigabytes and stays there. There is no line, because one "
        "jump says nothing about the next.",
        shape=lambda t: 6e9 + 4e9 * (t > 2400), minutes=70.0,
    ),
    Scene(
        pattern="plateau", title="Plateau: a warm-up that slows down and ends",
        words="Memory rises quickly at first, then ever more slowly, and stands still at eleven "
        "gigabytes, far from the limit.",
        shape=lambda t: 4e9 + 7e9 * (1 - np.exp(-t / 700)), minutes=100.0,
    ),
    Scene(
        pattern="sawtooth", title="Sawtooth: it falls back to the same floor",
        words="Memory rises and falls by four gigabytes every eight minutes. The retained floor "
        "stays flat.",
        shape=lambda t: 7e9 + 4e9 * ((t % 480) / 480), minutes=100.0,
    ),
    Scene(
        pattern="stable", title="Stable: flat within its noise",
        words="Memory stays at nine gigabytes.",
        shape=lambda t: np.full(t.size, 9e9), minutes=100.0,
    ),
    Scene(
        pattern="preallocated", title="Preallocated: a pool taken at start",
        words="Memory jumps to nine tenths of the card within the first minute and never moves "
        "again. What happens inside the pool cannot be seen.",
        shape=lambda t: np.where(t < 45, 0.6e9, 23.2e9), minutes=100.0, noise_mib=0.0,
    ),
    Scene(
        pattern="unknown", title="Unknown: too little has been seen",
        words="Four samples within twenty seconds. Nothing is said of them yet.",
        shape=lambda t: 6e9 + 30.0 * MB * t, minutes=0.3, noise_mib=4.0,
    ),
)  # fmt: skip
