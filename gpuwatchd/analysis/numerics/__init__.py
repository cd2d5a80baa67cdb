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
    PAUSE_STEPS,
    SeriesWindow,
    goes_on,
    last_crash,
    last_gap,
    look_back_s,
    memory_releases,
    pauses,
    prepare,
    steady_rise,
)
