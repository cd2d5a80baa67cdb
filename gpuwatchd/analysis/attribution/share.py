"""Whose growth explains a device's growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core.model import Blame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import FloatArray, ProcessKey, Series

LEAST_SHARE = 0.05
UNATTRIBUTED = "memory that no process owns"
_SLIP = 5
"""Samples of the median that takes a slip between two readings of one tick for what it is."""


def share(
    device: Series | None,
    processes: Mapping[ProcessKey, Series],
    *,
    since_s: float,
    names: Mapping[ProcessKey, str] | None = None,
    complete: bool = True,
) -> tuple[Blame, ...]:
    """Return who grew, the largest share first; empty when the device did not grow.

    The growth of each subject is the difference of its retained floor between ``since_s`` and now:
    what a neighbour took and gave back is nobody's leak, and what one process frees does not hide
    what another takes. A process that began later starts at 0. What nobody owns is a series of its
    own, the device's less those of its processes, and so is its growth. A share is of the sum of
    all growth, so shares add up to 1; those below 5 % are left out.

    Parameters
    ----------
    device
        Series of the device; None where it says nothing (the kernel keeps pages of the dead): then
        shares are of what processes grew.
    processes
        Series of the processes that are on it now.
    since_s
        Onset, on the clock of the series.
    names
        What to call them; without a name "pid N".
    complete
        Whether the memory of every process is known. If not, nothing is said of the rest, and the
        shares are of the device's growth.

    Returns
    -------
    tuple of Blame
        ``process`` None is what no process owns.
    """
    whole, took_s = growth(device, since_s) if device is not None else (0.0, 0.0)
    if device is not None and (whole <= 0.0 or took_s <= 0.0):
        return ()
    values = dict(names or {})
    grown: list[tuple[ProcessKey | None, str, float]] = []
    for key, series in processes.items():
        more, for_s = growth(series, since_s, from_zero=_late(key, since_s))
        if more > 0.0:
            took_s = max(took_s, for_s)
            grown.append((key, values.get(key, f"pid {key.pid}"), more))
    if complete and device is not None:
        rest = _unowned(device, processes, since_s)
        if rest > 0.0:
            grown.append((None, UNATTRIBUTED, rest))
    total = max(sum(more for _, _, more in grown), whole)
    ranked = sorted(grown, key=lambda one: -one[2])
    return tuple(
        Blame(process=key, name=name, share=more / total, rate_bytes_per_s=more / took_s)
        for key, name, more in ranked
        if more >= LEAST_SHARE * total
    )


def growth(series: Series, since_s: float, *, from_zero: bool = False) -> tuple[float, float]:
    """Return bytes kept more than at ``since_s``, and the seconds in which they came.

    ``from_zero``: a series that began after ``since_s`` counts from nothing. Never negative.
    """
    t, x = series.t_s, series.used_bytes
    if t.size < 2:
        return 0.0, 0.0
    begin = int(t.searchsorted(since_s))
    if begin >= t.size:
        return 0.0, 0.0
    before = 0.0 if from_zero and float(t[0]) > since_s else None
    since = since_s if from_zero else max(since_s, float(t[0]))
    # What is kept is the lowest of the last samples: it was reached when that one was taken.
    at = t.size - _tail(x[begin:]).size + int(_tail(x[begin:]).argmin())
    return _kept(x[begin:], before), float(t[at]) - since


def _late(key: ProcessKey, since_s: float) -> bool:
    """Say whether a process that is first seen after ``since_s`` was not there before."""
    return key.started_at_s is None or key.started_at_s > since_s


def _kept(x: FloatArray, before: float | None = None) -> float:
    """Return by how much the end lies above ``before``, by default the lowest value there is."""
    return max(0.0, float(_tail(x).min()) - (float(x.min()) if before is None else before))


def _tail(x: FloatArray) -> FloatArray:
    """Return the last few samples: a swing at the very end is not to be taken for growth."""
    return x[x.size - max(1, x.size // 10) :]


def _unowned(device: Series, processes: Mapping[ProcessKey, Series], since_s: float) -> float:
    """Return by how much the memory grew that none of these processes holds."""
    import numpy as np  # noqa: PLC0415 - the daemon draws ledgers long before anything grows

    begin = int(device.t_s.searchsorted(since_s))
    t = device.t_s[begin:]
    rest = device.used_bytes[begin:].copy()
    for key, series in processes.items():
        if series.t_s.size:
            # Before it was listed, one that was there already held what it held then.
            before = 0.0 if _late(key, since_s) else None
            rest -= np.interp(t, series.t_s, series.used_bytes, left=before)
    if rest.size >= _SLIP:
        # Device and processes are not read in one instant: between two readings one may allocate.
        padded = np.pad(rest, _SLIP // 2, mode="edge")
        rest = np.median(np.lib.stride_tricks.sliding_window_view(padded, _SLIP), axis=1)
    # From its beginning, not from its lowest: memory that two processes share for a while is
    # counted twice, and what nobody owns seems to dip.
    return _kept(rest, float(rest[: max(1, rest.size // 10)].min())) if rest.size else 0.0
