"""Files that a job writes to save its work: the newest that fits a pattern of the user's.

Every look is bounded, in directory entries and in time, and never follows a link to a directory:
a pattern may point at a tree with millions of files, or at a server that does not answer.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import pwd
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuwatchd.core.model import ProcessInfo

MOST_ENTRIES: Final = 20_000
"""Entries of directories that one look reads."""
DEEPEST: Final = 12
"""Directories below the first wildcard."""
LONGEST_S: Final = 5.0
SETTLED_S: Final = 10.0
"""A file that has changed since may still be written; the next look takes it."""
_WILD: Final = frozenset("*?[")
_ESCAPED: Final = re.compile(r"\[([*?[])\]")


class Saved(NamedTuple):
    """A file that holds saved work."""

    at_s: float
    """When it was last written, epoch seconds."""
    path: str


class _Budget:
    """What is left of one look."""

    def __init__(self, entries: int, until_mono_s: float, mono: Callable[[], float]) -> None:
        self.entries = entries
        self._until_s = until_mono_s
        self._mono = mono

    def spend(self) -> bool:
        """Take one entry; return whether there was one left."""
        self.entries -= 1
        if self.entries % 64 == 0 and self._mono() >= self._until_s:
            self.entries = -1
        return self.entries >= 0


def newest(
    patterns: Sequence[str],
    info: ProcessInfo,
    *,
    now_s: float,
    most_entries: int = MOST_ENTRIES,
    cwd: Callable[[int], str | None] | None = None,
    mono: Callable[[], float] = time.monotonic,
) -> Saved | None:
    """Return the newest file of a process's owner, written since it began, that fits a pattern.

    Patterns are those of ``[checkpoints] paths``: "~" is the owner's home; {cwd}, {user}, {job} and
    {pid} are those of the process; "**" is any number of directories. ``now_s`` is epoch seconds.
    Nothing is known of a process without owner or start time.
    """
    begun_s = info.key.started_at_s
    if begun_s is None or info.uid is None or info.foreign:
        return None
    budget = _Budget(most_entries, mono() + LONGEST_S, mono)
    best: Saved | None = None
    for pattern in patterns:
        full = expanded(pattern, info, cwd=cwd or working_directory)
        if full is None:
            continue
        parts = [part for part in full.split("/") if part]
        for entry, stat_result in _below("/", parts, budget, 0):
            if (
                stat.S_ISREG(stat_result.st_mode)
                and stat_result.st_uid == info.uid
                and begun_s < stat_result.st_mtime <= now_s - SETTLED_S
                and (best is None or stat_result.st_mtime > best.at_s)
            ):
                best = Saved(stat_result.st_mtime, entry)
    return best


def expanded(pattern: str, info: ProcessInfo, *, cwd: Callable[[int], str | None]) -> str | None:
    """Return a pattern with what it says of the process filled in; None where that is unknown.

    What is filled in has no wildcards of its own, and names never lead elsewhere.
    """
    if pattern == "~" or pattern.startswith("~/"):
        home = _home(info.uid)
        if home is None:
            return None
        pattern = glob.escape(home) + pattern[1:]
    for word, value in (("{user}", info.user), ("{job}", info.job), ("{pid}", str(info.key.pid))):
        if word in pattern:
            if not value or "/" in value or value in {".", ".."}:
                return None
            pattern = pattern.replace(word, glob.escape(value))
    if "{cwd}" in pattern:
        place = cwd(info.key.pid)
        if place is None or not place.startswith("/"):
            return None
        pattern = pattern.replace("{cwd}", glob.escape(place.rstrip("/")))
    return pattern if pattern.startswith("/") else None


def working_directory(pid: int) -> str | None:
    """Return where a process works; None where that may not be read."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        pass
    if Path("/proc/self").exists():
        return None
    import psutil  # noqa: PLC0415 - 35 ms, only where there is no /proc

    with suppress(psutil.Error):
        return str(psutil.Process(pid).cwd())
    return None


def _home(uid: int | None) -> str | None:
    try:
        return None if uid is None else pwd.getpwuid(uid).pw_dir
    except KeyError:
        return None


def _below(
    place: str, parts: list[str], budget: _Budget, depth: int
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what fits a pattern below a place, with what its own entry says (links are links)."""
    if not parts or depth > DEEPEST:
        return
    at = 0
    while at < len(parts) and not _WILD & set(part := _plain(parts[at])):
        # Written out: no directory need be read, and the user's own links may be followed.
        place = os.path.join(place, part)  # noqa: PTH118 - thousands of them
        at += 1
    if at < len(parts):
        yield from _listed(place, parts[at:], budget, depth)
    elif budget.spend():
        with suppress(OSError):
            yield place, os.lstat(place)


def _listed(
    place: str, parts: list[str], budget: _Budget, depth: int
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what fits below a directory that must be read."""
    part, rest = parts[0], parts[1:]
    anywhere = part == "**"
    if anywhere and rest:
        yield from _below(place, rest, budget, depth + 1)
    for entry in _entries(place, budget):
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                if not rest and (anywhere or fnmatch.fnmatchcase(entry.name, part)):
                    yield entry.path, entry.stat(follow_symlinks=False)
            elif anywhere:
                yield from _below(entry.path, parts, budget, depth + 1)
            elif rest and fnmatch.fnmatchcase(entry.name, part):
                yield from _below(entry.path, rest, budget, depth + 1)


def _entries(place: str, budget: _Budget) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not budget.spend():
                    return
                yield entry
    except OSError:
        return


def _plain(part: str) -> str:
    """Return a part without the escapes of ``glob.escape``; wildcards stay."""
    return part if _WILD & set(_ESCAPED.sub("", part)) else _ESCAPED.sub(r"\1", part)
