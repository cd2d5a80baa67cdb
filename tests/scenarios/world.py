"""What a scenario family draws from, and the truth that it plants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
Rng = np.random.Generator
MIB, GIB, HOUR = 2.0**20, 2.0**30, 3600.0


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is planted. Times in seconds since the first sample."""

    leak: bool
    patterns: frozenset[str]
    """Names that are right."""
    onset_s: float | None = None
    rate_bytes_per_s: float | None = None
    oom_s: float | None = None
    """When the series reaches the limit, extrapolated where it is cut before."""


@dataclass(kw_only=True)
class World:
    """What a family draws from: a card, a clock, a base level and a noise."""

    rng: Rng
    total: float
    t: Array
    base: float
    noise: float
    interval: float

    def room(self) -> float:
        """Bytes above the base."""
        return self.total - self.base

    def u(self, low: float, high: float) -> float:
        """Uniform draw."""
        return float(self.rng.uniform(low, high))

    def log(self, low: float, high: float) -> float:
        """Log-uniform draw."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def white(self, sd: float | None = None) -> Array:
        """White noise."""
        return self.rng.normal(0.0, self.noise if sd is None else sd, self.t.size)

    def ar(self, sd: float, tau_s: float) -> Array:
        """First-order autoregressive noise with standard deviation ``sd``."""
        steps = max(2, int(self.t[-1] / max(tau_s / 8, self.interval)) + 2)
        grid = np.linspace(0.0, self.t[-1], steps)
        rho = np.exp(-(grid[1] - grid[0]) / tau_s)
        shock = self.rng.normal(0.0, sd * np.sqrt(1 - rho**2), steps)
        shock[0] = self.rng.normal(0.0, sd)
        out = np.empty(steps)
        value = 0.0
        for k, s in enumerate(shock.tolist()):
            value = rho * value + s
            out[k] = value
        return np.interp(self.t, grid, out)


Shape = tuple[Array, Truth]


def leak(onset: float, rate: float, oom: float, *patterns: str) -> Truth:
    return Truth(
        leak=True, patterns=frozenset(patterns), onset_s=onset, rate_bytes_per_s=rate, oom_s=oom
    )


def fine(*patterns: str) -> Truth:
    return Truth(leak=False, patterns=frozenset(patterns))
