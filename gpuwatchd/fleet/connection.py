"""Requests to one server: whole answers or none, bounded in size and time, never redirected."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import zlib
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from gpuwatchd import __version__
from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.core.text import clean
from gpuwatchd.fleet.config import is_local, trusting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message

_LONGEST_WAIT_S: Final = 300.0
_PART_BYTES: Final = 1 << 16


class Reply(NamedTuple):
    """A whole answer, of any status."""

    status: int
    headers: Message
    content: bytes


class Connection:
    """One server. Each request is a connection of its own, so that threads may ask at once.

    Parameters
    ----------
    url
        Address with its prefix, if any; checked by :func:`gpuwatchd.fleet.config.load`.
    headers
        Sent with each request; their values are in no error.
    limit_bytes, timeout_s
        The largest answer, unpacked, and the longest time for all of one request.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        ca_file: str,
        limit_bytes: int,
        timeout_s: float,
    ) -> None:
        split = urlsplit(url)
        self._host, self._port = split.hostname or "", split.port
        self._prefix = split.path.rstrip("/")
        self._headers = headers
        self._limit_bytes, self._timeout_s = limit_bytes, timeout_s
        self._gzip = not is_local(url)
        """On the same machine packing costs more than sending."""
        self._context = trusting(ca_file) if split.scheme == "https" else None

    def request(self, path: str, body: bytes | None = None, kind: str = "") -> Reply:
        """Return what the server answers: to GET without a body, to POST with one of that type.

        Raises
        ------
        MetricsServerError
            Unless there is a whole answer.
        """
        late = threading.Event()
        try:
            return self._exchange(path, body, kind, late)
        except ssl.SSLCertVerificationError:
            hint = "ca-file names the certificates to trust"
            raise self.error("its certificate is not to be trusted", hint=hint) from None
        except (OSError, HTTPException, ValueError, MetricsServerError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise self.error(f"no answer within {self._timeout_s:g} s") from None
            if isinstance(error, MetricsServerError):
                raise
            why = error.strerror if isinstance(error, OSError) and error.strerror else ""
            raise self.error(clean(why, limit=120) or type(error).__name__) from None

    def _exchange(self, path: str, body: bytes | None, kind: str, late: threading.Event) -> Reply:
        headers = {
            "User-Agent": f"gpuwatchd/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "gzip" if self._gzip else "identity",
            "Connection": "close",
            **({"Content-Type": kind} if kind else {}),
            **self._headers,
        }
        connection = (
            HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            if self._context is None
            else HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._context
            )
        )
        timer = None
        try:
            connection.connect()
            timer = threading.Timer(self._timeout_s, _cut, [connection.sock, late])
            timer.daemon = True
            timer.start()
            method = "GET" if body is None else "POST"
            connection.request(method, self._prefix + path, body, headers)
            with contextlib.closing(connection.getresponse()) as response:
                content = self._body(response)
                if late.is_set():  # what is of no known length seems whole where it was cut
                    raise TimeoutError
                return Reply(response.status, response.headers, content)
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()

    def _body(self, response: HTTPResponse) -> bytes:
        """Return what was sent, unpacked; nothing beyond the limit is kept."""
        packed = response.headers.get("Content-Encoding", "").strip().lower() == "gzip"
        unpack = zlib.decompressobj(31) if packed else None
        parts: list[bytes] = []
        length = 0
        # In chunks read() takes their lengths as given: one of -1 is all that ever comes, at once.
        read = response.read1 if response.chunked else response.read
        while part := read(_PART_BYTES):
            if unpack is not None:
                try:
                    part = unpack.decompress(part, self._limit_bytes - length + 1)
                except zlib.error:
                    raise self.error("its answer is damaged") from None
            parts.append(part)
            length += len(part)
            if length > self._limit_bytes:
                raise self.error(f"its answer is larger than {self._limit_bytes >> 10} KiB")
        if response.length or (unpack is not None and length and not unpack.eof):
            raise self.error("its answer was cut off")
        return b"".join(parts)

    def refused(
        self, reply: Reply, why: str = "", keys: str = "", hint: str = ""
    ) -> MetricsServerError:
        """Return the error that an answer without success is.

        ``why``: in its own words. ``keys``: what of the configuration holds the secrets. ``hint``:
        of any other refusal.
        """
        status = reply.status
        if 300 <= status < 400:
            hint = "url must be the address that it redirects to"
            return self.error("it redirects, which is not followed", status=status, hint=hint)
        if status in {401, 403}:
            hint = f"{keys} must hold what it asks for" if keys else ""
            return self.error(f"it refuses us ({status})", status=status, hint=hint)
        wait = reply.headers.get("Retry-After", "")
        wait_s = min(float(wait), _LONGEST_WAIT_S) if wait.isascii() and wait.isdigit() else None
        why = f"it answers {status} {self.shown(why)}".rstrip()
        return self.error(why, status=status, wait_s=wait_s, hint=hint)

    def shown(self, words: str) -> str:
        """Return a server's words without secrets: a proxy may print what it was sent."""
        for secret in self._headers.values():
            for word in (secret, *secret.split()):
                words = words.replace(word, "***")
        return clean(words, limit=200)

    def error(
        self, why: str, *, status: int | None = None, wait_s: float | None = None, hint: str = ""
    ) -> MetricsServerError:
        """Return an error that names the server."""
        where = self._host if self._port is None else f"{self._host}:{self._port}"
        return MetricsServerError(
            f"{clean(where, limit=120)}: {why}", status=status, wait_s=wait_s, hint=hint
        )


def _cut(sock: socket.socket, late: threading.Event) -> None:
    """End a conversation: a server that sends a byte now and then passes every other limit."""
    late.set()
    with contextlib.suppress(OSError):
        # Of the plain socket: that of TLS is in use by the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
