"""A file of the configuration as text, whatever lies at its place."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from gpuwatchd.core import units
from gpuwatchd.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "errors#configuration-file"
MAX_BYTES = 1 << 20
"""No configuration is larger."""


def read(path: Path, *, must_exist: bool) -> tuple[str | None, str]:
    """Return the text of a file, and what is to be said where it had to be left out.

    The text is None where there is no file, or none that we may read: the machine's file can be
    for others. A file that was asked for by name (``must_exist``) is never left out.

    Raises
    ------
    ConfigError
        When it is no text of a sensible size, or cannot be read.
    """
    try:
        with open(path, "rb", opener=_opener) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(str(path), "", f"larger than {units.size(MAX_BYTES)}", page=PAGE)
        return content.decode("utf-8"), ""
    except FileNotFoundError:
        if must_exist:
            hint = "gpuwatchctl config path names the usual file, config init writes it"
            raise ConfigError(str(path), "", "no such file", hint=hint, page=PAGE) from None
        return None, ""
    except UnicodeDecodeError:
        raise ConfigError(str(path), "", "not UTF-8 text", page=PAGE) from None
    except OSError as error:
        if not must_exist and isinstance(error, NotADirectoryError):
            return None, ""
        if not must_exist and isinstance(error, PermissionError):
            # Left out in silence, its channels would be missed only when an alert comes.
            return None, f"{path}: not readable by this user, so what it says is left out"
        raise ConfigError(str(path), "", error.strerror or "cannot be read", page=PAGE) from None


def _opener(path: str, flags: int) -> int:
    # A FIFO that nobody writes to would hold us up for ever; a shell's <(...) has its writer.
    if stat.S_ISFIFO(os.stat(path).st_mode) and not path.startswith(("/dev/fd/", "/proc/self/fd/")):  # noqa: PTH116 - the opener's path is text
        raise OSError(errno.EINVAL, "is a FIFO, not a file")
    return os.open(path, flags | os.O_NOCTTY)
