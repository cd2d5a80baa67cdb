"""A page that Prometheus scrapes, served in threads: bounded in number, in time and in size."""

from __future__ import annotations

import contextlib
import hmac
import io
import ipaddress
import logging
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpuwatchd.service import sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from email.message import Message

    from gpuwatchd.core.config.listening import Address

log = logging.getLogger("gpuwatchd")

_CONTENT: Final = "text/plain; version=0.0.4; charset=utf-8"
_MOST: Final = 32
"""Connections at once; the oldest gives way, so that none that says nothing keeps others out."""
_MOST_HEAD: Final = 8192
_WITHIN_S: Final = 5.0
"""For the head of a request, and for its answer."""


@contextlib.contextmanager
def serving(
    address: Address, page: Callable[[], bytes], server: sockets.Server, token: str | None = None
) -> Iterator[None]:
    """Serve a page until the block is left; ``page`` is called in threads.

    Raises
    ------
    CannotListen
        When the address is taken, or cannot be had.
    """
    with contextlib.ExitStack() as opened:
        for bound in sockets.sockets(address, server):
            one = _Server(bound, page, token, shared=server.shared)
            opened.callback(sockets.leave, sockets.file_of(bound))
            opened.callback(one.server_close)
            opened.callback(one.shutdown)
            threading.Thread(target=one.serve_forever, args=(0.1,), daemon=True).start()
        yield


class _Server(ThreadingHTTPServer):
    """One socket; connections are bounded in number, in time and in size."""

    block_on_close = False

    def __init__(
        self, bound: socket.socket, page: Callable[[], bytes], token: str | None, *, shared: bool
    ) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.page, self.token, self._shared = page, token, shared
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; where there are too many, the oldest ends."""
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > _MOST else None
            if oldest is not None:
                del self._open[oldest]
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Say whether who connects may: to a unix socket its owner and root, or its group."""
        # Of a group the kernel says by the mode of the file alone who is in it.
        return request.family != socket.AF_UNIX or self._shared or sockets.may_connect(request)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection, and close it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log what broke a connection; as a rule its other end."""
        log.debug("metrics connection failed", exc_info=True)  # noqa: LOG014 - called in one

    def refusal(self, headers: Message) -> HTTPStatus | None:
        """Return why a request is not answered; None: it is."""
        if self.token is not None:
            given = headers.get("Authorization", "").encode()
            right = hmac.compare_digest(given, f"Bearer {self.token}".encode())
            return None if right else HTTPStatus.UNAUTHORIZED
        # A web page can point a name of its own at loopback; scrapers come by the address.
        host = urlsplit(f"//{headers.get('Host', 'localhost')}").hostname or ""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return None
        return None if host == "localhost" else HTTPStatus.MISDIRECTED_REQUEST


class _Handler(BaseHTTPRequestHandler):
    """One request and its answer."""

    server: _Server
    timeout = _WITHIN_S

    def setup(self) -> None:
        """Read the head of the request, within its time and size."""
        super().setup()
        head, end_s = b"", time.monotonic() + _WITHIN_S
        while b"\r\n\r\n" not in head and len(head) < _MOST_HEAD:
            self.connection.settimeout(max(0.001, end_s - time.monotonic()))
            piece = self.connection.recv(_MOST_HEAD)
            if not piece:
                break
            head += piece
        self.connection.settimeout(_WITHIN_S)
        self.rfile = io.BufferedReader(io.BytesIO(head))

    def do_GET(self) -> None:
        """Answer with the page."""
        status = self.server.refusal(self.headers)
        if status is None and self.path.partition("?")[0] != "/metrics":
            status = HTTPStatus.NOT_FOUND
        if status is None:
            self._answer(HTTPStatus.OK, self.server.page())
        else:
            self.send_error(status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in a few words, none of them of the request."""
        del message, explain
        status = HTTPStatus(code)
        self._answer(status, f"{status.phrase}; the page is /metrics\n".encode())

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", _CONTENT)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)
