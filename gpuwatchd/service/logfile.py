"""The daemon's log where it is a file of its own: from an instant and a level on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from gpuwatchd.core import text
from gpuwatchd.core.errors import ServiceError
from gpuwatchd.service.runner import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

LAST_LINES = 5
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_STAMP = "%Y-%m-%d %H:%M:%S"
_TAIL_BYTES = 65536


def chosen(lines: Iterable[str], *, since_at_s: float | None, level: str) -> Iterator[str]:
    """Yield the lines from an instant and a level on.

    Parameters
    ----------
    lines
        Of the log; one that does not begin with time and level belongs to the one before it.
    since_at_s
        Epoch seconds; None: all.
    level
        "debug", "info", "warning" or "error".

    Examples
    --------
    >>> log = ["2026-11-22 01:20:17,123 INFO a", "2026-11-22 01:20:18,000 ERROR b", "  more of b"]
    >>> list(chosen(log, since_at_s=None, level="warning"))
    ['2026-11-22 01:20:18,000 ERROR b', '  more of b']
    """
    least = _LEVELS.index(level.upper())
    wanted = False
    for line in lines:
        stamp, _, rest = line.partition(",")
        word = rest[4:].partition(" ")[0]
        with contextlib.suppress(ValueError, OverflowError):
            at_s = time.mktime(time.strptime(stamp, _STAMP))
            if word in _LEVELS:
                recent = since_at_s is None or at_s >= int(since_at_s)
                wanted = recent and _LEVELS.index(word) >= least
        if wanted:
            yield line


def last_lines(file: Path) -> tuple[str, ...]:
    """Return the last lines, safe to print; none where there is no log."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            lines = log.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(text.clean(line) for line in lines[-LAST_LINES:])


def show_lines(
    file: Path,
    environ: Mapping[str, str],
    *,
    lines: int,
    follow: bool,
    since_at_s: float | None,
    level: str,
) -> int:
    """Print the last of the chosen lines, and those that come; return the viewer's exit code.

    Parameters
    ----------
    file
        The log.
    environ
        Environment of the viewer.
    lines, follow
        How many, and whether to go on as lines come.
    since_at_s, level
        As for :func:`chosen`.

    Raises
    ------
    ServiceError
        When there is no log.
    """
    try:
        with file.open(encoding="utf-8", errors="replace") as log:
            texts = deque(chosen(log, since_at_s=since_at_s, level=level), maxlen=lines)
    except OSError as error:
        raise ServiceError("launchd", f"reading {file}", error.strerror or "impossible") from error
    sys.stdout.writelines(texts)
    sys.stdout.flush()
    return _follow(file, environ, since_at_s=since_at_s, level=level) if follow else 0


def _follow(file: Path, environ: Mapping[str, str], *, since_at_s: float | None, level: str) -> int:
    try:
        viewer = subprocess.Popen(
            ["tail", "-n", "0", "-F", str(file)],
            env=dict(environ), stdout=subprocess.PIPE, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except FileNotFoundError:
        return NOT_FOUND
    try:
        for line in chosen(viewer.stdout or (), since_at_s=since_at_s, level=level):
            sys.stdout.write(line)
            sys.stdout.flush()
        return viewer.wait()
    finally:
        viewer.terminate()
