"""Where the story of a subject begins anew: after a gap in the record, or a crash at the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuwatchd.core.model import FloatArray

GAP_S = 60.0
"""A pause up to this long is never a gap; above it, one of more than three intervals is."""
FULL = 0.93
"""What fills this share of the limit is about to run out."""
CRASH_FALL = 0.4
"""A crash leaves at least this share of the limit free."""
CRASH_S = 120.0
"""It does so within this time."""
LIFE_S = 3600.0
"""A life shorter than this does not end in a crash, but swings at the limit."""


def last_gap(t_s: FloatArray) -> int:
    """Return the index of the first sample after the last gap; 0 without a gap.

    A gap is a pause above three usual intervals (the 95 % quantile: irregular sampling is not a
    row of gaps) and above one minute.
    """
    if t_s.size < 2:
        return 0
    pauses = t_s[1:] - t_s[:-1]
    if float(pauses.max()) <= GAP_S:
        return 0
    limit = max(GAP_S, 3.0 * float(np.quantile(pauses, 0.95)))
    gaps = np.flatnonzero(pauses > limit)
    return int(gaps[-1]) + 1 if gaps.size else 0


def last_crash(t_s: FloatArray, used_bytes: FloatArray, limit_bytes: float) -> int:
    """Return the index of the first sample after the last crash; 0 without one.

    A crash is a fall from the limit, at least by :data:`CRASH_FALL` within two minutes, after an
    hour or more: what filled the device has died, and has given nothing back. What follows is
    another run. A program that lets go at the limit every few minutes does not crash.
    """
    full = FULL * limit_bytes
    if t_s.size < 3 or not used_bytes.max() >= full:
        return 0
    empty = (1.0 - CRASH_FALL) * limit_bytes
    first, since = 0, float(t_s[0])
    tops = np.flatnonzero((used_bytes[:-1] >= full) & (used_bytes[1:] < full))
    for top in tops.tolist():
        soon = int(t_s.searchsorted(t_s[top] + CRASH_S, side="right"))
        fallen = np.flatnonzero(used_bytes[top + 1 : max(soon, top + 2)] < empty)
        if fallen.size:
            if t_s[top] - since >= LIFE_S:
                first = top + 1 + int(fallen[0])
            since = float(t_s[top])
    return first
