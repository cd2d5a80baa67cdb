"""Directories that only we can write to, and the lock that lets one daemon in."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.store import file_modes

LOCK_NAME = "gpuwatchd.lock"
_LOOKING_S = 0.2
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _unusable(why: str, hint: str) -> GpuwatchdError:
    return GpuwatchdError(why, hint=hint, page="errors#directory")


def private_directory(path: Path, readers: file_modes.Readers | None = None) -> Path:
    """Create a directory that only we can write to; refuse one that is somebody else's.

    Parameters
    ----------
    readers
        Who may look into it: we alone, or our group too. None, for all but the daemon: it stays
        as it is, where it is one of the two. What is open to everybody is closed always.

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
    mode = file_modes.directory_mode(status.st_mode, readers)
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
        file_modes.settle(path)
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
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        why = f"{path}: cannot be used as a lock: {error.strerror}"
        raise _unusable(why, "remove it") from error
    if not _lock(handle):
        holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise GpuwatchdError(
            f"already running with pid {holder}",
            hint="gpuwatchctl status shows what it sees",
            page="errors#already-running",
        )
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle


def _lock(handle: int) -> bool:
    """Say whether we got the lock; one who only looks whether it is free has it for an instant."""
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
        stat_result = os.stat(os.path.join(runtime_dir, LOCK_NAME))  # noqa: PTH116, PTH118 - once a tick
    except OSError:
        return False
    return os.path.samestat(stat_result, os.fstat(handle))


def this_boot() -> str:
    """Return what Linux calls this boot; elsewhere, and where it cannot be read, nothing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
