"""The door: whose name was called, who asks, from where, with which token, and how much.

A loopback port is open to every user of the machine and to every web page in their browsers: pages
of other origins are kept out by name (DNS rebinding), by what the browser says of them, and by the
absence of any CORS header; other users by the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import stat
import time
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from gpuwatchd.core import text
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.web import responses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

    Hosts of the configuration are "NAME" with any port, or "NAME:PORT". The port is None for a unix
    socket, whose callers are known by other means; ``own`` is an address that is not loopback.

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

    The application gets a body that is whole and small. ``log`` is told method, path and status of
    each request, never a query or a header; ``unexpected`` of errors that nobody foresaw.
    """

    def __init__(
        self,
        app: ASGIApp,
        ours: Names,
        tokens: Tokens,
        *,
        log: Callable[[str], None],
        unexpected: Callable[[Exception], None],
    ) -> None:
        self._app = app
        self._ours = ours
        self._tokens = tokens
        self._log = log
        self._unexpected = unexpected
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
                await responses.refused_response(500)(scope, receive, answer)

    def _dress(self, scope: Scope, message: Message) -> None:
        own = [(name, value) for name, value in message["headers"] if name != b"server"]
        if not any(name == b"cache-control" for name, _ in own):
            own.append((b"cache-control", b"no-store"))
        message["headers"] = [*own, *HEADERS]
        # Quoted: a path may hold anything, also what commands a terminal.
        path = self._tokens.masked(scope["path"])[:200]
        self._log(f"{scope['method'][:16]!r} {path!r} {message['status']}")

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name, []).append(value)
        body: bytes | int = self._refused(scope, given) or b""
        if body == b"" and scope["method"] == "POST":
            body = await _body(given, receive)
        if isinstance(body, int):
            await responses.refused_response(body)(scope, _whole(b""), send)
        else:
            await self._app(scope, _whole(body), send)

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
        sent = given.get(b"authorization", [])
        scheme, _, token = (sent[0] if len(sent) == 1 else b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and self._tokens.fits(token.strip()):
            return None
        now = time.monotonic()
        self._wrong = [at for at in self._wrong if at > now - WRONG_S]
        if len(self._wrong) >= WRONG_TOKENS:
            return 429
        if sent:
            self._wrong.append(now)
        return 401


def is_known(scope: Mapping[str, object] | None) -> bool:
    """Say whether who sent a request had the token."""
    return scope is not None and bool(scope.get(_KNOWN))


def _same_origin(method: str, given: dict[bytes, list[bytes]], host: str) -> bool:
    """Say whether a request comes from our own page, or from no browser at all."""
    sites = [site.lower() for site in given.get(b"sec-fetch-site", [])]
    allowed = {b"same-origin"} if method in _WRITING else {b"same-origin", b"none"}
    if any(site not in allowed for site in sites):
        return False
    for origin in given.get(b"origin", []):
        try:
            parts = urlsplit(origin.decode("latin-1"))
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


# The token: 32 random bytes in a file that its owner alone can read.
# Whoever has it may read everything here, snooze alerts, and end what `reap` would end. It travels
# in one header only, and is compared in constant time.

FILE_NAME: Final = "web-token"
BYTES: Final = 32
_CHARS: Final = 43
"""Of 32 bytes in the alphabet that addresses may have."""
_MAX_BYTES: Final = 256
_PAGE: Final = "errors#web-token"
_NEW: Final = "gpuwatchctl web --new-token writes another"


class TokenError(GpuwatchdError):
    """The file of the token cannot be used."""

    default_page = _PAGE


class Tokens:
    """The token in force, read again whenever its file has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._uid = os.geteuid()
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def current(self) -> str:
        """Return the token; "" where there is none that could be trusted."""
        if os.geteuid() != self._uid:
            return self._token  # root writes as the history's owner just now, who may not look
        try:
            stat_result = self.path.lstat()
            seen = (stat_result.st_ino, stat_result.st_mtime_ns, stat_result.st_ctime_ns)
            if seen != self._seen:
                self._token = read(self.path)
                self._seen = seen
        except (OSError, GpuwatchdError):
            if os.geteuid() == self._uid:
                self._seen, self._token = None, ""
        return self._token

    def fits(self, given: str) -> bool:
        """Say whether somebody has the token. Without one nobody has."""
        mine = self.current()
        return bool(mine) and hmac.compare_digest(given.encode(), mine.encode())

    def masked(self, words: str) -> str:
        """Return a text without the token, which somebody may have put where it does not belong."""
        mine = self.current()
        return words.replace(mine, text.MASK) if mine else words


def kept(path: Path) -> str:
    """Return the token of a file; where there is none, a new one is written.

    Raises
    ------
    TokenError
        When the file is not its owner's alone, is no file, or cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        return read(path)
    _write(path, replace=False)
    return read(path)  # of two programs that start at once, the first has written it


def renew(path: Path) -> str:
    """Write a new token in place of the old one, which is good for nothing from now on."""
    _write(path, replace=True)
    return read(path)


def read(path: Path) -> str:
    """Return the token of a file; the checks are made on the opened file itself.

    Raises
    ------
    FileNotFoundError
        When there is none.
    TokenError
        When it could be somebody else's, or somebody else can read it.
    """
    value = text.clean(str(path))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise TokenError(f"token file {value}: {why}", hint=_NEW) from None
    try:
        stat_result = os.fstat(handle)
        data = os.read(handle, _MAX_BYTES) if stat.S_ISREG(stat_result.st_mode) else b""
    finally:
        os.close(handle)
    if stat_result.st_uid not in {os.geteuid(), 0}:
        raise TokenError(f"token file {value}: it belongs to another user", hint=_NEW)
    if stat_result.st_mode & 0o077:
        why = f"others can read it (mode {stat_result.st_mode & 0o777:04o})"
        raise TokenError(f"token file {value}: {why}", hint=_NEW)
    token = data.decode("ascii", "replace").strip()
    if len(token) < _CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenError(f"token file {value}: no token in it", hint=_NEW)
    return token


def _write(path: Path, *, replace: bool) -> None:
    """Write a new token under a name of its own, then move it: nobody ever sees half of one."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(
            aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            with open(handle, "w", encoding="ascii") as file:  # noqa: PTH123
                os.fchmod(handle, 0o600)
                file.write(f"{secrets.token_urlsafe(BYTES)}\n")
                file.flush()
                os.fsync(handle)
            if replace:
                aside.replace(path)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
    except OSError as error:
        raise TokenError(
            f"token file {text.clean(str(path))}: {error.strerror}",
            hint='[web] token-file = "FILE" names another place',
        ) from error
