"""The driver as a whole: starting and ending NVML, and saying what is wrong with it.

Each of these calls may take seconds or hang, so each runs in a lane of its own and returns what it
found instead of changing anything. Nothing here imports pynvml.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpuwatchd.collect.nvml.calls import NO_ATTACH, NO_PERMISSION, code_of
from gpuwatchd.collect.nvml.driver_files import Library, in_container, kernel_module_version
from gpuwatchd.core.model import Availability
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.collect.nvml.reader import Reader

DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18


class Opened(NamedTuple):
    """What a start came to."""

    is_open: bool
    cards: int = 0
    """How many cards NVML counts."""
    code: int = 0
    """NVML's code of what it refused; 0 when it refused nothing."""


def pending_call_message(
    gone: Availability | None, stuck_s: float, *, started_before: bool
) -> Availability:
    """Return what to say while NVML is not open and a call to the driver has not returned.

    Parameters
    ----------
    gone
        Why NVML itself is gone; None when it is not.
    """
    silent = f"has not answered for {stuck_s:.0f} s"
    if gone is not None:
        reason = f"{gone.reason}; a call to the driver {silent}"
    elif started_before:
        reason = f"the NVIDIA driver is being restarted or released, and {silent}"
    else:
        reason = f"the NVIDIA driver {silent}"
    brief = gone.brief if gone is not None else ""
    return Availability(ok=False, reason=reason, hint="see dmesg", brief=brief)


class Driver:
    """Calls that concern no single card.

    Parameters
    ----------
    reader
        Learns of the library as soon as it is loaded.
    """

    def __init__(self, api: Any, reader: Reader, proc: Path, sys: Path) -> None:
        self._api = api
        self._error: type[Exception] = api.NVMLError
        self._reader = reader
        self._proc = proc
        self._sys = sys
        self._library = Library(proc)
        self._version: str | None = None
        self._flaw: LibraryDefect | None = None
        """Why a library that is there could not be loaded."""
        self.needs_restart = False
        """True when the library file was replaced: only a new process can load the new one."""

    def open(self, *, attach: bool) -> Opened:
        """Start NVML; ``attach`` as a rule, not where a card must not be woken. Never raises."""
        if self._version is None and (flaw := load_crash_risk()) is not None:
            self._flaw = flaw
            return Opened(is_open=False, code=LIBRARY_NOT_FOUND)
        try:
            if attach:
                self._api.nvmlInit()
            else:
                self._api.nvmlInitWithFlags(NO_ATTACH)
        except self._error as error:
            if code_of(error) == LIBRARY_NOT_FOUND:
                self._flaw = load_error()
            return Opened(is_open=False, code=code_of(error))
        finally:
            self._library.note()
            self._version = self._version or self._library_version()
        self._reader.attach()
        return self.count()

    def count(self) -> Opened:
        """Ask how many cards there are. Never raises."""
        try:
            return Opened(is_open=True, cards=self._api.nvmlDeviceGetCount())
        except self._error as error:
            return Opened(is_open=True, code=code_of(error))

    def close(self) -> None:
        """End NVML."""
        # A library that calls itself uninitialised is as good as shut down.
        with contextlib.suppress(self._error):
            self._api.nvmlShutdown()

    def _library_version(self) -> str | None:
        try:
            version = clean(self._api.nvmlSystemGetNVMLVersion())
        except (self._error, UnicodeError):
            return None  # no library, or one that does not say
        # "12.550.54.15" is CUDA's major version, then the driver's.
        return version.partition(".")[2] if version.count(".") >= 2 else version

    def module_version(self) -> str | None:
        """Return the version of the loaded kernel module."""
        return kernel_module_version(self._proc, self._sys)

    def look_for_library(self) -> bool:
        """Note and say whether a library that fits lies ready for a new process."""
        if not self.needs_restart:
            fresh = self._library.replaced_by()
            module = self.module_version()
            # Half-way through an upgrade the file is new and the module is not: wait for both.
            self.needs_restart = fresh is not None and fresh in {"", module}
        return self.needs_restart

    def explain(self, code: int) -> Availability:
        """Return one sentence and one hint for what NVML refused to start with."""
        brief = ""
        if code == LIBRARY_NOT_FOUND and self._flaw is not None:
            why = clean(self._flaw.words, limit=1024)
            reason = f"{(brief := 'the NVIDIA library cannot be loaded')}: {why}"
            hint = self._flaw.hint
        elif code == LIBRARY_NOT_FOUND:
            brief = "no NVIDIA driver is installed here"
            reason = f"{brief}: libnvidia-ml.so.1 was not found"
            hint = "install the NVIDIA driver; in a container, start it with --gpus all"
        elif code == NO_PERMISSION:
            reason = "the NVIDIA driver refuses this user"
            hint = "ls -l /dev/nvidia*: this user, or its container, must be allowed to open them"
        elif code == DRIVER_NOT_LOADED:
            reason = "the NVIDIA driver is installed but not loaded"
            hint = "sudo modprobe nvidia, or reboot after an installation"
        elif code == VERSION_MISMATCH:
            module = self.module_version() or "of unknown version"
            library = self._version or "of unknown version"
            reason = f"NVIDIA library {library} does not fit the loaded kernel module {module}"
            if self.look_for_library():
                hint = "the daemon starts anew with the new library; else restart it"
            else:
                hint = "reboot, or reload the module"
        else:
            reason = f"{(brief := 'NVML did not answer')}: {self._reader.text(code)}"
            hint = "see nvidia-smi"
            if in_container(self._proc):
                # A reload of systemd on the host takes the GPUs away from a running container.
                hint = "restart the container: the host may have taken its GPUs away"
        return Availability(ok=False, reason=reason, hint=hint, brief=brief)


# Where the NVIDIA library lies, and why one that lies there cannot be loaded.
# nvidia-ml-py says "not found" whatever the loader complained of. The loader itself says "no
# such file" of a library for another processor: the file's own header tells that.

NAME: Final = "libnvidia-ml.so.1"
_FOLDERS: Final = (
    *("usr/lib/{machine}-linux-gnu", "lib/{machine}-linux-gnu", "usr/lib64", "usr/lib"),
    *("usr/lib/wsl/lib", "usr/lib/{machine}-linux-gnu/nvidia/current", "run/opengl-driver/lib"),
    "usr/local/nvidia/lib64",
    *("usr/lib/i386-linux-gnu", "usr/lib32"),  # only to say that this is the wrong one
)
_HEADER_BYTES: Final = 20
_SEGMENT_BYTES: Final = 56
"""Size of an entry in a 64-bit file's table of segments."""
_PROCESSORS: Final = {3: "x86", 21: "ppc64", 40: "arm", 62: "x86_64", 183: "aarch64"}
"""ELF's numbers, with the names that the kernel uses."""


class LibraryDefect(NamedTuple):
    """Why a library cannot be loaded."""

    words: str
    """With the path, and the loader's words where it was asked."""
    hint: str


def find(root: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the library's path; None where it is in none of the usual folders."""
    folders = [root / folder.format(machine=platform.machine()) for folder in _FOLDERS]
    asked_for = [text for text in environ.get("LD_LIBRARY_PATH", "").split(":") if text]
    folders[:0] = [root / text.lstrip("/") for text in asked_for]
    return next((folder / NAME for folder in folders if os.path.exists(folder / NAME)), None)  # noqa: PTH110


def library_defect(library: Path) -> LibraryDefect | None:
    """Return what its file shows to be wrong with a library; None where nothing is."""
    again = "install the library of the driver's version again"
    try:
        theirs = _processor(library)
    except OSError as error:
        return LibraryDefect(
            f"{library}: {error.strerror}", f"ls -lL {library}: it must be readable"
        )
    ours = _processor(Path("/proc/self/exe")) if Path("/proc/self/exe").exists() else theirs
    if theirs is None:
        return LibraryDefect(f"{library}: it is no library, or only its beginning", again)
    if _is_cut_off(library):
        return LibraryDefect(f"{library}: its end is missing", again)
    if ours is not None and theirs != ours:
        return LibraryDefect(
            f"{library}: it is built for {theirs}, and this Python for {ours}",
            f"install the driver's library for {ours}, and check LD_LIBRARY_PATH",
        )
    return None


def load_crash_risk() -> LibraryDefect | None:
    """Return why loading the library would end this process; None where it would not.

    The loader maps a file that is cut off as if it were whole, and dies of what is not there.
    """
    library = find(Path("/"), os.environ)
    if library is None or not _is_cut_off(library):
        return None
    return library_defect(library)


def load_error() -> LibraryDefect | None:
    """Load the library as nvidia-ml-py does; return why that fails although there is one.

    None where there is none, or it can be loaded. May hang as long as the file system does.
    """
    try:
        ctypes.CDLL(NAME)
    except OSError as error:
        text = clean(str(error))
    else:
        return None
    library = find(Path("/"), os.environ)
    not_found = NAME in text and "No such file" in text
    if library is None:
        return None if not_found else LibraryDefect(text, "reinstall the NVIDIA driver's library")
    found = library_defect(library)
    if found is not None:
        return LibraryDefect(f"{found.words} (the loader: {text})", found.hint)
    if not_found:
        hint = f"export LD_LIBRARY_PATH={library.parent}, or add it to /etc/ld.so.conf.d"
        return LibraryDefect(f"{library}: the loader does not search there ({text})", hint)
    return LibraryDefect(
        text, f"ldd {library} names what is missing; or reinstall the driver's library"
    )


def _processor(file: Path) -> str | None:
    """Return for which processor an ELF file is built; None where it is none."""
    with file.open("rb") as stream:
        head = stream.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES or head[:5] not in {b"\x7fELF\x01", b"\x7fELF\x02"}:
        return None
    number = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
    bits = 32 * head[4]
    name = _PROCESSORS.get(number, f"processor {number}")
    return f"{name} ({bits} bits)"


def _is_cut_off(file: Path) -> bool:
    """Say whether a 64-bit ELF file ends before what its table of segments names."""
    try:
        with file.open("rb") as stream:
            head = stream.read(64)
            size: int = stream.seek(0, os.SEEK_END)
            if len(head) < 64 or not head.startswith(b"\x7fELF\x02"):
                return False
            order = ">" if head[5] == 2 else "<"
            table: int = struct.unpack_from(f"{order}Q", head, 32)[0]
            entry_bytes, count = struct.unpack_from(f"{order}HH", head, 54)
            stream.seek(table)
            entries = stream.read(_SEGMENT_BYTES * count)
    except OSError:
        return False
    if entry_bytes != _SEGMENT_BYTES:
        return False
    end: int = table + _SEGMENT_BYTES * count
    for at in range(0, len(entries) - _SEGMENT_BYTES + 1, _SEGMENT_BYTES):
        offset, _, _, length = struct.unpack_from(f"{order}4Q", entries, at + 8)
        end = max(end, offset + length)
    return end > size
