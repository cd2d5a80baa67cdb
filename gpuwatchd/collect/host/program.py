"""Looking at the files that a process runs, once, for the key of its program."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis import frameworks, program_key
from gpuwatchd.analysis.program_key import FileMark
from gpuwatchd.core.text import mask_argv

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.analysis.program_key import Launch
    from gpuwatchd.core.model import ProcessInfo

_LATE_S: Final = 2.0
"""The start of a process is known to about a second."""
_DELETED: Final = " (deleted)"


def key(
    info: ProcessInfo,
    argv: Sequence[str],
    libraries: Iterable[str] = (),
    *,
    executable: str | None = None,
    folder: str | None = None,
    root: str = "",
) -> str | None:
    """Return the key of what a process runs; None when it has none (see :mod:`programs`).

    Besides: a script that was changed after the process had started is not what runs, and neither
    is an executable that was deleted; a relative script is nobody's without its directory.

    Parameters
    ----------
    info
        Who it is.
    argv
        The whole command line, as it is.
    libraries
        Paths of the files that it has mapped.
    executable, folder
        Paths of its executable and of its working directory, where they may be read.
    root
        Where its file system begins ("/proc/7/root"), for a process in a container.
    """
    if info.framework in frameworks.GRAPHICS or (executable or "").endswith(_DELETED):
        return None
    launch = program_key.launch(mask_argv(argv, limit=len(argv)), executable)
    if launch is None or (launch.script and not launch.script.startswith("/") and not folder):
        return None
    script = _script(launch, folder or "/", root)
    begun_s = info.key.started_at_s
    late_ns = (begun_s + _LATE_S) * 1e9 if begun_s is not None else float("inf")
    if script is not None and (script.changed_ns or 0) > late_ns:
        return None
    return program_key.program_key(
        launch,
        user=info.user,
        executable=_mark(root, executable) if executable else None,
        script=script,
        library=_library(root, info.framework, libraries),
    )


def keyed(
    info: ProcessInfo, proc: str, argv: Sequence[str], libraries: Iterable[str]
) -> ProcessInfo:
    """Return a process with the :func:`key` of what it runs; ``proc`` is its place in /proc."""
    text = key(
        info,
        argv,
        libraries,
        executable=_link(f"{proc}/exe"),
        folder=_link(f"{proc}/cwd"),
        root=f"{proc}/root",
    )
    return msgspec.structs.replace(info, program=text)


def _script(launch: Launch, folder: str, root: str) -> FileMark | None:
    """Return the file that holds the code, where there is one of its own."""
    if launch.script:
        return _mark(root, posixpath.normpath(posixpath.join(folder, launch.script)))
    if not launch.module:
        return None
    inside = posixpath.join(folder, *launch.module.split("."))
    tries = (_mark(root, f"{inside}.py"), _mark(root, f"{inside}/__main__.py"))
    return next((mark for mark in tries if mark.size is not None), None)


def _library(root: str, framework: str | None, libraries: Iterable[str]) -> FileMark | None:
    """Return the file that stands for the version of a framework."""
    parts = [part for name, names in frameworks.LIBRARIES if name == framework for part in names]
    paths = sorted(path for path in libraries if any(part in path for part in parts))
    return _mark(root, paths[0]) if paths else None


def _mark(root: str, path: str) -> FileMark:
    try:
        stat_result = os.stat(f"{root}{path}")  # noqa: PTH116 - a path of another process
    except (OSError, ValueError):
        return FileMark(path)
    return FileMark(path, stat_result.st_size, stat_result.st_mtime_ns)


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return None
