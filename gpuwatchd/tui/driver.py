"""The terminal, through stdout, by a driver that never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import select
import signal
import sys
import termios
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App

    from gpuwatchd.tui.base import Program

LEAVE_S: Final = 2.0
"""Leaving takes no longer, whatever still waits."""
_LAST_WORDS_S: Final = 1.5
"""How long a terminal that takes nothing is given for the sequences that restore it."""
GONE: Final = 129
"""Exit code where the terminal is no more: as SIGHUP says it."""


_SIGNALS: Final = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")
"""What ends a program that does not listen, and would leave a terminal that nobody can use."""


class Terminal(LinuxDriver):
    """Draws on stdout, as every other verb writes there: ``2> errors.log`` leaves a screen.

    Textual's own writer holds 30 texts and then blocks the event loop: with it (8.2.8) 8 of 9
    cases of ``tests/real/test_top_gone.py`` do not end within 30 s, whatever the key or signal.
    Ours takes everything; the program draws nothing new while it is ``busy``.
    """

    def __init__(self, app: App[Any], **settings: Any) -> None:
        super().__init__(app, **settings)
        if sys.__stdout__ is not None:
            self._file = sys.__stdout__
        self._out = self._file.fileno() if self._file is not None else self.fileno
        self._top = cast("Program", app)
        self._signals: list[signal.Signals] = []
        self._writer: Writer | None = None
        self._draws = False

    @property
    def busy(self) -> bool:
        """Whether the terminal has not yet taken everything."""
        return self._writer is not None and self._writer.busy

    def start_application_mode(self) -> None:
        """Take the terminal, and the signals that would leave it as it then is."""
        loop = asyncio.get_running_loop()
        ours = contextvars.copy_context()  # textual asks it which program it is

        def later(call: Callable[..., Any], *values: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: we are gone too
                loop.call_soon_threadsafe(call, *values, context=ours)

        def gone() -> None:
            self.exit_event.set()  # a terminal that is gone can be read, at once and for ever
            later(self._app.exit, GONE)

        # Only while the terminal is ours: else a signal does what it does to any program.
        for ending in (signal.Signals[name] for name in _SIGNALS):
            loop.add_signal_handler(ending, self._app.exit, 128 + ending)
            self._signals.append(ending)
        self._hung_up = gone
        self._writer = Writer(
            self._out, self.fileno, idle=lambda: later(self._top.written), gone=gone
        )
        self._writer.start()
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._draws = True
        later(self._top.action_all_again)

    def write(self, data: str) -> None:
        """Give text on its way."""
        if self._writer is not None:
            self._writer.write(data, picture=self._draws)

    def run_input_thread(self) -> None:
        """Read keys until the terminal is gone."""
        try:
            super().run_input_thread()
        except OSError:
            self._hung_up()

    def stop_application_mode(self) -> None:
        """Give the terminal back; a picture on its way is not waited for."""
        self._draws = False
        if self._writer is not None and self._writer.drop():
            with contextlib.suppress(termios.error):
                termios.tcflush(self._out, termios.TCOFLUSH)
        super().stop_application_mode()

    def close(self) -> None:
        """Wait, but not for ever, until the terminal has what restores it."""
        super().close()
        if self._writer is not None:
            self._writer.stop(_LAST_WORDS_S)
        loop = asyncio.get_running_loop()
        while self._signals:
            loop.remove_signal_handler(self._signals.pop())

    def leave(self, code: int) -> None:
        """See to it that the program has ended soon, whatever hangs."""
        last = threading.Timer(LEAVE_S, self._leave, (code,))
        last.daemon = True
        last.start()

    def _leave(self, code: int) -> None:
        if self.attrs_before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
        os._exit(code)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return columns and rows as the terminal has them, whatever COLUMNS was once exported."""
        with contextlib.suppress(OSError, ValueError):
            columns, rows = os.get_terminal_size(self.fileno)
            if columns > 0 and rows > 0:
                return columns, rows
        return super()._get_terminal_size()


# Text on its way to the terminal: whoever gives it never waits, however slow the terminal is.

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
