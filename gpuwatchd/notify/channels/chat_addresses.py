"""Addresses of chat services: where they are kept, and how they are named without their secrets.

An address is a secret as a whole: in ``slack://TokenA/TokenB/TokenC`` the token stands where
others have a host. So only the kind of service is ever shown, and a host where it surely is one.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from gpuwatchd.core import text
from gpuwatchd.core.config import expanded
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify import credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

CREDENTIAL = "chat-urls"
VARIABLE = "GPUWATCHD_CHAT_URLS"
_MAX_BYTES = 64 * 1024
_SCHEMA = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_PLAIN = (
    ("apprise", "form", "gotify", "hassio", "http", "json", "matrix", "mailto"),
    ("mmost", "mqtt", "ncloud", "ntfy", "rocket", "signal", "xml"),
)
_WITH_HOST = frozenset(f"{name}{tls}" for row in _PLAIN for name in row for tls in ("", "s"))
"""Services of one's own: what stands after "://" is a host."""
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,18}[a-z0-9])?\.)+[a-z]{2,10}")


class Address(NamedTuple):
    """One address; its repr never shows it."""

    number: int
    """From 1, as they stand in the file."""
    url: str

    @property
    def schema(self) -> str:
        """The kind of service, as it is written before "://"; "" where there is none."""
        value, mark, _ = self.url.partition("://")
        return value.lower() if mark and _SCHEMA.fullmatch(value) else ""

    @property
    def name(self) -> str:
        """What may be shown: "ntfy at ntfy.example.org", "slack (address 2)"."""
        host = self._host()
        if host:
            return f"{self.schema} at {host}"
        return f"{self.schema} (address {self.number})" if self.schema else f"address {self.number}"

    @property
    def fingerprint(self) -> str:
        """The same for the same address, and nothing can be read from it."""
        return hashlib.sha256(self.url.encode("utf-8", "replace")).hexdigest()

    def _host(self) -> str:
        if self.schema not in _WITH_HOST:
            return ""
        try:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
        except ValueError:
            return ""
        # ntfy://topic is a topic of ntfy.sh, and whoever knows it can read along.
        if host == "localhost" or _HOST.fullmatch(host):
            return host
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return ""

    def __repr__(self) -> str:
        return f"Address({self.name})"


def parse(words: str) -> tuple[Address, ...]:
    r"""Return the addresses of a text: one per line; what begins with "#" is a comment.

    Examples
    --------
    >>> parse("# ours\nslack://A/B/C\n\nntfys://ntfy.example.org/gpu\n")
    (Address(slack (address 1)), Address(ntfys at ntfy.example.org))
    """
    lines = [line.strip() for line in words.splitlines()]
    kept = dict.fromkeys(line for line in lines if line and not line.startswith("#"))
    return tuple(Address(number, url) for number, url in enumerate(kept, start=1))


def load(urls_file: str, environ: Mapping[str, str] | None = None) -> tuple[Address, ...]:
    """Return the addresses: of the file, else the credential, else the environment.

    Raises
    ------
    NotifyError
        Permanent: there are none, or the file is one that others can read.
    """
    environ = credentials.environment() if environ is None else environ
    directory = environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(directory) / CREDENTIAL if directory else None
    if urls_file:
        source, words = "urls-file", _content(expanded(urls_file), guarded=False)
    elif credential is not None and credential.exists():
        source, words = f"credential {CREDENTIAL}", _content(credential, guarded=True)
    else:
        source, words = VARIABLE, "\n".join(environ.get(VARIABLE, "").split())
    addresses = parse(words)
    if addresses:
        return addresses
    if source == VARIABLE:
        raise NotifyError(
            "no address of a chat service is set",
            permanent=True,
            hint='set [notify.chat] urls-file = "~/.config/gpuwatchd/chat-urls"',
            page="errors#secret-file",
        )
    raise NotifyError(
        f"{source}: no address in it",
        permanent=True,
        hint="one address per line, such as ntfys://...",
        page="errors#secret-file",
    )


def _content(path: Path, *, guarded: bool) -> str:
    """Return a file's text; the checks are made on the opened file itself."""
    value = text.clean(str(path))
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise NotifyError(
            f"file of addresses {value}: {error.strerror}",
            permanent=True,
            hint="write one address per line into it and chmod 600",
            page="errors#secret-file",
        ) from None
    if not guarded and status.st_mode & 0o077:
        raise NotifyError(
            f"file of addresses {value}: others can read it (mode {status.st_mode & 0o777:04o})",
            permanent=True,
            hint=f"chmod 600 {value}",
            page="errors#secret-file",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotifyError(
            f"file of addresses {value}: not UTF-8 text", permanent=True, page="errors#secret-file"
        ) from None


def _without_waiting(path: str, flags: int) -> int:
    # A FIFO planted in the file's place must not hang us.
    return os.open(path, flags | os.O_NONBLOCK)
