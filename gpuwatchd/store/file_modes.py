"""Who may read a file of ours: a directory that lets its group in says that for all in it.

The daemon decides it once, by ``[daemon] readers``, when it takes its directories; whoever writes
there afterwards follows the directory, so that no program needs the daemon's configuration.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pathlib import Path

Readers = Literal["user", "group"]
PRIVATE_DIRECTORY: Final = 0o700
SHARED_DIRECTORY: Final = 0o750
PRIVATE_FILE: Final = 0o600
SHARED_FILE: Final = 0o640
_OTHERS: Final = 0o077
_SHARED: Final = ("state.json", "boot.json", "release.json", "history.db")
"""Beginnings of the names that a group reads: not the lock, the bell, or what hangs on a screen."""


def is_shared(mode: int) -> bool:
    """Say whether a directory of this mode is for its group to read, and closed to all others."""
    return mode & _OTHERS == SHARED_DIRECTORY & _OTHERS


def directory_mode(mode: int, readers: Readers | None) -> int:
    """Return the mode that a directory of ours must have.

    Parameters
    ----------
    mode
        What it has; a set-group-ID bit stays, so that an administrator may choose the group.
    readers
        None leaves a directory to its group where it is that already.
    """
    shared = is_shared(mode) if readers is None else readers == "group"
    return (SHARED_DIRECTORY if shared else PRIVATE_DIRECTORY) | (mode & stat.S_ISGID)


def file_mode(directory: str | Path) -> int:
    """Return the mode of a file in a directory of ours; private where that cannot be told."""
    try:
        return SHARED_FILE if is_shared(os.stat(directory).st_mode) else PRIVATE_FILE  # noqa: PTH116 - once a tick
    except OSError:
        return PRIVATE_FILE


def fit(handle: int, directory: str | Path) -> None:
    """Give a new, private file the mode that its directory asks for; the umask has no say.

    Raises
    ------
    OSError
        When its file system refuses.
    """
    mode = file_mode(directory)
    if mode != PRIVATE_FILE:
        os.fchmod(handle, mode)


def settle(directory: Path) -> None:
    """Give every file that a group may read the mode of its directory.

    After the readers have changed, and after a crash that left side files of a history.
    """
    mode = file_mode(directory)
    with suppress(OSError), os.scandir(directory) as iterator:
        for entry in iterator:
            if not entry.name.startswith(_SHARED) or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(OSError):  # of somebody else, or on a read-only file system
                settle_file(entry.path, mode)


def settle_file(path: str | Path, mode: int) -> None:
    """Give others the rights on a file of ours that a mode names; the owner's stay.

    Raises
    ------
    OSError
        When there is no such file, or its file system refuses.
    """
    stat_result = os.lstat(path)
    if not stat.S_ISREG(stat_result.st_mode) or stat_result.st_uid != os.geteuid():
        return
    if stat_result.st_mode & _OTHERS != mode & _OTHERS:
        os.chmod(path, stat.S_IMODE(stat_result.st_mode) & ~_OTHERS | (mode & _OTHERS))  # noqa: PTH101
