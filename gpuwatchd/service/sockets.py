"""Sockets that a server of ours listens at: bound, cleared away after it, and who may connect."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuwatchd.core import text
from gpuwatchd.core.config import expanded, runtime_dir
from gpuwatchd.core.errors import GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuwatchd.core.config.listening import Address


_BACKLOG: Final = 64
_LOCK_S: Final = 2.0
"""Clearing away and binding takes a thousandth of it."""


class CannotListen(GpuwatchdError):
    """The address is taken, forbidden, or none."""

    default_page = "errors#web-listen"


class Server(NamedTuple):
    """Who listens, for complaints."""

    name: str = "gpuwatchctl web"
    elsewhere: str = "gpuwatchctl web --port 0 takes a free one"
    """What to do where an address cannot be had."""
    shared: bool = False
    """Its group may connect to a unix socket, too."""


WEB: Final = Server()


def sockets(address: Address, server: Server = WEB) -> list[socket.socket]:
    """Return bound sockets; port 0 becomes a free one, the same for every host.

    Raises
    ------
    CannotListen
        When the address is taken, or cannot be had.
    """
    if address.path is not None:
        return [_unix(address.path, server)]
    bound: list[socket.socket] = []
    port = address.port
    try:
        for host in address.hosts:
            try:
                bound.append(_tcp(host, port))
            except OSError as error:
                if bound and error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                    continue  # a machine without IPv6
                raise _taken(host, port, error, server) from error
            port = bound[0].getsockname()[1]
    except CannotListen:
        for made in bound:
            made.close()
        raise
    return bound


def _tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)  # now: of two servers at one port the second must fail here
    except OSError:
        made.close()
        raise
    return made


def _taken(host: str, port: int, error: OSError, server: Server) -> CannotListen:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return CannotListen(
            f"{where} is taken: perhaps {server.name} runs already", hint=server.elsewhere
        )
    why = "only root may use it" if error.errno == errno.EACCES else error.strerror
    return CannotListen(f"{where}: {why}", hint=server.elsewhere)


def _unix(path: Path, server: Server) -> socket.socket:
    value = text.clean(str(path))
    try:
        if path.parent == runtime_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.parent):
            _clear(path, value, server)
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # Nobody else may connect, not even for an instant.
            before = os.umask(0o117 if server.shared else 0o177)
            try:
                made.bind(str(path))
                made.listen(_BACKLOG)
            except OSError:
                made.close()
                raise
            finally:
                os.umask(before)
    except OSError as error:
        why = "the path is too long" if error.errno is None else error.strerror
        raise CannotListen(f"unix:{value}: {why}", hint="unix:PATH names another place") from error
    return made


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second server from clearing away what the first one has just bound."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(handle, time.monotonic() + _LOCK_S)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, end_s: float) -> None:
    """Lock a folder, not for ever: where others may read it, a stranger can hold its lock."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise OSError(errno.EBUSY, "another program has locked its folder") from None
            time.sleep(0.02)
        else:
            return


def _clear(path: Path, value: str, server: Server) -> None:
    """Remove the socket of a server that is no more; nothing else."""
    try:
        stat_result = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(stat_result.st_mode) or stat_result.st_uid != os.geteuid():
        kind = "a link" if stat.S_ISLNK(stat_result.st_mode) else "no socket of yours"
        raise CannotListen(
            f"unix:{value}: something is there already, {kind}", hint="remove it, or name another"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise CannotListen(
        f"unix:{value} is taken: {server.name} runs already", hint="name another place"
    )


def named(made: socket.socket, address: Address) -> str:
    """Return where a socket listens, as people write it."""
    at = made.getsockname()
    if not isinstance(at, tuple):
        return f"unix:{text.clean(os.fsdecode(at))}"
    host = f"[{at[0]}]" if ":" in at[0] else at[0]
    return f"http://{'localhost' if len(address.hosts) > 1 else host}:{at[1]}"


def file_of(made: socket.socket) -> Path | None:
    """Return the file of a bound unix socket; None of any other."""
    return expanded(os.fsdecode(made.getsockname())) if made.family == socket.AF_UNIX else None


def leave(path: Path | None) -> None:
    """Remove the file of a socket that is closed, unless another server has it now."""
    if path is None:
        return
    with contextlib.suppress(OSError, CannotListen), _alone(path.parent):
        _clear(path, "", WEB)


def may_connect(peer: socket.socket) -> bool:
    """Say whether who has connected to a unix socket is its owner, or root.

    True where the system does not tell: then the mode of the file is what keeps others out.
    """
    kind = getattr(socket, "SO_PEERCRED", None)
    if kind is None:
        return True
    try:
        credentials = peer.getsockopt(socket.SOL_SOCKET, kind, struct.calcsize("3i"))
    except OSError:
        return False
    return struct.unpack("3i", credentials)[1] in {os.geteuid(), 0}
