"""Directories that only we can enter, and the lock that lets one daemon in."""

from __future__ import annotations

import fcntl
import os
import stat
from typing import TYPE_CHECKING

from gpuwatchd.errors import GpuwatchdError

if TYPE_CHECKING:
    from pathlib import Path


def private_directory(path: Path) -> Path:
    """Create a directory that only we can enter; refuse one that is somebody else's.

    Raises
    ------
    GpuwatchdError
        When it is a symbolic link, belongs to another user or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise GpuwatchdError(
            f"{path}: cannot be used: {error.strerror}",
            hint="set GPUWATCHD_STATE_DIR and GPUWATCHD_RUNTIME_DIR to directories of yours",
        ) from error
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise GpuwatchdError(f"{path}: is not a directory of its own", hint="remove it")
    if status.st_uid != os.geteuid():
        raise GpuwatchdError(f"{path}: belongs to another user", hint="choose another directory")
    if stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def hold_lock(runtime_dir: Path) -> int:
    """Return the descriptor of the instance lock, held until the process ends.

    Raises
    ------
    GpuwatchdError
        When another daemon holds it; the message names its pid.
    """
    path = runtime_dir / "gpuwatchd.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise GpuwatchdError(
            f"already running with pid {holder}", hint="gpuwatchctl status shows what it sees"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle
