"""What the growth laws say of each window: posterior weights, reach, score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis.forecast.laws import LAWS
from gpuwatchd.analysis.forecast import score_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.analysis.forecast.program_prior import ProgramPrior
    from gpuwatchd.analysis.forecast.windows import Windows
    from gpuwatchd.core.model import FloatArray

STOP_SHAPE = 2.0
STOP_SCALE_S = 2400.0
LEAK_PRIOR = 0.1
"""Share of ramps that never stop, before anything is known."""
HORIZON_S = 72 * 3600.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """What the laws say about each window."""

    law: FloatArray
    """(k, laws) posterior weight."""
    reach_s: FloatArray
    """(k, laws) seconds from now until the limit; infinite where it is never reached."""
    reaches: FloatArray
    """(k,) probability that the growth reaches the limit before it stops by itself."""
    score: FloatArray
    """(k,) log odds of the score."""
    evidence: FloatArray
    """(k, terms) what the score was made from."""

    def part(self, first: int, last: int) -> Weights:
        """Return what is said about the windows from ``first`` to before ``last``."""
        return Weights(
            law=self.law[first:last],
            reach_s=self.reach_s[first:last],
            reaches=self.reaches[first:last],
            score=self.score[first:last],
            evidence=self.evidence[first:last],
        )


def weigh(
    windows: Windows,
    headroom: FloatArray,
    personal: ProgramPrior | None = None,
) -> Weights:
    """Return what the laws say about each window.

    The score is in log odds; 0.80 is the level of an alert, 0.50 that of a watch.

    Parameters
    ----------
    windows
        Windows from :func:`windows`.
    headroom
        (k,) bytes from the recent peak to the limit.
    personal
        What earlier runs of the same program say about stopping; else all programs' prior.
    """
    support = windows.events[:, None] * (windows.shares @ LAWS.log_odds) + LAWS.log_prior
    support -= support.max(axis=1, keepdims=True)
    law = np.exp(support)
    law /= law.sum(axis=1, keepdims=True)
    ratio = np.maximum(headroom, 0.0) / windows.growth
    reach = windows.age_s[:, None] * (LAWS.reach(ratio) - 1.0) + windows.end_s[:, None]
    reach = np.maximum(reach, 0.0)
    age = windows.age_s
    if personal is not None:
        chance = personal.chance(windows, headroom, reach)
    else:
        survive = (1.0 + age / STOP_SCALE_S) ** -STOP_SHAPE
        leak = LEAK_PRIOR / (LEAK_PRIOR + (1.0 - LEAK_PRIOR) * survive)
        old = (STOP_SCALE_S + age)[:, None]
        in_time = (old / (old + reach)) ** STOP_SHAPE
        chance = leak[:, None] + (1.0 - leak[:, None]) * in_time
    chance = np.where(reach < HORIZON_S, chance, 0.0)
    p = np.minimum(np.maximum((law * chance).sum(axis=1), 0.001), 0.999)
    evidence = terms(windows, headroom, p)
    score = SCORE(evidence)
    return Weights(law=law, reach_s=reach, reaches=p, score=score, evidence=evidence)


# The score of a window: a few terms of evidence, and what each of them weighs.
# The weights are those of :mod:`gpuwatchd.analysis.forecast.score_weights`, a file of plain
# numbers that ``make train`` writes. A term is oriented so that more of it speaks for a leak.

YOUNG_S = 2400.0
"""Growth younger than this is judged with reserve."""
URGENT_S = 3600.0
"""With less time left than this an alert asks for less evidence."""
TERMS = ("one", "reach", "excess", "deficit", "stall", "calm", "returned", "young", "urgent")
"""Names of the columns of :func:`terms`."""


def terms(windows: Windows, headroom: FloatArray, p: FloatArray) -> FloatArray:
    """Return the evidence (k, terms) of each window.

    Parameters
    ----------
    windows
        Windows (k,).
    headroom
        (k,) bytes from the recent peak to the limit.
    p
        (k,) probability that the growth reaches the limit before it stops by itself.

    Notes
    -----
    With A the age, k₊ and k₋ the largest excess and deficit of the growth against its chord (less
    1/2n for n >= 4 events), s the stall and d the calm, the columns are 1, ln(p / (1 - p)), -k₊,
    -k₋, -max(s - 1, 0), d, -max(1.5 - d, 0) where as much was given back twice or more, and
    clip(ln(A / 40 min), -1.5, 0): the shorter the growth, the more a harmless ramp looks like it.
    The last is clip(ln(1 h / R), 0, 1) with R the time that is left at this rate: with half an hour
    to out-of-memory the minutes count that certainty costs.
    """
    # A staircase of n even risers is off its chord by up to 1/n, a half of it on either side.
    slack = np.where(windows.events >= 4.0, 0.5 / windows.events, 0.0)
    out = np.empty((windows.size, len(TERMS)))
    out[:, 0] = 1.0
    out[:, 1] = np.log(p / (1.0 - p))
    out[:, 2] = -np.maximum(windows.excess - slack, 0.0)
    out[:, 3] = -np.maximum(windows.deficit - slack, 0.0)
    out[:, 4] = -np.maximum(windows.stall - 1.0, 0.0)
    out[:, 5] = windows.calm
    # What was given back again and again will be given back again.
    out[:, 6] = -np.where(windows.returns >= 2.0, np.maximum(1.5 - windows.calm, 0.0), 0.0)
    out[:, 7] = np.minimum(np.maximum(np.log(windows.age_s / YOUNG_S), -1.5), 0.0)
    left_s = np.maximum(headroom, 1.0) * (windows.age_s / windows.growth)
    out[:, 8] = np.minimum(np.maximum(np.log(URGENT_S / left_s), 0.0), 1.0)
    return out


class Score:
    """Weights of the terms; replaceable as a whole, so that folds can be compared."""

    def __init__(self, coefficients: Mapping[str, float]) -> None:
        self.use(coefficients)

    def use(self, coefficients: Mapping[str, float]) -> None:
        """Take these weights from now on; a term that is not named weighs nothing."""
        self.coefficients = dict(coefficients)
        self.weights: FloatArray = np.array([coefficients.get(name, 0.0) for name in TERMS])

    def __call__(self, evidence: FloatArray) -> FloatArray:
        """Return the log odds (k,) of the evidence (k, terms)."""
        out: FloatArray = evidence @ self.weights
        return out


SCORE = Score(score_weights.COEFFICIENTS)
