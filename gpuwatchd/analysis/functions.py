"""What the calls of a job's functions say: which of them leak, what else stands out, a score.

Whether a function leaks is judged as everything else is, against time; it is charged with what it
adds itself, so that one which only runs beside a leak is not blamed for it. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gpuwatchd.analysis import numerics, verdict
from gpuwatchd.analysis.numerics import MIB
from gpuwatchd.core.model import FunctionRemark as Remark
from gpuwatchd.core.model import Series, Subject, is_leak

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuwatchd.core.config import DetectionSection, ProbeSection
    from gpuwatchd.core.model import FunctionCalls
    from gpuwatchd.core.model.findings import FloatArray

OWN_SHARE = 0.1
"""A function that adds less than this share of what memory grows by has no part in it."""
LEAST_POINTS = 8
REPEATED_CALLS, REPEATED_SHARE = 10, 0.5
SURE = 0.05
"""A trend with a larger p-value is none."""
Verdict = Literal["leak", "watch", "elsewhere", "none", "unknown"]
"""elsewhere: memory grows meanwhile, but the function has no part in it."""
POINTS = {"critical": 20, "warning": 10, "info": 5, "high": 15, "medium": 8, "low": 3}
"""What a finding or an insight takes from the score of 100."""
GRADES = ((90, "A"), (80, "B"), (70, "C"), (0, "D"))


class Judged(NamedTuple):
    """One function."""

    calls: FunctionCalls
    verdict: Verdict
    confidence: float | None = None
    above_leak_ratio: bool | None = None
    remarks: tuple[Remark, ...] = ()


class Judgement(NamedTuple):
    """All functions of a job."""

    functions: list[Judged]
    findings: list[Remark]
    insights: list[Remark]
    score: int | None
    """None where no function has figures."""
    grade: str | None


def judge(
    functions: Sequence[FunctionCalls], probe: ProbeSection, detection: DetectionSection
) -> Judgement:
    """Return what stands out, worst first."""
    judged = [_judge(calls, probe, detection) for calls in functions]
    remarks = [remark for one in judged for remark in one.remarks]
    remarks += _of_the_allocator(functions, probe)
    elsewhere = [one for one in judged if one.verdict == "elsewhere"]
    if elsewhere and not any(one.verdict in {"leak", "watch"} for one in judged):
        names = tuple(one.calls.name for one in elsewhere)
        confidence = max(one.confidence or 0.0 for one in elsewhere)
        remarks.append(Remark("growth_elsewhere", "medium", names, {}, confidence))
    remarks.sort(key=lambda remark: -POINTS[remark.weight])
    score = max(0, 100 - sum(POINTS[remark.weight] for remark in remarks))
    known = any(calls.points for calls in functions)
    return Judgement(
        judged,
        [remark for remark in remarks if remark.weight in {"critical", "warning", "info"}],
        [remark for remark in remarks if remark.weight in {"high", "medium", "low"}],
        score if known else None,
        next(grade for least, grade in GRADES if score >= least) if known else None,
    )


def _judge(calls: FunctionCalls, probe: ProbeSection, detection: DetectionSection) -> Judged:
    ratio, above = calls.positive_growth_ratio, None
    if ratio is not None and calls.call_count >= probe.min_calls_for_analysis:
        above = ratio > probe.memory_leak_ratio
    rows = np.array(calls.points, dtype=np.float64).reshape(-1, 4)
    rows = rows[np.unique(rows[:, 0], return_index=True)[1]]
    if len(rows) < LEAST_POINTS:
        return Judged(calls, "unknown", above_leak_ratio=above)
    subject = Subject(device_uid=calls.name)
    finding = verdict.judge(
        Series(subject=subject, t_s=rows[:, 0], used_bytes=rows[:, 1], limit_bytes=None), detection
    )
    begun_s = float(rows[0, 0] if finding.onset_at_s is None else finding.onset_at_s)
    own_share = _own_share(rows, begun_s)
    word: Verdict = "unknown" if finding.pattern == "unknown" else "none"
    if is_leak(finding):
        word = "watch" if finding.tier == "watch" else "leak"
        word = word if own_share >= OWN_SHARE else "elsewhere"
    remarks = [*_spikes(calls.name, rows[:, 2]), *_trend(calls.name, rows, word)]
    if word in {"leak", "watch"}:
        facts = {
            "growth_bytes": finding.growth_bytes or 0.0,
            "rate_bytes_per_s": finding.rate_bytes_per_s or 0.0,
            "span_s": float(rows[-1, 0]) - begun_s,
            "own_share": min(own_share, 1.0),
        }
        severity = "critical" if finding.severity == "critical" else "warning"
        severity = severity if word == "leak" else "info"
        remarks.append(Remark("memory_leak", severity, (calls.name,), facts, finding.confidence))
    elif word == "none" and calls.call_count >= REPEATED_CALLS and (ratio or 0) >= REPEATED_SHARE:
        facts = {"call_count": calls.call_count, "grown_bytes": float(calls.grown_bytes or 0)}
        remarks.append(Remark("repeated_allocations", "info", (calls.name,), facts))
    return Judged(calls, word, finding.confidence, above, tuple(remarks))


def _own_share(rows: FloatArray, begun_s: float) -> float:
    """Return the function's own share of what memory has grown by since then."""
    first = min(int(rows[:, 0].searchsorted(begun_s - 1e-6)), len(rows) - 1)
    grown = float(rows[-1, 1] - rows[first, 1])
    return float(rows[-1, 3] - rows[first, 3]) / grown if grown > 0.0 else 0.0


def _spikes(name: str, high: FloatArray) -> Iterator[Remark]:
    """Yield what is above Tukey's fence, which is never nearer than 5 % of the median or 1 MiB."""
    first, third = numerics.quantile(high, 0.25), numerics.quantile(high, 0.75)
    middle = numerics.median(high)
    threshold = third + max(1.5 * (third - first), 0.05 * middle, MIB)
    largest = float(high.max())
    if largest > threshold:
        severity = "warning" if largest >= 1.5 * middle else "info"
        facts = {
            "count": float(np.count_nonzero(high > threshold)),
            "threshold_bytes": threshold,
            "largest_bytes": largest,
            "median_bytes": middle,
        }
        yield Remark("spikes", severity, (name,), facts)


def _trend(name: str, rows: FloatArray, word: str) -> Iterator[Remark]:
    """Yield how fast memory grows with time, where the function has a part in it."""
    t_s, low = rows[:, 0] - rows[0, 0], rows[:, 1]
    slope, _, r_squared = numerics.least_squares(t_s, low)
    _, p_value = numerics.batch_means_p(t_s, low)
    if slope > 0.0 and p_value < SURE and _own_share(rows, rows[0, 0]) >= OWN_SHARE:
        impact = {"leak": "high", "watch": "medium"}.get(word, "low")
        facts = {
            "rate_bytes_per_s": slope,
            "r": float(np.sqrt(r_squared)),
            "p_value": p_value,
            "span_s": float(t_s[-1]),
        }
        yield Remark("temporal_growth", impact, (name,), facts, 1.0 - p_value)


def _of_the_allocator(functions: Sequence[FunctionCalls], probe: ProbeSection) -> Iterator[Remark]:
    """Yield what is about the device's memory rather than about one function."""
    known = [(calls, calls.reserved_bytes) for calls in functions if calls.points]
    split = {one.name: (one.inactive_split_bytes or 0) / all_ for one, all_ in known if all_}
    least = probe.fragmentation_ratio
    split = {name: min(share, 1.0) for name, share in split.items() if share >= least}
    if split:
        yield Remark("fragmentation", "warning", tuple(split), {"share": max(split.values())})
    used = {one.name: one.points[-1][2] / all_ for one, all_ in known if all_}
    least = probe.inefficient_allocation_ratio
    used = {name: share for name, share in used.items() if share < least}
    if used:
        yield Remark("inefficient_allocation", "info", tuple(used), {"share": min(used.values())})
