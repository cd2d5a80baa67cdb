"""What /sys says of AMD and Intel cards: who they are, their memory, their gauges.

Small files only, under a root that tests replace. A card whose ``power/runtime_status`` is
"suspended" is not read: several of these files wake it. **Not verified on hardware**: written from
the kernel's documentation of amdgpu, i915 and xe.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AMD, INTEL = "0x1002", "0x8086"
DRIVERS: Final = {"amdgpu": "amd", "i915": "intel", "xe": "intel"}
_CARD: Final = re.compile(r"card(\d+)")
_MAKERS: Final = {AMD: "amd", INTEL: "intel", "0x10de": "nvidia"}
_DISPLAY_CLASS: Final = "0x03"
_INTEL_INTEGRATED: Final = "0000:00:02.0"
_AMD_INTEGRATED: Final = "0000:00:01.0"
_AMD_PROCESSOR: Final = "0x1022"
_ENCRYPTION_CLASS: Final = "0x1080"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VALUE_BYTES: Final = 4096


class Memory(NamedTuple):
    """Bytes of one card; None is unknown."""

    used_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None


class Gauges(NamedTuple):
    """What changes slowly, and the energy counter where there is no power."""

    temp_c: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    energy_uj: int | None = None
    ecc_errors: int | None = None


class FoundCard(NamedTuple):
    """One card of /sys/class/drm."""

    number: int
    folder: Path
    """The PCI device's folder."""
    driver: str
    vendor: str
    """"amd" or "intel"."""
    pdev: str
    uid: str
    name: str
    unified: bool
    """It has no memory to speak of and works in the host's."""


def read_text(path: str | Path, limit_bytes: int = _VALUE_BYTES) -> str:
    """Return a small file's text; many are read per look, so without any file object."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit_bytes).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def read_word(path: str | Path) -> str:
    """Return a small file's text without surrounding blanks."""
    return read_text(path).strip()


def word(path: str | Path, limit_bytes: int = _VALUE_BYTES) -> str:
    """Return a file's text without surrounding blanks, "" when it cannot be read."""
    try:
        return read_text(path, limit_bytes).strip()
    except OSError:
        return ""


def number(path: str | Path) -> int | None:
    """Return the whole number in a file; None when there is none."""
    return whole_number(word(path))


def whole_number(text: str) -> int | None:
    """Return a number that is not negative; None for anything else.

    Examples
    --------
    >>> whole_number("17163091968"), whole_number("-1"), whole_number("garbage")
    (17163091968, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else None


def card_folders(sys: Path) -> list[tuple[int, Path]]:
    """Return (number, device folder) of every card; connectors are none."""
    try:
        entries = [(m, entry) for entry in (sys / "class/drm").iterdir()
                   if (m := _CARD.fullmatch(entry.name))]  # fmt: skip
    except OSError:
        return []
    return sorted((int(match.group(1)), entry / "device") for match, entry in entries)


def driver_of(folder: Path) -> str:
    """Return the name of the kernel driver of a device, "" when it has none."""
    fields = _values(folder / "uevent", "=")
    if "DRIVER" in fields:
        return fields["DRIVER"]
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return ""


def is_suspended(folder: Path) -> bool:
    """Say whether the card sleeps; this file never wakes it."""
    return word(f"{folder}/power/runtime_status") == "suspended"


def identify(number_: int, folder: Path, sys: Path, *, integrated: bool) -> FoundCard | None:
    """Return a card that is to be watched, None for any other.

    NVIDIA's cards belong to another source. Integrated graphics are left out unless
    ``integrated``, for they draw the desktop: Intel's always, and AMD's where there is a card to
    compute on.
    """
    driver = driver_of(folder)
    vendor = DRIVERS.get(driver)
    if vendor is None or word(folder / "vendor") not in {AMD, INTEL}:
        return None
    pdev = _address(folder)
    if pdev is None:
        return None
    unified = _is_integrated(vendor, pdev, sys)
    if unified and not integrated and (vendor == "intel" or _has_card(sys)):
        return None
    identity = pdev
    if vendor == "amd":
        serial = unique_id(folder)
        if serial is None and is_suspended(folder) and (folder / "unique_id").exists():
            return None  # its identity is not readable while it sleeps; another would be wrong
        identity = serial or pdev
    code = clean(word(folder / "device"), limit=16) or "of unknown kind"
    given = clean(word(folder / "product_name"), limit=80)
    return FoundCard(
        number=number_,
        folder=folder,
        driver=driver,
        vendor=vendor,
        pdev=pdev,
        uid=f"{vendor}-{identity}",
        name=given or f"{'AMD' if vendor == 'amd' else 'Intel'} GPU {code}",
        unified=unified,
    )


def unique_id(folder: Path) -> str | None:
    """Return amdgpu's serial number of the chip; older chips have none.

    The driver has it in memory: reading it wakes nothing.
    """
    text = word(folder / "unique_id").lower()
    known = re.fullmatch(r"[0-9a-f]{1,32}", text) is not None and text.strip("0") != ""
    return text if known else None


def _values(file: Path, mark: str) -> dict[str, str]:
    """Return the values of a file with a name and a value on each line; {} when unreadable."""
    pairs = (line.partition(mark) for line in word(file).splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _address(folder: Path) -> str | None:
    text = _values(folder / "uevent", "=").get("PCI_SLOT_NAME", "").lower()
    if not text:
        text = folder.resolve().name.lower()
    return text if _ADDRESS.fullmatch(text) else None


def _is_integrated(vendor: str, pdev: str, sys: Path) -> bool:
    """Say whether graphics are part of a processor; the kernel tells it nowhere in /sys.

    Intel's have had one address for ever. AMD's processors put their security processor (vendor
    0x1022, an encryption controller) into the same PCI slot as their graphics, which a card never
    has; the oldest had one address. The bus alone says nothing: in a virtual machine a card may be
    on bus 0.
    """
    if vendor == "intel":
        if pdev != _INTEL_INTEGRATED:
            return False  # and no file of a card that may sleep is read
        return intel_total_bytes(sys / "bus/pci/devices" / pdev) is None
    if pdev == _AMD_INTEGRATED:
        return True
    slot = pdev.rpartition(".")[0]
    devices = sys / "bus/pci/devices"
    return any(
        word(devices / f"{slot}.{function}/vendor") == _AMD_PROCESSOR
        and word(devices / f"{slot}.{function}/class").startswith(_ENCRYPTION_CLASS)
        for function in range(1, 8)
    )


def _display_devices(sys: Path) -> Iterator[tuple[str, str]]:
    """Yield (maker, PCI address) of every GPU of the three makers; this wakes none."""
    for device in (sys / "bus/pci/devices").glob("*"):
        vendor = _MAKERS.get(word(device / "vendor"))
        if vendor is not None and word(device / "class").startswith(_DISPLAY_CLASS):
            yield vendor, device.name


def _has_card(sys: Path) -> bool:
    """Say whether the machine has a GPU that is a card, of any of the three makers."""
    return any(
        vendor == "nvidia" or not _is_integrated(vendor, pdev, sys)
        for vendor, pdev in _display_devices(sys)
    )


def nvidia_count(sys: Path) -> int:
    """Return how many NVIDIA GPUs the machine has: theirs are the first numbers."""
    return sum(vendor == "nvidia" for vendor, _ in _display_devices(sys))


def amd_memory(card: FoundCard, available_bytes: int | None) -> Memory:
    """Return the memory of an amdgpu card.

    A processor's graphics have a small carve-out as VRAM and work in the host's memory (GTT): both
    are added, and what is free is bounded by what the host can give.
    """
    used = whole_number(read_word(f"{card.folder}/mem_info_vram_used"))
    total = number(f"{card.folder}/mem_info_vram_total")
    if not card.unified:
        return Memory(used, _rest(total, used), total)
    more = number(f"{card.folder}/mem_info_gtt_used")
    most = number(f"{card.folder}/mem_info_gtt_total")
    host = _rest(most, more)
    if host is not None and available_bytes is not None:
        host = min(host, available_bytes)
    return Memory(_sum(used, more), _sum(_rest(total, used), host), _sum(total, most))


def intel_total_bytes(folder: Path) -> int | None:
    """Return the memory on an Intel card, physical (so a little more than can be used), or None.

    xe publishes it per tile, in a place that differs between kernels; i915 only where it is
    patched to.
    """
    tiles = [
        amount
        for tile in sorted(folder.glob("tile[0-9]*"))
        for place in ("physical_vram_size_bytes", "memory/physical_vram_size_bytes")
        if (amount := number(tile / place)) is not None
    ]
    return sum(tiles) if tiles else number(folder / "lmem_total_bytes")


def gauges(card: FoundCard) -> Gauges:
    """Return temperature, power, clock and memory errors, as far as they are published."""
    temp = power = clock = energy = None
    for monitor in sorted((card.folder / "hwmon").glob("hwmon*")):
        temp = number(monitor / "temp1_input")
        power = number(monitor / "power1_average")
        power = number(monitor / "power1_input") if power is None else power
        clock = number(monitor / "freq1_input")
        energy = number(monitor / "energy1_input")
        break
    errors = _values(card.folder / "ras/umc_err_count", ":")
    return Gauges(
        temp_c=None if temp is None else temp / 1e3,
        power_w=None if power is None else power / 1e6,
        clock_mhz=None if clock is None else clock / 1e6,
        energy_uj=energy,
        ecc_errors=whole_number(errors.get("ue", "")),  # codespell:ignore ue
    )


def _rest(total: int | None, used: int | None) -> int | None:
    return None if total is None or used is None else max(0, total - used)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def host_memory(proc: Path) -> tuple[int | None, int | None]:
    """Return (total, available) bytes of the host's memory."""
    values = _values(proc / "meminfo", ":")

    def kilobytes(name: str) -> int | None:
        value = whole_number(values.get(name, "").partition(" ")[0])
        return None if value is None else value * 1024

    return kilobytes("MemTotal"), kilobytes("MemAvailable")


def compute_devices(sys: Path) -> dict[str, str]:
    """Return KFD's number of each compute device -> its PCI address."""
    found: dict[str, str] = {}
    for node in (sys / "class/kfd/kfd/topology/nodes").glob("[0-9]*"):
        gpu_id = number(node / "gpu_id")
        lines = (line.split() for line in word(node / "properties").splitlines())
        values = {pair[0]: whole_number(pair[1]) for pair in lines if len(pair) == 2}
        where = values.get("location_id")
        if not gpu_id or not where:  # 0 is a processor
            continue
        domain = values.get("domain") or 0
        slot = f"{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"
        found[str(gpu_id)] = f"{domain:04x}:{slot}"
    return found
