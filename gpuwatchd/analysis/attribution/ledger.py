"""Who has the memory of a device: total = free + reserved + owned + unattributed.

What nobody owns is memory of the driver's contexts, of processes that the driver does not list, and
of those that have died without giving it back. How much of it is normal differs between machines,
so that is learned while the device is idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.model import Blame, Ledger
from gpuwatchd.core.model.findings import dismissed_finding, with_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import (
        DeviceReading,
        Finding,
        FloatArray,
        MemoryKind,
        ProcessKey,
        Series,
    )

IDLE_SHARE = 0.05
"""A device is idle while its processes hold less than this share of it: a desktop, or nothing."""
IDLE_LOOKS = 3
"""So many idle looks in a row are believed; the highest of them counts."""
NEW_BOOT_BYTES = 2**30
"""With a new boot (and perhaps another driver) the baseline may be higher by so much."""
LEAST_BYTES = 256 * 2**20
"""What lies within this of the baseline is no growth."""


def build_ledger(
    reading: DeviceReading, kind: MemoryKind = "dedicated", *, baseline_bytes: int | None = None
) -> Ledger:
    """Return the ledger of one look at one device.

    Parameters
    ----------
    reading
        The look; a process in several lists is counted once, with the most that it has in one. A
        list that comes with a reason lacks some.
    kind
        Of the device's memory: where it is shared with the host, or kept by the kernel, only what
        processes hold, and the capacity, mean something.
    baseline_bytes
        What nobody owns while the device is idle.
    """
    total, free, reserved = reading.total_bytes, reading.free_bytes, reading.reserved_bytes
    uses = reading.uses
    if uses is None:
        return Ledger(
            state="none",
            total_bytes=total,
            free_bytes=free,
            reserved_bytes=reserved,
            baseline_bytes=baseline_bytes,
        )
    held: dict[int, int] = {}
    # A list with a reason lacks some: those whose files may not be read.
    owned, unknown = 0, reading.uses_reason is not None
    for use in uses:
        size = use.used_bytes
        if size is None:
            unknown = True
            continue
        pid = use.key.pid
        before = held.get(pid, 0)
        if size > before:
            owned += size - before
            held[pid] = size
    if kind != "dedicated":
        return Ledger(state="partial" if unknown else "whole", total_bytes=total, owned_bytes=owned)
    taken = reading.used_bytes
    if total is not None and free is not None:
        taken = total - free - (reserved or 0)
    rest = None if taken is None else taken - owned
    return Ledger(
        state="none"
        if rest is None
        else "overlap"
        if rest < 0
        else "partial"
        if unknown
        else "whole",
        total_bytes=total,
        free_bytes=free,
        reserved_bytes=reserved,
        owned_bytes=owned,
        unattributed_bytes=rest,
        baseline_bytes=baseline_bytes,
    )


class Baseline(msgspec.Struct, kw_only=True):
    """What nobody owns on one device while it is idle, as far as that was seen.

    Within a boot the lowest counts: memory that a dead process has left behind must not become
    normal. A new boot may begin somewhat higher.
    """

    least_bytes: int | None = None
    boot_id: str = ""
    looks: int = 0
    """Idle looks in a row."""
    highest_bytes: int = 0
    """The highest of them."""

    def learn(self, ledger: Ledger, boot_id: str) -> bool:
        """Take in one look; say whether the baseline has changed."""
        rest, total = ledger.unattributed_bytes, ledger.total_bytes
        idle = (
            ledger.state == "whole"
            and rest is not None
            and total is not None
            and (ledger.owned_bytes or 0) <= IDLE_SHARE * total
        )
        if not idle or rest is None:
            self.looks = 0
            return False
        self.highest_bytes = rest if self.looks == 0 else max(rest, self.highest_bytes)
        self.looks += 1
        if self.looks < IDLE_LOOKS:
            return False
        found, self.looks = self.highest_bytes, 0
        known = self.least_bytes
        if known is not None and found >= known:
            renewed = self.boot_id != boot_id
            if not renewed:
                return False
            self.boot_id = boot_id
            if found > known + NEW_BOOT_BYTES:
                return True
        self.least_bytes, self.boot_id = found, boot_id
        return True


def above_baseline(finding: Finding, newest_bytes: float, baseline_bytes: float | None) -> Finding:
    """Return a judgement on what nobody owns, measured against what is normal for the device.

    Growth that only comes back to the idle baseline is none: processes that share memory hide a
    part of it while they live.
    """
    if baseline_bytes is None or finding.tier == "none":
        return finding
    more = newest_bytes - baseline_bytes
    usual = f"the {units.size(baseline_bytes)} without an owner while the device is idle"
    if more <= LEAST_BYTES:
        return dismissed_finding(finding, f"it is about {usual}")
    return with_reason(finding, f"{units.size(more)} more than {usual}")


# Whose growth explains a device's growth.

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
