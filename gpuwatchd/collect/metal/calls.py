"""Everything that the metal source asks the system, and what it says of the host's memory.

**Not verified on hardware**: each call is one thin function; recorded output is parsed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import plistlib
import re
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard
from xml.parsers.expat import ExpatError

import psutil

from gpuwatchd.core.errors import SourceError, SourceUnavailable
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

# What macOS says of its memory, and where the GPU's share of it ends. On Apple's chips there is no
# memory of the GPU's own: it may take a part of the host's (the ceiling), and less when the host is
# short.


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


IOREG: Final = "/usr/sbin/ioreg"
ACCELERATORS: Final = (IOREG, "-a", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
ACCELERATORS_TEXT: Final = (IOREG, "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
GPU_CLIENTS: Final = (IOREG, "-r", "-l", "-w", "0", "-c", "AGXDeviceUserClient")
PLATFORM: Final = (IOREG, "-a", "-r", "-d", "1", "-c", "IOPlatformExpertDevice")
BOOT_SESSION: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
SYSCTL: Final = ("/usr/sbin/sysctl", "-i", *SYSCTL_KEYS)
VM_STAT: Final = ("/usr/bin/vm_stat",)
TIMEOUT_S: Final = 1.5
"""Longest time for one program: below the deadline of a source."""
_RUSAGE_INFO_V0: Final = 0
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_LIBRARY: Final = "/usr/lib/libSystem.B.dylib"

# In a process of its own: Metal starts threads and keeps memory that a daemon has no use for. A
# program without windows has a default device only once Core Graphics is loaded.
_ASK_METAL: Final = """
from ctypes import cdll, c_void_p
from rubicon.objc import ObjCInstance
frameworks = "/System/Library/Frameworks/"
cdll.LoadLibrary(frameworks + "CoreGraphics.framework/CoreGraphics")
metal = cdll.LoadLibrary(frameworks + "Metal.framework/Metal")
metal.MTLCreateSystemDefaultDevice.restype = c_void_p
size = ObjCInstance(metal.MTLCreateSystemDefaultDevice()).recommendedMaxWorkingSetSize
print(int(size() if callable(size) else size))
"""


class ListedProcess(NamedTuple):
    """One process of this machine."""

    pid: int
    parent_pid: int
    name: str
    argv: tuple[str, ...]
    started_at_s: float


class Denied(Exception):
    """The process belongs to somebody else."""


class Mac:
    """The system calls; tests put recorded answers in their place."""

    def __init__(self) -> None:
        self._library: Any = None
        self._boot_id = ""

    def run(self, argv: tuple[str, ...]) -> bytes:
        """Return what a program of the system prints.

        Raises
        ------
        SourceUnavailable
            When there is no such program.
        SourceError
            When it fails or takes too long.
        """
        name = argv[0].rpartition("/")[2]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"},
            )
        except FileNotFoundError as error:
            raise SourceUnavailable(f"{argv[0]} is not installed") from error
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"{name} did not answer within {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise SourceError(f"{name}: {error.strerror or error}") from error
        if done.returncode != 0:
            raise SourceError(f"{name} failed with exit code {done.returncode}")
        return done.stdout

    def footprint(self, pid: int) -> int | None:
        """Return the bytes that a process is charged with; None when it has ended. About 10 us.

        Raises
        ------
        Denied
            When it belongs to another user.
        """
        if self._library is None:
            self._library = ctypes.CDLL(_LIBRARY, use_errno=True)
        buffer = ctypes.create_string_buffer(2 * RUSAGE_V0_BYTES)
        if self._library.proc_pid_rusage(ctypes.c_int(pid), _RUSAGE_INFO_V0, buffer) == 0:
            return parse_rusage(buffer.raw)
        if ctypes.get_errno() == errno.EPERM:
            raise Denied
        return None

    def resident_bytes(self, pid: int) -> int | None:
        """Return a process's resident memory, where even that may be read."""
        try:
            return int(psutil.Process(pid).memory_info().rss)
        except (psutil.Error, OSError):
            return None

    def processes(self) -> list[ListedProcess]:
        """Return every process; what is hidden of one is empty."""
        listed_processes = []
        for process in psutil.process_iter(["pid", "ppid", "name", "cmdline", "create_time"]):
            facts = process.info
            listed_processes.append(
                ListedProcess(
                    pid=facts["pid"],
                    parent_pid=facts["ppid"] or 0,
                    name=facts["name"] or "",
                    argv=tuple(facts["cmdline"] or ()),
                    started_at_s=facts["create_time"] or 0.0,
                )
            )
        return listed_processes

    def boot_id(self) -> str:
        """Return a text that changes with every boot; asked once, as no process outlives one.

        The time of boot is taken only where there is no identity of the boot: it moves with every
        step of the clock.
        """
        if not self._boot_id:
            try:
                text = self.run(BOOT_SESSION).decode("ascii", "replace").strip()
            except (SourceError, SourceUnavailable):
                text = ""
            self._boot_id = text if _UUID.fullmatch(text) else f"boot-{int(psutil.boot_time())}"
        return self._boot_id

    def recommended_bytes(self) -> int | None:
        """Return Metal's recommendedMaxWorkingSetSize, asked in a child; None when it fails."""
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _ASK_METAL],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                env={"LC_ALL": "C", "HOME": os.environ.get("HOME", "/")},
            )
        except (OSError, subprocess.SubprocessError):
            return None
        digits = done.stdout.strip()
        return int(digits) if done.returncode == 0 and digits.isdigit() and digits != b"0" else None


# What ``ioreg`` says of a Mac's GPUs and of the programs that use them.
# Pure: recorded output in, values out; the property list (``-a``) and the text form are both
# read. What Apple documents of this is nothing: the meaning of the keys is inferred from
# recordings of others. **Not verified on hardware** by us.

ALLOCATED: Final = "Alloc system memory"
IN_USE: Final = "In use system memory"
"""Exactly this key: "In use system memory (driver)" stands before it and is always 0."""
BUSY: Final = "Device Utilization %"
"""Not "Renderer Utilization %": under a language model that is 0 to 2 while this is 98 to 100."""
RECOVERIES: Final = "recoveryCount"
_VRAM_USED: Final = "vramUsedBytes"
_VRAM_FREE: Final = "vramFreeBytes"
_VRAM_TOTAL_MB: Final = "VRAM,totalMB"
_MOST: Final = 1 << 56

_HEADER: Final = re.compile(r"\+-o (.+?)\s+<class ([^,>\s]+)")
_PROPERTY: Final = re.compile(r'^[\s|]*"([^"]+)"\s*=\s*(.*)$')
_PAIR: Final = re.compile(r'"([^"]+)"=(-?\d+)')
_QUOTED: Final = re.compile(r'<?"([^"]*)"')
_CREATOR: Final = re.compile(r"pid (\d{1,7}), ?(.*)", re.DOTALL)
_GPU_TIME: Final = re.compile(r'"accumulatedGPUTime"=(\d{1,20})')


class Node(NamedTuple):
    """One accelerator of the I/O registry."""

    kind: str
    """Its class: "AGXAcceleratorG16G", "AMDRadeonX6000_..."."""
    model: str
    stats: dict[str, int]
    """What ``PerformanceStatistics`` holds; a number that is negative is left out."""
    vram_total_bytes: int | None = None

    @property
    def is_apple(self) -> bool:
        """Whether it is part of Apple's own chip and shares the host's memory."""
        return self.kind.startswith("AGX") or (
            ALLOCATED in self.stats and _VRAM_USED not in self.stats
        )

    @property
    def vendor(self) -> str:
        """Who made it: "apple", "amd", "intel", "nvidia" or "unknown"."""
        if self.is_apple:
            return "apple"
        words = f"{self.kind} {self.model}".lower()
        return next((name for name in ("amd", "intel", "nvidia") if name in words), "unknown")

    @property
    def busy_pct(self) -> float | None:
        """Utilisation, 0-100; the registry has been seen to say 137."""
        value = self.stats.get(BUSY)
        return None if value is None else float(min(100, value))

    @property
    def vram(self) -> tuple[int | None, int | None, int | None]:
        """(used, free, total) bytes of a card with memory of its own."""
        used, free = self.stats.get(_VRAM_USED), self.stats.get(_VRAM_FREE)
        total = self.vram_total_bytes
        if total is None and used is not None and free is not None:
            total = used + free
        return used, free, total


class GpuClient(NamedTuple):
    """A program that has the GPU open."""

    pid: int
    name: str
    """As the registry has it: cut, and of a program that may have ended long ago."""
    gpu_time_ns: int
    """Time that the GPU has worked for it, over all that it has open."""


def parse(raw: bytes) -> list[Node]:
    r"""Return the accelerators in the output of ioreg, in either form.

    Empty output, which is how ioreg says that there is none, gives an empty list.

    Examples
    --------
    >>> parse(b"")
    []
    >>> nodes = parse(b'+-o AGX  <class AGXAcceleratorG16G, id 0x1>\n'
    ...               b'  "PerformanceStatistics" = {"Alloc system memory"=4096}\n')
    >>> nodes[0].kind, nodes[0].stats["Alloc system memory"]
    ('AGXAcceleratorG16G', 4096)
    """
    start = raw.lstrip()[:6]
    if start.startswith((b"<?xml", b"<plist", b"bplist")):
        return parse_plist(raw)
    return parse_text(raw.decode("utf-8", "replace"))


def parse_plist(raw: bytes) -> list[Node]:
    """Return the accelerators in a property list; none when it is damaged."""
    try:
        found = plistlib.loads(raw)
    # A damaged list raises whatever its parser met: bad XML, bad base64, a bad number or offset.
    except (plistlib.InvalidFileException, ExpatError, ValueError, LookupError, TypeError,
            AttributeError, OverflowError, RecursionError):  # fmt: skip
        return []
    entries = found if isinstance(found, list) else [found]
    return [node for entry in entries if isinstance(entry, dict) and (node := _node(entry))]


def _node(entry: Mapping[str, Any]) -> Node | None:
    stats = entry.get("PerformanceStatistics")
    if not isinstance(stats, dict):
        return None
    kind = _text(entry.get("IOObjectClass")) or _text(entry.get("IOClass"))
    total_mb: Any = entry.get(_VRAM_TOTAL_MB)
    return Node(
        kind=kind or _text(entry.get("IORegistryEntryName")) or "IOAccelerator",
        model=_text(entry.get("model")) or _text(entry.get("IORegistryEntryName")),
        stats={str(key): value for key, value in stats.items() if _counts(value)},
        vram_total_bytes=total_mb * 1024**2 if _counts(total_mb) else None,
    )


def _counts(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST


def _text(value: object) -> str:
    if isinstance(value, bytes):
        value = value.rstrip(b"\0").decode("utf-8", "replace")
    return clean(value, limit=80) if isinstance(value, str) else ""


def parse_text(text: str) -> list[Node]:
    """Return the accelerators in the text form."""
    nodes: list[Node] = []
    kind, entry = "IOAccelerator", dict[str, str]()

    def finish() -> None:
        if "PerformanceStatistics" in entry:
            pairs = _PAIR.findall(entry["PerformanceStatistics"])
            stats = {key: int(value) for key, value in pairs if len(value) < 20}
            total = entry.get(_VRAM_TOTAL_MB, "")
            nodes.append(
                Node(
                    kind=kind,
                    model=_quoted(entry.get("model", "")) or kind,
                    stats={key: value for key, value in stats.items() if _counts(value)},
                    vram_total_bytes=int(total) * 1024**2 if total.isdecimal() else None,
                )
            )

    for line in text.splitlines():
        header = _HEADER.search(line)
        if header:
            finish()
            kind, entry = clean(header.group(2), limit=80), {}
            continue
        match = _PROPERTY.match(line)
        if match:
            # Only under its own key: IOReportLegend repeats these names with other numbers.
            entry.setdefault(match.group(1), match.group(2).strip())
    finish()
    return nodes


def _quoted(text: str) -> str:
    match = _QUOTED.match(text)
    return clean(match.group(1), limit=80) if match else ""


def parse_clients(text: str) -> dict[int, GpuClient]:
    r"""Return pid -> the program, from the text form of the class AGXDeviceUserClient.

    A program has several entries, and the times stand before the name: each block is read whole.

    Examples
    --------
    >>> found = parse_clients('+-o AGXDeviceUserClient  <class AGXDeviceUserClient>\n'
    ...     '"AppUsage" = ({"API"="Metal","accumulatedGPUTime"=25})\n'
    ...     '"IOUserClientCreator" = "pid 42, python3.12"\n')
    >>> found[42]
    GpuClient(pid=42, name='python3.12', gpu_time_ns=25)
    """
    clients: dict[int, GpuClient] = {}
    time_ns, creator = 0, ""

    def finish() -> None:
        match = _CREATOR.match(creator)
        if match:
            pid, before = int(match.group(1)), clients.get(int(match.group(1)))
            total_ns = time_ns + (before.gpu_time_ns if before else 0)
            clients[pid] = GpuClient(pid, clean(match.group(2), limit=80), total_ns)

    for line in text.splitlines():
        if _HEADER.search(line):
            finish()
            time_ns, creator = 0, ""
            continue
        entry = _PROPERTY.match(line)
        if entry and entry.group(1) == "AppUsage":
            time_ns = sum(int(value) for value in _GPU_TIME.findall(entry.group(2)))
        elif entry and entry.group(1) == "IOUserClientCreator":
            creator = _quoted(entry.group(2))
    finish()
    return clients


def platform_uuid(raw: bytes) -> str | None:
    """Return the machine's own UUID from the property list of IOPlatformExpertDevice."""
    match = re.search(rb"<key>IOPlatformUUID</key>\s*<string>([0-9A-Fa-f-]{36})</string>", raw)
    return match.group(1).decode("ascii").lower() if match else None
