"""The service manager's ear: sd_notify without a library."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from gpuwatchd.core.text import MAX_CHARS, cut_words

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("gpuwatchd")


_NEVER_S = 86_400.0


def watchdog_s(environ: Mapping[str, str]) -> float:
    """Return after how many seconds of silence we would be killed; a day when nobody watches.

    Examples
    --------
    >>> watchdog_s({"WATCHDOG_USEC": "60000000"})
    60.0
    """
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) else _NEVER_S


class NotifySocket:
    """Where READY=1, STATUS= and WATCHDOG=1 go.

    Parameters
    ----------
    address
        ``NOTIFY_SOCKET``; empty when nobody listens.
    """

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        self._untold: dict[str, str] = {}
        """Name -> assignment that found the listener's queue full: it is sent with the next."""

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1. Never waits, and a listener that has gone is no fault.

        A manager that is busy has a full queue: what finds it so goes out with the next message.
        """
        if not self._address:
            return
        self._untold |= {line.partition("=")[0]: line for line in lines}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(0.0)
            try:
                channel.sendto("\n".join(self._untold.values()).encode(), self._address)
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("notify socket error=%s", error)
        self._untold.clear()

    def status(self, text: str) -> None:
        """Show one line in ``systemctl status``, when it is news."""
        if text != self._status:
            self._status = text
            self.send(f"STATUS={cut_words(text, MAX_CHARS)}")
