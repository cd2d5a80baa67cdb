"""The first look: many series at once, in one pass, to find the few that deserve the detectors.

Most subjects of a node stand still. Growth in any window is the difference of two points of the
retained floor; the last point of it is the last value and the first one the lowest of all. A series
whose last value lies no higher than its lowest plus the least growth holds no leak in any window,
unless it is so noisy that means over blocks must be looked at instead of single values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.analysis.forecast.windows import NOISE_FACTOR
from gpuwatchd.analysis.frameworks import POOL_SHARE
from gpuwatchd.analysis.numerics import last_gap
from gpuwatchd.core.config.schema import GROWTH_SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuwatchd.core.config import DetectionSection
    from gpuwatchd.core.model import FloatArray, Pattern, Series

LEAST_SAMPLES = 5
LONGEST_ROW = 400
"""Up to so many samples, noise is estimated from all of them as they are: it can be bounded."""
RISING_WINDOWS_S = tuple(60.0 * minutes for minutes in (30, 60, 120, 240, 384))
"""Look-backs of :func:`rising`; where less is known, all of it is one as well."""
STEP_FACTOR = 0.5
"""A rise by less than this part of a usual step between two samples is none."""
CACHE_BYTES = 1 << 18
"""Rows that are worked on at a time."""
JUDGE, STABLE, UNKNOWN, KEEPS_LEVEL = 0, 1, 2, 3
"""Codes of :func:`look_at_array`."""


def first_look(series: Sequence[Series], settings: DetectionSection) -> list[Pattern | None]:
    """Return for each series a pattern that is certain at once, or None: let it be judged.

    Only "stable" (the whole range is below the least growth) and "unknown" (fewer than five
    samples) are ever certain here. A series that is flat at a high level is judged, because it may
    be a preallocated pool.

    Examples
    --------
    >>> from gpuwatchd.core.config import DetectionSection
    >>> from gpuwatchd.core.model import Series, Subject
    >>> t = np.arange(0.0, 600.0, 10.0)
    >>> subject = Subject(device_uid="G")
    >>> flat = Series(subject=subject, t_s=t, used_bytes=t * 0 + 4e9, limit_bytes=24e9)
    >>> leak = Series(subject=subject, t_s=t, used_bytes=t * 1e6 + 4e9, limit_bytes=24e9)
    >>> first_look([flat, leak], DetectionSection())
    ['stable', None]
    """
    if not series:
        return []
    lengths = np.array([one.used_bytes.size for one in series], dtype=np.intp)
    filled = np.flatnonzero(lengths > 0).tolist()
    out: list[Pattern | None] = ["unknown"] * len(series)
    if not filled:
        return out
    values = np.concatenate([series[k].used_bytes for k in filled])
    count = lengths[filled]
    if int(count.min()) == int(count.max()):
        low, high, last = _ends(values.reshape(count.size, -1))
    else:
        edge = np.concatenate(([0], np.cumsum(count)[:-1]))
        low, high = np.minimum.reduceat(values, edge), np.maximum.reduceat(values, edge)
        last = values[edge + count - 1]
    scale = np.array([series[k].total_bytes or series[k].limit_bytes or np.inf for k in filled])
    flat = (high - low < _least(scale, settings)) & (last < POOL_SHARE * scale)
    short = (count < LEAST_SAMPLES).tolist()
    for k, is_flat in enumerate(flat.tolist()):
        if not short[k]:
            one = series[filled[k]]
            span_s = float(one.t_s[-1] - one.t_s[0])
            enough = (
                one.t_s.size >= settings.minimum_samples and span_s >= settings.minimum_duration
            )
            out[filled[k]] = "stable" if is_flat and enough else None
    return out


def look_at_array(
    used: npt.NDArray[np.float32] | FloatArray,
    t_s: FloatArray,
    scale: FloatArray,
    settings: DetectionSection,
) -> npt.NDArray[np.int8]:
    """Return for each of many series that were sampled together what is certain at once.

    Cost: two passes over rows that stay in the cache, about that of copying them; two more for
    those rows that move.

    Parameters
    ----------
    used
        (S, n) bytes, one series a row; not changed.
    t_s
        (n,) the instants of all of them, strictly ascending, seconds.
    scale
        (S,) memory of each one's device in bytes; infinite where it is unknown.

    Returns
    -------
    codes : (S,) int8
        :data:`JUDGE` where the detectors must look, :data:`STABLE`, :data:`UNKNOWN` (fewer than
        five samples), or :data:`KEEPS_LEVEL`: nothing that it keeps grows, but it moves, is large
        or short, and may deserve another name. Only the first can ever be a watch or an alert.

    Examples
    --------
    >>> from gpuwatchd.core.config import DetectionSection
    >>> t = np.arange(0.0, 2400.0, 10.0)
    >>> rows = 4e9 + np.stack([t * 0, t * 1e6, 5e8 * ((t // 100) % 2)])
    >>> look_at_array(rows, t, np.full(3, 24e9), DetectionSection()).tolist()
    [1, 0, 0]
    >>> look_at_array(rows[:, :225], t[:225], np.full(3, 24e9), DetectionSection()).tolist()
    [1, 0, 3]
    """
    first = int(t_s.searchsorted(t_s[-1] - settings.analysis_window_hours * 3600.0 - 1e-6))
    first += last_gap(t_s[first:])
    used, t_s = used[:, first:], t_s[first:]
    rows, n = used.shape
    if n < LEAST_SAMPLES:
        return np.full(rows, UNKNOWN, dtype=np.int8)
    low, high, last = _ends(used)
    # Differences of single-precision values are off by a part in eight million of the values.
    slack = 4.0 * float(np.finfo(used.dtype).eps) * high
    least = _least(scale, settings) - slack
    out = np.full(rows, JUDGE, dtype=np.int8)
    flat = high - low < least
    # A pool that was taken at once is flat too, but has a name of its own.
    out[flat] = KEEPS_LEVEL
    if n <= LONGEST_ROW:
        moves = np.flatnonzero((last - low < least) & ~flat)
        quiet = _quieter(used, moves, least[moves] / NOISE_FACTOR - slack[moves])
        out[moves[quiet]] = KEEPS_LEVEL
    if n >= settings.minimum_samples and float(t_s[-1] - t_s[0]) >= settings.minimum_duration:
        out[flat & (last < POOL_SHARE * scale)] = STABLE
    return out


def rising(
    used: npt.NDArray[np.floating],
    t_s: FloatArray,
    scale: FloatArray,
    settings: DetectionSection,
) -> npt.NDArray[np.bool_]:
    """Say which of many series keep more and more, over any of :data:`RISING_WINDOWS_S`.

    The second look, at series that :func:`look_at_array` leaves to the detectors: a window is cut
    into thirds, and the lowest value of each must be above that of the one before. What it does not
    pass may be judged seldom, not never: growth in few steps, or of the last minutes alone, shows
    late here. Series that are shorter than the first window are all passed.

    Parameters
    ----------
    used, t_s, scale
        As for :func:`look_at_array`.

    Returns
    -------
    passed : (S,) bool

    Examples
    --------
    >>> from gpuwatchd.core.config import DetectionSection
    >>> t = np.arange(0.0, 7200.0, 60.0)
    >>> rows = 4e9 + np.stack([t * 0, t * 1e6, 1e9 * (t > 3000), 5e8 * ((t // 600) % 2)])
    >>> rising(rows, t, np.full(4, 24e9), DetectionSection()).tolist()
    [False, True, False, False]
    """
    count, n = used.shape
    least, step_s = _least(scale, settings) / 3.0, float(np.median(np.diff(t_s))) if n > 1 else 0.0
    span_s = float(t_s[-1] - t_s[0]) + step_s
    if n < 3 or span_s < RISING_WINDOWS_S[0]:
        return np.ones(count, dtype=bool)
    rises = np.zeros(count)
    for window_s in sorted({min(window_s, span_s) for window_s in RISING_WINDOWS_S}):
        edges = t_s.searchsorted(t_s[-1] - window_s * np.array((1.0, 2 / 3, 1 / 3)) + 0.5 * step_s)
        floors = np.minimum.reduceat(used, edges, axis=1)
        np.maximum(rises, np.diff(floors, axis=1).min(axis=1), out=rises)
    passed = rises >= least
    chosen = np.flatnonzero(passed)
    steps = np.median(np.abs(np.diff(used[chosen], axis=1)), axis=1)
    passed[chosen] = rises[chosen] >= STEP_FACTOR * steps
    return passed


def _least(scale: FloatArray, settings: DetectionSection) -> FloatArray:
    """Return the least growth that makes a candidate, bytes (S,)."""
    out = np.full(scale.size, settings.least_growth_bytes(None))
    np.maximum(out, GROWTH_SHARE * scale, out=out, where=np.isfinite(scale))
    return out


def _ends(rows: npt.NDArray[np.floating]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return lowest, highest and last value of each row (S,), reading each row once."""
    low, high = np.empty(len(rows), rows.dtype), np.empty(len(rows), rows.dtype)
    block = max(1, CACHE_BYTES // max(rows.strides[0], 1))
    for first in range(0, len(rows), block):
        part = rows[first : first + block]
        np.minimum.reduce(part, axis=1, out=low[first : first + block])
        np.maximum.reduce(part, axis=1, out=high[first : first + block])
    wide = np.float64
    return low.astype(wide), high.astype(wide), rows[:, -1].astype(wide)


def _quieter(
    rows: npt.NDArray[np.floating], chosen: npt.NDArray[np.intp], limit: FloatArray
) -> npt.NDArray[np.bool_]:
    """Say of the chosen rows whether their noise is below ``limit`` bytes (k,).

    :func:`.estimators.noise` is a median of absolute second differences; it is below a value when
    more than half of them are, which needs no sorting.
    """
    out = np.empty(chosen.size, dtype=bool)
    limit = (limit * 0.6745 * math.sqrt(6.0)).astype(rows.dtype)
    block = max(1, CACHE_BYTES // max(4 * rows.strides[0], 1))
    for first in range(0, chosen.size, block):
        x = rows[chosen[first : first + block]]
        second = x[:, 2:] - x[:, 1:-1]
        second -= x[:, 1:-1]
        second += x[:, :-2]
        np.abs(second, out=second)
        below = np.count_nonzero(second < limit[first : first + block, None], axis=1)
        out[first : first + block] = below > second.shape[1] // 2
    return out
