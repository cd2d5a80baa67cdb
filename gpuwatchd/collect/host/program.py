"""What a process runs: the files, for the key of its program; its parents; how it was started."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatchd.analysis import frameworks, program_key
from gpuwatchd.analysis.frameworks.engine_addresses import VARIABLES, Launch
from gpuwatchd.analysis.program_key import FileMark
from gpuwatchd.collect.host.procfs import boot_time, full_name, parse_stat, read_bytes, words_of
from gpuwatchd.core.model import ProcessInfo, ProcessKey
from gpuwatchd.core.text import clean, mask_argv, mask_title

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpuwatchd.collect.host.procfs import Stat


MOST_ANCESTORS: Final = 6
_LAUNCH_BYTES: Final = 128 * 1024
_SAME_S: Final = 1.5
"""Start times that differ by less are of one process: some count from a rounded boot."""


def launches(
    key: ProcessKey,
    booted_at_s: float | None = None,
    proc_root: str | Path = "/proc",
    variables: Collection[str] = VARIABLES,
) -> tuple[Launch, ...]:
    """Return how a process and its ancestors were started, nearest first.

    Empty when the process has ended, or its number belongs to another one by now: a process of a
    log or of a simulation is never taken for one that runs here.

    Its start time counts from ``booted_at_s``; None takes what the kernel says now. Without /proc
    psutil answers. Of each environment only ``variables`` are taken.
    """
    proc = Path(proc_root)
    if key.started_at_s is None or key.pid <= 0:
        return ()
    if not (proc / "stat").exists():
        return _by_psutil(key)
    booted_s = boot_time(proc) if booted_at_s is None else booted_at_s
    if booted_s is None:
        return ()
    found: list[Launch] = []
    pid = key.pid
    while pid > 1 and len(found) <= MOST_ANCESTORS:
        folder = proc / str(pid)
        stat = parse_stat(read_bytes(folder / "stat"))
        if stat is None:
            break
        if not found:
            started_s = booted_s + stat.starttime / os.sysconf("SC_CLK_TCK")
            if abs(started_s - key.started_at_s) > _SAME_S:
                return ()
        raw = read_bytes(folder / "cmdline", _LAUNCH_BYTES).rstrip(b"\0")
        argv = tuple(word.decode("utf-8", "replace") for word in raw.split(b"\0")) if raw else ()
        environ = read_bytes(folder / "environ", _LAUNCH_BYTES)
        found.append(Launch(pid, argv, _variables(environ, variables)))
        pid = stat.parent_pid
    return tuple(found)


def _variables(environ: bytes, names: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the few variables that were asked for, and nothing else."""
    pairs = []
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode("ascii", "replace") in names:
            pairs.append((name.decode("ascii"), value.decode("utf-8", "replace")))
    return tuple(pairs)


def _by_psutil(key: ProcessKey) -> tuple[Launch, ...]:
    """Return the same where there is no /proc; not verified on macOS hardware."""
    import psutil  # noqa: PLC0415 - 35 ms, only where there is no /proc

    found: list[Launch] = []
    try:
        process = psutil.Process(key.pid)
        if abs(process.create_time() - (key.started_at_s or 0.0)) > _SAME_S:
            return ()
        family = (process, *process.parents()[:MOST_ANCESTORS])
        found.extend(Launch(one.pid, tuple(one.cmdline())) for one in family if one.pid > 1)
    except (psutil.Error, OSError):
        return tuple(found)  # as far as it may be read
    return tuple(found)


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
    """Return the key of what a process runs; None when it has none (see :mod:`program_key`).

    Besides: a script that was changed after the process had started is not what runs, and neither
    is an executable that was deleted; a relative script is nobody's without its directory.

    ``libraries`` are the files that it has mapped; ``root`` is where its file system begins
    ("/proc/7/root"), for a process in a container.
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


def _script(launch: program_key.Launch, folder: str, root: str) -> FileMark | None:
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


# Who started a process: its ancestors, nearest first.

MOST: Final = 8
"""Ancestors told at most."""
_BEYOND: Final = frozenset(
    {
        *("systemd", "(sd-pam)", "init", "sshd", "sshd-session", "login", "launchd", "cron"),
        *("containerd-shim", "containerd-shim-runc-v2", "conmon", "dockerd", "lxc-start"),
    }
)
"""What starts everything says nothing about whose work something is."""
_ARGV_BYTES: Final = 1024
_WORDS: Final = 8
_WORD_CHARS: Final = 128
"""The beginning of a command line says what runs; a shell's may be a whole script."""


class Ancestor(NamedTuple):
    """One process that started another."""

    pid: int
    starttime: int
    """Clock ticks since boot."""
    name: str
    argv: tuple[str, ...]
    """How its command line begins, secrets masked."""

    @property
    def label(self) -> str:
        """Name with the script that it runs, and pid: "torchrun[4700]"."""
        key = ProcessKey(pid=self.pid, started_at_s=None)
        label = ProcessInfo(key=key, name=self.name, argv=self.argv).label
        return f"{clean(label, limit=48)}[{self.pid}]"


def ancestors(proc: Path, pid: int, stat: Stat) -> tuple[Ancestor, ...]:
    """Return the ancestors of a process, nearest first.

    Up to the shell of a terminal, and never what starts everything: init, a login, the runtime of
    a container. A parent that began after its child is another process with a reused number.
    """
    chain: list[Ancestor] = []
    met = {pid}
    while len(chain) < MOST and not stat.leads_terminal:
        pid, born = stat.parent_pid, stat.starttime
        if pid <= 1 or pid in met:
            break
        met.add(pid)
        found = parse_stat(read_bytes(f"{proc}/{pid}/stat"))
        if found is None or found.starttime > born:
            break
        stat = found
        argv = words_of(read_bytes(f"{proc}/{pid}/cmdline", _ARGV_BYTES))
        name = mask_title(full_name(stat.name, argv))
        if name in _BEYOND:
            break
        begin = mask_argv((word[:_WORD_CHARS] for word in argv), limit=_WORDS)
        chain.append(Ancestor(pid, stat.starttime, name, begin))
    return tuple(chain)
