"""A chat service on loopback, and files of addresses, for tests of the channel."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gpuwatchd.notify.channels import chat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "T0kenOfThirtySixCharactersXYZ0123456"


class Got(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    """A service on loopback; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.status = 200
        self.wait = threading.Event()
        self.hangs = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.got.append(Got(self.path, dict(self.headers), body))
                if outer.hangs:
                    outer.wait.wait(30)
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(b"ok" if outer.status < 300 else SECRET.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.at = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.wait.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.close()


@pytest.fixture
def second() -> Iterator[Service]:
    found = Service()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (chat.VARIABLE, "CREDENTIALS_DIRECTORY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(chat, "_MEMORY", chat._Memory())


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(*urls: str, mode: int = 0o600) -> str:
        file = tmp_path / "urls"
        file.write_text("# ours\n\n" + "\n".join(urls) + "\n")
        file.chmod(mode)
        return str(file)

    return written
