"""What the growth laws say of each window: posterior weights, reach, score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.forecast.laws import LAWS

if TYPE_CHECKING:
    from gpuwatchd.forecast.windows import Windows
    from gpuwatchd.model import FloatArray

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


def weigh(found: Windows, headroom: FloatArray, horizon_s: float = HORIZON_S) -> Weights:
    """Return what the laws say about each window.

    With p the probability that the limit is reached before the growth stops by itself, A the age,
    k₊ and k₋ excess and deficit (less 1/2n for n >= 4 events), s the stall and d the calm::

        1.0 + 0.2 clip(ln(A / 40 min), -1.5, 0) + 0.8 ln(p / (1 - p)) - 4.5 k₊ - 4.5 k₋
            - 0.7 max(s - 1, 0) + 0.25 d - [given back twice or more] max(1.5 - d, 0)

    is the score in log odds; 0.80 is the level of an alert, 0.60 that of a watch.

    Parameters
    ----------
    found
        Windows from :func:`windows`.
    headroom
        (k,) bytes from the recent peak to the limit.
    horizon_s
        A limit that is further away than this is not reached.
    """
    support = found.events[:, None] * (found.shares @ LAWS.log_odds) + LAWS.log_prior
    support -= support.max(axis=1, keepdims=True)
    law = np.exp(support)
    law /= law.sum(axis=1, keepdims=True)
    ratio = np.maximum(headroom, 0.0) / found.growth
    reach = found.age_s[:, None] * (LAWS.reach(ratio) - 1.0) + found.end_s[:, None]
    reach = np.maximum(reach, 0.0)
    age = found.age_s
    survive = (1.0 + age / STOP_SCALE_S) ** -STOP_SHAPE
    leak = LEAK_PRIOR / (LEAK_PRIOR + (1.0 - LEAK_PRIOR) * survive)
    old = (STOP_SCALE_S + age)[:, None]
    in_time = (old / (old + reach)) ** STOP_SHAPE
    chance = np.where(reach < horizon_s, leak[:, None] + (1.0 - leak[:, None]) * in_time, 0.0)
    p = np.clip((law * chance).sum(axis=1), 0.001, 0.999)
    # A staircase of n even risers is off its chord by up to 1/n, a half of it on either side.
    slack = np.where(found.events >= 4.0, 0.5 / found.events, 0.0)
    # The shorter the growth, the more a benign ramp looks like it: the same evidence weighs less.
    young = np.clip(np.log(age / STOP_SCALE_S), -1.5, 0.0)
    # What was given back again and again will be given back again (last term).
    score = (
        1.0
        + 0.2 * young
        + 0.8 * np.log(p / (1.0 - p))
        - 4.5 * np.maximum(found.excess - slack, 0.0)
        - 4.5 * np.maximum(found.deficit - slack, 0.0)
        - 0.7 * np.maximum(found.stall - 1.0, 0.0)
        + 0.25 * found.calm
        - np.where(found.returns >= 2.0, np.maximum(1.5 - found.calm, 0.0), 0.0)
    )
    return Weights(law=law, reach_s=reach, reaches=p, score=score)
