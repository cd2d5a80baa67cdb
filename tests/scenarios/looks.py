"""All looks at many items in flat arrays: what would have been alerted, under any weights.

Weighing the evidence of a hundred thousand looks takes some ten milliseconds, so that weights and
thresholds can be chosen by what they do to whole items, not to single looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.bench.outcome import EARLY_S
from tests.scenarios.evidence import NEVER
from tests.scenarios.evidence import need as looks_needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray
    from tests.scenarios.evidence import Evidence

ALERT = float(np.log(0.8 / 0.2))
"""Log odds of the formula at which an alert is due."""
DAY_S = 86400.0


@dataclass(kw_only=True)
class Part:
    """One item: its looks are those from ``first`` to before ``last``."""

    item: Evidence
    first: int
    last: int


class Looks:
    """All looks at some items, with (terms,) weights that say how long an alert has to last."""

    def __init__(self, items: Sequence[Evidence], weights: FloatArray) -> None:
        self.parts: list[Part] = []
        terms, counts, need, at = [], [], [], []
        where = 0
        for item in items:
            owner = np.repeat(np.arange(item.at_s.size), np.diff(item.first))[item.usable]
            terms.append(item.terms[item.usable])
            counts.append(np.bincount(owner, minlength=item.at_s.size))
            need.append(looks_needed(item, weights))
            at.append(item.at_s)
            self.parts.append(Part(item=item, first=where, last=where + item.at_s.size))
            where += item.at_s.size
        self.terms = np.concatenate(terms)
        self.at_s = np.concatenate(at)
        self._need = np.concatenate(need)
        count = np.concatenate(counts)
        self._filled = np.flatnonzero(count)
        self._edges = np.concatenate(([0], np.cumsum(count)))
        sizes = [part.last - part.first for part in self.parts]
        self._begin = np.repeat([part.first for part in self.parts], sizes)

    def held(self, weights: FloatArray) -> tuple[FloatArray, npt.NDArray[np.intp]]:
        """Return the score (looks,) that has lasted long enough, and at which look it was least."""
        scores = self.terms @ weights.astype(np.float32)
        best = np.full(self.at_s.size, NEVER)
        best[self._filled] = np.maximum.reduceat(scores, self._edges[:-1][self._filled])
        low, where = best.copy(), np.arange(best.size)
        for back in range(1, int(self._need.max(initial=0)) + 1):
            index = np.arange(best.size) - back
            before = np.where(index < self._begin, NEVER, best[np.maximum(index, 0)])
            lower = (self._need >= back) & (before < low)
            low[lower], where[lower] = before[lower], index[lower]
        return low, where

    def rows(self, weights: FloatArray, looks: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Return the terms (n, terms) of the window that scores best at each of these looks."""
        out = np.zeros((looks.size, self.terms.shape[1]), dtype=np.float32)
        for k, look in enumerate(looks.tolist()):
            windows = self.terms[self._edges[look] : self._edges[look + 1]]
            if windows.size:
                out[k] = windows[int(np.argmax(windows @ weights.astype(np.float32)))]
        return out

    def alerts(self, held: FloatArray, threshold: float = ALERT) -> list[float | None]:
        """Return when each item alerts, in seconds since its first sample; None for never."""
        out: list[float | None] = []
        for part in self.parts:
            hit = np.flatnonzero(held[part.first : part.last] >= threshold)
            out.append(float(self.at_s[part.first + int(hit[0])]) if hit.size else None)
        return out


@dataclass(kw_only=True)
class Balance:
    """Figures in which every family counts the same."""

    f1: float
    found: float
    """Mean over leaking families of the share that was found."""
    alarmed: float
    """Mean over harmless families of the share that was alarmed."""
    left: float
    """Median share of the time to out-of-memory that was left, 0 for what was missed."""
    before_half: float
    per_day: float
    """False alarms per harmless GPU-day."""


def balance(parts: Sequence[Part], alerts: Sequence[float | None]) -> Balance:
    """Return the figures of these items."""
    found: dict[str, list[float]] = {}
    alarmed: dict[str, list[float]] = {}
    left: list[float] = []
    false, days = 0, 0.0
    for part, at in zip(parts, alerts, strict=True):
        item = part.item
        early = at is not None and (not item.leak or at < item.onset_s - EARLY_S)
        days += (min(item.onset_s, item.length_s) if item.leak else item.length_s) / DAY_S
        false += early
        if item.leak:
            hit = at is not None and not early
            found.setdefault(item.family, []).append(float(hit))
            whole = item.oom_s - item.onset_s
            left.append(max(0.0, 1.0 - (at - item.onset_s) / whole) if hit and at else 0.0)
        else:
            alarmed.setdefault(item.family, []).append(float(early))
    recall = float(np.mean([np.mean(v) for v in found.values()])) if found else 0.0
    false_rate = float(np.mean([np.mean(v) for v in alarmed.values()])) if alarmed else 0.0
    precision = recall / max(1e-9, recall + false_rate)
    return Balance(
        f1=2 * precision * recall / max(1e-9, precision + recall),
        found=recall,
        alarmed=false_rate,
        left=float(np.median(left)) if left else 0.0,
        before_half=float(np.mean(np.array(left) >= 0.5)) if left else 0.0,
        per_day=false / max(days, 1e-9),
    )
