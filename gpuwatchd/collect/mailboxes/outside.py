"""A process that was not prepared: where it is now, from outside, and the probe put into it.

What is run here belongs to others: py-spy, where it is installed, or the process's own program,
which root runs as the user whose process it is, and with nothing of its own environment.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.collect import mailboxes
from gpuwatchd.core.codes import OutsideFault
from gpuwatchd.core.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S: Final = 10.0
MOST_BYTES: Final = 8 << 20
MOST_THREADS: Final = 64
MOST_FRAMES: Final = 64
_REMOTE_EXEC: Final = (3, 14)
_DUMP: Final = (3, 15)
_FRAME: Final = re.compile(rb'  File "(?P<filename>.+)", line (?P<line>\d+), in (?P<name>\S+)')
"""A line of ``profiling.sampling dump``."""
_SCRIPT: Final = """\
import os, sys
try:
    os.unlink({path!r})
    sys.path.insert(0, {boot!r})
    try:
        import _gpuwatchd_probe
    finally:
        sys.path.remove({boot!r})
    _gpuwatchd_probe.attach({place!r})
except Exception:
    pass
"""
"""Runs in the process, in a name space of its own."""


def python_of(pid: int) -> tuple[int, int] | None:
    """Return the version of Python that runs a process, by its program's name; None: unknown."""
    try:
        name = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return None
    version = re.fullmatch(r"python(\d)\.(\d+)t?", name)
    return None if version is None else (int(version[1]), int(version[2]))


def stack(pid: int, uid: int) -> tuple[mailboxes.Thread, ...] | OutsideFault:
    """Return where each thread of a process is, innermost frame first; or why that is not seen."""
    version = python_of(pid)
    if version is not None and version >= _DUMP:
        said = _own_python(pid, uid, "-m", "profiling.sampling", "dump", str(pid))
    else:
        beside = str(Path(sys.executable).parent)
        spy = shutil.which("py-spy") or shutil.which("py-spy", path=beside)
        if spy is None:
            return OutsideFault.NO_TOOL
        said = _run([spy, "dump", "--nonblocking", "--json", "--pid", str(pid)])
    if isinstance(said, OutsideFault):
        return said
    if said[:1] == b"[":
        try:
            threads = decode(said, tuple[mailboxes.Thread, ...])
        except msgspec.MsgspecError:
            return OutsideFault.FAILED
    else:
        found = [mailboxes.Frame(name=text[2], filename=text[0], line=int(text[1]))
                 for text in ([part.decode("utf-8", "replace") for part in match.groups()]
                 for match in _FRAME.finditer(said))]  # fmt: skip
        threads = (mailboxes.Thread(thread_name="MainThread", frames=tuple(found[::-1])),)
    ordered = sorted(threads, key=lambda thread: thread.thread_name != "MainThread")
    shown = [
        msgspec.structs.replace(thread, frames=thread.frames[:MOST_FRAMES])
        for thread in ordered[:MOST_THREADS]
        if thread.frames
    ]
    return tuple(shown) or OutsideFault.FAILED


def unfit(pid: int) -> OutsideFault | None:
    """Return why the probe cannot be put into a process, so far as that is known before."""
    version = python_of(pid)
    if version is None or version < _REMOTE_EXEC:
        return OutsideFault.OLD_PYTHON
    if not Path(f"/proc/{pid}/root{mailboxes.BOOT}").is_dir():
        return OutsideFault.ELSEWHERE
    return None


def attach(
    pid: int, uid: int, place: Path, *, wait: Callable[[float], Any] = time.sleep
) -> OutsideFault | None:
    """Put the probe into a process, and wait until it has written its mailbox.

    Parameters
    ----------
    pid, uid
        The process and the user whose it is.
    place
        Directory of the mailboxes of that user.
    wait
        Called with seconds between two looks.

    Returns
    -------
    OutsideFault or None
        None where the probe has been started; it has no mailbox if no framework is imported.
    """
    root = Path(f"/proc/{pid}/root")
    name = f"gpuwatchd-{secrets.token_hex(16)}.py"
    script = root / "tmp" / name
    try:
        # No link on the way: the process may have made one in a root of its own.
        folder = os.open(root / "tmp", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            handle = os.open(name, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(
                _SCRIPT.format(path=f"/tmp/{name}", boot=str(mailboxes.BOOT), place=str(place))  # noqa: S108
            )
            os.fchown(handle, uid, -1)
    except OSError:
        return OutsideFault.REFUSED
    code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    said = _own_python(pid, uid, "-c", code, str(pid), f"/tmp/{name}")  # noqa: S108
    until_s = time.monotonic() + LIMIT_S
    while not isinstance(said, OutsideFault) and time.monotonic() < until_s:
        if isinstance(mailboxes.read(place, pid, uid), mailboxes.Mailbox):
            return None
        wait(0.1)
    if not isinstance(said, OutsideFault):
        # What has not begun is left there: it begins, and takes itself away, when Python runs on.
        return OutsideFault.TIMEOUT if script.exists() else None
    with suppress(OSError):
        script.unlink()
    return said


def _own_python(pid: int, uid: int, *words: str) -> bytes | OutsideFault:
    """Run the program of a process, which is a Python, as the user whose process it is."""
    program = Path(f"/proc/{pid}/exe")
    who: dict[str, Any] = {}
    if os.geteuid() == 0 != uid:
        who = {"user": uid, "group": program.parent.stat().st_gid, "extra_groups": []}
    try:
        # By this name it finds its standard library.
        name = str(program.readlink())
    except OSError:
        return OutsideFault.REFUSED
    return _run([name, "-I", *words], executable=program, env={"PATH": os.defpath}, cwd="/", **who)


def _run(command: list[str], **how: Any) -> bytes | OutsideFault:
    with tempfile.TemporaryFile() as out:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=LIMIT_S,
                check=False,
                **how,
            )
        except subprocess.TimeoutExpired:
            return OutsideFault.TIMEOUT
        except OSError:
            return OutsideFault.FAILED
        if done.returncode:
            return OutsideFault.REFUSED if _is_restricted() else OutsideFault.FAILED
        out.seek(0)
        return out.read(MOST_BYTES)


def _is_restricted() -> bool:
    """Say whether this system lets only root look into processes that are not one's children."""
    try:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii")
    except OSError:
        return False
    return os.geteuid() != 0 and scope.strip() != "0"
