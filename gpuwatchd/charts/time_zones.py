"""How far the local time of this machine is from UTC, over a span: for readers elsewhere.

A report is written with the times of the machine that it is about; what draws its charts in a
browser far away uses the same.
"""

from __future__ import annotations

from datetime import datetime

from gpuwatchd.core import units

_STEP_S = 6 * 3600.0
_MOST_STEPS = 2000


def rows(begin_s: float, end_s: float) -> list[tuple[float, float, str]]:
    """Return from when (epoch seconds) local time is how far ahead of UTC (seconds), and its name.

    Oldest first, one row at least; the first begins at ``begin_s`` and holds before it too.
    """
    found = [(begin_s, ahead_s(begin_s), units.zone(begin_s))]
    step_s = max(_STEP_S, (end_s - begin_s) / _MOST_STEPS)
    at_s = begin_s
    while at_s < end_s:
        next_s = min(at_s + step_s, end_s)
        if ahead_s(next_s) != found[-1][1]:
            changed_s = _change_s(at_s, next_s)
            found.append((changed_s, ahead_s(changed_s), units.zone(changed_s)))
        at_s = next_s
    return found


def _change_s(low_s: float, high_s: float) -> float:
    """Return the first whole second after ``low_s`` that is as far ahead as ``high_s``."""
    wanted_s = ahead_s(high_s)
    low, high = int(low_s), -int(-high_s // 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ahead_s(middle) == wanted_s else (middle, high)
    return float(high)


def ahead_s(at_s: float) -> float:
    """Return how far local time is ahead of UTC at an instant, seconds."""
    try:
        offset = datetime.fromtimestamp(at_s).astimezone().utcoffset()
    except (OverflowError, OSError, ValueError):
        return 0.0
    return 0.0 if offset is None else offset.total_seconds()
