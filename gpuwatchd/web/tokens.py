"""The token: 32 random bytes in a file that its owner alone can read.

Whoever has it may read everything here and snooze alerts. It travels in one header only, and is
compared in constant time.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "web-token"
BYTES: Final = 32
_CHARS: Final = 43
"""Of 32 bytes in the alphabet that addresses may have."""
_MAX_BYTES: Final = 256
_PAGE: Final = "errors#web-token"
_NEW: Final = "gpuwatchctl web --new-token writes another"


class TokenError(GpuwatchdError):
    """The file of the token cannot be used."""

    default_page = _PAGE


class Tokens:
    """The token in force, read again whenever its file has changed.

    Parameters
    ----------
    path
        Its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._uid = os.geteuid()
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def current(self) -> str:
        """Return the token; "" where there is none that could be trusted."""
        if os.geteuid() != self._uid:
            return self._token  # root writes as the history's owner just now, who may not look
        try:
            stat_result = self.path.lstat()
            seen = (stat_result.st_ino, stat_result.st_mtime_ns, stat_result.st_ctime_ns)
            if seen != self._seen:
                self._token = read(self.path)
                self._seen = seen
        except (OSError, GpuwatchdError):
            if os.geteuid() == self._uid:
                self._seen, self._token = None, ""
        return self._token

    def fits(self, given: str) -> bool:
        """Say whether somebody has the token. Without one nobody has."""
        mine = self.current()
        return bool(mine) and hmac.compare_digest(given.encode(), mine.encode())

    def masked(self, words: str) -> str:
        """Return a text without the token, which somebody may have put where it does not belong."""
        mine = self.current()
        return words.replace(mine, text.MASK) if mine else words


def kept(path: Path) -> str:
    """Return the token of a file; where there is none, a new one is written.

    Raises
    ------
    TokenError
        When the file is not its owner's alone, is no file, or cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        return read(path)
    _write(path, replace=False)
    return read(path)  # of two programs that start at once, the first has written it


def renew(path: Path) -> str:
    """Write a new token in place of the old one, which is good for nothing from now on.

    Raises
    ------
    TokenError
        When it cannot be written.
    """
    _write(path, replace=True)
    return read(path)


def read(path: Path) -> str:
    """Return the token of a file; the checks are made on the opened file itself.

    Raises
    ------
    FileNotFoundError
        When there is none.
    TokenError
        When it could be somebody else's, or somebody else can read it.
    """
    value = text.clean(str(path))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise TokenError(f"token file {value}: {why}", hint=_NEW) from None
    try:
        stat_result = os.fstat(handle)
        data = os.read(handle, _MAX_BYTES) if stat.S_ISREG(stat_result.st_mode) else b""
    finally:
        os.close(handle)
    if stat_result.st_uid not in {os.geteuid(), 0}:
        raise TokenError(f"token file {value}: it belongs to another user", hint=_NEW)
    if stat_result.st_mode & 0o077:
        mode = stat_result.st_mode & 0o777
        why = f"others can read it (mode {mode:04o})"
        raise TokenError(f"token file {value}: {why}", hint=_NEW)
    token = data.decode("ascii", "replace").strip()
    if len(token) < _CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenError(f"token file {value}: no token in it", hint=_NEW)
    return token


def _write(path: Path, *, replace: bool) -> None:
    """Write a new token under a name of its own, then move it: nobody ever sees half of one."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(
            aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            with open(handle, "w", encoding="ascii") as file:  # noqa: PTH123
                os.fchmod(handle, 0o600)
                file.write(f"{secrets.token_urlsafe(BYTES)}\n")
                file.flush()
                os.fsync(handle)
            if replace:
                aside.replace(path)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
    except OSError as error:
        value = text.clean(str(path))
        raise TokenError(
            f"token file {value}: {error.strerror}",
            hint='[web] token-file = "FILE" names another place',
        ) from error
