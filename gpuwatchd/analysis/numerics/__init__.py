"""Numerics that every detector shares: one view of a series, and estimators that bear noise."""

from gpuwatchd.analysis.numerics.estimators import (
    batch_means_p,
    deviation,
    drawdown,
    extremes,
    least_squares,
    median,
    noise,
    quantile,
    t_tail,
    turns,
    zigzag,
)
from gpuwatchd.analysis.numerics.series import (
    MIB,
    Holds,
    View,
    holds,
    last_crash,
    last_gap,
    prepare,
    steady_rise,
)

__all__ = [
    "MIB",
    "Holds",
    "View",
    "batch_means_p",
    "deviation",
    "drawdown",
    "extremes",
    "holds",
    "last_crash",
    "last_gap",
    "least_squares",
    "median",
    "noise",
    "prepare",
    "quantile",
    "steady_rise",
    "t_tail",
    "turns",
    "zigzag",
]
