"""Processes that tests start: each ends with the test, also with one that fails."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, AnyStr

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import FrameType, TracebackType

END_S = 10.0
"""How long a process may take to end once it is asked to, before it is killed."""


def shell_script(path: Path, text: str) -> str:
    """Write a program of these lines, and return where."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


class Child(subprocess.Popen[AnyStr]):
    """A process that is ended when the block of ``with`` is left, however it is left.

    ``with subprocess.Popen`` would wait for the end that only the rest of the block brings about:
    an assertion that fails would hang there.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ask it to end, kill it if it does not, close its pipes."""
        self.end()
        super().__exit__(kind, value, traceback)

    def end(self) -> None:
        """Ask it to end and wait for that; kill it if it does not."""
        try:
            if self.poll() is None:
                self.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.wait(END_S)
        finally:
            if self.poll() is None:
                self.kill()
                self.wait()


LISTED = Path("/proc/thread-self/children").exists()
"""Whether the kernel lists the children of a process; else all processes have to be read."""


def pids() -> set[int]:
    """Return the direct children of this process, ended ones too; none where none are listed."""
    found: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has just ended
            found.update(map(int, task.read_text().split()))
    return found


def left(known: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """Return the processes below this one that still run, but for those in ``known``."""
    below = psutil.Process().children(recursive=True) if pids() or not LISTED else []
    return [one for one in below if one not in set(known) and _runs(one)]


def end(processes: Sequence[psutil.Process], started: Mapping[int, str]) -> list[str]:
    """End processes, those that ignore it by force; return what they were, one line each.

    ``started`` says in which test they were first seen, by pid.
    """
    lines = []
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(one.cmdline())[:120]
            lines.append(f"{one.pid} ({words}) of {started.get(one.pid, 'this file')}")
            one.terminate()
    _, rest = psutil.wait_procs(processes, END_S)
    for one in rest:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(rest, END_S)
    return lines


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def heed_interrupts() -> None:
    """Let programs that tests start be ended by SIGINT although this one was told to ignore it.

    A shell tells that to what it starts in the background (``make test &``), and programs pass it
    on. A function that does nothing ignores it as well, but programs that are started do not
    inherit it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Go on."""
