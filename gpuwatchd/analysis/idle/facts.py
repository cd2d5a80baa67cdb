"""What is known at one look: plain facts about who holds memory, with unknown as None."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

import msgspec

from gpuwatchd.core.model import HoldingKind

if TYPE_CHECKING:
    from gpuwatchd.core.model import Ledger, ProcessInfo, ProcessKey, ServerReading

ORDER: Final[tuple[HoldingKind, ...]] = get_args(HoldingKind)
"""What is surest comes first; a process is listed once, as the first of them that it is."""

DAEMONS: Final[frozenset[str]] = frozenset(
    {"nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-persistenced"}
)
"""The driver's own helpers: what they hold is nobody's leftover."""

STOPPED: Final = {"T": "it is stopped (state T)", "t": "a debugger has stopped it (state t)"}
"""Letters of the kernel for processes that wait for somebody to let them go on."""


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one process holds on one device."""

    info: ProcessInfo
    used_bytes: int | None
    kind: str = "C"
    busy_pct: float | None = None
    """Its own share of the compute units' time, 0-100; None where only the device's is known."""
    exists: bool | None = None
    """False: there is no such process; None: it cannot be told from here."""
    state: str | None = None
    """Letter of the kernel: R, S, D, Z, ..."""
    cpu_pct: float | None = None
    """Share of one core that it used since the last look, 0-100 and beyond."""
    parent: str | None = None
    """Who its parent is now: "bash[4600]"."""
    orphan: bool = False
    """Whoever started it has ended since."""
    exempt: bool = False
    """Never listed: the daemon itself, what draws the screen, the driver's helpers."""


class DeviceSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One device."""

    uid: str
    total_bytes: int | None = None
    util_pct: float | None = None
    """Highest utilisation seen since the last look."""
    memory_util_pct: float | None = None
    """Share of the time in which its memory was read or written."""
    ledger: Ledger | None = None
    """None also where the device's own figures prove nothing (unified memory, MIG parents)."""
    uses: tuple[ProcessMemory, ...] | None = None
    """None: the list is unknown."""
    complete: bool = True
    """False: the list is known to lack some."""
    contained: bool = False
    """We are inside a container: others may hold memory that is not listed here."""


class Server(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a serving engine says."""

    reading: ServerReading
    members: frozenset[ProcessKey] = frozenset()
    """Processes on a GPU that are known to belong to it."""
    kv_left: float | None = None
    """Share of its KV cache, 0-1, that stays taken although no request is worked on."""
    kv_idle_s: float | None = None
    """For how long that has been so."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What counts."""

    minimum_bytes: float = 512 * 2**20
    idle_after_s: float = 7200.0
    looks: int = 3
    """Good looks in a row before anything is listed."""
    gap_s: float = 600.0
    """After a longer time without a look nothing is known of the time before."""


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """One look's reason to think that memory is idle."""

    kind: HoldingKind
    device_uid: str
    process: ProcessInfo | None = None
    held_bytes: int | None = None
    needs_s: float = 0.0
    """It must have been so for this long."""
    flat: bool = False
    """What is held must stay the same meanwhile."""
    begun_s: float | None = None
    """Since when it has been so, where that is known better than by looking."""
    evidence: str = ""
    left: bool = False
    """Of a rank: others of its job, or its launcher, have ended."""
    advice: tuple[str, ...] = ()
    command: str = ""
    """What is to be typed at the end of the first line of advice."""
