"""The live screen on a terminal that is slow, takes nothing more, or is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.real.test_top_real import renew

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

CTL = Path(sys.executable).parent / "gpuwatchctl"
_PATIENCE_S = 30.0
_SOON_S = 5.0
"""Leaving is bounded by two seconds; the rest is for a machine that does other things too."""


class Line:
    """A terminal that takes as much as it is asked to, and the live screen in it."""

    def __init__(self, home: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        self.slave = os.dup(slave)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        env = {
            **os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "NO_COLOR": "",
            "GPUWATCHD_RUNTIME_DIR": str(home), "GPUWATCHD_STATE_DIR": str(home),
        }  # fmt: skip
        self.program = psutil.Popen(
            [str(CTL), "top", "--interval", "0.2s"],
            stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, env=env, start_new_session=True,
        )  # fmt: skip
        os.close(slave)

    def take(self, most: int = 65536, wait_s: float = 0.05) -> bytes:
        """Take some of what was written."""
        ready = select.select([self.master], [], [], wait_s)[0]
        with contextlib.suppress(OSError):  # nobody has the other end any more
            if ready:
                data = os.read(self.master, most)
                self.seen += data
                return data
        return b""

    def until(self, what: bytes) -> None:
        """Take until that was written."""
        end_s = time.monotonic() + _PATIENCE_S
        while what not in self.seen:
            self.take()
            assert time.monotonic() < end_s, f"never writes {what!r}"

    def stall(self, home: Path) -> None:
        """Take nothing until the program waits for room in the terminal."""
        end_s = time.monotonic() + _PATIENCE_S
        shift = 0
        while select.select([], [self.slave], [], 0)[1]:
            shift += 7
            renew(home, shift=shift % 90)
            os.write(self.master, b"?\x1b\x0c")
            time.sleep(0.05)
            assert time.monotonic() < end_s, "never fills the terminal"

    def close(self) -> None:
        """Take the terminal away."""
        for one in (self.slave, self.master):
            with contextlib.suppress(OSError):
                os.close(one)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    """Return a terminal in which the live screen starts."""
    tmp_path.chmod(0o700)
    renew(tmp_path)
    line = Line(tmp_path)
    yield line
    line.close()
    with contextlib.suppress(psutil.NoSuchProcess):
        line.program.kill()
    line.program.wait(_PATIENCE_S)


def test_a_slow_line_does_not_keep_keys_waiting(line: Line, tmp_path: Path) -> None:
    line.until(b"GPU 7")
    for shift in range(40):  # 4 s at 9,600 bytes a second
        renew(tmp_path, shift=shift)
        line.take(960)
        time.sleep(0.1)
    os.write(line.master, b"q")
    begun_s = time.monotonic()
    while line.program.poll() is None and time.monotonic() - begun_s < _PATIENCE_S:
        line.take(960)
        time.sleep(0.1)
    assert line.program.wait(_PATIENCE_S) == 0
    assert time.monotonic() - begun_s < _SOON_S
    while line.take():
        pass
    assert b"\x1b[?1049l" in line.seen, "the terminal is told to show what it showed before"


@pytest.mark.parametrize(
    ("how", "code"),
    [(b"q", 0), (b"\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["q", "ctrl-c", "term", "hup"],
)
def test_a_line_that_hangs_is_left_soon(
    line: Line, tmp_path: Path, how: bytes | signal.Signals, code: int
) -> None:
    line.until(b"GPU 7")
    line.stall(tmp_path)
    begun_s = time.monotonic()
    if isinstance(how, bytes):
        os.write(line.master, how)
    else:
        line.program.send_signal(how)
    assert line.program.wait(_PATIENCE_S) == code
    assert time.monotonic() - begun_s < _SOON_S
    assert termios.tcgetattr(line.slave)[:4] == line.before[:4], "keys are echoed again"


@pytest.mark.parametrize("when", ["at once", "at the first byte", "shown", "opens a view"])
def test_a_terminal_that_is_gone_is_not_waited_for(line: Line, when: str) -> None:
    os.close(line.slave)
    if when == "at the first byte":
        line.until(b"\x1b[?1049h")
    elif when != "at once":
        line.until(b"GPU 7")
    if when == "opens a view":
        os.write(line.master, b"d")
    os.close(line.master)
    # Without a controlling terminal there is not even a SIGHUP. At once: it never was one.
    assert line.program.wait(_PATIENCE_S) in ({2, 129} if when == "at once" else {129})
