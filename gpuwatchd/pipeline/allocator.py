"""What is remembered of the allocator of one process on one device, and of who keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from gpuwatchd.collect import mailboxes
from gpuwatchd.core.codes import Ending, MailboxFault
from gpuwatchd.core.model import (
    AllocatorReading,
    AllocatorSeries,
    FunctionGrowth,
    FunctionRemark,
    Holder,
)
from gpuwatchd.core.text import clean
from gpuwatchd.pipeline.clock import moved_holder
from gpuwatchd.store.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.collect.mailboxes import Census, Functions
    from gpuwatchd.core.config.schema import Config, ProbeSection
    from gpuwatchd.core.model import Alert, ProcessKey
    from gpuwatchd.core.model.readings import FunctionCalls

MOST_FUNCTIONS: Final = 3
MOST_REMARKS: Final = 5
_OUT_OF_MEMORY: Final = {"OutOfMemoryError", "ResourceExhaustedError"}
"""Of PyTorch and CuPy, and of TensorFlow."""
_OF_ANY_KIND: Final = {"RuntimeError", "SystemError", "MemoryError", "Exception"}
"""Of Python's own exceptions those that a device's memory may be behind."""
UNCHANGED_S: Final = 60.0
"""A figure that stays the same is noted again after this time."""


class Allocator(msgspec.Struct, kw_only=True, eq=False):
    """What is remembered of one process on one device."""

    allocated: Ring
    reserved: Ring
    peak: Ring
    newest: AllocatorReading | None = None
    fragmentation_ratio: float = 0.3
    functions: tuple[FunctionGrowth, ...] = ()
    remarks: tuple[FunctionRemark, ...] = ()
    score: int | None = None
    request: str = ""
    """Id of a request for the functions' calls that is not answered yet."""
    holder: Holder | None = None
    census: str | None = None
    """Id of the inspection that it comes from."""
    asked: dict[str, tuple[float, str]] = {}
    """What was asked -> the alert, and its state, that it was last asked for."""

    @classmethod
    def begun(cls, span_s: float, alert: Alert | None) -> Allocator:
        """Return one that remembers so many seconds, with the variable that an alert names."""
        holder = None if alert is None else alert.finding.holder or None
        allocated, reserved, peak = Ring(span_s), Ring(span_s), Ring(span_s)
        return cls(allocated=allocated, reserved=reserved, peak=peak, holder=holder)

    @property
    def rings(self) -> tuple[Ring, ...]:
        """All that is remembered over time."""
        return self.allocated, self.reserved, self.peak

    @property
    def moves(self) -> int:
        """How often a figure has changed."""
        return self.allocated.moves + self.reserved.moves

    def add(self, reading: AllocatorReading, now_s: float) -> bool:
        """Take in the figures of now; say whether they are worth a row."""
        last, before = self.allocated.last, self.newest
        same = before is not None and _figures(before) == _figures(reading)
        if same and last is not None and now_s - last[0] < UNCHANGED_S:
            return False
        self.newest = reading
        self.allocated.add(now_s, reading.allocated_bytes)
        self.reserved.add(now_s, reading.reserved_bytes)
        if reading.peak_bytes is not None:
            self.peak.add(now_s, reading.peak_bytes)
        return True

    def configure(self, section: ProbeSection, functions: Sequence[FunctionCalls]) -> None:
        """Take over settings, and what the job says of its functions."""
        self.fragmentation_ratio = section.fragmentation_ratio
        rows = [
            FunctionGrowth(
                name=clean(one.name, limit=60), call_count=one.call_count, growth_bytes=grown
            )
            for one in functions
            if (grown := one.total_memory_growth or 0.0) > 0.0
        ]
        self.functions = tuple(sorted(rows, key=lambda one: -one.growth_bytes)[:MOST_FUNCTIONS])

    def move(self, by_s: float) -> None:
        """Move what is remembered in time: the wall clock was stepped."""
        for ring in self.rings:
            ring.shift(by_s)
        self.holder = self.holder and moved_holder(self.holder, by_s)
        self.asked = {verb: (at_s + by_s, state) for verb, (at_s, state) in self.asked.items()}

    def take_census(self, census: Census, at_s: float) -> bool:
        """Take in what an inspection found that was over then; say whether that is new."""
        if census.id == self.census:
            return False
        self.census = census.id
        self.holder = holder_of(census, at_s) or self.holder
        return True

    def may_ask(self, verb: str, alert: Alert | None) -> bool:
        """Say whether something is to be asked for an alert: once for each of its open states."""
        if alert is None or alert.state not in {"watch", "firing"}:
            return False
        before = self.asked.get(verb)
        self.asked[verb] = (alert.opened_at_s, alert.state)
        return self.asked[verb] != before

    def asked_for(self, verb: str, request: str | None) -> None:
        """Take down the id of what was asked; None: it could not be asked, try again."""
        if request is None:
            del self.asked[verb]
        elif verb == "functions":
            self.request = request

    def take_functions(self, answer: Functions, config: Config) -> None:
        """Take in the calls of functions, as they were asked for: the worst of what stands out."""
        self.request = ""
        if answer.error is not None:
            return
        from gpuwatchd.analysis import functions  # noqa: PLC0415 - numpy: 1 s while others work

        named = [replace(one, name=clean(one.name, limit=60)) for one in answer.functions]
        judged = functions.judge(named, config.probe, config.detection)
        remarks = [*judged.findings, *judged.insights]
        remarks.sort(key=lambda remark: -functions.POINTS[remark.weight])
        self.remarks, self.score = tuple(remarks[:MOST_REMARKS]), judged.score

    def series(self) -> AllocatorSeries | None:
        """Return its figures as the detectors want them; None before there are any."""
        t_s, allocated = self.allocated.window()
        reserved_s, reserved = self.reserved.window()
        newest = self.newest
        if not t_s.size or newest is None:
            return None
        import numpy as np  # noqa: PLC0415 - comes with the detectors

        peak_s, peak = self.peak.window()
        return AllocatorSeries(
            t_s=t_s,
            allocated_bytes=allocated,
            # Cells keep the lowest and the highest point, which differ between two series.
            reserved_bytes=np.interp(t_s, reserved_s, reserved),
            peak_bytes=np.interp(t_s, peak_s, peak) if peak_s.size else None,
            inactive_split_bytes=newest.inactive_split_bytes,
            limit_bytes=newest.limit_bytes,
            fragmentation_ratio=self.fragmentation_ratio,
            functions=self.functions,
            remarks=self.remarks,
            score=self.score,
        )


def ending_of(key: ProcessKey, uid: int | None) -> Ending | None:
    """Return why a prepared process has ended, where the exception that it wrote down says so."""
    if uid is None:
        return None
    final = mailboxes.last_words(mailboxes.folder(uid), key.pid, uid)
    if (
        isinstance(final, MailboxFault)
        or final.failure is None
        or final.at_s < (key.started_at_s or 0.0)
    ):
        return None
    module, _, error = final.failure.rpartition(".")
    if error in _OUT_OF_MEMORY:
        return Ending.RAN_OUT
    return Ending.PROCESS_ENDED if module == "builtins" and error not in _OF_ANY_KIND else None


def _figures(reading: AllocatorReading) -> AllocatorReading:
    return replace(reading, at_s=0.0)


def holder_of(census: Census, at_s: float) -> Holder | None:
    """Return the variable that keeps most of the growth of an inspection; None of several alike."""
    span_s = census.every_s * max(census.censuses - 1, 1)
    best: dict[tuple[str, str | None, int | None], Holder] = {}
    for group in census.groups:
        holder = group.holder
        if holder is None or group.sure not in {"named", "graph"}:
            continue
        first, last = group.counts[0], max(group.counts[-1], 1)
        held = float(group.bytes)
        place = (holder.name, holder.file, holder.line)
        before = best.get(place) or Holder(
            name=clean(holder.name),
            kind=clean(holder.kind),
            at_s=at_s,
            length=holder.len,
            file=holder.file and clean(holder.file, limit=1024),
            line=holder.line,
        )
        bound = group.bounded_at_bytes
        best[place] = replace(
            before,
            kind=clean(holder.kind) if before.kind == "graph" else before.kind,
            graph=before.graph or group.graph or group.sure == "graph",
            held_bytes=before.held_bytes + held,
            rate_bytes_per_s=before.rate_bytes_per_s + held * (1.0 - first / last) / span_s,
            bounded_at_bytes=before.bounded_at_bytes
            if bound is None
            else bound + (before.bounded_at_bytes or 0.0),
        )
    return max(best.values(), key=lambda one: (one.rate_bytes_per_s, one.graph), default=None)
