"""Text on its way to the terminal: whoever gives it never waits, however slow the terminal is."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE: Final = 512
"""Characters that are written at once: what is on its way cannot be taken back."""
_LOOK_S: Final = 1.0
"""How often to see whether the terminal is still there, where nothing is written."""
_BROKEN_OFF: Final = "\x1b[?2026l\x1b[0m"
"""Behind a picture that was cut: what it may have left on."""


class Writer(threading.Thread):
    """A thread that writes what it is given, in order.

    Parameters
    ----------
    out, beside
        Descriptors: what is written to, and what else the terminal is known by.
    idle
        Called in this thread whenever everything is written.
    gone
        Called in this thread, once, when the terminal is no more.
    """

    def __init__(
        self, out: int, beside: int, *, idle: Callable[[], None], gone: Callable[[], None]
    ) -> None:
        super().__init__(name="terminal", daemon=True)
        self._out = out
        self._idle = idle
        self._gone = gone
        self._texts: deque[tuple[str, bool]] = deque()
        self._changed = threading.Condition()
        self._over = False
        self._writing = False
        self._cut = False
        self._there = select.poll()
        for one in {out, beside}:
            self._there.register(one, 0)  # nothing but that it hung up

    @property
    def busy(self) -> bool:
        """Whether something is not written yet."""
        with self._changed:
            return self._writing or bool(self._texts)

    def write(self, text: str, *, picture: bool = False) -> None:
        """Take text; a picture may be dropped before it is all written."""
        with self._changed:
            if not self._over and text:
                self._texts.append((text, picture))
                self._changed.notify_all()

    def drop(self) -> bool:
        """Write no picture any more, not even the rest of one; return whether there was one."""
        with self._changed:
            pairs = [text for text in self._texts if not text[1]]
            self._cut = len(pairs) < len(self._texts) or self._writing
            self._texts = deque(pairs)
            if self._cut:
                self._texts.appendleft((_BROKEN_OFF, False))
            return self._cut

    def stop(self, timeout_s: float) -> bool:
        """End when everything is written; return whether it was within that time."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self.join(timeout_s)
        return not self.is_alive()

    def run(self) -> None:
        """Write until told to stop."""
        try:
            while (pair := self._next()) is not None:
                self._put(*pair)
                with self._changed:
                    self._writing = False
                    done = not self._texts
                if done:
                    self._idle()
        except OSError:
            with self._changed:
                self._over, self._writing = True, False
                self._texts.clear()
            self._gone()

    def _next(self) -> tuple[str, bool] | None:
        with self._changed:
            while not self._texts:
                if self._over:
                    return None
                if not self._changed.wait(_LOOK_S) and self._hung_up():
                    raise BrokenPipeError
            self._writing = True
            self._cut = False
            return self._texts.popleft()

    def _hung_up(self) -> bool:
        return any(what & select.POLLHUP for _, what in self._there.poll(0))

    def _put(self, text: str, picture: bool) -> None:  # noqa: FBT001 - a pair of the queue
        for at in range(0, len(text), _PIECE):
            if picture and self._cut:
                return
            data = text[at : at + _PIECE].encode(errors="replace")
            while data:
                data = data[os.write(self._out, data) :]
