"""How early a leak could be told at all: T*, which latencies are compared with.

T* = max(60 s, 3.5 q/r, (6 h σ² 2τ/r²)^⅓, 3 periods), with r the rate, q the quantum, σ and τ the
noise and its correlation time, and h = ln(decisions for each false alarm allowed). An approximation
of sequential detection (Lorden 1971; Poisson arrivals for the quantum), good enough as a limit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray, Series
    from tests.scenarios.world import Truth

LEAST_S = 60.0
EVENTS = 3.5
PERIODS = 3.0
LOG_DECISIONS = math.log(30 * 1440.0)
"""One false alarm in 30 days of one decision a minute: 10.7."""
MIB = 2.0**20
_CELL_S = 10.0
_LEAST_POINTS = 12


def limit(series: Series, truth: Truth) -> float | None:
    """Return T* of a leak, in seconds, from its true rate and from what surrounds it in the record.

    The rate and the onset are those that were planted. Quantum, noise and period are measured on
    the record around the planted course: the size-weighted median rise of what is retained, the
    residuals of running lines, and the time between crossings of the planted line.
    """
    rate = truth.rate_bytes_per_s
    if not truth.leak or not rate or rate <= 0.0:
        return None
    t = series.t_s - series.t_s[0]
    onset = truth.onset_s or 0.0
    after = t >= onset
    if int(after.sum()) < _LEAST_POINTS:
        return None
    interval = float(np.median(np.diff(t)))
    grid, y = _cells(t[after], series.used_bytes[after], max(_CELL_S, interval))
    grid, y = _one_life(grid, y, series.total_bytes or float(y.max()))
    step = float(grid[1] - grid[0])
    noise, correlation = _noise(grid, y, max(20.0 * step, 600.0))
    # White noise crosses its line all the time; a season is correlated.
    period = _period(grid, y, rate) if correlation > 2.0 * step or not noise else 0.0
    quantum = _quantum(y, noise)
    swings = [PERIODS * period] if period else []
    if noise:
        whole = 6.0 * LOG_DECISIONS * noise**2 * 2.0 * correlation / rate**2
        swings.append(whole ** (1.0 / 3.0))
    # Swings may be told as a season or as noise: the explanation that is over sooner counts.
    return max(LEAST_S, EVENTS * quantum / rate, min(swings, default=0.0))


def _cells(t: FloatArray, x: FloatArray, cell_s: float) -> tuple[FloatArray, FloatArray]:
    """Return the means of cells of equal length; empty ones are filled in between."""
    number = ((t - t[0]) / cell_s).astype(int)
    count = np.bincount(number)
    filled = np.flatnonzero(count)
    mean = np.bincount(number, weights=x)[filled] / count[filled]
    grid = np.arange(count.size) * cell_s + t[0] + 0.5 * cell_s
    return grid, np.interp(np.arange(count.size), filled, mean)


def _one_life(grid: FloatArray, y: FloatArray, total: float) -> tuple[FloatArray, FloatArray]:
    """Return what came before a restart: a third of the room was filled, and then lost."""
    top = np.maximum.accumulate(y)
    grown = top - y[0]
    lost = (grown > 0.3 * (total - y[0])) & (y < y[0] + 0.1 * grown)
    end = int(lost.argmax()) if lost.any() else y.size
    return (grid[:end], y[:end]) if end >= _LEAST_POINTS else (grid, y)


def _quantum(y: FloatArray, noise: float) -> float:
    """Return the size-weighted median rise of what is retained, less what noise makes of it."""
    floor = np.minimum.accumulate(y[::-1])[::-1]
    rises = np.diff(floor)
    total = float(rises.sum())
    if total <= 0.0:
        return 2.0 * MIB
    sizes = np.sort(rises[rises > 0.0])
    middle = int(np.searchsorted(np.cumsum(sizes), 0.5 * total))
    return max(2.0 * MIB, float(sizes[middle]) - 2.0 * noise)


def _noise(grid: FloatArray, y: FloatArray, span_s: float) -> tuple[float, float]:
    """Return standard deviation and correlation time of the residuals of a running line."""
    step = float(grid[1] - grid[0])
    width = min(max(8, int(span_s / step)), y.size)
    rest = []
    for begin in range(0, y.size - width + 1, width):
        part = y[begin : begin + width]
        u = np.arange(width) - (width - 1) / 2.0
        rest.append(part - part.mean() - u * float(u @ part) / float(u @ u))
    sd = np.median([one.std() for one in rest])
    # Steps of one quantum are no noise, and neither is the odd burst (hence the median).
    if sd < MIB:
        return 0.0, 0.0
    lagged = [float(one[1:] @ one[:-1]) / max(float(one @ one), 1.0) for one in rest]
    rho = min(max(float(np.median(lagged)), 0.0), 0.98)
    correlation = 0.5 * step if rho < 0.05 else -step / math.log(rho)
    return float(sd), max(correlation, 0.5 * step)


def _period(grid: FloatArray, y: FloatArray, rate: float) -> float:
    """Return the mean time between two upward crossings of the planted line; 0 without swings.

    Only what is given back swings: a staircase crosses its line as often as it steps.
    """
    changes = np.diff(y)
    given_back = -float(changes[changes < 0.0].sum())
    if given_back < 0.15 * float(np.abs(changes).sum()):
        return 0.0
    rest = y - rate * grid
    rest = rest - np.median(rest)
    above = rest > 0.0
    crossings = int(np.count_nonzero(above[1:] & ~above[:-1]))
    return float(grid[-1] - grid[0]) / crossings if crossings >= 2 else 0.0
