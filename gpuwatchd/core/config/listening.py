"""Addresses to listen at, as text: what they mean, without opening anything."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core import directories, text

if TYPE_CHECKING:
    from pathlib import Path

SOCKET: Final = "web.sock"
METRICS_SOCKET: Final = "metrics.sock"
MOST_PORT: Final = 65535
_ADDRESS: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*):(\d+)")
_HOST: Final = re.compile(r"(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")
_FORMS: Final = '"127.0.0.1:{0}", "[::1]:{0}", "localhost:{0}", "unix" or "unix:PATH"'
_PORTS: Final = {"web": 9753, "metrics": 9750}


class NoAddress(ValueError):
    """A text is no address to listen at, or one that needs leave; ``hint`` is what to write."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Address(NamedTuple):
    """Where to listen: hosts and a port, or a socket."""

    hosts: tuple[str, ...] = ()
    """Numeric; all of them on one port."""
    port: int = 0
    path: Path | None = None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return all(ipaddress.ip_address(host).is_loopback for host in self.hosts)


def parse(words: str, *, remote: bool, section: str = "web", socket: str = SOCKET) -> Address:
    """Return the address that a text means; ``remote``: it may be elsewhere than on loopback.

    "127.0.0.1:9753", "[::1]:9753", "localhost:9753" (by IPv4 and IPv6), ":9753" or "9753"
    (127.0.0.1), "unix" or "unix:PATH". ``section`` has it in the configuration, and ``socket`` is
    the name of the socket that "unix" means.

    Raises
    ------
    NoAddress
        When it is none, or not loopback without leave.

    Examples
    --------
    >>> parse("localhost:80", remote=False).hosts
    ('127.0.0.1', '::1')
    """
    kind, _, path = words.partition(":")
    if kind == "unix":
        place = directories.expanded(path) if path else directories.runtime_dir() / socket
        if path and not place.is_absolute():
            raise NoAddress(f"unix:{text.clean(path)}: not a whole path", "unix:/PATH")
        return Address(path=place)
    match = _ADDRESS.fullmatch(f":{words}" if words.isdecimal() else words)
    if match is None:
        raise _odd(words, section)
    if len(match[2]) > len(str(MOST_PORT)) or int(match[2]) > MOST_PORT:
        raise NoAddress(
            f"{text.clean(words, limit=80)!r}: no port is above {MOST_PORT}", "0 takes a free one"
        )
    port, host = int(match[2]), match[1].strip("[]")
    if host in {"", "localhost"}:
        return Address(("127.0.0.1", "::1") if host else ("127.0.0.1",), port)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise _odd(words, section) from None
    address = Address((host,), port)
    if not address.loopback and not remote:
        hint = (
            f"ssh -t -L reaches a page on loopback; [{section}] remote = true listens all the same"
        )
        raise NoAddress(f"{host} can be reached from elsewhere", hint)
    return address


def _odd(words: str, section: str) -> NoAddress:
    value = text.clean(words, limit=80)
    return NoAddress(
        f"{value!r} is no address to listen at", f"write {_FORMS.format(_PORTS[section])}"
    )


def is_host(words: str) -> bool:
    """Say whether a text is what a browser can send as the name of a server.

    Examples
    --------
    >>> is_host("gpu.example.org"), is_host("localhost:9800"), is_host("https://gpu.example.org")
    (True, True, False)
    """
    match = _HOST.fullmatch(words.strip().lower())
    return match is not None and int(match[1] or 0) <= MOST_PORT
