"""The score of a window: a few terms of evidence, and what each of them weighs.

The weights are those of :mod:`gpuwatchd.analysis.forecast.coefficients`, a file of plain numbers
that
``make train`` writes. A term is oriented so that more of it speaks for a leak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis.forecast.coefficients import COEFFICIENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.analysis.forecast.windows import Windows
    from gpuwatchd.core.model import FloatArray

YOUNG_S = 2400.0
"""Growth younger than this is judged with reserve."""
URGENT_S = 3600.0
"""With less time left than this an alert asks for less evidence."""
TERMS = (
    "one",
    "reach",
    "excess",
    "deficit",
    "stall",
    "calm",
    "returned",
    "young",
    "urgent",
)
"""Names of the columns of :func:`terms`."""


def terms(windows: Windows, headroom: FloatArray, p: FloatArray) -> FloatArray:
    """Return the evidence (k, terms) of each window.

    Parameters
    ----------
    found
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


SCORE = Score(COEFFICIENTS)
