"""What macOS says of its memory, and where the GPU's share of it ends. Pure.

On Apple's chips there is no memory of the GPU's own: it may take a part of the host's (the
ceiling), and less when the host is short. **Not verified on hardware**: the texts parsed here are
recordings of others.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB: Final = 1024**2
GIB: Final = 1024**3
SYSCTL_KEYS: Final = (
    "hw.memsize",
    "iogpu.wired_limit_mb",
    "debug.iogpu.wired_limit",
    "kern.memorystatus_vm_pressure_level",
    "kern.memorystatus_level",
    "vm.swapusage",
)
NORMAL: Final = 1
CRITICAL: Final = 4
"""Pressure levels: 1 normal, 2 warning, 4 critical: the system ends programs."""
_SMALL_MACHINE: Final = 36 * GIB
_UNITS: Final = {"K": 1024, "M": MIB, "G": GIB, "T": 1024 * GIB}
_SWAP_USED: Final = re.compile(r"used = ([\d.]+)([KMGT])")
_PAGE_SIZE: Final = re.compile(r"page size of (\d+) bytes")
_RECLAIMABLE: Final = ("Pages free", "Pages inactive", "Pages speculative")

RUSAGE_V0_BYTES: Final = 96
"""Size of rusage_info_v0; the footprint lies in it at the same place in every version."""
_FOOTPRINT_AT: Final = 72


class System(NamedTuple):
    """The host, as sysctl and vm_stat see it; None is unknown."""

    ram_bytes: int | None = None
    limit_bytes: int | None = None
    """What an administrator set as the GPU's ceiling; None when nothing is set."""
    pressure: int | None = None
    """1 normal, 2 warning, 4 critical."""
    swap_bytes: int | None = None
    available_bytes: int | None = None
    """What can be had without pressing on anybody: free, inactive and speculative pages."""


class Ceiling(NamedTuple):
    """The most that the GPU may take."""

    total_bytes: int
    how: str
    """"set" by an administrator, "Metal" (what Metal recommends), or "estimate"."""


def parse_sysctl(text: str) -> dict[str, str]:
    r"""Return key -> value of ``sysctl -i``; keys that do not exist are left out by it.

    Examples
    --------
    >>> parse_sysctl("hw.memsize: 17179869184\niogpu.wired_limit_mb: 0\n")["hw.memsize"]
    '17179869184'
    """
    lines = (line.partition(": ") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip() for key, mark, value in lines if mark}


def system_of(sysctl: Mapping[str, str], vm_stat: str) -> System:
    """Return the host's state from parsed sysctl values and the text of vm_stat."""
    set_mib = _number(sysctl.get("iogpu.wired_limit_mb"))
    if set_mib is None:  # its name before macOS 14
        set_mib = _number(sysctl.get("debug.iogpu.wired_limit"))
    return System(
        ram_bytes=_number(sysctl.get("hw.memsize")),
        limit_bytes=set_mib * MIB if set_mib else None,
        pressure=_number(sysctl.get("kern.memorystatus_vm_pressure_level")),
        swap_bytes=_swap(sysctl.get("vm.swapusage", "")),
        available_bytes=available(vm_stat),
    )


def available(vm_stat: str) -> int | None:
    r"""Return the bytes that vm_stat calls free, inactive or speculative; None when it does not.

    Examples
    --------
    >>> available("Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
    ...           "Pages free:  10.\nPages inactive:  5.\nPages speculative:  1.\n")
    262144
    """
    size = _PAGE_SIZE.search(vm_stat)
    if size is None:
        return None
    lines = (line.partition(":") for line in vm_stat.splitlines())
    pages = {key.strip(): _number(value.strip().rstrip(".")) for key, _, value in lines}
    counts = [pages.get(key) for key in _RECLAIMABLE]
    if counts[0] is None:
        return None
    return sum(count or 0 for count in counts) * int(size.group(1))


def ceiling(system: System, recommended_bytes: int | None) -> Ceiling | None:
    """Return what the GPU may take; None when not even the host's memory is known.

    What is set goes before what Metal recommends; without either it is two thirds of a machine of
    up to 36 GiB and three quarters of a larger one, which is near what has been seen (0.67 to
    0.81) and marked as an estimate.

    Parameters
    ----------
    recommended_bytes
        Metal's ``recommendedMaxWorkingSetSize``, None where it could not be asked.
    """
    if system.limit_bytes:
        return Ceiling(system.limit_bytes, "set")
    if recommended_bytes:
        return Ceiling(recommended_bytes, "Metal")
    ram = system.ram_bytes
    if not ram:
        return None
    return Ceiling(ram * 2 // 3 if ram <= _SMALL_MACHINE else ram * 3 // 4, "estimate")


def headroom(
    limit: Ceiling | None, allocated: int | None, in_use: int | None, system: System
) -> int | None:
    """Return what the GPU can still get, bytes: the ceiling bounds it, and so does the host.

    What is allocated may exceed the ceiling, for not all of it is resident; then what is in use
    counts. Under critical pressure the host gives nothing more.
    """
    if limit is None or allocated is None:
        return None
    counted = allocated
    if allocated > limit.total_bytes and in_use is not None:
        counted = in_use
    left = max(0, limit.total_bytes - counted)
    if system.pressure is not None and system.pressure >= CRITICAL:
        return 0
    return left if system.available_bytes is None else min(left, system.available_bytes)


def parse_rusage(raw: bytes) -> int | None:
    """Return ``ri_phys_footprint`` of what proc_pid_rusage filled in (any version), bytes.

    None when it is too short.
    """
    if len(raw) < RUSAGE_V0_BYTES:
        return None
    footprint: int = struct.unpack_from("=Q", raw, _FOOTPRINT_AT)[0]
    return footprint


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 20 else None


def _swap(text: str) -> int | None:
    match = _SWAP_USED.search(text)
    if match is None or match.group(1).count(".") > 1:
        return None
    return int(float(match.group(1)) * _UNITS[match.group(2)])
