"""Will this growth reach the limit before it stops by itself? Growth laws, stop prior, score, ETA.

The retained floor of many windows is explained by competing growth laws (straight, accelerating,
decelerating in several ways, stopped). Each law says when the limit is reached, if ever. Benign
ramps stop after times that follow a Lomax law; leaks do not stop. From both comes one probability
per window, and from it and a few terms of shape and noise the score that verdict judges by.

References: Crow-AMSAA power law and Lomax (Pareto II) survival; the sums over laws are a Bayesian
model average with multinomial increments. docs/explanation/detection.md has the measurements.
"""

from __future__ import annotations

from gpuwatchd.analysis.forecast.bounds import Bounds, bounds
from gpuwatchd.analysis.forecast.eta import HORIZON_S, Weights, weigh
from gpuwatchd.analysis.forecast.profile import (
    PROFILE_AGES_S,
    PROFILE_LOOKBACKS_S,
    profile,
    profile_of_yesterday,
)
from gpuwatchd.analysis.forecast.program_prior import ProgramPrior, program_prior
from gpuwatchd.analysis.forecast.rises import earlier_rises
from gpuwatchd.analysis.forecast.windows import (
    BINS,
    HOLD_MARGIN,
    LOOKBACKS_S,
    Windows,
    joined,
    windows,
)
