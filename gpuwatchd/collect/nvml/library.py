"""Where the NVIDIA library lies, and why one that lies there cannot be loaded.

nvidia-ml-py says "not found" whatever the loader complained of. The loader itself says "no such
file" of a library for another processor: the file's own header tells that.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class Flaw(NamedTuple):
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


def flaw(library: Path) -> Flaw | None:
    """Return what its file shows to be wrong with a library; None where nothing is."""
    again = "install the library of the driver's version again"
    try:
        theirs = _processor(library)
    except OSError as error:
        return Flaw(f"{library}: {error.strerror}", f"ls -lL {library}: it must be readable")
    ours = _processor(Path("/proc/self/exe")) if Path("/proc/self/exe").exists() else theirs
    if theirs is None:
        return Flaw(f"{library}: it is no library, or only its beginning", again)
    if _is_cut_off(library):
        return Flaw(f"{library}: its end is missing", again)
    if ours is not None and theirs != ours:
        return Flaw(
            f"{library}: it is built for {theirs}, and this Python for {ours}",
            f"install the driver's library for {ours}, and look at LD_LIBRARY_PATH",
        )
    return None


def danger() -> Flaw | None:
    """Return why loading the library would end this process; None where it would not.

    The loader maps a file that is cut off as if it were whole, and dies of what is not there.
    """
    library = find(Path("/"), os.environ)
    if library is None or not _is_cut_off(library):
        return None
    return flaw(library)


def refusal() -> Flaw | None:
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
        return None if not_found else Flaw(text, "reinstall the NVIDIA driver's library")
    found = flaw(library)
    if found is not None:
        return Flaw(f"{found.words} (the loader: {text})", found.hint)
    if not_found:
        hint = f"export LD_LIBRARY_PATH={library.parent}, or add it to /etc/ld.so.conf.d"
        return Flaw(f"{library}: the loader does not look there ({text})", hint)
    return Flaw(text, f"ldd {library} names what is missing; or reinstall the driver's library")


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
