"""What the files beside the NVIDIA library say: versions, power management, the host's memory."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import ProcessUse

_VERSION: Final = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")
_LIBRARY: Final = "libnvidia-ml"
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
        kilobytes(lines.get("MemAvailable")),
        kilobytes(lines.get("MemTotal")),
        None,
    )


def kilobytes(text: str | None) -> int | None:
    """Return the bytes of a line such as "32768 kB"; None where there is no number."""
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
    match = _VERSION.search(text)
    return match.group() if match else None


class Library:
    """The file of the NVIDIA library that this process has loaded."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._file: str | None = None
        self._was: tuple[int, ...] | None = None

    def note(self) -> None:
        """Remember which file is loaded, once; called right after it was loaded."""
        if self._file is not None:
            return
        for line in read_text(self._proc / "self/maps").splitlines():
            if _LIBRARY in line:
                path = line[line.index("/") :].removesuffix(" (deleted)")
                self._file = os.path.join(os.path.dirname(path), f"{_LIBRARY}.so.1")  # noqa: PTH118, PTH120
                self._was = _identity(self._file)
                return

    def replaced_by(self) -> str | None:
        """Return the version of the file that lies there now, None while it is the loaded one.

        The version is "" where the file's name does not tell it. A file that is missing, as in the
        middle of an upgrade, has not been replaced yet.
        """
        if self._file is None:
            return None
        now = _identity(self._file)
        if now is None or now == self._was:
            return None
        match = _VERSION.search(os.path.basename(os.path.realpath(self._file)))  # noqa: PTH119
        return match.group() if match else ""


def _identity(file: str) -> tuple[int, ...] | None:
    try:
        stat_result = os.stat(file)  # noqa: PTH116 - asked in every read while the versions do not fit
    except OSError:
        return None
    return stat_result.st_dev, stat_result.st_ino, stat_result.st_size, stat_result.st_mtime_ns


def in_container(proc: Path) -> bool:
    """Say whether this looks like the inside of a container."""
    root = proc.parent
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    return "container" in os.environ or "KUBERNETES_SERVICE_HOST" in os.environ


def pci_address(bus: str | bytes) -> str | None:
    """Return a PCI address as sysfs writes it, with a domain of four digits or as many as it takes.

    Examples
    --------
    >>> pci_address("00000000:0A:00.0"), pci_address("00010000:81:00.0")
    ('0000:0a:00.0', '10000:81:00.0')
    """
    text = bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus
    domain, mark, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if mark else None


def nvml_address(bus: str) -> str:
    """Return a PCI address as NVML writes it, with a domain of eight digits.

    Examples
    --------
    >>> nvml_address("0000:0a:00.0"), nvml_address("10000:81:00.0")
    ('00000000:0A:00.0', '00010000:81:00.0')
    """
    domain, _, rest = bus.upper().partition(":")
    return f"{domain.rjust(8, '0')}:{rest}"


def nvidia_cards(sys: Path) -> list[Path]:
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
