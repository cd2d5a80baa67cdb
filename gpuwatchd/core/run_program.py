"""Running a program to its end within a time, without a file on any disk.

A full disk, or a /tmp that cannot be written, is a moment when alerts and checkpoints matter; and a
file there could be seen by others, or be left behind.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from gpuwatchd.core import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TAIL_BYTES = 8192
_TERM_GRACE_S = 1.0
_KILL_WAIT_S = 0.5


class Ended(NamedTuple):
    """How a program ended."""

    code: int | None
    """Its exit code, negative for a signal; None: it took too long and was ended by us."""
    last_line: str
    """Of its standard error, cleaned; "" where it wrote none."""


def run(argv: Sequence[str], data: bytes, *, environ: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a program with some data on standard input, never through a shell, and wait for its end.

    It runs in ``/`` and in a session of its own, and is ended after ``timeout_s`` with everything
    that it started. Neither a program that reads nothing nor a child of its own that keeps standard
    error open makes us wait; a megabyte of data is no problem.

    Raises
    ------
    OSError, ValueError
        It could not be started.
    """
    with _input(data) as stdin:
        process = _started(argv, environ, stdin=stdin, stdout=subprocess.DEVNULL)
    try:
        return _wait(process, timeout_s)
    finally:
        # Not by ``with process``: that waits without end for one that not even SIGKILL ends yet,
        # as in a call into a driver that hangs.
        if process.stderr is not None:
            process.stderr.close()


def _started(
    argv: Sequence[str], environ: Mapping[str, str], *, stdin: int | IO[bytes], stdout: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(argv),
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environ,
        cwd="/",
        start_new_session=True,
    )


class Answer(NamedTuple):
    """What a program has written, and how it ended."""

    code: int | None
    """Its exit code, negative for a signal; None: it took too long and was ended by us."""
    out: bytes
    said: bytes
    """On standard error."""


def ask(
    argv: Sequence[str],
    data: bytes,
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    limit_bytes: int | None = None,
) -> Answer:
    """Run a program with some data on standard input, and return what it answers.

    As :func:`run`, but what it writes is kept, and it is ended at once and by force: it has nothing
    to put in order. One that cannot be killed is left behind, not waited for. One that is not ours
    gets a ``limit_bytes`` and no data: as soon as it writes more it is ended too.

    Raises
    ------
    OSError, ValueError
        It could not be started.
    """
    process = _started(argv, environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if limit_bytes is None:
            out, said = process.communicate(data, timeout=timeout_s)
        else:
            out, said = _bounded(process, timeout_s, limit_bytes)
    except subprocess.TimeoutExpired:
        # Perhaps it has ended, and a child of its own keeps the pipe open.
        _signal_group(process, signal.SIGKILL, _KILL_WAIT_S)
        return Answer(None, b"", b"")
    finally:
        if process.poll() is None:
            _signal_group(process, signal.SIGKILL, _KILL_WAIT_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
    return Answer(process.returncode, out, said)


def _bounded(process: subprocess.Popen[bytes], timeout_s: float, limit_bytes: int) -> list[bytes]:
    """Return standard output and error; TimeoutExpired also where one is longer than the limit."""
    deadline = time.monotonic() + timeout_s
    kept = {stream.fileno(): b"" for stream in (process.stdout, process.stderr) if stream}
    with selectors.DefaultSelector() as selector:
        for number in kept:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or max(map(len, kept.values())) > limit_bytes:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, 65536)
                kept[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
    process.wait(max(0.0, deadline - time.monotonic()))
    return list(kept.values())


@contextlib.contextmanager
def _input(data: bytes) -> Iterator[int]:
    """Yield a descriptor that the data can be read from."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("gpuwatchd"), "w+b") as file:
            file.write(data)
            file.seek(0)
            yield file.fileno()
        return
    reading, writing = os.pipe()
    try:
        threading.Thread(target=_pour, args=(writing, data), daemon=True).start()
        yield reading
    finally:
        os.close(reading)


def _pour(writing: int, data: bytes) -> None:
    """Write all of it; ends at the latest when nobody has the other end any more."""
    with contextlib.suppress(OSError), open(writing, "wb") as file:
        file.write(data)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> Ended:
    stream = process.stderr
    if stream is None:
        raise TypeError("standard error must be a pipe")
    tail = _Tail(stream)
    deadline = time.monotonic() + timeout_s
    with tail:
        while process.poll() is None and time.monotonic() < deadline:
            tail.read(0.05)
        code = process.poll()
        if code is None:
            for number in (signal.SIGTERM, signal.SIGKILL):  # with everything it started
                _signal_group(process, number, _TERM_GRACE_S)
        tail.read(0.0)
        return Ended(code, tail.last_line())


class _Tail:
    """The last bytes of a pipe, read without ever blocking."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._fd = stream.fileno()
        os.set_blocking(self._fd, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._fd, selectors.EVENT_READ)
        self._open = True
        self._kept = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    def read(self, wait_s: float) -> None:
        """Take in what comes within so long."""
        if not self._open:
            time.sleep(wait_s)
            return
        for _ in self._selector.select(wait_s):
            chunk = os.read(self._fd, 65536)
            self._open = bool(chunk)
            self._kept = (self._kept + chunk)[-_TAIL_BYTES:]

    def last_line(self) -> str:
        """Return the last line that is not blank, cleaned."""
        lines = [line.strip() for line in self._kept.splitlines() if line.strip()]
        return text.clean(lines[-1]) if lines else ""


def _signal_group(process: subprocess.Popen[bytes], number: int, wait_s: float) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
