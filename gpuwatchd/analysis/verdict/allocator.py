"""What a framework's own allocator adds to the curve of its process, and what bounds its growth.

The driver sees what a process has taken, the allocator what of it is in tensors: a preallocated
pool is flat while tensors fill it, and a process grows while its tensors do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from gpuwatchd.analysis.frameworks import advice
from gpuwatchd.analysis.numerics import MIB
from gpuwatchd.core import units
from gpuwatchd.core.codes import AllocatorVerdict, FactName, Reason
from gpuwatchd.core.model.findings import (
    AllocatorState,
    Clause,
    GrowthFact,
    dismissed_finding,
    reason_fields,
    with_reason,
)

if TYPE_CHECKING:
    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import AllocatorSeries, Finding, Holder, Series

FOLLOWS: Final = 0.5
"""What brings as much of a growth explains it."""
LEAST_S: Final = 120.0
"""Growth that was seen for less time in the allocator too is not explained by it."""
FULL_SHARE: Final = 0.98
"""What stops below this share of the limit fits."""
LEAST_AGE_S: Final = 600.0
"""Younger growth without a bound stays a watch: a model that is read into a list has none either.
"""
BEYOND: Final = 1.05
"""What holds as much more than its bound is not what was bounded."""
_RANK: Final = {"none": 0, "watch": 1, "alert": 2}
_ADVICE: Final = {
    AllocatorVerdict.FRAGMENTATION: (
        "Tensors do not grow: what they leave free lies in pieces that fit nothing.",
        "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; pad inputs to few sizes.",
    ),
    AllocatorVerdict.OUTSIDE: (
        "Tensors do not grow: look at extensions, custom kernels, NCCL, CUDA graphs, libraries.",
    ),
}


def tensor_series(series: Series) -> Series | None:
    """Return the bytes in tensors as a series of their own; None where too little was seen."""
    allocator = series.allocator
    if allocator is None or allocator.t_s.size < 2:
        return None
    limit, free = allocator.limit_bytes, None
    if series.limit_bytes is not None and series.used_bytes.size:
        free = series.limit_bytes - float(series.used_bytes[-1])
    if limit is None and free is not None:
        limit = float(allocator.reserved_bytes[-1]) + free
    return msgspec.structs.replace(
        series,
        t_s=allocator.t_s,
        used_bytes=allocator.allocated_bytes,
        limit_bytes=limit,
        framework=None,  # a pool is not preallocated inside
        history=(),  # what earlier runs took from the device is another figure
        alerted=None,
        allocator=None,
    )


def combined(series: Series, whole: Finding, tensors: Finding, least: float) -> Finding:
    """Return the judgement on the whole of a process with what its allocator says.

    That on the tensors where they support more; of tier "none" where only free cache grows.
    ``least`` are the bytes below which nothing grows.
    """
    allocator = series.allocator
    assert allocator is not None  # noqa: S101 - tensors were judged
    verdict = _verdict(allocator, whole, tensors, series, least)
    held = units.size(float(allocator.allocated_bytes[-1]))
    out = whole
    if verdict is AllocatorVerdict.TENSORS:
        if _RANK[tensors.tier] > _RANK[whole.tier]:
            first, *others = tensors.parts or (Clause(text=""),)
            first = msgspec.structs.replace(first, about=f"inside the allocator: {first.about}")
            reason = reason_fields(first, *others, code=tensors.code)
            out = msgspec.structs.replace(tensors, framework=series.framework, **reason)
        else:
            peaks = "" if tensors.tier != "none" else "peaks of "
            out = with_reason(whole, f"{peaks}tensors are what grows, {held} now")
    elif verdict is AllocatorVerdict.FREE_CACHE:
        cache = float(allocator.reserved_bytes[-1] - allocator.allocated_bytes[-1])
        why = f"free cache of the allocator, {units.size(cache)}, of use to tensors"
        out = dismissed_finding(whole, why, Reason.FREE_CACHE)
        if allocator.peak_bytes is None:  # it may have been in tensors between two looks
            out = msgspec.structs.replace(out, tier=min(whole.tier, "watch", key=_RANK.__getitem__))
    elif verdict in _ADVICE:
        text = f"outside the framework's allocator: {held} in tensors do not grow"
        if verdict is AllocatorVerdict.FRAGMENTATION:
            share = units.percent(_split(allocator))
            text = f"fragmentation: {share} of what the allocator holds is free in pieces"
        out = msgspec.structs.replace(with_reason(whole, text), advice=_ADVICE[verdict])
    elif whole.pattern == "preallocated":
        inside = f"inside it {held} in tensors, which do not grow"
        reason = reason_fields(*whole.parts[:1], inside, code=whole.code)
        out = msgspec.structs.replace(whole, advice=(), **reason)
    state = AllocatorState(
        verdict=verdict,
        allocated_bytes=float(allocator.allocated_bytes[-1]),
        reserved_bytes=float(allocator.reserved_bytes[-1]),
        inactive_split_bytes=allocator.inactive_split_bytes,
        functions=allocator.functions,
        remarks=allocator.remarks,
        score=allocator.score,
    )
    return msgspec.structs.replace(out, allocator=state)


def _split(allocator: AllocatorSeries) -> float:
    return (allocator.inactive_split_bytes or 0.0) / max(float(allocator.reserved_bytes[-1]), 1.0)


def _verdict(
    allocator: AllocatorSeries, whole: Finding, tensors: Finding, series: Series, least: float
) -> AllocatorVerdict:
    if tensors.tier != "none":
        return AllocatorVerdict.TENSORS
    begin_s, end_s = float(allocator.t_s[0]), float(allocator.t_s[-1])
    if whole.tier == "none":
        return AllocatorVerdict.FLAT if end_s - begin_s >= LEAST_S else AllocatorVerdict.NONE
    if whole.onset_at_s is not None:
        begin_s = max(begin_s, whole.onset_at_s)

    def grown(t_s: np.ndarray, values: np.ndarray) -> float:
        return float(values[-1]) - float(np.interp(begin_s, t_s, values))

    process = grown(series.t_s, series.used_bytes)
    if end_s - begin_s < LEAST_S or process < least:
        return AllocatorVerdict.NONE
    reserved = grown(allocator.t_s, allocator.reserved_bytes)
    if (allocator.reserved_bytes == allocator.allocated_bytes).all():
        return AllocatorVerdict.NONE  # TensorFlow says nothing of what it reserves
    if reserved < FOLLOWS * process:
        return AllocatorVerdict.OUTSIDE
    needs = [allocator.allocated_bytes]
    needs += [] if allocator.peak_bytes is None else [allocator.peak_bytes]
    if any(grown(allocator.t_s, need) >= FOLLOWS * reserved for need in needs):
        return AllocatorVerdict.TENSORS
    # Where most was taken before, pieces that fill the rest are a small share of it all.
    pieces = allocator.inactive_split_bytes or 0.0
    if pieces >= FOLLOWS * reserved or _split(allocator) >= allocator.fragmentation_ratio:
        return AllocatorVerdict.FRAGMENTATION
    return AllocatorVerdict.FREE_CACHE


def with_holder(series: Series, finding: Finding, settings: DetectionSection) -> Finding:
    """Return the judgement with the variable that keeps the growth, if it explains it.

    One that is full before the limit makes it no finding; one without a bound makes a watch an
    alert once it has lasted, or at once where it keeps graphs: the shape of the curve would only
    show later what is known.
    """
    holder, rate = series.holder, finding.rate_bytes_per_s
    if holder is None or finding.tier == "none" or not rate:
        return finding
    if finding.onset_at_s is not None and holder.at_s < finding.onset_at_s:
        return finding  # it was found while something else grew
    explains = holder.rate_bytes_per_s >= FOLLOWS * rate
    if not (explains or holder.graph):
        return finding
    cure = advice.of_holder(holder.kind, graph=holder.graph)
    lines = tuple(filter(None, (cure, *finding.advice)))[: advice.MOST]
    named = with_reason(finding, f"{holder.place} keeps it")
    named = msgspec.structs.replace(named, holder=holder, advice=lines)
    if holder.bounded_at_bytes is not None and explains:
        level = _level_when_full(series, holder)
        if level is None or (finding.limit_bytes and level > FULL_SHARE * finding.limit_bytes):
            return named
        # Only a bound that holds is told as advice: beyond the limit, or passed, it helps nobody.
        bound = units.size(holder.bounded_at_bytes)
        calm = advice.of_holder(holder.kind, bound, graph=holder.graph)
        why = f"{holder.place} fills up to {bound}, then stops"
        out = dismissed_finding(finding, why, Reason.BOUNDED)
        fact = GrowthFact(
            name=FactName.PROBE_BOUND, source=holder.place, weight=1.0, level_bytes=level, text=why
        )
        out = msgspec.structs.replace(out, holder=holder, advice=(calm,) if calm else ())
        return msgspec.structs.replace(out, levels_off_bytes=level, eta=None, facts=(fact,))
    eta = finding.eta
    if finding.tier != "watch" or eta is None or eta.mid_s > settings.eta_horizon:
        return named
    onset_s = finding.judged_at_s if finding.onset_at_s is None else finding.onset_at_s
    age_s = finding.judged_at_s - onset_s
    if not holder.graph and age_s < LEAST_AGE_S:
        return named
    severity = "critical" if eta.mid_s < 3600.0 else "warning"
    confidence = max(finding.confidence, settings.confidence_threshold)
    return msgspec.structs.replace(named, tier="alert", severity=severity, confidence=confidence)


def _level_when_full(series: Series, holder: Holder) -> float | None:
    """Return what the subject holds once its holder is full; None where it holds more already.

    None too where nothing is known of what it held when the holder was found.
    """
    bound, t_s, values = holder.bounded_at_bytes, series.t_s, series.used_bytes
    if bound is None or holder.at_s < t_s[0]:
        return None
    then = float(np.interp(holder.at_s, t_s, values))
    level = then + max(0.0, bound - holder.held_bytes)
    return level if float(values[-1]) <= BEYOND * level + 64.0 * MIB else None
