"""Everything that the metal source asks the system, each in one thin function.

**Not verified on hardware.** What these return is parsed elsewhere, from recorded output.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from typing import Any, Final, NamedTuple

import psutil

from gpuwatchd.collect.metal.system import (
    RUSAGE_V0_BYTES,
    SYSCTL_KEYS,
    Footprint,
    is_uuid,
    parse_rusage,
)
from gpuwatchd.core.errors import SourceError, SourceUnavailable

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
    """The system calls; tests hand in an object with the same methods."""

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
            raise SourceUnavailable(f"{argv[0]} is not here") from error
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"{name} did not answer within {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise SourceError(f"{name}: {error.strerror or error}") from error
        if done.returncode != 0:
            raise SourceError(f"{name} failed with exit code {done.returncode}")
        return done.stdout

    def footprint(self, pid: int) -> Footprint | None:
        """Return what the kernel charges a process with; None when it has ended. About 10 us.

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
            self._boot_id = text if is_uuid(text) else f"boot-{int(psutil.boot_time())}"
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
