"""The control group of a process, and what the kernel lets it hold of a device (dmem).

The kernel has this from 6.14 on, for xe and amdgpu; NVIDIA's own files are alike. Read as
documented (Documentation/admin-guide/cgroup-v2.rst); not verified on hardware.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuwatchd.core.codes import LimitKind
from gpuwatchd.core.model import MemoryLimit

if TYPE_CHECKING:
    from pathlib import Path

ROOT: Final = "/sys/fs/cgroup"
DMEM: Final = b"dmem"
_MOST_BYTES: Final = 64 * 1024
_DEEPEST: Final = 32
_REGIONS: Final = ("vram", "vidmem")
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
        _, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        if not path.startswith(b"/") or b".." in path.split(b"/"):
            continue
        if DMEM in controllers.split(b","):
            return f"{root}/dmem{os.fsdecode(path)}".rstrip("/")
        if line.startswith(b"0::"):
            found = os.fsdecode(path).rstrip("/")
    if found is None:
        return None
    # Beside the older version the newer one has a directory of its own.
    hybrid = os.path.isdir(f"{root}/unified")  # noqa: PTH112 - per process: a Path costs 5 µs
    return f"{root}/unified{found}" if hybrid else f"{root}{found}"


def has_dmem(root: str = ROOT) -> bool:
    """Say whether the kernel counts the memory of devices here."""
    return any(os.path.exists(f"{root}/{folder}dmem.capacity") for folder in ("", "dmem/"))  # noqa: PTH110


def dmem_limits(
    group: str, pci_bus: str, faults: dict[str, str], root: str = ROOT
) -> tuple[MemoryLimit, ...]:
    """Return the limits of a control group, and of those above it, on one device.

    What is not understood limits nothing; it is added to ``faults``, by the file.
    """
    limits: list[MemoryLimit] = []
    for _ in range(_DEEPEST):
        if not group.startswith(f"{root}/"):
            break
        hard = _of_device(f"{group}/dmem.max", pci_bus, faults)
        if hard is not None:
            used = _of_device(f"{group}/dmem.current", pci_bus, faults)
            limit = MemoryLimit(kind=LimitKind.DMEM, name=group, hard_bytes=hard, used_bytes=used)
            limits.append(limit)
        group = group.rpartition("/")[0]
    return tuple(limits)


def _of_device(path: str, pci_bus: str, faults: dict[str, str]) -> int | None:
    """Return the bytes that a file says of a device, all its regions together.

    Lines are ``drm/0000:03:00.0/vram0 1073741824``; None where one is "max", and without any.
    """
    raw = _read(path)
    if len(raw) > _MOST_BYTES:
        faults[path] = "is too long"
        return None
    total: int | None = None
    for line in raw.decode("ascii", "replace").splitlines():
        region, _, value = line.rpartition(" ")
        _, bus, part, *_ = (*region.split("/"), "", "", "")
        if value != "max" and not (value.isdecimal() and len(value) < 20):
            faults[path] = "is not understood"
        elif bus.lower() == pci_bus and part.startswith(_REGIONS):
            if value == "max":
                return None
            total = (total or 0) + int(value)
    return total


def _read(path: str) -> bytes:
    """Return a file, and at most one byte more than is taken of it; b"" where there is none."""
    with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - a Path costs 5 µs
        return file.read(_MOST_BYTES + 1)
    return b""
