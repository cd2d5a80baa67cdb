"""A machine that stands still: clock, zone, user, host, pid, files of the system, chance.

:func:`freeze` goes before the first import of the program, which keeps some clocks as defaults of
arguments. Nothing here names a part of the program. The monotonic clock runs on: deadlines and
event loops need it, and nothing that is recorded shows it.
"""

from __future__ import annotations

import builtins
import ctypes
import datetime as dt
import importlib
import importlib.metadata
import io
import locale
import os
import platform
import pwd
import random
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW_S: Final = 1_795_300_000.0
"""Saturday, 21 November 2026, 22:26:40 UTC; the clocks were put back within the month before."""
ZONE: Final = "CET-1CEST,M3.5.0,M10.5.0/3"
VERSION: Final = "1.2.3"
HOST: Final = "lab3"
PID: Final = 4_242_424
"""Larger than any real pid can be."""
UID: Final = 1000
USER: Final = "alice"
FOREIGN: Final = "foreign"
"""Of the machines the one whose files belong to the user of a service."""
_SERVICE: Final = 999
PROGRAM: Final = "/opt/gpuwatchd/bin/gpuwatchctl"
PYTHON: Final = "/opt/gpuwatchd/bin/python"
TOOLS: Final = (
    "apprise",
    "click",
    "matplotlib",
    "msgspec",
    "numpy",
    "rich",
    "starlette",
    "textual",
)
"""Whose versions show in what is recorded."""
_MACHINE: Final = (
    "/proc",
    "/sys",
    "/run",
    "/usr/share/wayland-sessions",
    "/usr/share/xsessions",
    "/usr/local/share/",
    "/etc/gpuwatchd",
    "/etc/xdg",
    "/etc/systemd",
    "/etc/machine-id",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/group",
    "/var/lib",
    "/var/log",
    "/dev/nvidia",
    "/dev/dri",
    "/dev/kfd",
    "/.dockerenv",
)
"""What is looked for below a folder of our own."""
_FILES: Final = {
    "/proc/uptime": "400000.00 800000.00\n",
    "/proc/stat": f"btime {int(NOW_S) - 400_000}\n",
    "/proc/sys/kernel/random/boot_id": "0b007b00-1111-4222-8333-444455556666\n",
    "/proc/meminfo": "MemTotal: 131072000 kB\nMemFree: 65536000 kB\nMemAvailable: 98304000 kB\n"
    "SwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "/proc/self/mountinfo": "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n",
    "/proc/self/cgroup": "0::/user.slice\n",
    "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
}

_PACKAGE: Final = "gpuwatchd"
_REAL_UID: Final = os.geteuid()
_real_version = platform.python_version


def tools() -> dict[str, str]:
    """Return the versions of what has a hand in the texts."""
    found = {"python": ".".join(_real_version().split(".")[:2]), "system": sys.platform}
    return found | {name: importlib.metadata.version(name) for name in TOOLS}


def freeze(root: Path) -> None:
    """Stop the world for good, its own files below ``root``, before the program is imported."""
    if _PACKAGE in sys.modules:
        raise RuntimeError("the program was imported before its clock was stopped")
    for path, content in _FILES.items():
        file = root / "machine" / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    _environment(root)
    _clocks()
    _identity()
    _files(root)
    _outside()
    chance("")
    # Before anybody keeps it.
    vars(importlib.import_module(_PACKAGE))["__version__"] = VERSION


def chance(name: str) -> None:
    """Let chance be the same whenever something of this name is done."""
    drawn = random.Random(name)
    random.seed(name)
    uuid.uuid4 = lambda: uuid.UUID(int=drawn.getrandbits(128), version=4)
    secrets.token_hex = lambda nbytes=32: drawn.randbytes(nbytes or 32).hex()
    secrets.token_urlsafe = lambda nbytes=32: drawn.randbytes(nbytes or 32).hex()


def _environment(root: Path) -> None:
    os.environ.clear()
    os.environ.update(
        HOME=str(root / "home"),
        USER=USER,
        LOGNAME=USER,
        PATH=str(root / "bin"),
        TZ=ZONE,
        LANG="C.UTF-8",
        TERM="xterm-256color",
        COLORTERM="truecolor",
        TMPDIR=str(root / "tmp"),
    )
    for name in ("home", "bin", "tmp"):
        (root / name).mkdir()
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    time.tzset()
    os.umask(0o022)


def _clocks() -> None:
    local, utc, written = time.localtime, time.gmtime, time.strftime
    time.time = lambda: NOW_S
    time.time_ns = lambda: int(NOW_S) * 10**9
    # No functions: as an attribute of a class (logging has one) they would become methods.
    time.localtime, time.gmtime = _At(local), _At(utc)  # type: ignore[assignment]
    time.strftime = lambda form, at=None: written(form, local(NOW_S) if at is None else at)
    dt.datetime = _Datetime  # type: ignore[misc]
    dt.date = _Date  # type: ignore[misc]


class _At:
    """Broken-down time, by default of the instant at which the world stands."""

    def __init__(self, work: Callable[[float], time.struct_time]) -> None:
        self._work = work

    def __call__(self, at: float | None = None) -> time.struct_time:
        return self._work(NOW_S if at is None else at)


class _Kind(type):
    """Takes the library's own instants and days for ours."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])


class _Datetime(dt.datetime, metaclass=_Kind):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _Datetime:
        return cls.fromtimestamp(NOW_S, tz)

    @classmethod
    def utcnow(cls) -> _Datetime:
        return cls.fromtimestamp(NOW_S, dt.UTC).replace(tzinfo=None)

    today = now


class _Date(dt.date, metaclass=_Kind):
    @classmethod
    def today(cls) -> _Date:
        return cls.fromtimestamp(NOW_S)


def _identity() -> None:
    system = os.uname_result(("Linux", HOST, "6.1.0", "#1 SMP", "x86_64"))
    os.uname = lambda: system
    socket.gethostname = lambda: HOST
    socket.getfqdn = lambda name="": f"{HOST}.example.org"
    platform.python_version = lambda: "3.11.0"
    platform.machine = lambda: system.machine
    platform.release = lambda: system.release
    platform.node = lambda: HOST
    sqlite3.sqlite_version = "3.45.0"
    os.getpid = lambda: PID
    os.getppid = lambda: 1
    os.getuid = os.geteuid = lambda: UID
    os.getgid = os.getegid = lambda: UID
    os.getgroups = lambda: [UID]
    os.getlogin = lambda: USER
    os.cpu_count = lambda: 1
    os.getloadavg = lambda: (0.0, 0.0, 0.0)
    if hasattr(os, "sched_getaffinity"):
        os.sched_getaffinity = lambda pid: {0}
    people = {UID: USER, _SERVICE: "gpuwatchd", 0: "root"}

    def by_number(uid: int) -> pwd.struct_passwd:
        if uid not in people:
            raise KeyError(f"getpwuid(): uid not found: {uid}")
        return pwd.struct_passwd(
            (people[uid], "x", uid, uid, "", f"/home/{people[uid]}", "/bin/sh")
        )

    def by_name(name: str) -> pwd.struct_passwd:
        for uid, known in people.items():
            if known == name:
                return by_number(uid)
        raise KeyError(f"getpwnam(): name not found: {name!r}")

    pwd.getpwuid, pwd.getpwnam = by_number, by_name
    sys.argv[:] = [PROGRAM]
    sys.orig_argv[:] = [PYTHON, PROGRAM]
    sys.executable = PYTHON
    sys.prefix = sys.exec_prefix = "/opt/gpuwatchd"


def _files(root: Path) -> None:
    machine, ours = str(root / "machine"), str(root)

    def at(path: Any) -> Any:
        """Return where a path of the system is looked for."""
        if not isinstance(path, str | os.PathLike):
            return path
        words = os.fspath(path)
        return machine + words if isinstance(words, str) and words.startswith(_MACHINE) else path

    def redirected(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **more: Any) -> Any:
            return work(at(path), *args, **more)

        return call

    def looking(work: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def call(path: Any, *args: Any, **more: Any) -> os.stat_result:
            place = at(path)
            found = work(place, *args, **more)
            mine = isinstance(place, int) or str(place).startswith(ours)
            if not mine or found.st_uid != _REAL_UID:
                return found
            return _plain(found, _SERVICE if f"/worlds/{FOREIGN}" in str(place) else UID)

        return call

    os.stat, os.lstat, os.fstat = looking(os.stat), looking(os.lstat), looking(os.fstat)
    for name in ("open", "listdir", "scandir", "access", "readlink"):
        setattr(os, name, redirected(getattr(os, name)))
    io.open = builtins.open = redirected(builtins.open)
    room = os.statvfs_result((4096, 4096, 2**28, 2**27, 2**27, 2**24, 2**23, 2**23, 4096, 255))
    os.statvfs = lambda path: room


def _plain(found: os.stat_result, uid: int) -> os.stat_result:
    """Return what is known of a file of ours, as a user's and as of now."""
    fields = list(found[:10])
    fields[4] = fields[5] = uid
    more: dict[str, Any] = {"st_blksize": found.st_blksize, "st_blocks": found.st_blocks}
    for index, name in enumerate(("st_atime", "st_mtime", "st_ctime")):
        fields[7 + index] = int(NOW_S)
        more |= {name: NOW_S, f"{name}_ns": int(NOW_S) * 10**9}
    return os.stat_result(fields, {**more, "st_rdev": found.st_rdev})


def _outside() -> None:
    """Let there be no other processes, no network, no driver, no other program."""

    def kill(pid: int, number: int) -> None:
        if pid != PID or number != 0:
            raise ProcessLookupError(3, "No such process")

    os.kill = kill
    os.killpg = kill
    signal.pthread_kill = lambda thread, number: None

    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    def nameless(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    socket.socket.connect = unreachable  # type: ignore[method-assign]
    socket.create_connection = unreachable
    socket.getaddrinfo = nameless

    class Library(ctypes.CDLL):
        def __init__(self, name: Any, *args: Any, **more: Any) -> None:
            if "nvidia" in str(name):
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")
            super().__init__(name, *args, **more)

    ctypes.CDLL = Library  # type: ignore[misc]

    def none(self: object, args: Any, *_: Any, **__: Any) -> None:
        first = args if isinstance(args, str) else os.fspath(args[0])
        raise FileNotFoundError(2, "No such file or directory", first)

    subprocess.Popen.__init__ = none  # type: ignore[method-assign]


def elapsed_s() -> float:
    """Return seconds of the clock that runs on."""
    return time.perf_counter()
