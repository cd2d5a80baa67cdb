"""A small server on the loopback that answers what a test wants."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Page(NamedTuple):
    """One answer."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    wait: threading.Event | None = None
    """Answer only after this."""
    chunked: bool = False


class Site:
    """What is served, and what was asked for; may be changed while it runs."""

    def __init__(self, pages: dict[str, Page | bytes | str]) -> None:
        self.pages = pages
        self.asked: list[str] = []
        self.url = ""

    def page(self, path: str) -> Page:
        found = self.pages.get(path, Page(b"nothing here", 404))
        if isinstance(found, Page):
            return found
        return Page(found if isinstance(found, bytes) else found.encode())


@contextmanager
def serving(pages: dict[str, Page | bytes | str]) -> Iterator[Site]:
    """Serve these pages on a free port of the loopback."""
    site = Site(pages)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            site.asked.append(self.path)
            page = site.page(self.path)
            if page.wait is not None:
                page.wait.wait(10.0)
            self.send_response(page.status)
            for name, value in page.headers:
                self.send_header(name, value)
            if page.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                half = len(page.body) // 2
                for part in (page.body[:half], page.body[half:], b""):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                return
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            try:
                self.wfile.write(page.body)
            except OSError:
                self.close_connection = True  # whoever asked has had enough

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        for page in site.pages.values():
            if isinstance(page, Page) and page.wait is not None:
                page.wait.set()
        server.shutdown()
        server.server_close()
        thread.join(5.0)
