"""The evidence at every look at an item, kept so that weights can be compared without judging anew.

A look is what :func:`gpuwatchd.analysis.verdict.growth.candidates` sees at one instant: all windows
with their terms. Judging costs a millisecond, weighing kept evidence a few microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis import numerics, screen
from gpuwatchd.analysis.forecast.posterior import TERMS
from gpuwatchd.analysis.verdict import minimum_growth
from gpuwatchd.analysis.verdict.growth import LEAST_AGE_S, candidates
from gpuwatchd.analysis.verdict.leak import LEAST_EVENTS, LEAST_SAMPLES
from gpuwatchd.core.config import DetectionSection
from tests.scenarios.replay import series_at

if TYPE_CHECKING:
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
    seed: int
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


def _windows(series: Series, settings: DetectionSection) -> tuple[list[FloatArray], bool] | None:
    if screen.first_look([series], settings)[0] is not None:
        return None
    view = numerics.prepare(series, settings.analysis_window_hours * 3600.0)
    if view.samples < max(LEAST_SAMPLES, settings.minimum_samples):
        return None
    every = candidates(series, view, minimum_growth(series, settings))
    if every is None:
        return None
    rows = []
    for found, headroom, weights in every.groups:
        usable = (
            (found.age_s >= every.youngest_s)
            & (found.events >= LEAST_EVENTS)
            & (found.age_s >= LEAST_AGE_S)
            & (view.span_s >= settings.minimum_duration)
        )
        room = headroom if headroom is not None else found.growth
        eta = np.maximum(room, 0.0) * found.age_s / found.growth
        rows.append(np.column_stack([weights.evidence, eta, usable]))
    return rows, every.plain or every.steady_s > 0.0


def gather(item: Item, series: Series | None = None) -> Evidence:
    """Return the evidence at one look a minute (three for what fills up within two hours)."""
    series = item.series if series is None else series
    settings = DetectionSection()
    truth = item.truth
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
    kept: tuple[list[FloatArray], bool] | None = None
    for end in ends.tolist():
        if end != seen:
            kept = _windows(series_at(series, end), settings)
            seen = end
        rows = kept[0] if kept is not None else []
        parts += rows
        plain.append(kept is not None and kept[1])
        first.append(first[-1] + sum(len(part) for part in rows))
    every = np.concatenate(parts) if parts else np.empty((0, len(TERMS) + 2))
    return Evidence(
        family=item.family,
        seed=item.seed,
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
