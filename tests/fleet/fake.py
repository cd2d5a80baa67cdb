"""A server in the place of a Prometheus: it answers what a test says, and notes questions."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

from gpuwatchd.core.config import DetectionSection, Seconds
from gpuwatchd.fleet import config

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator


class Reply(NamedTuple):
    """One answer."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None
    """What is announced, where that differs."""
    drip_s: float = 0.0
    """Pause after each byte."""


class Server:
    """What it will answer, and the headers and forms of what it was asked."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[dict[str, str]] = []
        self.forms: list[dict[str, str]] = []
        self.stop = threading.Event()
        self.port = 0


@contextlib.contextmanager
def running(server: ThreadingHTTPServer, stop: threading.Event) -> Iterator[int]:
    """Serve in a thread, and give the port; ``stop`` ends what hangs on purpose."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        stop.set()
        server.shutdown()
        thread.join(30)
        server.server_close()


@contextlib.contextmanager
def serve(reply: Reply, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Answer every question so, until the block is left."""
    state = Server(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"] or 0))
            state.forms.append(dict(parse_qsl(form.decode())))
            state.asked.append(dict(self.headers.items()))
            given = state.reply
            self.send_response(given.status)
            for name, value in given.headers:
                self.send_header(name, value)
            length = len(given.body) if given.length is None else given.length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            with contextlib.suppress(OSError):
                if not given.drip_s:
                    self.wfile.write(given.body)
                for byte in given.body if given.drip_s else b"":
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if state.stop.wait(given.drip_s):
                        break

        do_GET = do_POST  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with running(server, state.stop) as state.port:
        yield state


def fleet(
    port: int = 9090, *, window_s: float = 6.4 * 3600, backend: Any = "auto", **changes: Any
) -> config.Fleet:
    """Return a configuration that asks this machine."""
    budget = config.BudgetSection(**changes)
    section = config.FleetSection(
        url=f"http://127.0.0.1:{port}", backend=backend, window=Seconds(window_s), budget=budget
    )
    return config.Fleet(
        section=section,
        map=config.metric_map("dcgm", "fleet.toml"),
        detection=DetectionSection(analysis_window_hours=window_s / 3600.0),
        policy=config.ConfirmSection(),
        headers={"Authorization": "Bearer s3cret"},
    )
