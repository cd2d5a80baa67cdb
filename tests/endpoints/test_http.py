"""One small question over HTTP: this machine only, in time, and of bounded size."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.collect.engines import http
from gpuwatchd.core.errors import EndpointError
from tests.endpoints.serve import Page, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def talking(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept one connection and do with it what a test wants."""
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                talk(connection)
        except OSError:
            return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(5.0)


def test_a_page_is_returned_whole() -> None:
    with serving({"/metrics": b"x" * 300_000, "/chunks": Page(b"abcdef", chunked=True)}) as site:
        assert http.get(site.url, "/metrics", timeout_s=5.0) == b"x" * 300_000
        assert http.get(site.url, "/chunks", timeout_s=5.0) == b"abcdef"


def test_localhost_by_name_is_the_loopback() -> None:
    with serving({"/": b"yes"}) as site:
        assert http.get(site.url.replace("127.0.0.1", "localhost"), "/", timeout_s=5.0) == b"yes"


@pytest.mark.parametrize(
    ("status", "why"),
    [(301, "redirects are not followed"), (307, "redirects"), (401, "401"), (500, "500")],
)
def test_only_success_counts_and_no_redirect_is_followed(status: int, why: str) -> None:
    with serving({"/there": b"secret"}) as elsewhere:
        to = (("Location", f"{elsewhere.url}/there"),)
        with serving({"/": Page(b"", status, to)}) as site:
            with pytest.raises(EndpointError, match=why) as caught:
                http.get(site.url, "/", timeout_s=5.0)
            assert caught.value.status == status
        assert elsewhere.asked == []


@pytest.mark.parametrize(
    "url", ["http://192.0.2.7:8000", "http://[2001:db8::1]:8000", "http://8.8.8.8:80"]
)
def test_nobody_but_this_machine_is_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        pytest.fail("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    with pytest.raises(EndpointError, match="loopback"):
        http.get(url, "/metrics", timeout_s=1.0)


def test_a_name_that_resolves_to_elsewhere_too_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(_host: str, port: int, **_: object) -> list[object]:
        places = ("127.0.0.1", "198.51.100.3")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(EndpointError, match="loopback"):
        http.get("http://two-faced:1", "/", timeout_s=1.0)


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as proxy, serving({"/": b"direct"}) as site:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert http.get(site.url, "/", timeout_s=5.0) == b"direct"
        assert proxy.asked == []


def test_nobody_there_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(EndpointError, match="nothing listens"):
        http.get(f"http://127.0.0.1:{port}", "/", timeout_s=1.0)


def test_a_silent_server_costs_the_deadline_and_no_more() -> None:
    with serving({"/": Page(b"late", wait=threading.Event())}) as site:
        began_s = time.monotonic()
        with pytest.raises(EndpointError, match=r"no answer within 0\.2 s"):
            http.get(site.url, "/", timeout_s=0.2)
        assert time.monotonic() - began_s < 2.0


def test_a_server_that_drips_is_not_waited_for() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        for number in range(200):
            connection.sendall(b"X-%d: y\r\n" % number)
            time.sleep(0.02)

    with talking(drip) as url, pytest.raises(EndpointError, match="no answer within"):
        http.get(url, "/", timeout_s=0.3)


def test_an_endless_answer_is_cut_off() -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with talking(flood) as url, pytest.raises(EndpointError, match="larger than 1024 KiB"):
        http.get(url, "/", timeout_s=10.0, limit_bytes=1 << 20)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
    ],
)
def test_garbage_is_one_clear_error(answer: bytes) -> None:
    with talking(lambda connection: connection.sendall(answer)) as url:
        with pytest.raises(EndpointError) as caught:
            http.get(url, "/", timeout_s=5.0)
        assert "\n" not in caught.value.message


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "x", ""])
def test_what_is_no_address_is_said_so(url: str) -> None:
    with pytest.raises(EndpointError, match="no address"):
        http.get(url, "/", timeout_s=1.0)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 6000 + b"\r\nabc",
        b"HTTP/1.1 " + b"9" * 5000 + b" x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n" + b"x" * 70_000,
    ],
)
def test_absurd_numbers_are_an_answer_that_is_not_understood(raw: bytes) -> None:
    with (
        talking(lambda connection: connection.sendall(raw)) as url,
        pytest.raises(EndpointError, match=r"not HTTP|is larger|no answer"),
    ):
        http.get(url, "/", timeout_s=2.0, limit_bytes=60_000)
