"""The first look: many series at once, in one pass, to find the few that deserve the detectors.

Most subjects of a node stand still. A series whose last values lie no higher than its lowest value
plus the least growth cannot hold a leak in any window, because every window's growth is the
difference of two points of the retained floor, and the last point is the highest of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.robust import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.config import DetectionSection
    from gpuwatchd.model import Pattern, Series

GROWTH_SHARE = 0.0015
"""Growth below this share of the device is no candidate (or minimum-growth-mib, if more)."""
POOL_SHARE = 0.6
"""A level of this share of the device, taken at once, may be a preallocated pool."""
LEAST_SAMPLES = 5


def first_look(series: Sequence[Series], settings: DetectionSection) -> list[Pattern | None]:
    """Return for each series a pattern that is certain at once, or None: let it be judged.

    Only "stable" (the whole range is below the least growth) and "unknown" (fewer than five
    samples) are ever certain here. A series that is flat at a high level is judged, because it may
    be a preallocated pool.

    Parameters
    ----------
    series
        Any number of series of any length.
    settings
        The section ``[detection]``.

    Examples
    --------
    >>> from gpuwatchd.config import DetectionSection
    >>> from gpuwatchd.model import Series, Subject
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
    edge = np.concatenate(([0], np.cumsum(count)[:-1]))
    low = np.minimum.reduceat(values, edge)
    span = np.maximum.reduceat(values, edge) - low
    last = values[edge + count - 1]
    scale = np.array([series[k].total_bytes or series[k].limit_bytes or np.inf for k in filled])
    known = np.isfinite(scale)
    least = np.full(count.size, settings.minimum_growth_mib * MIB)
    np.maximum(least, GROWTH_SHARE * scale, out=least, where=known)
    flat = (span < least) & (last < POOL_SHARE * scale)
    short = count < LEAST_SAMPLES
    long_enough = np.array([_settled(series[k], settings) for k in filled])
    for k, index in enumerate(filled):
        if short[k]:
            out[index] = "unknown"
        else:
            out[index] = "stable" if flat[k] and long_enough[k] else None
    return out


def _settled(one: Series, settings: DetectionSection) -> bool:
    """Say whether there is enough of it to call it stable."""
    return bool(
        one.t_s.size >= settings.minimum_samples
        and float(one.t_s[-1] - one.t_s[0]) >= settings.minimum_duration
    )
