"""Numerics that every detector shares: one view of a series, and estimators that bear noise."""

from gpuwatchd.analysis.numerics.breaks import last_crash, last_gap
from gpuwatchd.analysis.numerics.estimators import (
    batch_means_p,
    deviation,
    drawdown,
    effective_samples,
    extremes,
    least_squares,
    median,
    noise,
    quantile,
    t_tail,
    theil_sen,
    turns,
    zigzag,
)
from gpuwatchd.analysis.numerics.series import MIB, Holds, View, holds, prepare, steady_rise

__all__ = [
    "MIB",
    "Holds",
    "View",
    "batch_means_p",
    "deviation",
    "drawdown",
    "effective_samples",
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
    "theil_sen",
    "turns",
    "zigzag",
]
