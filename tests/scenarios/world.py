"""What a scenario family draws from, the processes that it plays, and the truth that it plants.

A family is a function of a :class:`World`. It returns the bytes of its first process over
``world.t`` and the truth; further processes are added with :meth:`World.process`, what no process
owns with :meth:`World.unowned`. ``world.t`` goes on far beyond the record (``world.length_s``), so
that the moment of out-of-memory is simulated and not extrapolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Array = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]
Rng = np.random.Generator
MIB, GIB, HOUR = 2.0**20, 2.0**30, 3600.0
_BLOCK = 64


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


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process of a run: what it holds from its first to its last point of ``World.t``."""

    name: str
    first: int
    """Index into ``World.t`` of its first point."""
    held: Array
    """Bytes at each point of its life, before quanta."""
    begin_s: float
    """When it started; negative is before the first sample."""
    end_s: float
    """When it ends by itself; infinite when it does not."""
    leaker: bool = False
    onset_s: float = 0.0
    """When its leak begins, on the clock of the run."""
    rate_bytes_per_s: float | None = None
    """Of its leak, where it is not that of the run."""
    oom_s: float | None = None
    """When its leak fills the card, on the clock of the run, where the run's truth is another."""
    visitor: bool = False
    """Whether it goes away at once when it finds no room: a job that somebody tries to start."""
    framework: str | None = None
    need: Array | None = None
    """What its program asks for, before noise and segments; None: that is what it holds."""


@dataclass(kw_only=True)
class Dice:
    """Random numbers, and how they are drawn."""

    rng: Rng

    def u(self, low: float, high: float) -> float:
        """Uniform draw."""
        return float(self.rng.uniform(low, high))

    def log(self, low: float, high: float) -> float:
        """Log-uniform draw."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))


@dataclass(kw_only=True)
class World(Dice):
    """What a family draws from: a card, a clock, a base level and a noise."""

    total: float
    t: Array
    """The instants of the record, then of the time after it."""
    base: float
    """Context of the driver and weights of the first process."""
    noise: float
    interval: float
    length_s: float = 0.0
    """Length of the record; what follows in ``t`` is seen by nobody."""
    quantum: float = 2 * MIB
    """Segments that the first process asks for; a family may set its own."""
    overhead: float = 0.0
    """Held by the driver for itself."""
    name: str = "python train.py"
    framework: str | None = "PyTorch"
    leaker: bool = True
    """Whether the first process is the one that leaks, when the item is a leak."""
    parts: list[Part] = field(default_factory=list)
    loose: Array | None = None
    """Bytes that no process owns, over ``t``."""

    def __post_init__(self) -> None:
        if not self.length_s:
            self.length_s = float(self.t[-1])

    def room(self) -> float:
        """Bytes above the base."""
        return self.total - self.base - self.overhead

    def white(self, sd: float | None = None) -> Array:
        """White noise."""
        sd = self.noise if sd is None else sd
        return self.rng.normal(0.0, sd, self.t.size) if sd else np.zeros(self.t.size)

    def ar(self, sd: float, tau_s: float) -> Array:
        """First-order autoregressive noise with standard deviation ``sd``."""
        # Beyond a million points nobody could tell a coarser grid from the right one.
        step = max(tau_s / 8, self.interval, float(self.t[-1]) / 1e6)
        steps = max(2, int(self.t[-1] / step) + 2)
        grid = np.linspace(0.0, self.t[-1], steps)
        rho = float(np.exp(-(grid[1] - grid[0]) / tau_s))
        shock = self.rng.normal(0.0, sd * np.sqrt(1 - rho**2), steps)
        shock[0] = self.rng.normal(0.0, sd)
        return np.interp(self.t, grid, decayed_sum(shock, rho))

    def times(self, mean_gap_s: float, shape: float = 1.0) -> Array:
        """Instants of a renewal process over all of ``t``.

        ``shape`` is that of the gamma law of the gaps: 1 is a Poisson process, more more regular.
        """
        count = int(self.t[-1] / mean_gap_s * 1.2) + 60
        return np.cumsum(self.rng.gamma(shape, mean_gap_s / shape, count))

    def steps(self, at: Array, size: Array | float) -> Array:
        """Return the sum of the steps ``size`` that have come by each instant; ``at`` ascends."""
        height = np.cumsum(np.broadcast_to(size, at.shape))
        return np.concatenate(([0.0], height))[np.searchsorted(at, self.t, side="right")]

    def ramps(self, begin: Array, length: Array, size: Array) -> Array:
        """Return the sum of straight ramps, each rising by ``size`` over ``length``, then kept."""
        slope = size / length
        at = np.concatenate((begin, begin + length))
        order = np.argsort(at, kind="stable")
        at, change = at[order], np.concatenate((slope, -slope))[order]
        height = np.concatenate(([0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(at))))
        return np.interp(self.t, at, height)

    def integral(self, rate: Array) -> Array:
        """Return the integral of ``rate`` (n,) over ``t``, 0 at the first instant."""
        steps = 0.5 * (rate[1:] + rate[:-1]) * np.diff(self.t)
        return np.concatenate(([0.0], np.cumsum(steps)))

    def process(
        self,
        name: str,
        held: Callable[[Array], Array] | float,
        *,
        begin_s: float = -600.0,
        end_s: float = math.inf,
        leaker: bool = False,
        onset_s: float | None = None,
        rate_bytes_per_s: float | None = None,
        oom_s: float | None = None,
        visitor: bool = False,
        framework: str | None = None,
    ) -> None:
        """Add a process that lives from ``begin_s`` to ``end_s``.

        ``held`` is bytes as a function of age (n,) in seconds, or the same all the time; onset,
        rate and the like are as in :class:`Part`; the onset is the start unless told.
        """
        first, last = np.searchsorted(self.t, (begin_s, end_s))
        if first >= last:
            return
        age = self.t[first:last] - begin_s
        bytes_held = held(age) if callable(held) else np.full(age.size, float(held))
        self.parts.append(
            Part(
                name=name, first=int(first), held=bytes_held, begin_s=begin_s, end_s=end_s,
                leaker=leaker, onset_s=begin_s if onset_s is None else onset_s,
                rate_bytes_per_s=rate_bytes_per_s, oom_s=oom_s, visitor=visitor,
                framework=framework,
            )
        )  # fmt: skip

    def unowned(self, held: Array) -> None:
        """Add bytes (n,) that are in use and belong to no process."""
        self.loose = held if self.loose is None else self.loose + held

    def nobody(self) -> Array:
        """Return what a family returns when all its processes were added with ``process``."""
        return np.zeros(self.t.size)

    def context(self) -> float:
        """Bytes that the driver takes for one more process that uses the device."""
        return min(self.u(300, 600) * MIB, 0.08 * self.total)


Shape = tuple[Array, Truth]


def decayed_sum(shock: Array, rho: float) -> Array:
    """Return y with y[k] = rho y[k-1] + shock[k], in blocks instead of one by one."""
    size = -(-shock.size // _BLOCK) * _BLOCK
    padded = np.zeros(size)
    padded[: shock.size] = shock
    blocks = padded.reshape(-1, _BLOCK)
    lag = np.arange(_BLOCK)[:, None] - np.arange(_BLOCK)[None, :]
    within = np.where(lag >= 0, rho ** np.maximum(lag, 0), 0.0)
    out = blocks @ within.T
    fade = rho ** np.arange(1, _BLOCK + 1)
    carry = np.empty(out.shape[0])
    value = 0.0
    for k, last in enumerate(out[:, -1].tolist()):
        carry[k] = value
        value = last + value * float(fade[-1])
    return (out + carry[:, None] * fade).reshape(-1)[: shock.size]


def loaded(size: float, load_s: float) -> Callable[[Array], Array]:
    """Return what a process holds that takes ``load_s`` to load ``size`` and then keeps it."""
    return lambda age: size * np.clip(age / load_s, 0.0, 1.0)


def warmed(size: float, tau_s: float, share: float) -> Callable[[Array], Array]:
    """Return what a process holds that takes all but ``share`` of ``size`` at once."""
    return lambda age: size * (1.0 - share * np.exp(-age / tau_s))


def rising(size: float, rate: float) -> Callable[[Array], Array]:
    """Return what a process holds that leaks ``rate`` from its start on."""
    return lambda age: size + rate * age


def leak(onset: float, rate: float, oom: float, *patterns: str) -> Truth:
    """Return the truth of a leak; the time of out-of-memory counts when none is simulated."""
    return Truth(
        leak=True, patterns=frozenset(patterns), onset_s=onset, rate_bytes_per_s=rate, oom_s=oom
    )


def fine(*patterns: str) -> Truth:
    """Return the truth of something harmless."""
    return Truth(leak=False, patterns=frozenset(patterns))
