"""SMTP clients that wait for a whole answer, and not only for each line of it, within a time."""

from __future__ import annotations

import contextlib
import os
import smtplib
import socket
import threading


class Client(smtplib.SMTP):
    """A client whose ``timeout`` bounds each answer of the server.

    The time limit of a socket begins anew with every byte: a server that says a line now and then
    and never comes to an end would hold us for ever.
    """

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

        timer = threading.Timer(self.timeout, cut)
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
