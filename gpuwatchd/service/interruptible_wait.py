"""A wait that signals end, and that another program can end: for the main thread of the daemon."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "bell"
"""A named pipe in the runtime directory: who may write there may wake the daemon."""


class Wakeup:
    """Ends the wait of the main thread when a signal arrives or somebody rings.

    A handler runs between any two instructions of the main thread, so it must neither take a lock
    (``threading.Event.set`` does, and ``wait`` may hold it) nor last long enough to be interrupted
    by the next signal again and again. The interpreter itself writes the byte that wakes us.
    """

    def __init__(self) -> None:
        self._hears, self._rings = os.pipe()
        os.set_blocking(self._hears, False)
        os.set_blocking(self._rings, False)
        self._pipe: tuple[int, int] | None = None

    def ring_on_signals(self) -> None:
        """Let every signal that has a handler ring; only the main thread may ask for this."""
        # A full pipe has rung already.
        signal.set_wakeup_fd(self._rings, warn_on_full_buffer=False)

    def hang_up(self, directory: Path) -> None:
        """Let other programs ring through a pipe in this directory; again after it was made anew.

        Where that is impossible nobody can ring, and what they ask for is noticed a tick later.
        """
        self.take_down()
        path = directory / FILE_NAME
        flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
            hears = os.open(path, os.O_RDONLY | flags)
            opened.callback(os.close, hears)
            # Held open for writing too: without a writer the pipe would be readable for ever.
            self._pipe = hears, os.open(path, os.O_WRONLY | flags)
            opened.pop_all()

    def take_down(self) -> None:
        """Close the pipe; the file stays and rings for nobody."""
        for handle in self._pipe or ():
            os.close(handle)
        self._pipe = None

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as it has rung."""
        # Not select(): a pipe that was made anew may have a number that it cannot take.
        heard = select.poll()
        for handle in (self._hears, *(self._pipe[:1] if self._pipe is not None else ())):
            heard.register(handle, select.POLLIN)
        for handle, _ in heard.poll(math.ceil(seconds * 1000)):
            os.read(handle, 65536)


def ring(directory: Path) -> bool:
    """Wake the daemon of this runtime directory; return whether one listens."""
    try:
        handle = os.open(
            directory / FILE_NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError:  # no daemon, or nobody who reads
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(handle).st_mode):
            return False
        os.write(handle, b"!")
    except OSError:  # a full pipe has rung already
        return True
    finally:
        os.close(handle)
    return True
