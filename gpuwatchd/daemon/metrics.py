"""``[metrics]``: the last tick for Prometheus, served or written, in threads of their own.

The loop hands over what it saw and waits for nobody: neither for a scrape nor for a disk.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import ipaddress
import logging
import os
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpuwatchd.core import extras, registry
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.core.config import expanded, listening, runtime_dir
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.notify import credentials
from gpuwatchd.service import sockets
from gpuwatchd.store import private_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message

    from gpuwatchd.core.config import MetricsSection
    from gpuwatchd.store.live import LiveState

log = logging.getLogger("gpuwatchd")

_RENDER: Final = {"metrics": "gpuwatchd.view.metrics:render"}
_CONTENT: Final = "text/plain; version=0.0.4; charset=utf-8"
_SERVER: Final = sockets.Server("gpuwatchd", "[metrics] listen names another")
_PAGE: Final = "errors#metrics-listen"
_EVERY_S: Final = 15.0
"""Between two writes of the file, and two tries to listen."""
_CLOSE_S: Final = 1.0
_MOST: Final = 32
"""Connections at once; the oldest gives way, so that none that says nothing keeps others out."""
_MOST_HEAD: Final = 8192
_WITHIN_S: Final = 5.0
"""For the head of a request, and for its answer."""


class MetricsPublisher:
    """What one ``[metrics]`` section asks for, from :meth:`start` to :meth:`close`."""

    def __init__(self, section: MetricsSection) -> None:
        self._section = section
        self._seen: tuple[LiveState, dict[str, float]] | None = None
        self._sampled_at_s: dict[str, float] = {}
        self._page: tuple[LiveState | None, bytes] = (None, b"")
        self._rendering = threading.Lock()
        self._ended = threading.Event()
        self._listens = False
        self._thread: threading.Thread | None = None
        self.problems: tuple[tuple[str, ProblemCode], ...] = ()
        """Why it is not served or written now, one sentence each with its code."""

    def publish(self, state: LiveState) -> None:
        """Take over what a tick saw; begin at the first one."""
        for item in state.devices:
            if item.used_bytes is not None:
                self._sampled_at_s[item.device.uid] = state.taken_at_s
        self._seen = state, self._sampled_at_s.copy()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="metrics", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write the last state and stop listening; a disk that hangs is not waited for."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def page(self) -> bytes:
        """Return the page of the last tick, made once for all who ask."""
        with self._rendering:
            if self._seen is not None and self._page[0] is not self._seen[0]:
                state, sampled_at_s = self._seen
                render = registry.load(_RENDER, "metrics")
                compat = self._section.compat
                self._page = state, render(state, compat=compat, sampled_at_s=sampled_at_s)
            return self._page[1]

    def _work(self) -> None:
        wait_s = 0.0
        with contextlib.ExitStack() as opened:
            while not self._ended.wait(wait_s):
                wait_s = _EVERY_S
                self.problems = (
                    *self._try("listen", lambda: self._listen(opened)),
                    *self._try("file", self._write),
                )
            self._try("file", self._write)

    def _try(self, key: str, work: Callable[[], None]) -> list[tuple[str, ProblemCode]]:
        """Do what a key asks for; return why it cannot be done."""
        if not getattr(self._section, key):
            return []
        try:
            extras.need("metrics", "it", "prometheus_client", page="errors#metrics-extra")
            work()
        except GpuwatchdError as error:
            why = f"{error.message}; {error.hint}" if error.hint else error.message
        except Exception as error:
            # This thread goes on, and says why it cannot.
            log.debug("failed part=metrics", exc_info=True)
            why = str(error) or type(error).__name__
        else:
            return []
        return [(f"[metrics] {key}: {why}", ProblemCode(f"metrics-{key}"))]

    def _write(self) -> None:
        """Replace the file; node_exporter reads the old or the new one, never half of it."""
        path = expanded(self._section.file)
        page, fresh = self.page(), f"{path}.new"  # which does not end in .prom
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(fresh, flags, 0o644)
            with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor
                os.fchmod(handle, 0o644)
                file.write(page)
            os.replace(fresh, path)  # noqa: PTH105
        except OSError as error:
            hint = "gpuwatchctl doctor metrics"
            raise GpuwatchdError(f"{path}: {error.strerror}", hint=hint, page=_PAGE) from error

    def _listen(self, opened: contextlib.ExitStack) -> None:
        if self._listens:
            return
        section = self._section
        address = listening.parse(
            section.listen, remote=section.remote, socket=listening.METRICS_SOCKET
        )
        token = credentials.read("token", credential="metrics-token", file=section.token_file)
        if token is None and not address.loopback:
            why = f"{address.hosts[0]} can be reached from elsewhere, and there is no token"
            raise GpuwatchdError(why, hint="[metrics] token-file names one", page=_PAGE)
        self.page()  # loads what renders it, before anybody asks
        # Who may read the state may read the page.
        shared = private_files.file_mode(runtime_dir()) == private_files.SHARED_FILE
        for bound in sockets.sockets(address, _SERVER._replace(shared=shared)):
            server = _Server(bound, self.page, token, shared=shared)
            opened.callback(sockets.leave, sockets.file_of(bound))
            opened.callback(server.server_close)
            opened.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        self._listens = True
        log.info("metrics listen=%s", section.listen)


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
