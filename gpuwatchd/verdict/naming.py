"""Which of the leak patterns a growth is, at which rate, and how straight."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuwatchd import robust
from gpuwatchd.detect.cycle import Cycle
from gpuwatchd.detect.step import Step
from gpuwatchd.detect.trend import Trend

if TYPE_CHECKING:
    from gpuwatchd.model import Pattern, Signal
    from gpuwatchd.robust import View
    from gpuwatchd.verdict.growth import Growth

_TREND, _STEP, _CYCLE = Trend(), Step(), Cycle()


class Named(NamedTuple):
    """The pattern of a growth, the detector's signal behind it, and its rate in bytes/s."""

    pattern: Pattern
    signal: Signal | None
    signals: tuple[Signal, ...]
    rate: float


def name(view: View, growth: Growth) -> Named:
    """Name the pattern: swings first, then stairs, then a slope."""
    trend = _TREND.look_at(growth.found.view, growth.onset_s)
    step, cycle = _STEP.look_at(view), _CYCLE.look_at(view)
    signals = tuple(signal for signal in (trend, step, cycle) if signal is not None)
    if cycle is not None and cycle.pattern == "cyclic":
        return Named("cyclic", cycle, signals, cycle.rate_bytes_per_s)
    if step is not None and step.confidence >= 0.25 and step.facts["stall"] <= 2.5:
        return Named("step", step, signals, step.rate_bytes_per_s)
    if trend is not None:
        return Named("gradual", trend, signals, trend.rate_bytes_per_s)
    slope, _, _ = line(growth.found.view, growth.onset_s)
    return Named("gradual", None, signals, slope)


def line(view: View, onset_s: float) -> tuple[float, float, float]:
    first = min(int(np.searchsorted(view.t_s, onset_s - 1e-6)), view.t_s.size - 2)
    return robust.least_squares(view.t_s[first:], view.mean[first:])


def p_value_since(view: View, onset_s: float) -> float | None:
    first = int(np.searchsorted(view.t_s, onset_s - 1e-6))
    if view.t_s.size - first < 16:
        return None
    return robust.batch_means_p(view.t_s[first:], view.mean[first:])[1]
