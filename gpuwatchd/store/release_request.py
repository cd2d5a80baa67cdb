"""The request to let go of the GPUs for a while: a small file in the runtime directory.

``gpuwatchctl release`` writes it, the daemon looks for it at every tick. It names an instant, so
that a daemon that starts anew in the middle honours the rest of the time.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.core import decoding
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import Value
from gpuwatchd.store import file_modes

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "release.json"
SHORTEST_S: Final = 10.0
LONGEST_S: Final = 86_400.0
_MAX_BYTES: Final = 4096


class Request(Value, frozen=True, kw_only=True):
    """The GPUs are not to be held until an instant."""

    until_at_s: float
    asked_at_s: float

    @property
    def duration_s(self) -> float:
        """For how long it was asked."""
        return self.until_at_s - self.asked_at_s

    def left_s(self, now_s: float) -> float:
        """Return how much is left of it; never more than was asked for, wherever the clock is."""
        return min(self.until_at_s - now_s, self.duration_s)


def stamp(directory: Path) -> tuple[int, int, int] | None:
    """Return what changes when the file does; None without a file. Cheap, for every tick."""
    try:
        stat_result = os.lstat(os.path.join(directory, FILE_NAME))  # noqa: PTH118 - once a tick
    except OSError:
        return None
    return stat_result.st_ino, stat_result.st_mtime_ns, stat_result.st_size


def ask(directory: Path, duration_s: float, now_s: float) -> Request:
    """Ask for so long from now on; an earlier request is extended, never shortened.

    Raises
    ------
    StoreError
        When the file cannot be written.
    """
    until_s = now_s + min(max(duration_s, SHORTEST_S), LONGEST_S)
    try:
        before = read(directory, now_s)
    except StoreError:
        before = None
    if before is not None:
        until_s = max(until_s, now_s + before.left_s(now_s))
    request = Request(until_at_s=until_s, asked_at_s=now_s)
    path = directory / FILE_NAME
    temporary = directory / f"{FILE_NAME}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600)
        with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor
            file_modes.fit(handle, directory)
            file.write(msgspec.json.encode(request))
        temporary.replace(path)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written: {error.strerror}",
            hint="check the runtime directory's owner and free space",
            page="errors#directory",
        ) from error
    return request


def end(directory: Path) -> bool:
    """Take the request back; return whether there was one.

    Raises
    ------
    StoreError
        When the file cannot be removed.
    """
    path = directory / FILE_NAME
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be removed: {error.strerror}", page="errors#directory"
        ) from error
    return True


def read(directory: Path, now_s: float) -> Request | None:
    """Return the request that is in force, None when there is none or its time is over.

    Raises
    ------
    StoreError
        When there is a file that is no such request: not ours, too large, not understood, or for
        longer than the longest time.
    """
    path = directory / FILE_NAME
    try:
        # Not blocking: something else than a file at this place must not hold the daemon up.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            stat_result = os.fstat(handle)
            # Before it is read: a directory opens, too.
            ours = {os.geteuid(), 0, os.stat(directory).st_uid}  # noqa: PTH116 - raises as open does
            if not stat.S_ISREG(stat_result.st_mode) or stat_result.st_uid not in ours:
                raise StoreError(f"{path}: is not a file of ours", page="errors#directory")
            content = os.read(handle, _MAX_BYTES + 1)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}", page="errors#directory"
        ) from error
    request = None
    with suppress(msgspec.MsgspecError, RecursionError):
        request = decoding.decode(content, Request)
    if request is None or not request.duration_s <= LONGEST_S + 1.0:
        why = "is not a request" if request is None else "asks for more than a day"
        hint = "gpuwatchctl release --end"
        raise StoreError(f"{path}: {why}", hint=hint, page="errors#release-request")
    return request if request.until_at_s > now_s else None
