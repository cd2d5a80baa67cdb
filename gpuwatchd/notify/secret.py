"""Reading a secret from a file that nobody else may read."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from gpuwatchd import text
from gpuwatchd.errors import NotifyError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 4096


def read_secret(path: Path, *, guarded: bool) -> str:
    """Return the first line of a secret file; the checks are made on the opened file itself.

    Parameters
    ----------
    path
        The file; a link to it is fine.
    guarded
        True when the service manager guards its directory: then its mode does not matter.

    Raises
    ------
    NotifyError
        Permanent: missing, no regular file, readable by group or others, empty, not UTF-8.
    """
    shown = text.clean(str(path))
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise NotifyError(
            f"password file {shown}: {error.strerror}",
            permanent=True,
            hint="write the password into it and chmod 600",
        ) from None
    if not guarded and status.st_mode & 0o077:
        raise NotifyError(
            f"password file {shown}: others can read it (mode {status.st_mode & 0o777:04o})",
            permanent=True,
            hint=f"chmod 600 {shown}",
        )
    try:
        secret = data.decode("utf-8").split("\n", 1)[0].rstrip("\r")
    except UnicodeDecodeError:
        secret = ""
    if not secret:
        raise NotifyError(
            f"password file {shown}: no password in it",
            permanent=True,
            hint="the password is its first line, as plain text",
        )
    return secret


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for a writer: a FIFO planted in the file's place must not hang us."""
    return os.open(path, flags | os.O_NONBLOCK)
