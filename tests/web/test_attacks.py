"""What strangers may try: other names, other origins, no token, odd bytes, slow bytes."""

from __future__ import annotations

import itertools
import json
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.web import auth, openapi, server
from tests.cli import world
from tests.test_daemon import wait_for
from tests.web import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.web.serving import Served

STATUS = "/api/v1/status"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return one server, before a world with a leak and an alert."""
    with serving.directories(tmp_path_factory.mktemp("attacked")):
        world.write()
        with serving.serve() as found:
            yield found


def head(raw: bytes) -> int:
    """Return the status of an answer in bytes; 0 where there is none."""
    return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/") else 0


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:PORT", "localhost:1", "127.0.0.1", "localhost",
             "127.0.0.1:PORT.evil.example", "[::1", "", "127.0.0.1:PORT:PORT", "127.1:PORT",
             "localhost.:PORT", "user@127.0.0.1:PORT"],
)  # fmt: skip
def test_a_name_that_is_not_ours_is_refused_whatever_is_asked(served: Served, host: str) -> None:
    host = host.replace("PORT", str(served.port))
    for path in ("/", STATUS, "/healthz", "/static/live.js"):
        said = served.ask(path, Host=host)
        assert said.status == 421
        assert said.json["error"]["page"] == "errors#web-host"
        assert b"evil" not in said.body


@pytest.mark.parametrize("host", ["localhost:PORT", "LOCALHOST:PORT", "[::1]:PORT"])
def test_names_of_loopback_with_our_port_are_ours(served: Served, host: str) -> None:
    assert served.ask(STATUS, Host=host.replace("PORT", str(served.port))).status == 200


def test_without_a_name_or_with_two_nobody_is_let_in(served: Served) -> None:
    token = f"Authorization: Bearer {served.token}\r\n".encode()
    host = f"Host: {served.host}\r\n".encode()
    assert head(served.raw(b"GET / HTTP/1.0\r\n\r\n")) == 421
    assert head(served.raw(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")) == 400
    twice = b"GET / HTTP/1.1\r\n" + host + host + b"Connection: close\r\n\r\n"
    assert head(served.raw(twice)) == 400
    old = b"GET /api/v1/status HTTP/1.0\r\n" + host + token + b"\r\n"
    assert head(served.raw(old)) == 200


@pytest.mark.parametrize(
    "line",
    ["GET http://evil.example/ HTTP/1.1", "GET http://HOST/api/v1/status HTTP/1.1",
     "GET *  HTTP/1.1", "CONNECT evil.example:80 HTTP/1.1", "OPTIONS * HTTP/1.1",
     "GET //evil.example/ HTTP/1.1", "TRACE / HTTP/1.1", "GET /%00 HTTP/1.1",
     "GET /%0d%0aSet-Cookie:x HTTP/1.1", "\x16\x03\x01\x02\x00\x01", "GET / HTTP/9.9",
     "PRI * HTTP/2.0"],
    ids=lambda line: line.encode("unicode_escape").decode(),
)  # fmt: skip
def test_odd_requests_are_refused_in_our_own_words(served: Served, line: str) -> None:
    asked = line.replace("HOST", served.host)
    raw = served.raw(
        f"{asked}\r\nHost: {served.host}\r\nAuthorization: Bearer {served.token}\r\n"
        "Connection: close\r\n\r\n".encode("latin-1")
    )
    assert head(raw) in {400, 404, 405, 421}
    assert b"x-content-type-options: nosniff" in raw
    said = json.loads(raw.partition(b"\r\n\r\n")[2])
    assert said["error"]["message"]
    assert b"set-cookie" not in raw.lower()
    assert b"evil" not in raw


def test_too_much_is_refused(served: Served) -> None:
    huge = f"GET / HTTP/1.1\r\nHost: {served.host}\r\nX: {'x' * 70_000}\r\n\r\n".encode()
    assert head(served.first(huge)) in {0, 400, 413}
    for count, status in ((auth.MOST_QUERY, 400), (auth.MOST_QUERY + 1, 413)):
        assert served.ask(f"{STATUS}?gpu={'x' * (count - 4)}").status == status
    # No GPU is called so, and there is no history to write to.
    for count, status in ((openapi.LONGEST_VALUE, 404), (openapi.LONGEST_VALUE + 1, 400)):
        assert served.ask(f"{STATUS}?gpu={'x' * count}").status == status
    for count, status in ((openapi.MOST_VALUES, 200), (openapi.MOST_VALUES + 1, 400)):
        assert served.ask(f"{STATUS}?" + "&".join(["gpu=0"] * count)).status == status
    for count, status in ((auth.MOST_BODY, 503), (auth.MOST_BODY + 1, 413)):
        asked = b'{"alert": "x", "for": "1h"}'.ljust(count)
        assert served.ask("/api/v1/snoozes", "POST", asked).status == status
    begin = (
        f"POST /api/v1/snoozes HTTP/1.1\r\nHost: {served.host}\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {served.token}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    chunks = f"{auth.MOST_BODY:x}\r\n{'x' * auth.MOST_BODY}\r\n".encode()
    for more, status in ((b"", 400), (b"1\r\nx\r\n", 413)):
        assert head(served.first(begin.encode() + chunks + more + b"0\r\n\r\n")) == status


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer x", "Basic TOKEN", "TOKEN", "Bearer TOKENx",
     "Bearer \u00e9", "Bearer TOKEN TOKEN"],
)  # fmt: skip
def test_nothing_is_read_or_written_without_the_token(served: Served, given: str | None) -> None:
    said = None if given is None else given.replace("TOKEN", served.token)
    for path, method in ((STATUS, "GET"), ("/api/v1/page/overview", "GET"), (STATUS, "HEAD"),
                         ("/api/v1/snoozes", "POST"), ("/api/v1/snoozes/1", "DELETE"),
                         ("/api/v1/nothing", "GET")):  # fmt: skip
        answer = served.ask(path, method, Authorization=said)
        assert answer.status in {401, 429}
        assert served.token.encode() not in answer.body
    assert served.ask(STATUS).status == 200


def test_a_token_in_the_address_or_a_cookie_is_none(served: Served) -> None:
    assert served.ask(f"{STATUS}?token={served.token}", Authorization=None).status in {401, 429}
    assert served.ask(f"{STATUS}?token={served.token}").status == 400
    cookie = f"token={served.token}"
    assert served.ask(STATUS, Authorization=None, Cookie=cookie).status in {401, 429}


def test_guesses_are_slowed_down_and_the_right_token_is_not(served: Served) -> None:
    seen = [served.ask(STATUS, Authorization=f"Bearer {n}") for n in range(40)]
    assert {one.status for one in seen} <= {401, 429}
    assert seen[-1].status == 429
    assert seen[-1].headers["retry-after"] == "1"
    assert served.ask(STATUS).status == 200


@pytest.mark.parametrize(
    ("header", "value"),
    [("Origin", "http://evil.example"), ("Origin", "null"), ("Origin", "http://127.0.0.1:1"),
     ("Origin", "file://"), ("Origin", "http://[::1"), ("Sec-Fetch-Site", "cross-site"),
     ("Sec-Fetch-Site", "same-site")],
)  # fmt: skip
def test_no_page_of_another_origin_reads_or_writes(served: Served, header: str, value: str) -> None:
    body = {"gpu": "0", "for": "1h"}
    assert served.ask("/api/v1/snoozes", "POST", body, **{header: value}).status == 403
    assert served.ask("/api/v1/snoozes/1", "DELETE", **{header: value}).status == 403
    read = served.ask(STATUS, **{header: value})
    assert read.status == 403
    assert not [name for name in read.headers if name.startswith("access-control")]


def test_a_preflight_is_not_answered(served: Served) -> None:
    said = served.ask(
        STATUS, "OPTIONS", Origin="http://evil.example", Access_Control_Request_Method="POST"
    )
    assert said.status == 405
    assert not [name for name in said.headers if name.startswith("access-control")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", None])
def test_a_form_of_a_browser_writes_nothing(served: Served, kind: str | None) -> None:
    body = b'{"gpu": "0", "for": "1h"}'
    answer = served.ask("/api/v1/snoozes", "POST", body, Content_Type=kind)
    assert answer.status == 415


def test_every_answer_is_dressed(served: Served) -> None:
    for path in ("/", "/static/live.js", STATUS, "/nothing", "/api/v1/nothing"):
        said = served.ask(path).headers
        assert "script-src 'self'" in said["content-security-policy"]
        assert "default-src 'none'" in said["content-security-policy"]
        assert "unsafe" not in said["content-security-policy"]
        assert said["x-content-type-options"] == "nosniff"
        assert said["referrer-policy"] == "no-referrer"
        assert said["cache-control"] in {"no-store", "no-cache"}
        assert "server" not in said
    assert served.ask(STATUS).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    ["/static/../tokens.py", "/static/..%2f..%2fweb-token", "/static//etc/passwd", "/static/",
     "/static/answers.py", "/static/__init__.py", "/../../etc/passwd", "/index.html/", "/static"],
)  # fmt: skip
def test_no_address_leads_to_other_files(served: Served, path: str) -> None:
    said = served.ask(path)
    assert said.status == 404
    assert said.headers["content-type"] == "application/json"
    assert b"passwd" not in said.body


def test_websockets_are_not_spoken(served: Served) -> None:
    raw = served.first(
        f"GET {STATUS} HTTP/1.1\r\nHost: {served.host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert head(raw) in {400, 401, 429}


@pytest.mark.slow
def test_who_stalls_is_put_off_and_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (server.HEAD_S, server.IDLE_S) == (10.0, 15), "the how-to says so"
    monkeypatch.setattr(server, "HEAD_S", 1.0)
    world.write()
    with serving.within(monkeypatch) as served, ExitStack() as links:
        stalled = [links.enter_context(held(served)) for _ in range(40)]
        began = time.monotonic()
        for one in stalled:
            one.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert served.ask(STATUS).status == 200
        assert {serving.whole(one) for one in stalled} == {b""}  # ended without a byte said
        assert 0.5 < time.monotonic() - began < 5
        assert served.ask("/healthz").status == 200


def test_who_takes_a_byte_at_a_time_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_S", 0.6)
    world.write()
    with (
        serving.within(monkeypatch) as served,
        held(served) as link,
        pytest.raises(OSError, match=r"[Pp]ipe|reset"),
    ):
        drip(link)


def drip(link: socket.socket) -> None:
    """Send a head without an end, until the other end has gone."""
    for one in itertools.cycle(b"GET / HTTP/1.1\r\nX: "):
        link.sendall(bytes([one]))
        time.sleep(0.05)


def test_who_holds_every_connection_keeps_out_nobody_who_has_the_token(served: Served) -> None:
    asking = f"GET /healthz HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode()
    mine = asking.replace(b"/healthz", STATUS.encode()).replace(
        b"\r\n\r\n", f"\r\nAuthorization: Bearer {served.token}\r\n\r\n".encode()
    )
    with ExitStack() as links:
        known = links.enter_context(held(served))
        known.sendall(mine)
        assert head(serving.whole(known)) == 200
        for _ in range(server.MOST + 10):
            stranger = links.enter_context(held(served))
            stranger.sendall(asking)
            assert head(serving.whole(stranger)) == 200
        assert served.ask(STATUS).status == 200
        known.sendall(mine)
        assert head(serving.whole(known)) == 200


def test_more_of_those_who_have_the_token_are_not_let_in(served: Served) -> None:
    asking = f"HEAD {STATUS} HTTP/1.1\r\nHost: {served.host}\r\n".encode()
    asking += f"Authorization: Bearer {served.token}\r\n\r\n".encode()
    with ExitStack() as links:
        for _ in range(server.MOST):
            one = links.enter_context(held(served))
            one.sendall(asking)
            assert b" 200 OK" in one.recv(65536)
        more = links.enter_context(held(served))
        assert serving.whole(more) == b""
    wait_for(lambda: _answers(served))


def held(served: Served) -> socket.socket:
    """Return a connection."""
    return socket.create_connection(("127.0.0.1", served.port), timeout=10)


def _answers(served: Served) -> bool:
    try:
        return served.ask("/healthz").status == 200
    except OSError:
        return False


def test_pipelined_requests_are_each_judged(served: Served) -> None:
    good = f"GET /healthz HTTP/1.1\r\nHost: {served.host}\r\n\r\n"
    bad = "GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    raw = served.raw((good + bad).encode())
    assert raw.count(b"HTTP/1.1 200") == 1
    assert raw.count(b"HTTP/1.1 421") == 1


def test_nothing_of_a_request_is_logged_but_its_path(tmp_path: Path) -> None:
    world.write()
    with serving.serve("-v") as served:
        served.ask(f"{STATUS}?gpu=0")
        served.ask("/%1b%5b2J")
        token = served.token
        assert served.process is not None
        served.process.terminate()
        _, said = served.process.communicate(timeout=20)
    assert f"'GET' '{STATUS}' 200" in said
    assert token not in said
    assert "gpu=0" not in said
    assert "\x1b" not in said
    assert "Traceback" not in said
