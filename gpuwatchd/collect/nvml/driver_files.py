"""What the files beside the NVIDIA library say: versions, power management, the host's memory."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import DeviceReading, ProcessUse

_VERSION: Final = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")
_LIBRARY: Final = "libnvidia-ml"
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"


class KernelFiles(NamedTuple):
    """Where the kernel's file systems are mounted."""

    proc: Path
    sys: Path


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


def read_text(path: Path | str) -> str:
    """Return a small file's text without surrounding blanks; "" when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - in each tick
            return file.read().strip()
    except OSError:
        return ""


def kernel_module_version(files: KernelFiles) -> str | None:
    """Return the version of the loaded kernel module, from the files that it publishes."""
    own = read_text(f"{files.proc}/driver/nvidia/version")
    match = _VERSION.search(own or read_text(f"{files.sys}/module/nvidia/version"))
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


# Cards that fall asleep (a laptop's): which of them may be read now, from files alone.
# Initialising NVML wakes a card, an open handle keeps it awake for ever, and every look at it sets
# its idle time back. So a card that may sleep is read only while it is awake *and* somebody else
# keeps it so. Read here are ``vendor``, ``class`` and ``power/*`` in sysfs and the driver's
# ``power`` file; not PCI's ``config`` and not the driver's ``information``, whose reading wakes
# the card. Not verified on hardware.


ALONE_S: Final = 20.0
"""A card that stays awake for so long without us is kept awake by somebody: it would have gone to
sleep within about ten seconds."""
IDLE_S: Final = 30.0
"""A card that computes nothing for so long is let go, so that it may fall asleep."""
LONGEST_S: Final = 600.0
LOOK_AGAIN_S: Final = 10.0
"""Time between two looks through the descriptors of processes."""
_NODE: Final = re.compile(r"/dev/nvidia\d+\b")


class PowerManagedCard:
    """One card that may fall asleep."""

    def __init__(self, folder: Path) -> None:
        self.bus = folder.name
        self.folder = folder
        self.asleep = False
        self.awake_since_s: float | None = None
        self.alone_s = ALONE_S
        self.idle_s = IDLE_S
        self._idle_since_s: float | None = None
        self._rest_until_s = 0.0
        self._used_bytes: int | None = None
        self._looked_at_s = float("-inf")
        self._seen = False

    def awake(self, mono_s: float) -> bool:
        """Look at its state; return whether it is awake."""
        self.asleep = read_text(self.folder / "power/runtime_status") != "active"
        if self.asleep:
            self.awake_since_s = None
            self.alone_s, self.idle_s = ALONE_S, IDLE_S
            self._rest_until_s = 0.0
        elif self.awake_since_s is None:
            self.awake_since_s = mono_s
        return not self.asleep

    def is_kept_awake(self, mono_s: float, proc: Path, *, only_card: bool) -> bool:
        """Say whether somebody else keeps it awake, asked while we hold nothing.

        The kernel's count of users says so where it is published. Else a process of ours that has
        the card open says so, and what other users have open cannot be seen: there, that the card
        does not fall asleep says it.
        """
        if mono_s < self._rest_until_s or self.awake_since_s is None:
            return False
        usage = read_text(self.folder / "power/runtime_usage")
        if usage.lstrip("-").isdecimal():
            return int(usage) > 0
        if mono_s - self.awake_since_s >= self.alone_s:
            return True
        if only_card and mono_s - self._looked_at_s >= LOOK_AGAIN_S:
            self._looked_at_s = mono_s
            self._seen = _is_open(proc)
        return self._seen and only_card

    def saw(self, reading: DeviceReading, mono_s: float) -> None:
        """Take over what a read of the card showed."""
        if reading.uses:
            self.alone_s = ALONE_S
        idle = not reading.util_pct and reading.used_bytes == self._used_bytes
        self._used_bytes = reading.used_bytes
        if not idle:
            self._idle_since_s = None
            self.idle_s = IDLE_S
        elif self._idle_since_s is None:
            self._idle_since_s = mono_s
        unused = reading.uses == ()
        since_s = mono_s if self._idle_since_s is None else self._idle_since_s
        if unused or mono_s - since_s >= self.idle_s:
            self._rest(mono_s, unused=unused)

    def _rest(self, mono_s: float, *, unused: bool) -> None:
        """Let it go for a while; the next time is put off further while it does not sleep."""
        self._idle_since_s = None
        self.awake_since_s = mono_s
        self._rest_until_s = mono_s + self.alone_s
        self._seen = False
        if unused:
            self.alone_s = min(2 * self.alone_s, LONGEST_S)
        else:
            self.idle_s = min(2 * self.idle_s, LONGEST_S)

    def rests(self, mono_s: float) -> bool:
        """Say whether it is left alone although it is awake and in use."""
        return mono_s < self._rest_until_s


class PowerManagedCards:
    """Every card of the machine that may fall asleep, and which are left alone."""

    def __init__(self, files: KernelFiles, rescan_s: float) -> None:
        self._files = files
        self._rescan_s = rescan_s
        self._find_at_s = 0.0
        self.buses: tuple[str, ...] = ()
        """PCI addresses of all NVIDIA cards, sleeping or not."""
        self.known: dict[str, PowerManagedCard] = {}
        self.left: frozenset[str] = frozenset()
        """PCI addresses of the cards that are left alone because they sleep, or should."""
        self._slept: frozenset[str] = frozenset()
        """Those that slept before the last start."""
        self._first = True
        self._woken = False
        """A read of another card has woken one of these: from now on it is all or nothing."""

    def find(self, mono_s: float) -> None:
        """Look, now and then, which cards there are and which of them may sleep."""
        if mono_s < self._find_at_s:
            return
        self._find_at_s = mono_s + self._rescan_s
        folders = nvidia_cards(self._files.sys)
        self.buses = tuple(folder.name for folder in folders)
        self.known = {
            folder.name: self.known.get(folder.name) or PowerManagedCard(folder)
            for folder in folders
            if self._may_sleep(folder)
        }

    def _may_sleep(self, folder: Path) -> bool:
        status = read_text(folder / "power/runtime_status")
        if status in {"suspended", "suspending", "resuming"}:
            return True
        if status != "active" or read_text(folder / "power/control") == "on":
            return False
        return "enabled" in _d3_status(
            self._files.proc / "driver/nvidia/gpus" / folder.name / "power"
        )

    def choose(self, mono_s: float) -> frozenset[str]:
        """Choose the cards that are left alone, before a start of NVML."""
        self.find(mono_s)
        self.left = self._left_alone(mono_s, frozenset())
        self._slept = frozenset(bus for bus, card in self.known.items() if card.asleep)
        return self.left

    def are_others(self, mono_s: float) -> bool:
        """Say whether other cards than those chosen would be left alone now."""
        return self._left_alone(mono_s, frozenset(self.buses) - self.left) != self.left

    def saw(self, bus: str, reading: DeviceReading, mono_s: float) -> None:
        """Take over what a read of a card showed that is not left alone."""
        if bus in self.known and bus not in self.left:
            self.known[bus].saw(reading, mono_s)

    def _left_alone(self, mono_s: float, held: frozenset[str]) -> frozenset[str]:
        """Return the cards that must not be touched now.

        That we hold the cards ``held`` ourselves says nothing about others.
        """
        if not self.known:
            return frozenset()
        alone: set[str] = set()
        for bus, card in self.known.items():
            awake = card.awake(mono_s)
            if bus in held:
                # With fine-grained power management a card can sleep although we hold it.
                if not awake or card.rests(mono_s):
                    alone.add(bus)
            elif self._first and awake:
                pass  # one look at the start tells who it is, and costs it some seconds of sleep
            elif not awake or not card.is_kept_awake(
                mono_s, self._files.proc, only_card=len(self.buses) == 1
            ):
                alone.add(bus)
        self._first = False
        if alone and self._woken:
            return frozenset(self.buses)
        return frozenset(alone)

    def note_woken(self) -> None:
        """Note, once after a start, whether a card that slept before it is awake."""
        self._woken = self._woken or any(
            read_text(self.known[bus].folder / "power/runtime_status") == "active"
            for bus in self._slept & self.known.keys()
        )
        self._slept = frozenset()


def _d3_status(file: Path) -> str:
    for line in read_text(file).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Runtime D3 status":
            return value.strip().lower()
    return ""


def _is_open(proc: Path) -> bool:
    """Say whether a process whose descriptors we may see, other than this one, has a card open."""
    own = str(os.getpid())
    try:
        pids = [pid.name for pid in proc.iterdir() if pid.name.isdecimal() and pid.name != own]
    except OSError:
        return False
    for pid in pids:
        folder = proc / pid / "fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names alone
        except OSError:
            continue
        for name in names:
            try:
                if _NODE.match(os.readlink(folder / name)):  # noqa: PTH115 - thousands of them
                    return True
            except OSError:
                continue
    return False
