"""Whose growth explains a device's growth, and what nobody owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwatchd.model import Blame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.model import ProcessKey, Series

LEAST_SHARE = 0.05
UNATTRIBUTED = "memory that no process owns"


def share(
    device: Series,
    processes: Mapping[ProcessKey, Series],
    *,
    since_s: float,
    names: Mapping[ProcessKey, str] | None = None,
) -> tuple[Blame, ...]:
    """Return who grew, the largest share first; empty when the device did not grow.

    The growth of each subject is the difference of its retained floor between ``since_s`` and now:
    what a neighbour took and gave back is nobody's leak. A process that began later starts at 0. A
    share is of the sum of all growth, so shares add up to 1; those below 5 % are left out.

    Parameters
    ----------
    device
        Series of the device.
    processes
        Series of the processes that are on it now.
    since_s
        Onset, on the clock of the series.
    names
        What to call them; without a name "pid N".

    Returns
    -------
    tuple of Blame
        ``process`` None is what no process owns.
    """
    whole, took_s = growth(device, since_s)
    if whole <= 0.0 or took_s <= 0.0:
        return ()
    known = dict(names or {})
    grown: list[tuple[ProcessKey | None, str, float]] = []
    for key, series in processes.items():
        more, _ = growth(series, since_s, from_zero=True)
        if more > 0.0:
            grown.append((key, known.get(key, f"pid {key.pid}"), more))
    owned = sum(more for _, _, more in grown)
    if whole > owned:
        grown.append((None, UNATTRIBUTED, whole - owned))
    total = max(owned, whole)
    ranked = sorted(grown, key=lambda one: -one[2])
    return tuple(
        Blame(process=key, name=name, share=more / total, rate_bytes_per_s=more / took_s)
        for key, name, more in ranked
        if more >= LEAST_SHARE * total
    )


def growth(series: Series, since_s: float, *, from_zero: bool = False) -> tuple[float, float]:
    """Return bytes kept more than at ``since_s``, and the seconds since then.

    ``from_zero``: a series that began after ``since_s`` counts from nothing. Never negative.
    """
    t, x = series.t_s, series.used_bytes
    if t.size < 2:
        return 0.0, 0.0
    begin = int(np.searchsorted(t, since_s))
    if begin >= t.size:
        return 0.0, 0.0
    # The last few samples, so that a swing at the very end is not taken for growth.
    tail = x[max(begin, t.size - max(1, (t.size - begin) // 10)) :]
    before = 0.0 if from_zero and float(t[0]) > since_s else float(x[begin:].min())
    since = since_s if from_zero else max(since_s, float(t[0]))
    return max(0.0, float(tail.min()) - before), float(t[-1]) - since
