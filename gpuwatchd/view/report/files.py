"""The files that a report or a chart is written to: how they are named, and written whole."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import base

if TYPE_CHECKING:
    from gpuwatchd.view.report.usage import Asked

FORMATS = {".html": "html", ".htm": "html", ".json": "json", ".txt": "text", ".text": "text"}
"""What a name ends with -> what is written."""
_MODE = 0o600
"""As the history that it comes from: it names users, programs and their jobs."""


def named(asked: Asked) -> Path:
    """Return the name of a page that was given none: machine and days, in the current folder."""
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", base.host())[:64] or "machine"
    first, last = (
        time.strftime("%Y-%m-%d", time.localtime(at)) for at in (asked.since_s, asked.until_s)
    )
    days = first if first == last else f"{first}-to-{last}"
    return Path(f"gpu-report-{host}-{days}.html")


def write(file: Path, content: str | bytes) -> None:
    """Write a file whole: nobody ever sees half of one, and an older one stays if it fails.

    Raises
    ------
    GpuwatchdError
        When it is a folder, or its folder cannot be written.
    """
    # A link is followed: who has one there wants its target replaced.
    target = Path(os.path.realpath(file))
    if target.is_dir():
        raise _error(f"{file} is a folder", f"name a file in it: {file / 'gpu-report.html'}")
    temporary = ""
    data = content.encode() if isinstance(content, str) else content
    try:
        if file.exists() and not file.is_file():  # such as /dev/stdout or a pipe
            file.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), _MODE)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(target)
        temporary = ""
    except OSError as error:
        why = error.strerror or str(error)
        folder = file.parent
        hint = f"name a file in a folder that you may write to, such as {Path.home() / file.name}"
        if not folder.exists():
            hint = f"there is no folder {folder}: mkdir -p {folder}"
        raise _error(f"{file}: cannot be written: {why}", hint) from error
    finally:  # also when it was interrupted
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _error(message: str, hint: str) -> GpuwatchdError:
    return GpuwatchdError(message, hint=hint, page="errors#report-not-written")
