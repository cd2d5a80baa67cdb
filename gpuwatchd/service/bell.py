"""A wait that signals end: for the main thread of the daemon."""

from __future__ import annotations

import os
import select
import signal


class Bell:
    """Ends the wait of the main thread when a signal arrives.

    A handler runs between any two instructions of the main thread, so it must neither take a lock
    (``threading.Event.set`` does, and ``wait`` may hold it) nor last long enough to be interrupted
    by the next signal again and again. The interpreter itself writes the byte that wakes us.
    """

    def __init__(self) -> None:
        self._hears, self._rings = os.pipe()
        os.set_blocking(self._hears, False)
        os.set_blocking(self._rings, False)

    def ring_on_signals(self) -> None:
        """Let every signal that has a handler ring; only the main thread may ask for this."""
        # A full pipe has rung already.
        signal.set_wakeup_fd(self._rings, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as it has rung."""
        if select.select([self._hears], [], [], seconds)[0]:
            os.read(self._hears, 65536)
