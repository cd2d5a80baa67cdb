"""Where it listens: loopback without leave, sockets of one user, nothing cleared away wrongly."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.config.listening import Address
from gpuwatchd.service import sockets
from gpuwatchd.service.sockets import CannotListen
from gpuwatchd.web import auth, server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        yield Path(folder) / "s"


@pytest.mark.parametrize(
    ("words", "hosts", "port"),
    [("127.0.0.1:9753", ("127.0.0.1",), 9753), ("[::1]:80", ("::1",), 80),
     ("localhost:0", ("127.0.0.1", "::1"), 0), (":9", ("127.0.0.1",), 9),
     ("9753", ("127.0.0.1",), 9753), ("127.0.0.2:1", ("127.0.0.2",), 1)],
)  # fmt: skip
def test_addresses(words: str, hosts: tuple[str, ...], port: int) -> None:
    assert server.parse(words, remote=False) == Address(hosts, port)


@pytest.mark.parametrize(
    "words", ["0.0.0.0:80", "[::]:80", "10.0.0.1:9753", "[2001:db8::1]:9753", "[fe80::1]:1"]
)
def test_elsewhere_only_with_leave(words: str) -> None:
    with pytest.raises(CannotListen, match="from elsewhere"):
        server.parse(words, remote=False)
    assert server.parse(words, remote=True).port


@pytest.mark.parametrize(
    "words", ["", "x", "example.org:80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "::1:80",
              "unix:relative", "127.0.0.1:80:80", "[::1]", "http://127.0.0.1:80", "-1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(words: str) -> None:
    with pytest.raises(CannotListen):
        server.parse(words, remote=True)


def test_a_port_that_is_taken_says_so() -> None:
    first = sockets.sockets(Address(("127.0.0.1",), 0))
    port = first[0].getsockname()[1]
    with pytest.raises(CannotListen, match="is taken"):
        sockets.sockets(Address(("127.0.0.1",), port))
    first[0].close()


def test_a_socket_is_its_owners_alone_and_a_dead_ones_is_replaced(place: Path) -> None:
    before = os.umask(0)
    made = sockets.sockets(Address(path=place))[0]
    assert os.umask(before) == 0
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    with pytest.raises(CannotListen, match="is taken"):
        sockets.sockets(Address(path=place))
    made.close()  # as of a server that was killed: the file stays
    again = sockets.sockets(Address(path=place))[0]
    left = sockets.file_of(again)
    again.close()
    sockets.leave(left)
    assert not place.exists()
    third = sockets.sockets(Address(path=place))[0]
    sockets.leave(left)  # of one that is gone: another has the place now
    assert place.exists()
    third.close()


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "folder", "link-to-socket"])
def test_nothing_else_is_cleared_away(place: Path, kind: str) -> None:
    other = place.parent / "other"
    if kind == "file":
        place.write_text("mine")
    elif kind == "folder":
        place.mkdir()
    else:
        if kind == "link":
            other.write_text("mine")
        elif kind == "link-to-socket":
            dead = socket.socket(socket.AF_UNIX)
            dead.bind(str(other))
            dead.close()
        place.symlink_to(other)
    with pytest.raises(CannotListen, match="already"):
        sockets.sockets(Address(path=place))
    assert os.path.lexists(place)
    assert other.exists() == (kind in {"link", "link-to-socket"})


def test_a_path_that_cannot_be_a_socket_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="too long"):
        sockets.sockets(Address(path=tmp_path / ("x" * 150)))
    with pytest.raises(CannotListen, match="No such file"):
        sockets.sockets(Address(path=tmp_path / "no" / "s"))


def test_who_holds_the_lock_of_a_folder_is_not_waited_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_LOCK_S", 0.05)
    other = os.open(place.parent, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)  # as any user can do to a folder that he may read
    with pytest.raises(CannotListen, match="has locked its folder"):
        sockets.sockets(Address(path=place))
    os.close(other)
    made = sockets.sockets(Address(path=place))[0]
    made.close()


def test_only_its_owner_and_root_may_connect() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert sockets.may_connect(here)


def test_names_of_a_proxy_are_ours_where_they_are_configured() -> None:
    ours = auth.names(("gpu.example.org", "localhost:8000"), 9753)
    for host in ("gpu.example.org", "GPU.example.org:443", "localhost:8000", "localhost:9753"):
        assert ours.have(host)
    for host in ("gpu.example.org.evil", "xgpu.example.org", "localhost:8001", "", ":9753",
                 "gpu.example.org:x", "gpu.example.org:80:80"):  # fmt: skip
        assert not ours.have(host)
    assert auth.names((), None).have("localhost")
    assert not auth.names((), None).have("example.org")
