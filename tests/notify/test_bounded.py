"""An answer that never ends is read to a bound, and what it says first still counts."""

from __future__ import annotations

import gzip
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.notify.channels import chat

if TYPE_CHECKING:
    from collections.abc import Iterator

requests = pytest.importorskip("requests")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ENDLESS = b"HTTP/1.1 403 no\r\n\r\n"
BOMB = gzip.compress(bytes(64 << 20))


class _Server:
    """Answers each request with a head, then with the same bytes for ever."""

    def __init__(self, head: bytes, more: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self.sent = 0
        threading.Thread(target=self._serve, args=(head, more), daemon=True).start()

    def _serve(self, head: bytes, more: bytes) -> None:
        try:
            while True:
                line, _ = self._socket.accept()
                with line:
                    line.recv(65536)
                    line.sendall(head)
                    while self.sent < 256 << 20:
                        line.sendall(more)
                        self.sent += len(more)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["endless", "bomb"])
def server(request: pytest.FixtureRequest) -> Iterator[_Server]:
    head, more = ENDLESS, b"A" * 65536
    if request.param == "bomb":
        head = b"HTTP/1.1 403 no\r\nContent-Encoding: gzip\r\n\r\n" + BOMB
    found = _Server(head, more)
    yield found
    found.close()


def test_it_is_read_to_a_bound_and_its_status_counts(server: _Server) -> None:
    chat._apprise()
    answer = requests.post(server.url, data=b"x", timeout=10)
    assert answer.status_code == 403
    assert chat.MOST_BYTES <= len(answer.content) < 2 * chat.MOST_BYTES


def test_a_short_answer_is_whole_and_a_second_time_changes_nothing() -> None:
    class Response:
        def iter_content(self) -> Iterator[bytes]:
            yield from (b"a", b"b")

        def close(self) -> None:
            raise AssertionError("it has come to its end")

    chat.bound_reads(Response)
    once = Response.iter_content
    chat.bound_reads(Response)
    assert Response.iter_content is once
    assert b"".join(Response().iter_content()) == b"ab"
