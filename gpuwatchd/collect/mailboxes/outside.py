"""A process that was not prepared: where it is now, from outside, and the probe put into it.

What is run here belongs to others: py-spy, where it is installed, or the process's own program,
which root runs as the user whose process it is, and with nothing of its own environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuwatchd.collect import mailboxes
from gpuwatchd.core.codes import OutsideFault
from gpuwatchd.core.decoding import decode

LIMIT_S: Final = 10.0
MOST_BYTES: Final = 8 << 20
MOST: Final = 64
"""Threads, and frames of each."""
_REMOTE_EXEC: Final = (3, 14)
_DUMP: Final = (3, 15)
_FRAME: Final = re.compile(r'  File "(.+)", line (\d+), in (\S+)')
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
except Exception:  # nothing of ours may reach the job
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
        output = _own_python(pid, uid, "-m", "profiling.sampling", "dump", str(pid))
    else:
        beside = str(Path(sys.executable).parent)
        spy = shutil.which("py-spy") or shutil.which("py-spy", path=beside)
        if spy is None:
            return OutsideFault.NO_TOOL
        output = _run([spy, "dump", "--nonblocking", "--json", "--pid", str(pid)])
    if isinstance(output, OutsideFault):
        return output
    if output[:1] == b"[":
        try:
            threads = decode(output, tuple[mailboxes.Thread, ...])
        except msgspec.MsgspecError:
            return OutsideFault.FAILED
    else:
        frames = [
            mailboxes.Frame(name=name, filename=file, line=int(line))
            for file, line, name in _FRAME.findall(output.decode("utf-8", "replace"))
        ]
        threads = (mailboxes.Thread(thread_name="MainThread", frames=tuple(frames[::-1])),)
    ordered = sorted(threads, key=lambda thread: thread.thread_name != "MainThread")
    shown = [
        msgspec.structs.replace(thread, frames=thread.frames[:MOST])
        for thread in ordered[:MOST]
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


def attach(pid: int, uid: int, place: Path) -> OutsideFault | None:
    """Put the probe into a process, and wait until it has written its mailbox into ``place``.

    None where it has been started, though it writes no mailbox if no framework is imported.
    """
    root = Path(f"/proc/{pid}/root")
    name = f"gpuwatchd-{os.urandom(16).hex()}.py"
    script, seen = root / "tmp" / name, f"/tmp/{name}"  # noqa: S108 - it is not there, and no link
    source = _SCRIPT.format(path=seen, boot=str(mailboxes.BOOT), place=str(place))
    try:
        # No link on the way: the process may have made one in a root of its own.
        folder = os.open(root / "tmp", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            handle = os.open(name, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(source)
            os.fchown(handle, uid, -1)
    except OSError:
        with suppress(OSError):
            script.unlink()
        return OutsideFault.REFUSED
    code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
    output = _own_python(pid, uid, "-c", code, str(pid), seen)
    until_s = time.monotonic() + LIMIT_S
    while not isinstance(output, OutsideFault) and time.monotonic() < until_s:
        if isinstance(mailboxes.read(place, pid, uid), mailboxes.Mailbox):
            return None
        time.sleep(0.1)
    if not isinstance(output, OutsideFault):
        # What has not begun is left there: it begins, and takes itself away, when Python runs on.
        return OutsideFault.TIMEOUT if script.exists() else None
    with suppress(OSError):
        script.unlink()
    return output


def _own_python(pid: int, uid: int, *words: str) -> bytes | OutsideFault:
    """Run the program of a process, which is a Python, as the user whose process it is."""
    program = Path(f"/proc/{pid}/exe")
    try:
        name = str(program.readlink())  # by it, it finds its standard library
        status = program.with_name("status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return OutsideFault.REFUSED
    users, groups = (
        re.findall(rf"^{word}:(.+)", status, re.MULTILINE)[0].split() for word in ("Uid", "Gid")
    )
    if set(users) != {str(uid)}:  # /proc may call root the owner of what is not root's
        return OutsideFault.REFUSED
    who: dict[str, Any] = {"user": uid, "group": int(groups[0]), "extra_groups": []}
    who = who if os.geteuid() == 0 != uid else {}
    return _run([name, "-I", *words], executable=program, env={"PATH": os.defpath}, cwd="/", **who)


def _run(command: list[str], **how: Any) -> bytes | OutsideFault:
    with tempfile.TemporaryFile() as out:
        try:
            how |= {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            done = subprocess.run(command, stdout=out, timeout=LIMIT_S, check=False, **how)
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
