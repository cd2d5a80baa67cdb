"""SMTP clients whose whole conversation has one time limit, not each line of an answer its own."""

from __future__ import annotations

import contextlib
import os
import smtplib
import socket
import threading
import time
from typing import Any


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
        try:
            return super().getreply()
        except (smtplib.SMTPServerDisconnected, OSError):
            if over.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            line.close()


class TlsClient(Client, smtplib.SMTP_SSL):
    """The same over TLS from the first byte."""
