"""Who has the memory of a device: total = free + reserved + owned + unattributed.

What nobody owns is memory of the driver's contexts, of processes that the driver does not list, and
of those that have died without giving it back. How much of it is normal differs between machines,
so that is learned while the device is idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import units
from gpuwatchd.core.model import Ledger
from gpuwatchd.core.model.findings import more_reasoned, waved_off

if TYPE_CHECKING:
    from gpuwatchd.core.model import DeviceReading, Finding, MemoryKind

IDLE_SHARE = 0.05
"""A device is idle while its processes hold less than this share of it: a desktop, or nothing."""
IDLE_LOOKS = 3
"""So many idle looks in a row are believed; the highest of them counts."""
NEW_BOOT_BYTES = 2**30
"""With a new boot (and perhaps another driver) the baseline may be higher by so much."""
LEAST_BYTES = 256 * 2**20
"""What lies within this of the baseline is no growth."""


def draw(
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
    usual = f"the {units.size(baseline_bytes)} that nobody owns while the device is idle"
    if more <= LEAST_BYTES:
        return waved_off(finding, f"it is about {usual}")
    return more_reasoned(finding, f"{units.size(more)} more than {usual}")
