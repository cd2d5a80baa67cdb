"""The evidence at every look at an item, kept so that weights can be compared without judging anew.

A look is what :func:`gpuwatchd.analysis.verdict.growth.candidates` sees at one instant: all windows
with their terms. Judging costs a millisecond, weighing kept evidence a few microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics, screen
from gpuwatchd.analysis.forecast.eta import TERMS
from gpuwatchd.analysis.verdict import minimum_growth
from gpuwatchd.analysis.verdict.growth import LEAST_AGE_S, candidates
from gpuwatchd.analysis.verdict.leak import LEAST_EVENTS, LEAST_SAMPLES
from gpuwatchd.core.config import DetectionSection
from tests.scenarios.bench.outcome import EARLY_S
from tests.scenarios.replay import series_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray, Series
    from tests.scenarios.worlds import Item

LOOK_S = 60.0
FAST_LOOK_S = 20.0
FAST_OOM_S = 7200.0
NEVER = -99.0


@dataclass(kw_only=True)
class Evidence:
    """All looks at one item."""

    family: str
    leak: bool
    onset_s: float
    oom_s: float
    """Seconds since the first sample; the end of the record for a harmless item."""
    length_s: float
    at_s: FloatArray
    """(looks,) seconds since the first sample."""
    first: npt.NDArray[np.intp]
    """(looks + 1,) where each look's windows begin in ``terms``."""
    terms: npt.NDArray[np.float32]
    """(windows, terms)."""
    eta_s: FloatArray
    """(windows,) headroom over rate."""
    usable: npt.NDArray[np.bool_]
    """(windows,) whether an alert may rest on it."""
    plain: npt.NDArray[np.bool_]
    """(looks,) whether growth is plain to see."""

    def scores(self, weights: FloatArray) -> FloatArray:
        """Return the log odds (windows,) under these weights."""
        out: FloatArray = self.terms.astype(np.float64) @ weights
        return np.where(self.usable, out, NEVER)


def _windows(series: Series, settings: DetectionSection) -> tuple[FloatArray, bool] | None:
    if screen.first_look([series], settings)[0] is not None:
        return None
    view = numerics.prepare(series, settings.analysis_window_hours * 3600.0)
    if view.samples < max(LEAST_SAMPLES, settings.minimum_samples):
        return None
    every = candidates(series, view, minimum_growth(series, settings))
    if every is None:
        return None
    found, room = every.whole, every.headroom
    usable = (
        (found.age_s >= every.youngest_s)
        & (found.events >= LEAST_EVENTS)
        & (found.age_s >= LEAST_AGE_S)
        & (view.span_s >= settings.minimum_duration)
    )
    room = found.growth if room is None else room
    eta = np.maximum(room, 0.0) * found.age_s / found.growth
    rows = np.column_stack([every.weights.evidence, eta, usable])
    return rows, every.plain or every.steady_s > 0.0


def gather(item: Item) -> Evidence:
    """Return the evidence at one look a minute (three for what fills up within two hours)."""
    series, truth = item.series, item.truth
    settings = DetectionSection()
    t = series.t_s - series.t_s[0]
    length = float(t[-1])
    onset = truth.onset_s or 0.0
    oom = truth.oom_s if truth.oom_s is not None else length
    quick = truth.leak and oom - onset < FAST_OOM_S
    at = np.arange(60.0, length, FAST_LOOK_S if quick else LOOK_S)
    ends = np.searchsorted(t, at, side="right")
    first = [0]
    parts: list[FloatArray] = []
    plain = []
    seen = -1
    kept: tuple[FloatArray, bool] | None = None
    for end in ends.tolist():
        if end != seen:
            kept = _windows(series_at(series, end), settings)
            seen = end
        rows = [kept[0]] if kept is not None else []
        parts += rows
        plain.append(kept is not None and kept[1])
        first.append(first[-1] + sum(len(part) for part in rows))
    every = np.concatenate(parts) if parts else np.empty((0, len(TERMS) + 2))
    return Evidence(
        family=item.family,
        leak=truth.leak,
        onset_s=onset,
        oom_s=oom,
        length_s=length,
        at_s=at,
        first=np.array(first),
        terms=every[:, : len(TERMS)].astype(np.float32),
        eta_s=every[:, -2],
        usable=every[:, -1] > 0.0,
        plain=np.array(plain, dtype=bool),
    )


def need(evidence: Evidence, weights: FloatArray) -> npt.NDArray[np.intp]:
    """Return how many looks more an alert has to last, (looks,): a twentieth of the time left."""
    scores = evidence.scores(weights)
    looks = evidence.at_s.size
    window = np.full(looks, -1, dtype=np.intp)
    count = np.diff(evidence.first)
    filled = np.flatnonzero(count)
    if filled.size:
        best = np.full(looks, NEVER)
        best[filled] = np.maximum.reduceat(scores, evidence.first[:-1][filled])
        owner = np.repeat(filled, count[filled])
        top = np.flatnonzero(scores == best[owner])
        window[owner[top]] = top
    left = np.zeros(looks)
    left[window >= 0] = evidence.eta_s[window[window >= 0]]
    pause = float(evidence.at_s[1] - evidence.at_s[0]) if looks > 1 else LOOK_S
    return np.maximum(np.ceil(np.clip(0.05 * left, 60.0, 300.0) / pause), 2).astype(np.intp)


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
        terms, counts, needed, at = [], [], [], []
        where = 0
        for item in items:
            owner = np.repeat(np.arange(item.at_s.size), np.diff(item.first))[item.usable]
            terms.append(item.terms[item.usable])
            counts.append(np.bincount(owner, minlength=item.at_s.size))
            needed.append(need(item, weights))
            at.append(item.at_s)
            self.parts.append(Part(item=item, first=where, last=where + item.at_s.size))
            where += item.at_s.size
        self.terms = np.concatenate(terms)
        self.at_s = np.concatenate(at)
        self._need = np.concatenate(needed)
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
