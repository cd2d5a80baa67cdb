"""The control group of a process, and what the kernel lets it hold of a device (dmem).

The kernel has this from 6.14 on, for xe and amdgpu; NVIDIA's own files are alike. Read as
documented (Documentation/admin-guide/cgroup-v2.rst); not verified on hardware.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

from gpuwatchd.core.codes import LimitKind
from gpuwatchd.core.model import MemoryLimit

if TYPE_CHECKING:
    from pathlib import Path

ROOT: Final = "/sys/fs/cgroup"
DMEM: Final = b"dmem"
_MOST_BYTES, _CHUNK_BYTES = 64 * 1024, 4096
_DEEPEST: Final = 64
_REGIONS: Final = (b"vram", b"vidmem")
"""How regions begin that are a device's memory; others are what it maps of the host's."""


def group_of(pid: int, proc: str | Path = "/proc", root: str = ROOT) -> str | None:
    """Return the directory of a process's control group; None where it is not known.

    That of version 2, unless the older version limits the memory of devices.
    """
    return group_in(_read(f"{proc}/{pid}/cgroup"), root)


def group_in(lines: bytes, root: str = ROOT) -> str | None:
    r"""Return the directory that the lines of /proc/PID/cgroup name.

    Examples
    --------
    >>> group_in(b"5:pids:/a\n3:cpu,dmem:/b\n0::/c\n"), group_in(b"0::/../c\n")
    ('/sys/fs/cgroup/dmem/b', None)
    """
    found = None
    for line in lines.splitlines():
        number, controllers, path = (*line.split(b":", 2), b"", b"")[:3]
        if not path.startswith(b"/") or b"/.." in path:
            continue
        if number != b"0" and DMEM in controllers.split(b","):
            return f"{root}/dmem{os.fsdecode(path)}".rstrip("/")
        if number == b"0":
            found = os.fsdecode(path).rstrip("/")
    if found is None:
        return None
    return f"{root}/unified{found}" if _is_hybrid(root) else f"{root}{found}"


def has_dmem(root: str = ROOT) -> bool:
    """Say whether the kernel counts the memory of devices here."""
    return any(os.path.exists(f"{root}/{folder}dmem.capacity") for folder in ("", "dmem/"))  # noqa: PTH110


Known = dict[tuple[str, str], tuple[MemoryLimit, ...]]
"""Directory and PCI address -> what was read of it, and of those above."""


def dmem_limits(
    group: str, pci_bus: str, known: Known, faults: dict[str, str], root: str = ROOT
) -> tuple[MemoryLimit, ...]:
    """Return the limits of a control group, and of those above it, on one device.

    What is ``known`` is not read again. What is not understood limits nothing; it is added to
    ``faults``, by the file.
    """
    limits = known.get((group, pci_bus))
    if limits is not None:
        return limits
    if not group.startswith(f"{root}/") or group.count("/") > _DEEPEST:
        return ()
    above = dmem_limits(group.rpartition("/")[0], pci_bus, known, faults, root)
    hard = _of_device(f"{group}/dmem.max", pci_bus, faults)
    if hard is not None:
        used = _of_device(f"{group}/dmem.current", pci_bus, faults)
        own = MemoryLimit(kind=LimitKind.DMEM, name=group, hard_bytes=hard, used_bytes=used)
        above = (own, *above)
    known[group, pci_bus] = above
    return above


def _of_device(path: str, pci_bus: str, faults: dict[str, str]) -> int | None:
    """Return the bytes that a file says of a device, all its regions together.

    Lines are ``drm/0000:03:00.0/vram0 1073741824``; None where one is "max", and without any.
    """
    raw = _read(path)
    if len(raw) > _MOST_BYTES:
        faults[path] = "is too long"
        return None
    total: int | None = None
    bus = pci_bus.encode()
    for line in raw.splitlines():
        region, _, value = line.rpartition(b" ")
        if value != b"max" and not (value.isdigit() and len(value) < 20):
            faults[path] = "is not understood"
            continue
        parts = region.split(b"/")
        if len(parts) == 3 and parts[1].lower() == bus and parts[2].startswith(_REGIONS):
            if value == b"max":
                return None
            total = (total or 0) + int(value)
    return total


def _read(path: str) -> bytes:
    """Return a file, and little more than is taken of it; b"" where there is none."""
    found = b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return found
    with suppress(OSError):
        while len(found) <= _MOST_BYTES:
            more = os.read(descriptor, _CHUNK_BYTES)
            found += more
            if len(more) < _CHUNK_BYTES // 2:  # the usual small file: the rest is empty
                break
    os.close(descriptor)
    return found


@cache
def _is_hybrid(root: str) -> bool:
    """Say whether version 2 has a directory of its own, beside the older version."""
    return os.path.isdir(f"{root}/unified")  # noqa: PTH112 - a string, as everywhere here
