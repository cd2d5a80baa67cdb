"""What the project says of itself: version, dates, dependencies; and how tools are started."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
NAME = "gpuwatchd"
PINS = "packaging/constraints.txt"
PINS_FULL = "packaging/constraints-full.txt"
PINS_BUILD = "packaging/constraints-build.txt"
PINS_DEV = "packaging/constraints-dev.txt"
UNDATED_EPOCH_S = 1_580_601_600
"""The instant inside archives while no version is dated: 2 February 2020, as hatchling has it."""

_SECTION = re.compile(
    r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?\s*$", re.MULTILINE
)


class Failed(Exception):
    """Something that a maintainer must mend: one line, and what to do."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


def pyproject(root: Path = ROOT) -> dict[str, Any]:
    """Return ``pyproject.toml`` as a dictionary."""
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))


def version(root: Path = ROOT) -> str:
    """Return the version that the package gives itself."""
    found = re.search(
        r'^__version__ = "([^"]+)"$', (root / NAME / "__init__.py").read_text("utf-8"), re.MULTILINE
    )
    if not found:
        raise Failed(f"{NAME}/__init__.py has no __version__")
    return found[1]


def sections(root: Path = ROOT) -> Iterator[tuple[str, dt.date | None, str]]:
    """Yield the name, the date and the text of each version in the changelog, newest first."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    heads = list(_SECTION.finditer(text))
    for index, head in enumerate(heads):
        after = heads[index + 1] if index + 1 < len(heads) else None
        try:
            date = dt.date.fromisoformat(head["date"]) if head["date"] else None
        except ValueError as error:
            raise Failed(f"CHANGELOG.md: {head['date']} is no date") from error
        yield head["name"], date, text[head.end() : after.start() if after else None].strip()


def epoch_s(root: Path = ROOT) -> int:
    """Return the instant that every archive carries: midnight (UTC) of the newest dated version.

    It comes from the changelog, not from git, so that the source distribution builds the same.
    """
    dates = [date for _, date, _ in sections(root) if date]
    if not dates:
        return UNDATED_EPOCH_S
    midnight = dt.datetime.combine(max(dates), dt.time(), dt.UTC)
    return int(midnight.timestamp())


def run(
    argv: Sequence[object],
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> str:
    """Run a tool and return what it printed.

    Raises
    ------
    Failed
        When it cannot be started or ends with anything but 0; with its last lines.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env, timeout=timeout_s, text=True, capture_output=True, check=False
        )
    except OSError as error:
        raise Failed(f"{words[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(words[:4])} took longer than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise Failed(f"{' '.join(words[:5])} ended with {done.returncode}:\n{last}")
    return done.stdout


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def environment(name: str, requirements: Path) -> Path:
    """Return the interpreter of a private environment that has exactly ``requirements``.

    It lies in ``build/tools`` and is used again until the requirements or the interpreter change.
    """
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = ROOT / "build" / "tools" / f"{name}-{key}"
    python = home / "bin" / "python"
    stamp = home / "complete"
    if not stamp.exists():
        venv.create(home, with_pip=True, clear=True, symlinks=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--require-hashes", "-r", requirements])
        stamp.touch()
    return python
