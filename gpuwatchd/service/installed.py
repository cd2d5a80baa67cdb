"""Whether another version of the program has been installed over the running one.

A package manager replaces files under a running daemon and leaves it running, as it should: but the
daemon still imports parts of itself when they are first needed, and would then mix two versions.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpuwatchd

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("gpuwatchd")

SETTLED_S: Final = 60.0
"""An installation that has not changed for this long is complete."""


class Installed:
    """The installation that this process was started from.

    Parameters
    ----------
    files
        What tells one installation from another; by default the file of our version and of the day
        when modules moved last, and that of the virtual environment: a package notes its own there.
    program
        What was started; by default the script that this process runs. Homebrew puts every version
        into a folder of its own and lets this path lead to the newest.
    """

    def __init__(self, files: Sequence[Path] | None = None, program: Path | None = None) -> None:
        usual = (Path(gpuwatchd.__file__), Path(sys.prefix) / "pyvenv.cfg")
        self._files = tuple(usual if files is None else files)
        self._program = Path(sys.argv[0] if program is None else program).absolute()
        self._led_to = os.path.realpath(self._program)
        self._told = False
        self._marks = self._file_states()
        self._begun = self._content()

    def replaced(self, now_s: float | None = None) -> bool:
        """Say whether it is another one now, and complete; cheap, asked every tick.

        While a file that we had is missing nothing is complete: an upgrade is under way, or we were
        removed.

        Parameters
        ----------
        now_s
            Unix time, in seconds; by default that of the clock.
        """
        marks = self._file_states()
        moved = self.moved_to() is not None
        if (marks == self._marks and not moved) or self._begun is None:
            return False
        now_s = time.time() if now_s is None else now_s
        looked_at = (_mark(self._program),) if moved else marks
        ages = [now_s - ctime_ns / 1e9 for _, ctime_ns in filter(None, looked_at)]
        # A clock that was set back says nothing of the age.
        if any(0 <= age_s < SETTLED_S for age_s in ages):
            return False
        content = self._content()
        if content == self._begun:
            # Written again as it was: looked into once, not every tick from now on.
            self._marks = marks
        fresh = moved or content not in {None, self._begun}
        if fresh and not self._told:
            log.info("another version of gpuwatchd has been installed")
            self._told = True
        return fresh

    def moved_to(self) -> str | None:
        """Return the program to start where its path leads to another file than it did, or None."""
        leads_to = os.path.realpath(self._program)
        moved = leads_to != self._led_to and os.access(leads_to, os.X_OK)
        return str(self._program) if moved else None

    def _file_states(self) -> tuple[tuple[int, int] | None, ...]:
        """Return which file is there now, and since when (in ns), for each of them."""
        return tuple(_mark(file) for file in self._files)

    def _content(self) -> tuple[bytes | None, ...] | None:
        content = tuple(_bytes(file) for file in self._files)
        had = zip(self._marks, content, strict=True)
        gone = content[0] is None or any(mark and text is None for mark, text in had)
        return None if gone else content


def _mark(file: Path) -> tuple[int, int] | None:
    try:
        stat_result = file.stat()
    except OSError:
        return None
    return stat_result.st_ino, stat_result.st_ctime_ns


def _bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None
