"""One small question over HTTP to a server on this machine, and nowhere else.

The name is resolved once and the address that was checked is the one that is used; a redirect is
refused, a proxy is never asked, and neither a slow nor an endless answer takes longer than the
deadline or more than the limit.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import time
from typing import Final
from urllib.parse import urlsplit

from gpuwatchd.core.errors import EndpointError
from gpuwatchd.core.text import clean

LIMIT_BYTES: Final = 4 * 1024 * 1024
"""The largest answer that is taken."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HEAD_END: Final = b"\r\n\r\n"
_MOST_DIGITS: Final = 18


def get(url: str, path: str, *, timeout_s: float, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return the body of ``url`` + ``path``.

    It takes ``timeout_s`` at most for all of it: connecting, asking, reading.

    Raises
    ------
    EndpointError
        When the host is not this machine's loopback, or anything but a whole answer with
        status 200 comes back in time.
    """
    deadline_s = time.monotonic() + timeout_s
    scheme, host, port = _parts(url)
    try:
        with _connected(scheme, host, port, deadline_s) as connection:
            place = f"[{host}]" if ":" in host else host
            lines = (
                f"GET {path} HTTP/1.1",
                f"Host: {place}:{port}",
                "User-Agent: gpuwatchd",
                "Accept: application/json, text/plain;version=0.0.4, */*;q=0.1",
                "Accept-Encoding: identity",
                "Connection: close",
            )
            connection.sendall("\r\n".join((*lines, "", "")).encode("ascii", "replace"))
            raw = _received(connection, deadline_s, limit_bytes)
    except TimeoutError:
        raise EndpointError(f"no answer within {timeout_s:g} s") from None
    except ConnectionRefusedError:
        raise EndpointError("nothing listens there") from None
    except OSError as error:
        raise EndpointError(clean(error.strerror or str(error))) from error
    return _body(raw)


def _parts(url: str) -> tuple[str, str, int]:
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError as error:
        raise EndpointError(f"{clean(url)} is no address") from error
    if split.scheme not in _DEFAULT_PORTS or not host:
        raise EndpointError(f"{clean(url)} is no address")
    return split.scheme, host, port or _DEFAULT_PORTS[split.scheme]


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Return what a name resolves to, if all of it is this machine's loopback."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EndpointError(f"{clean(host)} is not known") from error
    for _, _, _, _, place in found:
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])
        inner = getattr(address, "ipv4_mapped", None) or address
        if not inner.is_loopback:
            raise EndpointError(f"{clean(host)} is not on this machine's loopback: not asked")
    return [(family, tuple(place)) for family, _, _, _, place in found]


def _connected(scheme: str, host: str, port: int, deadline_s: float) -> socket.socket:
    failed: OSError = ConnectionRefusedError()
    for family, place in _addresses(host, port):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(_left(deadline_s))
            connection.connect(place)
            if scheme == "http":
                return connection
            import ssl  # noqa: PLC0415 - rare on loopback, and large

            return ssl.create_default_context().wrap_socket(connection, server_hostname=host)
        except OSError as error:
            connection.close()
            failed = error
    raise failed


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0.0:
        raise TimeoutError
    return left_s


def _received(connection: socket.socket, deadline_s: float, limit_bytes: int) -> bytes:
    """Read until the other side closes, or all that it announced is there."""
    parts: list[bytes] = []
    length, wanted, head = 0, None, b""
    while wanted is None or length < wanted:
        connection.settimeout(_left(deadline_s))
        part = connection.recv(1 << 16)
        if not part:
            break
        parts.append(part)
        length += len(part)
        if length > limit_bytes:
            raise EndpointError(f"its answer is larger than {limit_bytes // 1024} KiB")
        if _HEAD_END not in head:
            head = b"".join(parts)
            wanted = _announced(head)
    return b"".join(parts)


def _announced(raw: bytes) -> int | None:
    """Return the length of the whole answer, where its head says it."""
    head, end, _ = raw.partition(_HEAD_END)
    if not end:
        return None
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            # More digits than these are no length: what is taken is bounded anyway.
            return len(head) + len(end) + int(value.strip()[:_MOST_DIGITS])
    return None


class _Recorded:
    """An answer that was read already, for the standard library's parser."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, _mode: str, *_: object) -> io.BytesIO:
        return io.BytesIO(self._raw)


def _body(raw: bytes) -> bytes:
    from http.client import HTTPException, HTTPResponse  # noqa: PLC0415 - 5 MiB with OpenSSL

    answer = HTTPResponse(_Recorded(raw))  # type: ignore[arg-type]
    try:
        answer.begin()
        if answer.status in range(300, 400):
            why = f"it answers {answer.status}: redirects are not followed"
            raise EndpointError(why, status=answer.status)
        if answer.status != 200:
            why = f"it answers {answer.status} {clean(answer.reason or '', limit=40)}"
            raise EndpointError(why, status=answer.status)
        return answer.read()
    except (HTTPException, OSError, ValueError, OverflowError) as error:
        raise EndpointError("what it answers is not HTTP") from error
