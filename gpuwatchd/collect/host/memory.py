"""How much memory the host has, and how much of it programs can still take."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from gpuwatchd.collect.host.files import read_bytes

_LINE: Final = re.compile(rb"^(MemTotal|MemAvailable|SwapFree):\s+(\d+) kB$", re.MULTILINE)


class Headroom(NamedTuple):
    """The host's memory, bytes."""

    total_bytes: int
    free_bytes: int
    """What programs can still take without anybody being killed, free swap included."""


def headroom(proc: Path = Path("/proc")) -> Headroom | None:
    """Return the host's memory now; None where that cannot be read. Some 30 µs.

    From /proc/meminfo: MemAvailable, the kernel's own estimate (caches that it can drop count as
    free), and SwapFree. Limits of a single control group are not looked at.
    """
    if not sys.platform.startswith("linux") and proc == Path("/proc"):
        from gpuwatchd.collect.host import by_psutil  # noqa: PLC0415 - only where there is no /proc

        total, free = by_psutil.headroom_bytes()
        return Headroom(total, free)
    found = {name: int(value) * 1024 for name, value in _LINE.findall(read_bytes(proc / "meminfo"))}
    total_bytes, available = found.get(b"MemTotal"), found.get(b"MemAvailable")
    if not total_bytes or available is None:
        return None
    return Headroom(total_bytes, available + found.get(b"SwapFree", 0))
