"""What is built and set up once for all tests of the packages, kept below ``build/`` by content."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dist
import indexfiles
import pins
import project
from tests.conftest import ROOT, need, need_index, ran

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RELEASED = "dcd164969f0233ff20d8e0a80527827c9b1c8ee1"
"""The commit whose daemon people run."""
SHIPPED = ("gpuwatchd", "docs", "packaging")
PARTS = (*SHIPPED, "contrib", "tests")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile")
SCRATCH = ROOT / "build" / "packages"
KEPT_S = 7 * 86400.0
PIECES = {"__pycache__", "build"}


def key() -> str:
    """Return a name for the present content of all that goes into the packages."""
    found = hashlib.sha256(sys.version.encode())
    paths = [ROOT / name for name in FILES]
    for part in PARTS:
        paths += [p for p in (ROOT / part).rglob("*") if not PIECES & set(p.parts) and p.is_file()]
    for path in sorted(paths):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0")
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Let one of several test workers make ``name`` while the others wait for it."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with (SCRATCH / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def distributions() -> tuple[Path, Path]:
    """Return the source distribution and the wheel of the present tree."""
    need_index()  # what builds them has pins of its own
    with alone("dist"):
        out = SCRATCH / f"dist-{key()}"
        if not out.exists():
            _forget("dist-*")
            scratch = SCRATCH / "dist.new"
            shutil.rmtree(scratch, ignore_errors=True)
            dist.build(ROOT, scratch)
            scratch.rename(out)
        return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def wheel() -> Path:
    """Return the wheel of the present tree."""
    return distributions()[1]


def released() -> Path:
    """Return the tree that people run, its wheel in ``dist``; skip without git's history."""
    need(shutil.which("git"), "git is not installed")
    out = SCRATCH / f"released-{RELEASED[:7]}"
    with alone("released"):
        if not out.exists():
            words = ["git", "-C", str(ROOT), "archive", RELEASED, "--", *SHIPPED, *FILES[:4]]
            done = subprocess.run(words, capture_output=True, check=False)
            need(not done.returncode, f"not here: {done.stderr.decode().strip()}")
            scratch = SCRATCH / "released.new"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            subprocess.run(["tar", "-x", "-C", str(scratch)], input=done.stdout, check=True)
            hatched(scratch)
            scratch.rename(out)
    return out


def hatched(source: Path) -> Path:
    """Build the wheel of a tree with what the tests run with: no index is asked."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(source / "dist")]
    done = call(words, cwd=source)
    assert done.returncode == 0, done.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


def interpreter(version: str) -> Path | None:
    """Return a Python such as ``3.12`` that really starts, wherever it hides; None without one."""
    names = [shutil.which(f"python{version}")]
    if home := os.environ.get("PYENV_ROOT"):
        names += sorted(map(str, Path(home).glob(f"versions/{version}.*/bin/python{version}")))
    for name in names:
        if name and _starts(name):
            return Path(name)
    return None


@functools.cache
def _index_answers() -> bool:
    try:
        return bool(indexfiles.files_of("pip", indexfiles.configured_index()))
    except project.Failed:
        return False


def needed(version: str) -> Path:
    """Return a Python for a fresh environment; skip (in CI: fail) without it or an index."""
    found = interpreter(version)
    need(found, f"Python {version}")
    need(_index_answers(), "a package index that answers")
    assert found
    return found


def _starts(name: str) -> bool:
    # A shim of pyenv is there for every version, also for those that it will not start.
    asked = [name, "-c", "import venv"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def uv(*words: str | Path, **more: str) -> str:
    """Run uv with the index and the certificates that pip uses here; ``more`` are variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    kept["UV_DEFAULT_INDEX"] = indexfiles.configured_index()
    kept["UV_PYTHON_DOWNLOADS"] = "never"
    kept["UV_NO_CONFIG"] = "1"
    kept["UV_CACHE_DIR"] = str(ROOT / "build" / "tools" / "uv-cache")
    if "PIP_CERT" in os.environ:
        kept.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
    kept.update(more)
    with alone("uv"):
        program = pins.uv()
    return project.run([program, *words], env=kept, timeout_s=300)


def environment(python: Path, home: Path, *needs: str | Path) -> Path:
    """Return the interpreter of a new environment at ``home``; each of ``needs`` is one install."""
    uv("venv", "--quiet", "--python", python, home)
    inside = home / "bin" / "python"
    for one in needs:
        words: Sequence[str | Path] = one.split() if isinstance(one, str) else [one]
        uv("pip", "install", "--quiet", "--python", inside, *words)
    return inside


def bare(home: Path, **more: str) -> dict[str, str]:
    """Return surroundings in which nothing of this machine's Python or of its user is seen."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "LANG": "C.UTF-8",
        **more,
    }


def call(argv: Sequence[object], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run an installed program."""
    return ran(argv, **{"timeout": 60} | more)


def _forget(pattern: str) -> None:
    for old in SCRATCH.glob(pattern):
        if time.time() - old.stat().st_mtime > KEPT_S:
            shutil.rmtree(old, ignore_errors=True)
