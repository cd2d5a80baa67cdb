"""SMTP clients whose whole conversation has one time limit, not each line of an answer its own."""

from __future__ import annotations

import contextlib
import errno
import os
import smtplib
import socket
import threading
import time
from typing import Any, Final

MOST_BYTES: Final = 1 << 20
"""No answer of a mail server is as long."""


class Client(smtplib.SMTP):
    """A client whose ``timeout`` bounds the conversation with the server.

    The time limit of a socket begins anew with every byte: a server that says a line now and then
    and never comes to an end would hold us for ever.

    Parameters
    ----------
    host, port
        The server.
    timeout
        Seconds.
    options
        As of the standard library.
    """

    def __init__(self, host: str, port: int, *, timeout: float, **options: Any) -> None:
        self._ends_s = time.monotonic() + timeout
        super().__init__(host, port, timeout=timeout, **options)

    def getreply(self) -> tuple[int, bytes]:
        """Return one answer, code and text.

        Raises
        ------
        TimeoutError
            When it has not ended in time.
        smtplib.SMTPException
            As the standard library does.
        """
        if self.sock is None:
            return super().getreply()
        over = threading.Event()
        # Of our own: it stays the same while TLS is wrapped around the connection.
        line = socket.socket(fileno=os.dup(self.sock.fileno()))

        def cut() -> None:
            over.set()
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(0.0, self._ends_s - time.monotonic()), cut)
        timer.daemon = True
        timer.start()
        if self.file is None:
            self.file = self.sock.makefile("rb")
        whole, bounded = self.file, _Bounded(self.file)
        self.file = bounded
        try:
            return super().getreply()
        except (smtplib.SMTPServerDisconnected, OSError):
            if over.is_set():
                raise TimeoutError from None
            if bounded.left <= 0:
                raise OSError(errno.EMSGSIZE, "its answer has no end") from None
            raise
        finally:
            if self.file is bounded:
                self.file = whole
            timer.cancel()
            line.close()


class _Bounded:
    """What a server says, up to a bound for one answer: the library keeps every line of it."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self.left = MOST_BYTES

    def readline(self, most: int = -1) -> bytes:
        """Return the next line.

        Raises
        ------
        OSError
            The answer is longer than any that is meant.
        """
        said: bytes = self._whole.readline(most)
        self.left -= len(said)
        if self.left <= 0:
            raise OSError(errno.EMSGSIZE, "its answer has no end")
        return said

    def close(self) -> None:
        """Close what is read from."""
        self._whole.close()


class TlsClient(Client, smtplib.SMTP_SSL):
    """The same over TLS from the first byte."""
