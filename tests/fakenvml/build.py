"""Build the stand-in library: ``python tests/fakenvml/build.py OUTDIR``."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "fakenvml.c"
LIBRARY = "libnvidia-ml.so.1"


def compiler() -> str | None:
    """Return the C compiler's path, or None."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def build(folder: Path, *flags: str) -> Path:
    """Compile into ``folder`` and return the library's path. Safe when two runs do it at once."""
    cc = compiler()
    if cc is None:
        raise FileNotFoundError("no C compiler (cc) here")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LIBRARY
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh = Path(scratch) / LIBRARY
        name = (
            f"-Wl,-install_name,{LIBRARY}" if sys.platform == "darwin" else f"-Wl,-soname,{LIBRARY}"
        )
        command = [cc, "-O2", "-shared", "-fPIC", *flags, name, "-o", str(fresh), str(SOURCE)]
        command.append("-lpthread")
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.replace(target)
    return target


def cached(*flags: str) -> Path:
    """Return the folder that holds an up-to-date library, building it when needed."""
    stamp = hashlib.sha256(SOURCE.read_bytes() + " ".join(flags).encode()).hexdigest()[:16]
    folder = HERE / "build" / stamp
    if not (folder / LIBRARY).exists():
        try:
            build(folder, *flags)
        except PermissionError:  # a read-only checkout
            folder = Path(tempfile.gettempdir()) / f"fakenvml-{os.getuid()}-{stamp}"
            if not (folder / LIBRARY).exists():
                build(folder, *flags)
    return folder


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python tests/fakenvml/build.py OUTDIR", file=sys.stderr)
        return 2
    try:
        print(build(Path(sys.argv[1])))
    except FileNotFoundError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"build.py: {error.stderr}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
