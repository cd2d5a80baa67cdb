"""A server of `gpuwatchctl web` for tests: the real program, and what asks it."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gpuwatchd.core.config import WebSection
from gpuwatchd.view.query import Query
from gpuwatchd.web import auth, server
from tests.cli import world

if TYPE_CHECKING:
    from collections.abc import Iterator


class Answer(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body says."""
        return json.loads(self.body)


class Served(NamedTuple):
    """A server that runs on a port of loopback."""

    port: int
    token: str
    process: subprocess.Popen[str] | None

    def ask(
        self, path: str, method: str = "GET", body: Any = None, **headers: str | None
    ) -> Answer:
        """Ask with the token; a header of None is left out, ``_`` in names means ``-``."""
        given: dict[str, str | None] = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            given["Content-Type"] = "application/json"
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            kept = {name: value for name, value in given.items() if value is not None}
            link.request(method, path, content, kept)
            found = link.getresponse()
            said = {name.lower(): value for name, value in found.getheaders()}
            return Answer(found.status, said, found.read())
        finally:
            link.close()

    def raw(self, data: bytes, *, wait_s: float = 5.0) -> bytes:
        """Return everything that is answered to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait_s) as link:
            link.sendall(data)
            got = b""
            try:
                while part := link.recv(65536):
                    got += part
            except (TimeoutError, ConnectionResetError):
                pass
            return got

    def first(self, data: bytes) -> bytes:
        """Return the first answer to these bytes; b"" where the connection is just ended."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as link:
            link.sendall(data)
            return whole(link)

    @property
    def host(self) -> str:
        """Its name in a request."""
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{self.host}"

    @property
    def url(self) -> str:
        """What it prints in a terminal."""
        return f"{self.address}/#token={self.token}"


def whole(link: socket.socket) -> bytes:
    """Return one answer, up to the end of its body; b"" where the other end has gone."""
    got = b""
    try:
        while b"\r\n\r\n" not in got and (part := link.recv(65536)):
            got += part
        length = re.search(rb"content-length: (\d+)", got)
        end = got.find(b"\r\n\r\n") + 4 + int(length[1] if length else 0)
        while len(got) < end and (part := link.recv(65536)):
            got += part
    except ConnectionResetError:
        pass
    return got


@contextmanager
def within(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Run a server in a thread of this program, so that its bounds can be set."""
    begun: queue.Queue[str] = queue.Queue()
    running: list[server._Server] = []

    class Kept(server._Server):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            running.append(self)

    monkeypatch.setattr(server, "_Server", Kept)
    page = server.WebServer(Query(), WebSection())
    token = page.token()
    thread = threading.Thread(target=page.serve, args=("127.0.0.1:0", None, begun.put))
    thread.start()
    try:
        yield Served(int(begun.get(timeout=20).rpartition(":")[2]), token, None)
    finally:
        running[0].should_exit = True
        thread.join(20)
    assert not thread.is_alive()


@contextmanager
def serve(*words: str, **environ: str) -> Iterator[Served]:
    """Run the program on a free port until the block is left; it must then end at once."""
    process = subprocess.Popen(
        [str(world.PROGRAM), "web", "--json", "--port", "0", *words],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=20)[1]
        data = json.loads(line)["data"]
        token = auth.read(Path(data["token_file"]))
        yield Served(int(data["listens"].rpartition(":")[2]), token, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


@contextmanager
def directories(place: Path) -> Iterator[None]:
    """Let the program find its files below a place, for a server of more than one test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place))
        patch.setenv("XDG_CONFIG_HOME", str(place / "config"))
        patch.setenv("GPUWATCHD_STATE_DIR", str(place / "state"))
        patch.setenv("GPUWATCHD_RUNTIME_DIR", str(place / "run"))
        yield
