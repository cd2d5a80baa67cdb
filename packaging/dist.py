"""Build the source distribution and the wheel, the same bytes whoever builds them.

``python packaging/dist.py [OUT]`` builds into ``dist/``, in place of all that earlier releases have
left there, Debian packages and signatures included; other files stay. ``--check`` builds a second
time, from the source distribution in another folder under another umask, compares, and asks twine.
The build tools are those of ``packaging/constraints-build.txt``, hash by hash.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from project import NAME, PINS_BUILD, ROOT, Failed, environment, epoch_s, run, sha256, version


def forget(out: Path) -> None:
    """Remove the files of earlier releases from a folder, and nothing else."""
    for pattern in (f"{NAME}-[0-9]*", f"{NAME}_[0-9]*", "SHA256SUMS*"):
        for path in out.glob(pattern):
            path.unlink()


def build(source: Path, out: Path) -> tuple[Path, Path]:
    """Build a source distribution from ``source`` and, from that alone, the wheel.

    Returns
    -------
    The paths of the source distribution and the wheel, in ``out``.
    """
    out.mkdir(parents=True, exist_ok=True)
    python = environment("dist", ROOT / PINS_BUILD)
    _hatch(python, source, out, "sdist")
    sdist = out / f"{NAME}-{version(source)}.tar.gz"
    with tempfile.TemporaryDirectory() as scratch:
        _hatch(python, unpack(sdist, Path(scratch)), out, "wheel")
    return sdist, out / f"{NAME}-{version(source)}-py3-none-any.whl"


def unpack(sdist: Path, into: Path) -> Path:
    """Unpack a source distribution and return its folder."""
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # the Python of Debian 12, 3.11.2, has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(into)  # noqa: S202 - we have just built it
    return into / sdist.name.removesuffix(".tar.gz")


def differences(source: Path, out: Path) -> list[str]:
    """Build again elsewhere and return the names of the files that came out different."""
    with tempfile.TemporaryDirectory(prefix="another folder ") as scratch:
        before = os.umask(0o077)
        try:
            sdist = out / f"{NAME}-{version(source)}.tar.gz"
            again = build(unpack(sdist, Path(scratch)), Path(scratch) / "out")
        finally:
            os.umask(before)
        return [path.name for path in again if sha256(path) != sha256(out / path.name)]


def same_again(source: Path, out: Path) -> None:
    """Build again elsewhere; :class:`project.Failed` when anything comes out different."""
    if unlike := differences(source, out):
        raise Failed(f"not the same when built again: {', '.join(unlike)}")


def accepted(out: Path) -> None:
    """Ask twine whether an index would take what lies in ``out``."""
    # What a release has beside them (bill of materials, licences, signatures) is for no index.
    files = sorted(str(path) for end in ("whl", "tar.gz") for path in out.glob(f"{NAME}-*.{end}"))
    run([sys.executable, "-m", "twine", "check", "--strict", *files])


def _hatch(python: Path, source: Path, out: Path, target: str) -> None:
    settings = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch_s(source)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    words = [python, "-m", "hatchling", "build", "-t", target, "-d", out]
    run(words, cwd=source, env=settings)


def main(argv: list[str] | None = None) -> int:
    """Build, check when asked, and print the hashes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--check", action="store_true", help="build twice, compare, ask twine")
    options = parser.parse_args(argv)
    try:
        if options.out.resolve() == ROOT / "dist":
            forget(options.out)
        files = build(ROOT, options.out.resolve())
        if options.check:
            same_again(ROOT, options.out.resolve())
            accepted(options.out)
    except Failed as failure:
        print(f"dist: {failure}", file=sys.stderr)
        return 1
    for path in files:
        print(f"{sha256(path)}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
