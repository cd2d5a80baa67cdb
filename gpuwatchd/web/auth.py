"""The door: whose name was called, who asks, from where, with which token, and how much.

A loopback port is open to every user of the machine and to every web page in their browsers: pages
of other origins are kept out by name (DNS rebinding), by what the browser says of them, and by the
absence of any CORS header; other users by the token.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from gpuwatchd.web import responses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gpuwatchd.web.tokens import Tokens

MOST_BODY: Final = 16 * 1024
BODY_S: Final = 10.0
MOST_HEAD: Final = 16 * 1024
MOST_QUERY: Final = 8 * 1024
WRONG_TOKENS: Final = 20
"""In :data:`WRONG_S`; the right one is let in at any time."""
WRONG_S: Final = 10.0
_KNOWN: Final = "gpuwatchd.known"
_SPOKEN: Final = frozenset({"1.0", "1.1"})
_API: Final = "/api/"
_OPEN: Final = frozenset({"/api/v1/openapi.json"})
"""Of the API without a token: it says nothing of this machine."""
_READING: Final = frozenset({"GET", "HEAD"})
_WRITING: Final = frozenset({"POST", "DELETE"})
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Names(NamedTuple):
    """Which names in a Host header are ours."""

    exact: frozenset[str]
    any_port: frozenset[str]

    def have(self, host: str) -> bool:
        """Say whether a Host header calls us."""
        host = host.lower()
        name, colon, port = host.rpartition(":")
        if not colon or "]" in port:
            name, port = host, ""
        right = not port or (port.isascii() and port.isdigit())
        return host in self.exact or (right and name in self.any_port)


def names(hosts: Sequence[str], port: int | None, own: str = "") -> Names:
    """Return the names of this server.

    Parameters
    ----------
    hosts
        Of the configuration: "NAME" with any port, or "NAME:PORT".
    port
        Where we listen; None for a unix socket, whose callers are known by other means.
    own
        The address that we listen at, if it is not loopback.

    Examples
    --------
    >>> names((), 9753).have("LOCALHOST:9753"), names((), 9753).have("localhost:80")
    (True, False)
    >>> names(("gpu.example.org",), 9753).have("gpu.example.org")
    True
    """
    exact: set[str] = set()
    any_port: set[str] = set()
    if port is None:
        any_port |= {"localhost"}
    else:
        exact |= {f"{name}:{port}" for name in (*_LOOPBACK, *([own] if own else []))}
    for host in hosts:
        text = host.strip().lower()
        tail = text.rpartition(":")[2]
        (exact if ":" in text and tail.isdigit() else any_port).add(text)
    return Names(frozenset(exact), frozenset(any_port))


class Guard:
    """Let through to an application only what may pass, and give every answer its headers.

    Parameters
    ----------
    app
        What answers; it gets a body that is whole and small.
    ours
        The names that may be called.
    tokens
        Where the token is.
    log
        Is told method, path and status of each request; never a query or a header.
    unexpected
        Is told of errors that nobody foresaw.
    clock
        Seconds, ascending.
    """

    def __init__(
        self,
        app: ASGIApp,
        ours: Names,
        tokens: Tokens,
        *,
        log: Callable[[str], None],
        unexpected: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._ours = ours
        self._tokens = tokens
        self._log = log
        self._unexpected = unexpected
        self._clock = clock
        self._wrong: list[float] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = False

        async def answer(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                self._dress(scope, message)
            await send(message)

        try:
            await self._let_in(scope, receive, answer)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - no request may end the server or show why
            self._unexpected(error)
            if not began:
                await responses.refusal(500)(scope, receive, answer)

    def _dress(self, scope: Scope, message: Message) -> None:
        own = [(name, value) for name, value in message["headers"] if name != b"server"]
        if not any(name == b"cache-control" for name, _ in own):
            own.append((b"cache-control", b"no-store"))
        message["headers"] = [*own, *HEADERS]
        # Quoted: a path may hold anything, also what commands a terminal.
        path = self._tokens.masked(scope["path"])[:200]
        self._log(f"{scope['method'][:16]!r} {path!r} {message['status']}")

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _headers(scope)
        refused = self._refused(scope, given)
        if refused is None and scope["method"] in _WRITING:
            body = await _body(given, receive) if scope["method"] == "POST" else b""
            if isinstance(body, int):
                refused = body
            else:
                await self._app(scope, _whole(body), send)
                return
        if refused is None:
            await self._app(scope, _whole(b""), send)
        else:
            await responses.refusal(refused)(scope, _whole(b""), send)

    def _refused(self, scope: Scope, given: dict[bytes, list[bytes]]) -> int | None:
        """Return the status of a refusal; None for who may come in."""
        method, path = scope["method"], scope["path"]
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["query_string"]) > MOST_QUERY or size > MOST_HEAD:
            return 413
        if (
            not path.startswith("/")
            or not path.isprintable()
            or scope["http_version"] not in _SPOKEN
        ):
            return 400  # a whole address, as one says it to a proxy
        host = given.get(b"host", [])
        if len(host) != 1 or not self._ours.have(host[0].decode("latin-1")):
            return 421
        if not path.startswith(_API):
            return None if method in _READING else 405
        if method not in _READING | _WRITING:
            return 405
        if not _same_origin(method, given, host[0].decode("latin-1")):
            return 403
        if path in _OPEN:
            return None
        refused = self._unknown(given)
        scope[_KNOWN] = refused is None
        return refused

    def _unknown(self, given: dict[bytes, list[bytes]]) -> int | None:
        """Return the status for who has not the token; None for who has."""
        said = given.get(b"authorization", [])
        scheme, _, token = (said[0] if len(said) == 1 else b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and self._tokens.fits(token.strip()):
            return None
        now = self._clock()
        self._wrong = [at for at in self._wrong if at > now - WRONG_S]
        if len(self._wrong) >= WRONG_TOKENS:
            return 429
        if said:
            self._wrong.append(now)
        return 401


def is_known(scope: Mapping[str, object] | None) -> bool:
    """Say whether who sent a request had the token."""
    return scope is not None and bool(scope.get(_KNOWN))


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    out: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        out.setdefault(name, []).append(value)
    return out


def _same_origin(method: str, given: dict[bytes, list[bytes]], host: str) -> bool:
    """Say whether a request comes from our own page, or from no browser at all."""
    site = [one.lower() for one in given.get(b"sec-fetch-site", [])]
    allowed = {b"same-origin"} if method in _WRITING else {b"same-origin", b"none"}
    if any(one not in allowed for one in site):
        return False
    for one in given.get(b"origin", []):
        try:
            parts = urlsplit(one.decode("latin-1"))
        except ValueError:
            return False
        if parts.scheme not in {"http", "https"} or parts.netloc.lower() != host.lower():
            return False
    return True


async def _body(given: dict[bytes, list[bytes]], receive: Receive) -> bytes | int:
    """Return a whole body, or the status of its refusal."""
    kinds = given.get(b"content-type", [])
    if len(kinds) != 1 or kinds[0].partition(b";")[0].strip().lower() != b"application/json":
        return 415
    length = given.get(b"content-length", [b"0"])[0]
    if not length.isdigit() or int(length) > MOST_BODY:
        return 413
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return 400
                body += message.get("body", b"")
                if len(body) > MOST_BODY:
                    return 413
                more = message.get("more_body", False)
    except TimeoutError:
        return 408
    return body


def _whole(body: bytes) -> Receive:
    """Return what hands over a body that was read already."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if waiting:
            return waiting.pop()
        return {"type": "http.disconnect"}

    return receive
