"""Directories that only we can write to, who may read in them, and the lock for one process.

A directory that lets its group in says that for all in it. The daemon decides it once, by
``[daemon] readers``, when it takes its directories; whoever writes there afterwards follows the
directory, so that no program needs the daemon's configuration.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from gpuwatchd.core.errors import GpuwatchdError

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
    """Return the mode that a directory of ours must have, which has ``mode`` now.

    A set-group-ID bit stays, so that an administrator may choose the group. No ``readers``: it
    stays its group's where it is that already.
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


LOCK_NAME = "gpuwatchd.lock"
_LOOKING_S = 0.2
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _unusable(why: str, hint: str) -> GpuwatchdError:
    return GpuwatchdError(why, hint=hint, page="errors#directory")


def private_directory(path: Path, readers: Readers | None = None) -> Path:
    """Create a directory that only we can write to; refuse one that is somebody else's.

    Without ``readers``, for all but the daemon, it stays ours alone or our group's, too, as it is.
    What is open to everybody is closed always.

    Raises
    ------
    GpuwatchdError
        When it is a symbolic link, belongs to another user or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        hint = "set GPUWATCHD_STATE_DIR and GPUWATCHD_RUNTIME_DIR to directories of yours"
        raise _unusable(f"{path}: cannot be used: {error.strerror}", hint) from error
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise _unusable(f"{path}: is not a directory of its own", "remove it")
    if status.st_uid != os.geteuid():
        raise _unusable(f"{path}: belongs to another user", "choose another directory")
    mode = directory_mode(status.st_mode, readers)
    if (status.st_mode ^ mode) & 0o077:
        try:
            path.chmod(mode)
        except OSError as error:
            raise _unusable(
                f"{path}: has the mode {stat.S_IMODE(status.st_mode):04o} and cannot be given "
                f"{mode:04o}: {error.strerror}",
                "choose another directory",
            ) from error
    if readers is not None:
        settle(path)
    return path


def hold_lock(runtime_dir: Path) -> int:
    """Return the descriptor of the instance lock, held until the process ends.

    Raises
    ------
    GpuwatchdError
        When another daemon holds it; the message names its pid.
    """
    path = runtime_dir / LOCK_NAME
    try:
        return lock_file(path, hint="gpuwatchctl status shows what it sees")
    except OSError as error:
        why = f"{path}: cannot be used as a lock: {error.strerror}"
        raise _unusable(why, "remove it") from error


def lock_file(path: Path, *, hint: str) -> int:
    """Return the descriptor of a lock, held until it is closed; the file has our pid, and stays.

    Raises
    ------
    GpuwatchdError
        When another process holds it; the message names its pid.
    OSError
        When the file cannot be made.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not _lock(handle):
        holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise GpuwatchdError(
            f"already running with pid {holder}",
            hint=hint,
            page="errors#already-running",
        )
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle


def _lock(handle: int) -> bool:
    """Say whether we got the lock; one who only looks whether it is free has it for an instant."""
    import fcntl  # noqa: PLC0415 - 0.4 ms, and `status` takes no lock

    until_s = time.monotonic() + _LOOKING_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOOKING_S / 20)
        else:
            return True


def still_locked(runtime_dir: Path, handle: int) -> bool:
    """Say whether the lock's file is still the one at its place.

    A directory that was removed takes the lock with it: the next daemon would find a free one.
    """
    try:
        stat_result = os.stat(f"{runtime_dir}/{LOCK_NAME}")  # noqa: PTH116 - once a tick
    except OSError:
        return False
    return os.path.samestat(stat_result, os.fstat(handle))


def this_boot() -> str:
    """Return what Linux calls this boot; elsewhere, and where it cannot be read, nothing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
