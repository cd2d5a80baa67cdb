"""Write the pinned dependencies: every file's hash, for Python 3.11 and later, Linux and macOS.

``constraints.txt`` is what the program needs, ``constraints-full.txt`` with all extras, and
``constraints-build.txt`` what builds the package. ``constraints-dev.txt`` are the versions, without
hashes, of what develops and tests it: CI installs those. No address is in them. ``uv`` resolves; it
is fetched into ``build/tools`` for this alone. The index is the one that pip is configured with.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from indexfiles import configured_index
from project import NAME, PINS, PINS_BUILD, PINS_DEV, PINS_FULL, ROOT, Failed, pyproject, run

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTRAS_NOT_SHIPPED = ("dev", "bench")
PLATFORMS = ("sys_platform == 'linux'", "sys_platform == 'darwin'")
PYTHONS = ("3.11", "3.12", "3.13")
HEADER = """\
# {what}
# Every file of every version is named by its hash; written by `make pins`.
#   {use}
"""
DEV_HEADER = """\
# What develops and tests gpuwatchd; written by `make pins`, used where CI=true.
"""
HASHES = "--generate-hashes"
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>.*))?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?!\S)")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One line of a file of pins."""

    name: str
    version: str
    marker: str | None
    hashes: frozenset[str]

    def holds(self, python: str, platform: str) -> bool:
        """Say whether this line is meant for a Python (``3.12``) on ``linux`` or ``darwin``."""
        return self.marker is None or Marker(self.marker).evaluate(surroundings(python, platform))


def surroundings(python: str, platform: str) -> Mapping[str, str]:
    """Return what markers are asked about, for a Python (``3.12``) on ``linux`` or ``darwin``."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": platform,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[platform],
        "os_name": "posix",
        "platform_machine": {"linux": "x86_64", "darwin": "arm64"}[platform],
        "extra": "",
    }


def parse(text: str) -> list[Pin]:
    """Read pins.

    Raises
    ------
    Failed
        Where a line is no pin, or has no hash.
    """
    pins = []
    whole = re.sub(r"\\\n\s*", " ", text)
    for line in whole.splitlines():
        words = line.partition(" #")[0].strip()
        if not words or words.startswith("#"):
            continue
        hashes = frozenset(_HASH.findall(words))
        found = _PIN.match(words.partition(" --hash")[0].strip())
        if not found or not hashes or len(hashes) != words.count("--hash="):
            raise Failed(f"not a pinned version with its hashes: {words[:60]}", "make pins")
        pins.append(
            Pin(
                name=canonicalize_name(found["name"]),
                version=found["version"],
                marker=found["marker"],
                hashes=hashes,
            )
        )
    return pins


def read(path: Path) -> list[Pin]:
    """Read a file of pins."""
    return parse(path.read_text("utf-8"))


def uv() -> Path:
    """Return the resolver, fetched once into an environment of its own."""
    home = ROOT / "build" / "tools" / "uv"
    program = home / "bin" / "uv"
    if not program.exists():
        venv.create(home, with_pip=True, clear=True, symlinks=True)
        run([home / "bin" / "python", "-m", "pip", "install", "--quiet", "uv"])
    return program


def resolve(folder: Path, *options: str) -> str:
    """Resolve the project in ``folder`` and return the pins."""
    words: list[object] = [uv(), "pip", "compile", "--universal", "--quiet"]
    words += ["--no-header", "--python-version", PYTHONS[0], "--index-url", configured_index()]
    found = run([*words, *options, "pyproject.toml"], cwd=folder, env=_clean(folder))
    return re.sub(r"^ +#   -c .*\n", "", found, flags=re.MULTILINE).replace(
        f"{NAME} (pyproject.toml)", NAME
    )


def _clean(folder: Path) -> dict[str, str]:
    # Settings of whoever releases have no say. `--no-config` would drop the platforms, too.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    return {**kept, "XDG_CONFIG_HOME": str(folder), "XDG_CONFIG_DIRS": str(folder)}


def write(root: Path = ROOT) -> list[Path]:
    """Write all four files; those of versions that are still right may move forward."""
    project = pyproject(root)
    extras = dict(project["project"]["optional-dependencies"])
    of_developers = {name: extras.pop(name, []) for name in EXTRAS_NOT_SHIPPED}
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _project(folder, project["project"]["dependencies"], extras)
        full = resolve(folder, "--all-extras", HASHES)
        (folder / "full.txt").write_text(full)
        core = resolve(folder, "--constraints", "full.txt", HASHES)
        _project(folder, project["build-system"]["requires"], {})
        tools = resolve(folder, HASHES)
        (folder / "tools.txt").write_text(tools)
        _project(folder, project["project"]["dependencies"], extras | of_developers)
        fixed = ("--constraints", "full.txt", "--constraints", "tools.txt")
        dev = resolve(folder, "--all-extras", "--no-annotate", *fixed)
    (root / PINS_DEV).write_text(DEV_HEADER + dev, "utf-8")
    for name, text, what, use in (
        (PINS, core, "What gpuwatchd needs.", f"pip install --require-hashes -r {PINS}"),
        (
            PINS_FULL,
            full,
            "The same, and all extras.",
            f"pip install --require-hashes -r {PINS_FULL}",
        ),
        (
            PINS_BUILD,
            tools,
            "What builds the package.",
            f"pip install --require-hashes -r {PINS_BUILD}",
        ),
    ):
        parse(text)
        (root / name).write_text(HEADER.format(what=what, use=use) + text, "utf-8")
        written.append(root / name)
    return written


def _project(folder: Path, needs: list[str], extras: Mapping[str, list[str]]) -> None:
    # Without [tool.uv] the answer would cover Windows too; pyproject.toml itself needs no such key.
    lines = [
        "[project]",
        f'name = "{NAME}"',
        'version = "0"',
        f'requires-python = ">={PYTHONS[0]}"',
    ]
    lines += [f"dependencies = {json.dumps(needs)}", "[project.optional-dependencies]"]
    lines += [f"{name} = {json.dumps(words)}" for name, words in extras.items()]
    lines += ["[tool.uv]", f"environments = {json.dumps(PLATFORMS)}"]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Write the pins."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args(argv)
    try:
        for path in write():
            print(f"{len(read(path)):4d} pins in {path.relative_to(ROOT)}")
    except Failed as failure:
        print(f"pins: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
