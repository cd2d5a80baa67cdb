"""All weights of the score fitted at once, on what they do to whole items.

The loss is what people would feel: the share of the time to out-of-memory that has gone by when a
leak is alerted, plus ``PRICE`` times the share of harmless items that alarm, each step smoothed by
a sigmoid, every family counting the same. Weights keep their sign; Adam (Kingma and Ba 2015) goes
down along the looks that decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.scenarios.bench.outcome import EARLY_S
from tests.scenarios.evidence import ALERT, NEVER

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuwatchd.core.model import FloatArray
    from tests.scenarios.evidence import Looks, Part

SHARES = np.array([0.04, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.7, 0.9])
"""Shares of the time from onset to out-of-memory at which a leak should have been alerted."""
SHARP = 2.5
PRICE = 2.5
"""What a false alarm costs, against a leak that is never alerted."""
TOPS = 3
STEPS = 60
RATE = 0.06
STAY = 2e-3


def _pull(distance: FloatArray) -> FloatArray:
    """Return the slope of the sigmoid at this distance from the threshold, never quite zero."""
    step = 1.0 / (1.0 + np.exp(-np.clip(SHARP * distance, -30.0, 30.0)))
    out: FloatArray = SHARP * step * (1.0 - step) + 0.02
    return out


def _leaking(
    part: Part, held: FloatArray, at_s: FloatArray
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Return the looks of a leak that decide when it is alerted, and how much each matters."""
    item = part.item
    since = np.where(at_s >= item.onset_s, held, NEVER)
    wanted = item.onset_s + SHARES * (item.oom_s - item.onset_s)
    index = np.searchsorted(at_s, wanted)
    index = index[index < at_s.size]
    top = np.maximum.accumulate(since)
    latest = np.maximum.accumulate(np.where(since == top, np.arange(at_s.size), 0))
    return latest[index], -_pull(ALERT - top[index]) / SHARES.size


def _harmless(
    part: Part, held: FloatArray, at_s: FloatArray
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Return the looks that come nearest to a false alarm, and how much each matters."""
    item = part.item
    calm = np.where(at_s < item.onset_s - EARLY_S, held, NEVER) if item.leak else held
    top = np.argsort(-calm)[:TOPS]
    return top, PRICE * _pull(calm[top] - ALERT) / TOPS


def refit(looks: Looks, start: FloatArray, families: frozenset[str]) -> FloatArray:
    """Return weights (terms,) fitted to these families, beginning at ``start``.

    A term that weighs nothing at the start stays out.
    """
    scale = looks.terms.std(axis=0).astype(np.float64) + 1e-6
    scale[0] = 1.0
    used = start != 0.0
    chosen = [part for part in looks.parts if part.item.family in families]
    share = dict.fromkeys(families, 0)
    for part in chosen:
        share[part.item.family] += 1
    kinds = {leak: len({p.item.family for p in chosen if p.item.leak == leak}) for leak in (0, 1)}
    value = start * scale
    first, second, late = np.zeros_like(value), np.zeros_like(value), []
    for step in range(1, STEPS + 1):
        held, where = looks.held(value / scale)
        index, weight = [], []
        for part in chosen:
            here = slice(part.first, part.last)
            each = 1.0 / share[part.item.family] / kinds[part.item.leak]
            for decide in (_leaking, _harmless):
                if decide is _leaking and not part.item.leak:
                    continue
                at, pull = decide(part, held[here], looks.at_s[here])
                index.append(part.first + at)
                weight.append(each * pull)
        decisive, pulls = np.concatenate(index), np.concatenate(weight)
        known = held[decisive] > NEVER
        rows = looks.rows(value / scale, where[decisive[known]])
        slope = pulls[known] @ rows.astype(np.float64) / scale
        slope[1:] += STAY * (value - start * scale)[1:]
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope * slope
        move = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-9)
        value = value - RATE * (1.0 - 0.8 * step / STEPS) * move
        value[1:] = np.maximum(value[1:], 0.0)
        value[~used] = 0.0
        if step > 0.6 * STEPS:
            late.append(value)
    out: FloatArray = np.mean(late, axis=0) / scale
    return out
