"""The two published leak detectors that need only memory over time, written anew.

Linear backward regression (LBR) and Precog with its maximum filter (PrecogMF): A. Jindal et al.,
"Memory leak detection algorithms in the cloud-based infrastructure", arXiv 2106.08938, and "Online
memory leak detection in the cloud-based infrastructures", arXiv 2101.09799; parameters as in the
code that the authors published. Theirs are virtual machines over weeks, one point in five minutes;
ours are runs of hours, so one point is a minute here and every duration is the same number of
points as theirs. With five minutes a point neither could say anything within the first five hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tests.scenarios.rival_rules import Alarms, fits

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray
    from tests.scenarios.rival_rules import Seen

EVERY = 5
"""Looks are five points apart."""
CRITICAL = 2016
"""Points until the limit that count as critical (a week of five-minute points)."""
LBR_WINDOWS = (10, 20, 30, *range(60, 500, 50))
LBR_PERIODS = 3
"""How many of the strongest frequencies are tried as a season."""
DURATIONS = (12, 24, 36, 72)
"""Least length of a trend of Precog, points; 72 is documented (six hours of five minutes)."""
SMOOTHING = 12
CHANGE_Z = 3.5
TOP = 10
LEAST_LEVEL = 0.4
"""Below this share of the limit Precog does not look."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trends:
    """What a detector finds at each look."""

    at: npt.NDArray[np.intp]
    """(looks,) index of the minute."""
    best: FloatArray
    """(windows or durations, looks) best R² of a trend that it would alarm at; 0 without one."""


def backward(seen: Seen) -> Trends:
    """Return the fits of LBR: windows that grow backwards from now, seasons smoothed away."""
    y = seen.minutes
    at = np.arange(EVERY - 1, y.size, EVERY)
    best = np.zeros((len(LBR_WINDOWS), at.size))
    for row, width in enumerate(LBR_WINDOWS):
        looks = np.flatnonzero(at + 1 >= width)
        if not looks.size:
            break
        windows = np.lib.stride_tricks.sliding_window_view(y, width)[at[looks] + 1 - width]
        room = np.maximum(seen.total - windows[:, -1], 0.0)
        best[row, looks] = np.maximum(_critical(windows, room), _deseasoned(windows, room))
    return Trends(at=at, best=best)


def _critical(windows: FloatArray, room: FloatArray) -> FloatArray:
    slope, fit = fits(windows)
    return np.where((slope > 0.0) & (room <= slope * CRITICAL), fit, 0.0)


def _deseasoned(windows: FloatArray, room: FloatArray) -> FloatArray:
    """Return the best fit of the trends that are left when a season is averaged out."""
    width = windows.shape[1]
    strength = np.abs(np.fft.rfft(windows - windows.mean(axis=1, keepdims=True), axis=1))[:, 2:]
    cycles = np.argsort(-strength, axis=1)[:, :LBR_PERIODS] + 2
    periods = np.maximum(np.round(width / cycles).astype(int), 2)
    total = np.cumsum(np.pad(windows, ((0, 0), (1, 0))), axis=1)
    best = np.zeros(windows.shape[0])
    for period in np.unique(periods).tolist():
        rows = np.flatnonzero((periods == period).any(axis=1))
        trend = (total[rows, period:] - total[rows, :-period]) / period
        if trend.shape[1] >= 5:
            best[rows] = np.maximum(best[rows], _critical(trend, room[rows]))
    return best


def lbr_alarms(seen: Seen, found: Trends, r_squared: float, least: float) -> Alarms:
    """R² beyond this in any window of at least ``least`` points."""
    rows = [k for k, width in enumerate(LBR_WINDOWS) if width >= least]
    alarms = np.zeros(seen.at.size, dtype=bool)
    alarms[found.at] = found.best[rows].max(axis=0) > r_squared
    return alarms


def precog(seen: Seen) -> Trends:
    """Return the trends from a change point to now that are worse than every finished one.

    Training is what came before: trends between change points that have ended, and (the maximum
    filter) the highest values before the present trend.
    """
    y = _smoothed(seen.minutes)
    at = np.arange(EVERY - 1, y.size, EVERY)
    best = np.zeros((len(DURATIONS), at.size))
    if y.size < DURATIONS[0]:
        return Trends(at=at, best=best)
    index = np.arange(y.size, dtype=np.float64)
    level = y - y.mean()
    rows = np.stack([index, index * index, level, index * level, level * level])
    sums = np.concatenate([np.zeros((5, 1)), np.cumsum(rows, axis=1)], axis=1)
    changes = np.abs(np.diff(y))
    for column, end in enumerate((at + 1).tolist()):
        if y[end - 1] < LEAST_LEVEL * seen.total:
            continue
        points = _change_points(changes[: end - 1])
        for row, least in enumerate(DURATIONS):
            best[row, column] = _worst(y, sums, points, end, least, seen.total)
    return Trends(at=at, best=best)


def _smoothed(y: FloatArray) -> FloatArray:
    if y.size < 2:
        return y
    padded = np.concatenate([np.full(SMOOTHING - 1, np.nan), y])
    return np.asarray(
        np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, SMOOTHING), axis=1)
    )


def _change_points(changes: FloatArray) -> list[int]:
    """Return where the modified z-score of the changes is beyond the threshold."""
    middle = float(np.median(changes)) if changes.size else 0.0
    deviation = float(np.median(np.abs(changes - middle))) if changes.size else 0.0
    far = 0.6745 * np.abs(changes - middle) > CHANGE_Z * deviation
    return (np.flatnonzero(far) + 1).tolist()


def _apart(points: list[int], end: int, least: int) -> list[int]:
    """Return the first point, and those that lie at least ``least`` after the one kept before."""
    kept = [0]
    for point in points:
        if point - kept[-1] >= least and end - point >= 2:
            kept.append(point)
    return kept


def _worst(
    y: FloatArray, sums: FloatArray, points: list[int], end: int, least: int, total: float
) -> float:
    kept = _apart(points, end, least)
    begins = np.array(kept)
    current = _trends(y, sums, begins, np.full(begins.size, end), total)
    good = (current[2] >= least) & (current[3] <= CRITICAL)
    if not good.any():
        return 0.0
    first, last = np.triu_indices(len(kept), 1)
    slope = duration = 0.0
    if first.size:
        trained = _trends(y, sums, begins[first], begins[last], total)
        old = (trained[1] > 0.8) & (trained[2] >= least) & (trained[3] <= CRITICAL)
        if old.any():
            slope, duration = float(trained[0][old].max()), float(trained[2][old].max())
        before = np.sort(y[: kept[-1]])[-TOP:]
        tops = np.sort(y[kept[-1] : end])[-TOP:]
        low = (tops < 0.95 * total) & (tops < np.median(before))
        if low.any():
            return 0.0
    good &= (current[0] >= slope) & (current[2] >= duration)
    return float(current[1][good].max()) if good.any() else 0.0


def _trends(
    y: FloatArray,
    sums: FloatArray,
    begin: npt.NDArray[np.intp],
    end: npt.NDArray[np.intp],
    total: float,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return slope per point, R², points, and points until the limit of each stretch."""
    n = (end - begin).astype(np.float64)
    u, uu, x, ux, xx = sums[:, end] - sums[:, begin]
    spread, both, height = uu - u * u / n, ux - u * x / n, xx - x * x / n
    slope = np.divide(both, spread, out=np.zeros_like(both), where=spread > 1e-9)
    product = spread * height
    fit = np.divide(both * both, product, out=np.zeros_like(both), where=product > 1e-3)
    room = np.maximum(total - y[end - 1], 0.0)
    left = np.divide(room, slope, out=np.full(n.size, np.inf), where=slope > 0.0)
    return slope, fit, n, left


def precog_alarms(seen: Seen, found: Trends, r_squared: float, least: float) -> Alarms:
    """R² beyond this in a trend of at least ``least`` points."""
    alarms = np.zeros(seen.at.size, dtype=bool)
    alarms[found.at] = found.best[DURATIONS.index(int(least))] > r_squared
    return alarms
