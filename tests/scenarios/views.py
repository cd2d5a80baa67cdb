"""One run, seen as the device and as each of its processes, and as a scripted world."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.collect.scenarios.worlds import Actor, Card, Recorded, World
from gpuwatchd.core.model import ProcessKey, Series, Subject
from tests.scenarios.world import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Pattern
    from tests.scenarios.world import Array, Indices, Part, Truth
    from tests.scenarios.worlds import Item

EPOCH_S = 1.7e9
"""Time of the first sample of every item."""
DEVICE_UID = "GPU-test"
FIRST_PID = 5_000_000
_ORDER: tuple[Pattern, ...] = (
    "gradual", "step", "cyclic", "preallocated", "sawtooth", "plateau", "spike", "stable",
)  # fmt: skip
"""Of the names that are right for an item, the one that a scripted world tells."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run behind an item: everything that was held at every instant, sampled or not."""

    t: Array
    """Instants since the first sample: the record, then, for a leak, the days after it."""
    device: Array
    """Bytes in use on the device."""
    total: float
    parts: tuple[Part, ...]
    overhead: float
    """Bytes that the driver keeps for itself."""
    loose: Array | None
    """Bytes at each instant that nobody owns; None when there are none."""
    kept: Indices
    """Indices into ``t`` of what was sampled, until the device was full or the record ended."""
    truth: Truth


@dataclass(frozen=True, kw_only=True)
class View:
    """One process of a run, as the daemon sampled it."""

    name: str
    series: Series
    """From its first sample; the limit is the one at its last sample, the age that at its first,
    as :func:`tests.scenarios.replay.replay` takes it."""
    limits: Array
    """Bytes at which it runs out, at each of its samples: what it holds and what is free."""
    leaker: bool
    truth: Truth
    """On its own clock: seconds since its own first sample."""
    begin_s: float
    """When it started, since the first sample of the item; negative is before."""
    end_s: float | None
    """When it ended by itself; None when it was still there at the last sample."""

    def at(self, count: int) -> Series:
        """Return what was known of it after ``count`` samples."""
        t_s = self.series.t_s[:count]
        return Series(
            subject=self.series.subject,
            t_s=t_s,
            used_bytes=self.series.used_bytes[:count],
            limit_bytes=float(self.limits[count - 1]),
            total_bytes=self.series.total_bytes,
            framework=self.series.framework,
            age_s=float(t_s[-1]) - EPOCH_S - self.begin_s,
        )


@dataclass(frozen=True, kw_only=True)
class LabelledSeries:
    """What a device shows, and the truth about it."""

    family: str
    seed: int
    series: Series
    """The device, until it is full or the record ends."""
    truth: Truth
    processes: Mapping[str, View] = field(default_factory=dict)
    """Every process that was sampled, by name, oldest first."""

    @property
    def length_s(self) -> float:
        """Length of the series in seconds."""
        return float(self.series.t_s[-1] - self.series.t_s[0])


def views_of(run: Run) -> Mapping[str, View]:
    """Return every process that was sampled twice or more, by name, oldest first."""
    found: dict[str, View] = {}
    for position, part in enumerate(run.parts):
        low, high = np.searchsorted(run.kept, (part.first, part.first + part.held.size))
        if high - low >= 2:
            found[part.name] = _view(run, part, run.kept[low:high], position)
    return dict(sorted(found.items(), key=lambda pair: pair[1].begin_s))


def _view(run: Run, part: Part, index: Indices, position: int) -> View:
    used = np.ceil(part.held[index - part.first] / (2 * MIB)) * 2 * MIB
    limits = used + run.total - run.device[index]
    start = float(run.t[index[0]])
    key = ProcessKey(pid=FIRST_PID + position, started_at_s=EPOCH_S + part.begin_s)
    last = float(run.t[run.kept[-1]])
    return View(
        name=part.name,
        series=Series(
            subject=Subject(device_uid=DEVICE_UID, process=key),
            t_s=np.asarray(run.t[index] + EPOCH_S, dtype=np.float64),
            used_bytes=used,
            limit_bytes=float(limits[-1]),
            total_bytes=run.total,
            framework=part.framework,
            age_s=start - part.begin_s,
        ),
        limits=limits,
        leaker=part.leaker,
        truth=_truth(run.truth, part, start),
        begin_s=part.begin_s,
        end_s=part.end_s if part.end_s <= last else None,
    )


def _truth(truth: Truth, part: Part, start_s: float) -> Truth:
    """Return the truth of one process, on the clock of its own first sample."""
    if not truth.leak or not part.leaker:
        return replace(truth, leak=False, onset_s=None, rate_bytes_per_s=None, oom_s=None)
    onset = max(truth.onset_s or 0.0, part.onset_s)
    oom = part.oom_s if part.oom_s is not None else truth.oom_s
    rate = part.rate_bytes_per_s
    return replace(
        truth,
        rate_bytes_per_s=truth.rate_bytes_per_s if rate is None else rate,
        onset_s=max(0.0, onset - start_s),
        oom_s=None if oom is None else oom - start_s,
    )


def world(item: Item) -> World:
    """Return the item as a world that :class:`gpuwatchd.collect.simulate.SimulateSource` plays.

    World time is seconds since the first sample, and goes on to the moment of out-of-memory.
    Nothing is missed there: gaps are the daemon's, not the world's.
    """
    run = item.run
    card = Card(
        name="Laboratory card",
        total_bytes=int(run.total),
        reserved_bytes=0,
        overhead_bytes=int(run.overhead),
        loose=_recorded(run.t, run.loose if run.loose is not None else np.zeros(run.t.size)),
        actors=tuple(_actor(run, part) for part in run.parts),
    )
    return World(title=f"{item.family}, seed {item.seed}", cards=(card,))


def _actor(run: Run, part: Part) -> Actor:
    told = _truth(run.truth, part, 0.0)
    name, *rest = part.name.split(" ")
    return Actor(
        name=part.name if name != "python" else name,
        user="lab",
        argv=(name, *rest),
        shape=_recorded(run.t[part.first :][: part.held.size] - part.begin_s, part.held),
        pattern=next(one for one in _ORDER if one in run.truth.patterns),
        leak=told.leak,
        onset_s=(told.onset_s or 0.0) - part.begin_s if told.leak else 0.0,
        rate_bytes_per_s=told.rate_bytes_per_s or 0.0,
        starts_s=part.begin_s,
        stays_s=part.end_s - part.begin_s,
        framework=part.framework,
    )


def _recorded(t: Array, held: Array) -> Recorded:
    """Return the shape of what was held, one entry for each change."""
    changes = np.flatnonzero(np.diff(held, prepend=np.nan))
    return Recorded(tuple(t[changes].tolist()), tuple(held[changes].tolist()))
