"""What the growth laws say of each window: posterior weights, reach, score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis.forecast.laws import LAWS
from gpuwatchd.analysis.forecast.score import SCORE, terms

if TYPE_CHECKING:
    from gpuwatchd.analysis.forecast.program_prior import Personal
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
    horizon_s: float = HORIZON_S,
    personal: Personal | None = None,
) -> Weights:
    """Return what the laws say about each window.

    The score (:mod:`gpuwatchd.analysis.forecast.score`) is in log odds; 0.80 is the level of an
    alert, 0.50 that of a watch.

    Parameters
    ----------
    found
        Windows from :func:`windows`.
    headroom
        (k,) bytes from the recent peak to the limit.
    horizon_s
        A limit that is further away than this is not reached.
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
    chance = np.where(reach < horizon_s, chance, 0.0)
    p = np.minimum(np.maximum((law * chance).sum(axis=1), 0.001), 0.999)
    evidence = terms(windows, headroom, p)
    score = SCORE(evidence)
    return Weights(law=law, reach_s=reach, reaches=p, score=score, evidence=evidence)
