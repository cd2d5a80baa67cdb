"""The Debian packages of the present tree and repositories of them, built once and kept."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import project
from tests.conftest import ROOT
from tests.packaging import built

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEBIAN = ROOT / "packaging" / "debian"
KEPT_S = 3600.0
QUICK = {"DEB_COMPRESSION": "-Zgzip -z1"}
SIGNER = "packages@gpuwatchd.invalid"


def surroundings(**more: str) -> dict[str, str]:
    """Return the environment of a builder: tests hide home and settings, which pip needs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {**kept, "HOME": pwd.getpwuid(os.getuid()).pw_dir, "PYTHON": sys.executable, **more}


@cache
def key(suite: str, ours: Path) -> str:
    """Return a name for the content of all that goes into the package of a suite."""
    found = hashlib.sha256(f"{suite} {ours.name}\0".encode() + ours.read_bytes())
    folders = (DEBIAN, ROOT / "gpuwatchd" / "cli" / "completions", ROOT / "docs" / "man")
    paths = [p for folder in folders for p in folder.rglob("*") if p.suffix != ".pyc"]
    paths += [ROOT / project.PINS_FULL, ROOT / "CHANGELOG.md", ROOT / "LICENSE"]
    for path in sorted(p for p in paths if p.is_file()):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@cache
def wheel() -> Path:
    """Return our wheel: of one tree in one run of the tests, also where somebody is editing it."""
    return built.wheel()


def deb(suite: str) -> Path:
    """Return the package of the present tree for a suite."""
    ours = wheel()
    with built.alone(f"deb-{suite}"):
        out = built.SCRATCH / f"deb-{suite}-{key(suite, ours)}"
        if not out.exists():
            scratch = built.SCRATCH / f"deb-{suite}.new"
            shutil.rmtree(scratch, ignore_errors=True)
            build(suite, scratch, WHEEL=str(ours), **QUICK)
            for old in built.SCRATCH.glob(f"deb-{suite}-*"):
                if time.time() - old.stat().st_mtime > KEPT_S:
                    shutil.rmtree(old, ignore_errors=True)
            scratch.rename(out)
        (made,) = (p for p in out.glob("*.deb") if "-0~" not in p.name)
        return made


def older(suite: str) -> Path:
    """Return the same package under an older version: the previous build."""
    fresh = deb(suite)
    with built.alone(f"deb-{suite}"):
        out = fresh.with_name(fresh.name.replace("-1~", "-0~"))
        if out.exists():
            return out
        with tempfile.TemporaryDirectory() as scratch:
            tree = Path(scratch) / "tree"
            project.run(["dpkg-deb", "--raw-extract", fresh, tree])
            for file in (tree / "DEBIAN/control", tree / "usr/lib/gpuwatchd/pyvenv.cfg"):
                text = file.read_text("utf-8")
                assert "-1~" in text, f"no version in {file.name}"
                file.write_text(text.replace("-1~", "-0~"), "utf-8")
            half = out.with_suffix(".new")
            project.run(
                ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, half],
                env=surroundings(SOURCE_DATE_EPOCH=str(project.epoch_s())),
            )
            half.rename(out)
        return out


def released(suite: str) -> Path:
    """Return the package of the commit whose daemon people run."""
    top = built.released()
    (ours,) = (top / "dist").glob("*.whl")
    with built.alone(f"deb-{suite}"):
        if not (found := [*(top / "dist").glob(f"*_{suite}/*.deb")]):
            out = top / "dist" / f"deb_{suite}"
            found = [build(suite, out, top=str(top), WHEEL=str(ours), **QUICK)]
    return found[0]


def build(suite: str, out: Path, *, top: str = str(ROOT), **more: str) -> Path:
    """Run the ``packaging/debian/build`` of a tree and return the package that it made."""
    words = [f"{top}/packaging/debian/build", suite, out]
    said = project.run(words, env=surroundings(**more))
    return Path(said.strip())


@contextmanager
def signer() -> Iterator[Callable[..., Path]]:
    """Offer ``sign(out, *packages)``, which makes or enlarges a repository with one new key."""
    # The agent's socket lies in there, and a socket's path may have no more than 107 characters.
    with tempfile.TemporaryDirectory(prefix="gpg-", dir="/tmp") as home:
        env = surroundings(GNUPGHOME=home, URL="file:/srv/repo")
        words = ["--batch", "--quiet", "--passphrase", "", "--quick-generate-key"]

        def sign(out: Path, *packages: Path) -> Path:
            project.run([DEBIAN / "apt-repo", out, SIGNER, *packages], env=env)
            return out

        try:
            project.run(["gpg", *words, f"Tests <{SIGNER}>", "ed25519", "sign", "never"], env=env)
            yield sign
        finally:
            subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=env, check=False)


def repository(out: Path, *packages: Path) -> Path:
    """Make a repository at ``out``, signed by a key of its own; return ``out``."""
    with signer() as sign:
        return sign(out, *packages)
