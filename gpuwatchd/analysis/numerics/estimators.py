"""Estimators that bear noise, outliers and autocorrelation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

NOISE_POINTS = 400
"""Differences that the noise is estimated from."""
TURN_POINTS = 360
"""A zigzag is worked out on the extremes of this many blocks."""


def noise(x: FloatArray) -> float:
    """Return the standard deviation of white noise on a slowly moving series.

    Median absolute second difference: blind to level, slope and single jumps. 0 when fewer than
    five points.
    """
    if x.size < 5:
        return 0.0
    every = -(-(x.size - 2) // NOISE_POINTS)
    second = np.abs(x[2::every] - 2.0 * x[1:-1:every] + x[:-2:every])
    second.sort()
    # 0.6745 sd is the median of |N|; the second difference has variance 6.
    return float(second[second.size // 2]) / (0.6745 * math.sqrt(6.0))


def median(x: FloatArray) -> float:
    """Return the median of one or more values; ``numpy.median`` takes ten times as long for few.

    Examples
    --------
    >>> median(np.array([3.0, 1.0, 2.0, 10.0]))
    2.5
    """
    half = x.size // 2
    ordered = x.copy()
    ordered.sort()
    if x.size % 2:
        return float(ordered[half])
    return 0.5 * (float(ordered[half - 1]) + float(ordered[half]))


def quantile(x: FloatArray, share: float) -> float:
    """Return a quantile of one or more values, straight between neighbours, as numpy has it.

    Examples
    --------
    >>> quantile(np.array([4.0, 0.0, 2.0]), 0.25)
    1.0
    """
    at = share * (x.size - 1)
    low = int(at)
    high = min(low + 1, x.size - 1)
    ordered = np.partition(x, (low, high))
    below, above = float(ordered[low]), float(ordered[high])
    return below + (above - below) * (at - low)


def deviation(x: FloatArray) -> float:
    """Return the standard deviation of one or more values around their mean.

    Examples
    --------
    >>> deviation(np.array([1.0, 3.0]))
    1.0
    """
    rest = x - float(np.add.reduce(x)) / x.size
    return math.sqrt(float(rest @ rest) / x.size)


def drawdown(x: FloatArray) -> float:
    """Return the largest fall below an earlier value; 0 for a series that never falls.

    Examples
    --------
    >>> drawdown(np.array([1.0, 5.0, 3.0, 4.0]))
    2.0
    """
    return float((np.maximum.accumulate(x) - x).max()) if x.size else 0.0


def least_squares(t: FloatArray, x: FloatArray) -> tuple[float, float, float]:
    """Return slope, value at t = 0 and R² of the least-squares line.

    R² is 0 for a constant series. Needs two different instants; otherwise slope and R² are 0.
    """
    if t.size < 2:
        return 0.0, float(x[-1]) if x.size else 0.0, 0.0
    t_mean, x_mean = float(np.add.reduce(t)) / t.size, float(np.add.reduce(x)) / x.size
    dt, dx = t - t_mean, x - x_mean
    tt, xx, tx = float(dt @ dt), float(dx @ dx), float(dt @ dx)
    if tt <= 0.0:
        return 0.0, x_mean, 0.0
    slope = tx / tt
    return slope, x_mean - slope * t_mean, min(1.0, tx * tx / (tt * xx)) if xx > 0.0 else 0.0


def batch_means_p(t: FloatArray, x: FloatArray, batches: int = 8) -> tuple[float, float]:
    """Return t statistic and one-sided p-value of "x rises", valid under autocorrelation.

    The window is cut into batches longer than the correlation time; the differences of neighbouring
    batch means are the observations of a t test against zero. Fewer than 2 × ``batches`` points:
    (0, 1).
    """
    if x.size < 2 * batches:
        return 0.0, 1.0
    number = np.arange(batches, dtype=np.float64)
    begin = float(t[0])
    edge = t.searchsorted(number * ((float(t[-1]) - begin) / batches) + begin)
    count = np.empty_like(edge)
    count[:-1], count[-1] = edge[1:] - edge[:-1], x.size - edge[-1]
    if int(count.min()) <= 0:
        return 0.0, 1.0
    means = np.add.reduceat(x, edge) / count
    number -= 0.5 * (batches - 1)
    means -= float(np.add.reduce(means)) / batches
    square = (batches**3 - batches) / 12.0
    slope = float(number @ means) / square
    rest = means - slope * number
    freedom = batches - 2
    sd = math.sqrt(float(rest @ rest) / freedom)
    if sd <= 1e-9 * max(1.0, abs(slope)):
        return (math.inf, 0.0) if slope > 0 else (0.0, 1.0)
    error = sd / math.sqrt(square)
    statistic = slope / error
    return statistic, t_tail(statistic, freedom)


def t_tail(statistic: float, freedom: int) -> float:
    """Return the upper tail of Student's t law with an even number of degrees of freedom.

    Abramowitz and Stegun 26.7.4 (closed form for even degrees).

    Examples
    --------
    >>> round(t_tail(2.447, 6), 4), t_tail(0.0, 6)
    (0.025, 0.5)
    """
    if math.isinf(statistic):
        return 0.0 if statistic > 0 else 1.0
    theta = math.atan2(statistic, math.sqrt(freedom))
    cos2 = math.cos(theta) ** 2
    term = total = 1.0
    for k in range(1, freedom // 2):
        term *= cos2 * (2 * k - 1) / (2 * k)
        total += term
    return max(0.0, 0.5 * (1.0 - math.sin(theta) * total))


def turns(t_s: FloatArray, x: FloatArray, size: float) -> list[tuple[float, float, int]]:
    """Return the turning points of a zigzag of at least ``size`` bytes: (t, value, ±1).

    +1 is a peak, -1 a trough; the last, unfinished leg is not closed. Long series are first cut to
    the extremes of blocks.
    """
    if x.size < 3 or size <= 0.0 or drawdown(x) < size:
        return []
    return zigzag(*extremes(t_s, x), size)


def extremes(t_s: FloatArray, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the few points of one or more that a zigzag can turn at, and the last one."""
    if x.size > 2 * TURN_POINTS:
        block = -(-x.size // TURN_POINTS)
        head = x.size % block
        rows = x[head:].reshape(-1, block)
        origin = np.arange(head, x.size, block)
        low, high = rows.argmin(axis=1), rows.argmax(axis=1)
        picked = np.zeros(2 * origin.size + 1, dtype=np.intp)
        picked[1::2] = origin + np.minimum(low, high)
        picked[2::2] = origin + np.maximum(low, high)
        t_s, x = t_s[picked], x[picked]
    # Between two turns of direction nothing can happen that does not happen at the second.
    move = x[1:] - x[:-1]
    moved = move.nonzero()[0]
    if moved.size:
        up = move[moved] > 0.0
        turned = moved[1:][up[1:] != up[:-1]]
        picked = np.concatenate((moved[:1], turned, [x.size - 1]))
        t_s, x = t_s[picked], x[picked]
    return t_s, x


def zigzag(t_s: FloatArray, x: FloatArray, size: float) -> list[tuple[float, float, int]]:
    """Return the same as :func:`turns`, from the points of :func:`extremes`."""
    out: list[tuple[float, float, int]] = []
    top_t = low_t = float(t_s[0])
    top = low_x = float(x[0])
    rising: bool | None = None
    for at, value in zip(t_s.tolist(), x.tolist(), strict=True):
        if rising is not False and value >= top:
            top, top_t = value, at
        if rising is not True and value <= low_x:
            low_x, low_t = value, at
        if rising is not False and top - value >= size:
            out.append((top_t, top, 1))
            rising, low_x, low_t = False, value, at
        elif rising is not True and value - low_x >= size:
            out.append((low_t, low_x, -1))
            rising, top, top_t = True, value, at
    return out
