"""What a probe inside the process of an item would report, derived from what its world planted.

Nothing here looks at a verdict but for the instant at which the daemon asks. One process of each
item is judged: the leaking one, or the one that holds the most. Families in which no process leaks
are left out. What is assumed, and not measured:

* **Cause** of growth by family (:data:`CAUSES`), as its docstring tells the mechanism. A program
  that is not Python has no probe, and nothing is known of it.
* **Allocator**: reserved is what the driver sees less a context of 250 to 550 MiB, in blocks of 2
  or 20 MiB, and falls only where the world gives memory back; allocated is what the program asks
  for, below it. Growth outside is in neither; what is fragmented, or free cache, is in reserved
  only. The mailbox is read at the pace of the samples, every 5 s at most.
* **Walk**: asked for when a watch or an alert opens, answered 40 s later, once for each opening. In
  18 % of the items it names nothing. What is kept is what the world never falls below again.
* **Informed** walk: names what grew in the last half hour, its mean rate to 20 % (too low where a
  leak accelerates); where harmless growth ends it knows the final level to 5 %, be that written
  down in the program or not.
* **Literal** walk: names only what grew in each of three intervals of 10 s, none less than 0.3 of
  the largest (as :mod:`_gpuwatchd_probe.inspection` does), knows a bound only where the program has
  one written (``maxlen``, ``maxsize``), and calls a plain dict or list that will end unbounded.

The truth lies between the two: the probe also reads a bound off attributes such as ``capacity``.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec.structs import replace

from gpuwatchd.core.model import AllocatorSeries, Holder, ProcessKey, Series, Subject
from tests.scenarios import blind, worlds
from tests.scenarios.bench.limit import MIB
from tests.scenarios.views import DEVICE_UID, EPOCH_S, FIRST_PID

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Alert
    from tests.scenarios.views import View
    from tests.scenarios.world import Array, Truth

_CAUSES = {
    "kept": "linear_fast linear_slow segments staircase bursts cyclic_floor residue late_onset"
    " warmup_then_leak noisy accelerating rare_2mib model_reload leaker_neighbours restarts"
    " leak_beside_pool work_bound notebook_cells two_leaks adapter_swaps conversations rate_changes"
    " partial_trims doubling_leak phase_then_leak losses_with_graph metric_never_reset"
    " hooks_stacked traceback_held sweep_keeps_trials notebook_outputs late_stage worker_handles"
    " nightly_bursts trimmed_in_part hidden_by_cache buffer_without_bound request_by_day"
    " sessions_not_closed models_swapped adapters_pile_up prompts_never_evicted",
    "written": "cache_linear_stop lru_cache_churn replay_buffer long_fill ring_of_experience"
    " sessions_with_limit adapters_with_limit prefixes_with_eviction",
    "plain": "model_load notebook_day index_build scene_gets_denser batch_at_night",
    "settles": "exp_warmup log_warmup hyperbolic_warmup sequence_curriculum compile_bursts"
    " unfreeze_steps staged_warmup first_step_state size_classes recompile_limit length_curriculum"
    " functions_on_demand shortest_first preempted_and_resumed paged_pool image_resolutions"
    " arena_by_doubling",
    "outside": "outside_allocator jit_cache_unbounded episodes graph_per_shape groups_made_anew"
    " native_call simulation_resets replicas_left_behind jit_buckets largest_sample pipeline_mark",
    "pieces": "fragmentation_creep frag_saturate",
    "no probe": "request_leak failed_loads kv_cache desktop_session idle_unload compositor"
    " encoder_sessions game_evening transcoding idle_or_mining models_kept_alive",
}
CAUSES = {family: cause for cause, text in _CAUSES.items() for family in text.split()}
"""Family -> why it grows; of those that are not here nothing can be named: loads, larger batches,
teeth, cycles of garbage."""
AGAIN = ("segments:pieces", "exp_warmup:pieces", "exp_warmup:cache", "long_fill:plain")
"""Tuning families played once more with another cause: no tuning family is fragmented."""
WALK_S, LOOK_S, RECENT_S, PACE_S = 40.0, 10.0, 1800.0, 5.0
UNNAMED = 0.18
LEAST_SAMPLES = 40
BLOCK = 20 * MIB
"""The largest step that is a block of an allocator and not what the program kept at once."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One process, and the truth about what it keeps."""

    family: str
    cause: str
    series: Series
    limits: Array
    """Bytes at which it runs out, at each of its samples."""
    truth: Truth
    t_s: Array
    """Instants of the world, on the clock of ``series``."""
    need: Array
    """What it asks for, at each of them."""
    kept: Array
    """What it has come to keep for good since its onset, or since it was first seen."""
    unnamed: bool
    """Whether a walk finds nothing."""
    context: float
    """Bytes of the driver's context."""
    rate_error: float
    bound_error: float
    """What a walk measures, as a multiple of the truth."""
    split: float = 0.0
    """Share of what it keeps that lies in pieces; 0 where tensors are what it keeps."""

    def allocator(self) -> AllocatorSeries:
        """Return what its allocator says over its whole life."""
        t_s, used = self.series.t_s, self.series.used_bytes
        pace = max(1, round(PACE_S / float(np.median(np.diff(t_s)))))
        t_s, used = t_s[::pace], used[::pace]
        index = np.maximum(np.searchsorted(self.t_s, t_s, side="right") - 1, 0)
        need, kept = self.need[index], self.kept[index]
        aside = kept if self.cause in {"outside", "pieces", "cache"} else 0.0
        reserved = used - self.context - (kept if self.cause == "outside" else 0.0)
        reserved = np.maximum(reserved, 0.0)
        allocated = np.clip(need - self.context - aside, 0.0, reserved)
        return AllocatorSeries(
            t_s=t_s, allocated_bytes=allocated, reserved_bytes=reserved,
            peak_bytes=np.maximum.accumulate(allocated), inactive_split_bytes=0.0,
        )  # fmt: skip

    def kept_at(self, at_s: float) -> float:
        """Return what it keeps at an instant."""
        return float(np.interp(at_s, self.t_s, self.kept))

    def walk(self, asked_s: float, *, literal: bool) -> Holder | None:
        """Return what an inspection finds that was asked for at an instant."""
        if self.unnamed or self.cause not in {"kept", "written", "plain", "settles"}:
            return None
        if literal:
            if self.cause == "settles":
                return None
            rises = np.diff([self.kept_at(asked_s + k * LOOK_S) for k in range(4)])
            if rises.min() <= 0.3 * rises.max():
                return None
            rate = float(rises.sum()) / (3 * LOOK_S)
        else:
            begin_s = max(float(self.t_s[0]), asked_s - RECENT_S)
            if self.truth.leak:
                onset_s = float(self.series.t_s[0]) + (self.truth.onset_s or 0.0)
                begin_s = max(begin_s, min(onset_s, asked_s))
            end_s = asked_s + WALK_S
            rate = (self.kept_at(end_s) - self.kept_at(begin_s)) / (end_s - begin_s)
        if rate <= 0.0:
            return None
        bounded = self.cause == "written" or (not literal and self.cause != "kept")
        return Holder(
            name="kept in main()", kind="list", at_s=asked_s + WALK_S,
            held_bytes=self.kept_at(asked_s + WALK_S), rate_bytes_per_s=rate * self.rate_error,
            bounded_at_bytes=float(self.kept.max()) * self.bound_error if bounded else None,
        )  # fmt: skip


class Walks:
    """Asks for a walk each time that a watch or an alert opens."""

    def __init__(self, walk: Callable[[float], Holder | None]) -> None:
        self._walk = walk
        self.asked: list[float] = []
        self._opened_s: float | None = None

    def newest(self, alert: Alert | None, now_s: float) -> Holder | None:
        """Return what was last found by ``now_s``, given the alert that is open."""
        if (
            alert is not None
            and alert.state in {"watch", "firing"}
            and alert.opened_at_s != self._opened_s
        ):
            self._opened_s = alert.opened_at_s
            self.asked.append(min(alert.watch_at_s or math.inf, alert.firing_at_s or math.inf))
        answers = [self._walk(at) for at in self.asked if at + WALK_S <= now_s]
        return next((found for found in reversed(answers) if found is not None), None)


class Beside:
    """What the daemon adds to the curve of a process; called at each of its judgements."""

    def __init__(self, probed: Probed, *, facts: bool, literal: bool = False) -> None:
        self.probed = probed
        self.allocator = probed.allocator() if facts and probed.cause != "no probe" else None
        self.walks = Walks(partial(probed.walk, literal=literal))

    def __call__(self, series: Series, alert: Alert | None) -> Series:
        """Return what is known by the last sample of a series."""
        probed, now = self.probed, float(series.t_s[-1])
        newest = int(np.searchsorted(probed.series.t_s, now, side="right")) - 1
        series = replace(series, limit_bytes=float(probed.limits[newest]))
        whole = self.allocator
        if whole is None:
            return series
        low, high = np.searchsorted(whole.t_s, (float(series.t_s[0]), np.nextafter(now, np.inf)))
        cut = slice(int(low), max(int(high), int(low)))
        reserved = whole.reserved_bytes[cut]
        pieces = 0.05 * float(reserved[-1]) if reserved.size else 0.0
        if probed.split:
            pieces = min(pieces + probed.split * probed.kept_at(now), float(reserved[-1]))
        return replace(
            series,
            holder=self.walks.newest(alert, now),
            allocator=replace(
                whole, t_s=whole.t_s[cut], allocated_bytes=whole.allocated_bytes[cut],
                reserved_bytes=reserved, peak_bytes=cast("Array", whole.peak_bytes)[cut],
                inactive_split_bytes=pieces,
            ),
        )  # fmt: skip


def probed(corpus: str, family: str, seed: int) -> Probed | None:
    """Return the process of an item that is judged; None where no process leaks.

    ``family`` has its cause after a colon where that is another one than usual.
    """
    name, _, cause = family.partition(":")
    cause = cause or CAUSES.get(name, "nothing named")
    rng = np.random.default_rng([zlib.crc32(b"inside/" + family.encode()), seed])
    made = _blind(name, seed) if corpus == "blind" else _lab(name, seed)
    return None if made is None else of_curve(family, cause, made, rng)


def of_curve(family: str, cause: str, made: Made, rng: np.random.Generator) -> Probed | None:
    """Return a process as its probe sees it; None where too little of it was seen."""
    series, limits, truth, t_s, need, lost = made
    if series.t_s.size < LEAST_SAMPLES:
        return None
    floor = np.minimum.accumulate(need[::-1])[::-1] if lost is None else lost
    onset_s = float(series.t_s[0]) + (truth.onset_s or 0.0)
    # What is held at the very end of a record is not kept: the record is only cut there.
    most = math.inf if truth.leak else float(floor[int(0.9 * floor.size)])
    kept = np.clip(np.minimum(floor, most) - float(np.interp(onset_s, t_s, floor)), 0.0, None)
    rises = np.flatnonzero(np.diff(kept, prepend=kept[0] - 1.0))
    if rises.size > 1 and float(np.median(np.diff(kept[rises]))) <= BLOCK:
        kept = np.interp(t_s, t_s[rises], kept[rises])  # tensors are smaller than blocks
    split = {"pieces": rng.uniform(0.5, 0.95), "cache": rng.uniform(0.01, 0.1)}
    framework = None if cause == "no probe" else series.framework or "PyTorch"
    return Probed(
        family=family, cause=cause, series=replace(series, framework=framework), limits=limits,
        truth=truth, t_s=t_s, need=need, kept=kept,
        unnamed=rng.random() < UNNAMED,
        context=min(rng.uniform(250, 550) * MIB, 0.5 * float(series.used_bytes.max())),
        rate_error=rng.uniform(0.8, 1.2), bound_error=rng.uniform(0.95, 1.05),
        split=split.get(cause, 0.0),
    )  # fmt: skip


Made = tuple[Series, "Array", "Truth", "Array", "Array", "Array | None"]
"""Series, limits and truth of a process; instants, what it asks for then, what is lost by then."""


def _lab(family: str, seed: int) -> Made | None:
    item = worlds.build(family, seed)
    views: list[View] = list(item.processes.values())
    if item.truth.leak:
        views = [view for view in views if view.leaker][:1]
    if not views:
        return None
    view = max(views, key=lambda view: float(view.series.used_bytes.max()))
    part = next(part for part in item.run.parts if part.name == view.name)
    t_s = item.run.t[part.first :][: part.held.size] + EPOCH_S
    need = part.held if part.need is None else part.need[: part.held.size]
    return view.series, view.limits, view.truth, t_s, need, None


def _blind(family: str, seed: int) -> Made:
    item = blind.build(family, seed)
    whole, run = item.series, item.run
    zero_s = float(whole.t_s[0]) - item.begin_s
    t_s = np.arange(float(whole.t_s[0]), float(whole.t_s[-1]) + WALK_S, 2.0)
    total = float(whole.total_bytes or 0.0)
    used = np.ceil(run.used.at(whole.t_s - zero_s) / (2 * MIB)) * 2 * MIB
    used = np.minimum(used, whole.used_bytes)  # what the driver rounds down is held all the same
    key = ProcessKey(pid=FIRST_PID, started_at_s=zero_s)
    series = replace(whole, subject=Subject(device_uid=DEVICE_UID, process=key), used_bytes=used)
    lost = run.kept.at(t_s - zero_s) if item.truth.leak else None
    limits = used + np.maximum(total - whole.used_bytes, 0.0)
    return series, limits, item.truth, t_s, run.used.at(t_s - zero_s), lost
