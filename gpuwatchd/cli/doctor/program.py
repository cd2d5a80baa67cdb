"""Is the program itself whole: interpreter, SQLite, terminal, extras, completion."""

from __future__ import annotations

import importlib.util
import os
import platform
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd import __version__
from gpuwatchd.cli import environment
from gpuwatchd.cli.doctor.answer import Check, failed, ok, warning
from gpuwatchd.core import extras

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.answer import Around

SQLITE_NEEDED = (3, 37, 0)
_EXTRAS = {"charts": "matplotlib", "chat": "apprise", "web": "uvicorn", "keyring": "keyring"}
_COMPLETIONS = (
    "share/bash-completion/completions/gpuwatchctl",
    "share/zsh/site-functions/_gpuwatchctl",
    "share/zsh/vendor-completions/_gpuwatchctl",
    "share/fish/vendor_completions.d/gpuwatchctl.fish",
)
_OWN_COMPLETIONS = (
    ".local/share/bash-completion/completions/gpuwatchctl",
    ".config/fish/completions/gpuwatchctl.fish",
)
_MANUAL = "share/man/man1/gpuwatchctl.1"


def check(around: Around) -> Iterator[Check]:
    """Yield what is wrong with the program itself."""
    yield _python()
    if sqlite3.sqlite_version_info < SQLITE_NEEDED:
        yield failed(
            "sqlite-old", "sqlite", f"SQLite {sqlite3.sqlite_version} is too old; 3.37 is needed",
            "use a newer Python build",
        )  # fmt: skip
    else:
        yield ok("sqlite", f"SQLite {sqlite3.sqlite_version}")
    yield _terminal(around)
    yield _extras()
    yield _brought(around)


def _python() -> Check:
    version = platform.python_version()
    words = f"gpuwatchd {__version__}, Python {version}, {platform.system()} {platform.release()}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return warning(
            "python-untested", "python", f"{words}: not a tested Python",
            "use Python 3.11, 3.12 or 3.13",
        )  # fmt: skip
    return ok("python", words)


def _terminal(around: Around) -> Check:
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("_", "-")
    named = around.environ.get("LC_ALL") or around.environ.get("LC_CTYPE")
    named = named or around.environ.get("LANG", "")
    if encoding not in {"utf-8", "utf8"} and not around.flags.ascii:
        return warning(
            "terminal-encoding", "terminal",
            f"text is written as {encoding} (locale {named or 'not set'}): bars and ± are lost",
            "export LC_ALL=C.UTF-8, or use --ascii",
        )  # fmt: skip
    return ok("terminal", f"text is written as {encoding}")


def _extras() -> Check:
    here = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module)]
    missing = [name for name in _EXTRAS if name not in here]
    if not missing:
        return ok("extras", f"installed: {', '.join(here)}")
    words = f"installed: {', '.join(here) or 'none'}; not installed, and not needed unless used: "
    return ok("extras", f"{words}{', '.join(missing)} ({extras.install('full')})")


def _brought(around: Around) -> Check:
    """Look where shells and man look; of a virtual environment man alone knows, and by its PATH."""
    folders = [Path(name) for name in around.environ.get("PATH", "").split(os.pathsep)]
    places = [around.root / "usr", around.root / "usr/local"]
    places += [folder.parent for folder in folders if folder.name == "bin"]
    home = Path(around.environ.get("HOME") or "/nonexistent")
    shells = [place for place in places if not (place / "pyvenv.cfg").exists()]
    tab = any((place / name).exists() for place in shells for name in _COMPLETIONS)
    tab = tab or any((home / name).exists() for name in _OWN_COMPLETIONS)
    pages = any(
        (place / f"{_MANUAL}{end}").exists() for place in places for end in ("", ".gz")
    )  # fmt: skip
    words = "completion is installed" if tab else "no completion (gpuwatchctl completion --help)"
    return ok("shell", f"{words}; {'man pages too' if pages else 'no man pages'}")


# What is around the program: device files, other people's processes, container, servers.

_FAULTS = {"device files": "device-files", "processes": "processes-hidden"}


def surroundings(around: Around) -> Iterator[Check]:
    """Yield what is around us."""
    state, _ = around.state
    found = environment.every(around.settings, state, alive=around.alive)
    for name, level, words, hint in found:
        if level == "ok":
            yield ok(name, words)
            continue
        fault = _FAULTS.get(name, "server-silent" if name.startswith("server") else "gpu-unread")
        yield warning(fault, name, words, hint)
