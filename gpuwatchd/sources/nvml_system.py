"""What the files beside the NVIDIA library say: versions, power management, the host's memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.model import ProcessUse

_VERSION: Final = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"


class Memory(NamedTuple):
    """Bytes of one device; ``used`` without the driver's reserve where that is known."""

    used_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None
    reserved_bytes: int | None


def host_memory(proc: Path, uses: tuple[ProcessUse, ...] | None) -> Memory:
    """Return the memory of a card that shares the host's: what its processes hold.

    The host's own "used" would count everything else that runs there. ``free`` is what the host
    could still give, ``total`` is the host's memory.
    """
    used: int | None = 0
    for use in uses or ():
        used = None if used is None or use.used_bytes is None else used + use.used_bytes
    lines = dict(
        line.split(":", 1) for line in read_text(proc / "meminfo").splitlines() if ":" in line
    )
    return Memory(
        None if uses is None else used,
        _kilobytes(lines.get("MemAvailable")),
        _kilobytes(lines.get("MemTotal")),
        None,
    )


def _kilobytes(text: str | None) -> int | None:
    digits = (text or "").split()[:1]
    return int(digits[0]) * 1024 if digits and digits[0].isdecimal() else None


def read_text(path: Path) -> str:
    """Return a small file's text without surrounding blanks; "" when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def kernel_module_version(proc: Path, sys: Path) -> str | None:
    """Return the version of the loaded kernel module, from the files that it publishes."""
    text = read_text(proc / "driver/nvidia/version") or read_text(sys / "module/nvidia/version")
    found = _VERSION.search(text)
    return found.group() if found else None


def library_replaced(proc: Path) -> bool:
    """Say whether the library that this process has mapped is no longer the file on the disk."""
    maps = read_text(proc / "self/maps")
    return any("libnvidia-ml" in line and "(deleted)" in line for line in maps.splitlines())


def pci_address(bus: str | bytes) -> str | None:
    """Return a PCI address as sysfs writes it.

    Examples
    --------
    >>> pci_address("00000000:0A:00.0")
    '0000:0a:00.0'
    """
    text = bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus
    domain, mark, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}" if mark else None


def _nvidia_cards(sys: Path) -> list[Path]:
    """Return the sysfs folders of the NVIDIA display controllers."""
    folder = sys / "bus/pci/devices"
    if not folder.is_dir():
        return []
    return [
        card
        for card in sorted(folder.iterdir())
        if read_text(card / "vendor") == _NVIDIA
        and read_text(card / "class").startswith(_DISPLAY_CLASS)
    ]


def all_asleep(sys: Path) -> bool:
    """Say whether every NVIDIA card is suspended: asking NVML anything would wake it."""
    cards = _nvidia_cards(sys)
    return bool(cards) and all(
        read_text(card / "power/runtime_status") == "suspended" for card in cards
    )


def may_sleep(proc: Path, sys: Path) -> bool:
    """Say whether every NVIDIA card suspends itself when nobody holds it (a laptop's)."""
    cards = _nvidia_cards(sys)
    return bool(cards) and all(
        "enabled" in _d3_status(proc / "driver/nvidia/gpus" / card.name / "power") for card in cards
    )


def _d3_status(file: Path) -> str:
    for line in read_text(file).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Runtime D3 status":
            return value.strip().lower()
    return ""
