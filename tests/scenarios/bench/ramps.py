"""What a harmless record looks like, by itself: its straight ramps, its late maxima.

The mixes weigh records by these figures and never by the name of a family. They are counted as in
public telemetry: straight ramps by R² with at least four rises, when 95 % of the maximum is
reached, when the last new maximum of over 1 % comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray
    from tests.scenarios.world import Array

CELL_S = 60.0
LEAST_S = 1200.0
"""A ramp lasts at least so long."""
RETAINED_S = 3600.0
"""What is given back within so long was not retained: a tooth is no ramp."""
STRAIGHT = 0.95
"""R² of a ramp; four even stairs have so much, three have less."""
RISES = 4
GAIN_SHARE = 0.01
"""A ramp gains at least this share of the device."""
SLOW_S, NEAR = 60.0, 0.95
LATE_S, RECORD = 1800.0, 1.01
_LEVELS, _EDGE = 8.0, 0.05


def ramps(t_s: FloatArray, used_bytes: FloatArray, total_bytes: float) -> int:
    """Return the number of straight ramps of 20 minutes or more.

    On means of one minute and on what was retained an hour later: spans that do not overlap, each
    as long as a line explains it, in which the level passes eighths of its gain in four cells at
    least, and takes nine tenths of 20 minutes for all but the ends.
    """
    if t_s.size < 2:
        return 0
    t, y = _retained(t_s, used_bytes / total_bytes)
    sums = [np.concatenate(([0.0], np.cumsum(v))) for v in (t, y, t * t, t * y, y * y)]
    found, begin = 0, 0
    while begin < t.size:
        ends = np.arange(int(t.searchsorted(t[begin] + LEAST_S)), t.size)
        if not ends.size:
            break
        number = ends - begin + 1
        st, sy, stt, sty, syy = (one[ends + 1] - one[begin] for one in sums)
        both = sty - st * sy / number
        spread = (stt - st * st / number) * np.maximum(syy - sy * sy / number, 1e-18)
        gain = both / (stt - st * st / number) * (t[ends] - t[begin])
        fits = np.flatnonzero((gain >= GAIN_SHARE) & (both * both >= STRAIGHT * spread))
        last = int(ends[fits[-1]]) if fits.size else begin
        if fits.size and _rises(t[begin : last + 1], y[begin : last + 1]):
            found, begin = found + 1, last
        begin += 1
    return found


def _retained(t_s: FloatArray, level: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the cells' instants, and the lowest mean of each and of the hour after it."""
    number = ((t_s - t_s[0]) / CELL_S).astype(int)
    count = np.bincount(number)
    filled = np.flatnonzero(count)
    mean = (np.bincount(number, weights=level)[filled] / count[filled]).tolist()
    t = filled.astype(np.float64) * CELL_S
    ends = t.searchsorted(t + RETAINED_S, side="right").tolist()
    floor: FloatArray = np.array([min(mean[k:end]) for k, end in enumerate(ends)])
    return t, floor


def _rises(t: FloatArray, y: FloatArray) -> bool:
    top = np.maximum.accumulate(y) - y[0]
    if top[-1] <= 0.0:
        return False
    rises = int(np.count_nonzero(np.diff(np.floor(_LEVELS * top / top[-1]))))
    inner = np.flatnonzero((top > _EDGE * top[-1]) & (top < (1.0 - _EDGE) * top[-1]))
    if rises < RISES or not inner.size:
        return False
    return float(t[inner[-1]] - t[inner[0]]) >= (1.0 - 2.0 * _EDGE) * LEAST_S


def is_moving(t_s: Array, used_bytes: Array) -> bool:
    """Say whether the maximum was neared late, or raised late.

    95 % of it later than a minute after the first sample, or a new one, by over 1 %, later than
    half an hour.
    """
    return _rose_after(t_s, used_bytes, SLOW_S, 1.0 / NEAR) or _rose_after(
        t_s, used_bytes, LATE_S, RECORD
    )


def _rose_after(t_s: Array, used_bytes: Array, after_s: float, factor: float) -> bool:
    early = t_s <= t_s[0] + after_s if t_s.size else np.zeros(0, dtype=bool)
    return not early.all() and bool(used_bytes.max() > factor * used_bytes[early].max())
