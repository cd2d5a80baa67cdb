"""What ``doctor`` says of the live page: its libraries, address, token and reach."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.cli.doctor import checks
from gpuwatchd.core import config
from tests.children import Child
from tests.cli.sick import Machine
from tests.conftest import ON_LINUX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.cli.doctor.checks import Check

LISTENER = (
    "import socket, sys; one = socket.create_server(('127.0.0.1', 0));"
    "print(one.getsockname()[1], flush=True); sys.stdin.read()"
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.settings = '[web]\nlisten = "127.0.0.1:0"\n'
    return found


def _one(machine: Machine) -> Check:
    (found,) = machine.ask("web")
    return found


def _token(mode: int = 0o600) -> Path:
    file = config.state_dir() / "web-token"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x" * 43)
    file.chmod(mode)
    return file


@pytest.fixture
def taken() -> Iterator[tuple[int, int]]:
    """Return port and pid of another program that listens."""
    words = [sys.executable, "-c", LISTENER]
    with Child(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline()), process.pid
        process.stdin.close()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "unix"])
def test_a_page_that_could_be_served_is_no_fault(machine: Machine, listen: str) -> None:
    machine.settings = f'[web]\nlisten = "{listen}"\n'
    _token()
    found = _one(machine)
    assert (found.level, found.id, found.name) == ("ok", "web", "live page")
    assert found.text == f"gpuwatchctl web may have {listen}"


def test_without_the_libraries_the_command_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    found = _one(machine)
    assert (found.level, found.id) == ("warning", "web-extra")
    assert "uvicorn" in found.text
    assert "gpuwatchd[" in found.hint
    machine.settings = ""
    unused = _one(machine)
    assert unused.level == "ok", "who has no page needs no libraries for it"
    assert found.hint in unused.text


@ON_LINUX
def test_a_port_that_is_taken_names_by_whom(
    machine: Machine, taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, pid = taken
    machine.settings = f'[web]\nlisten = "localhost:{port}"\n'
    assert _one(machine).text == f"127.0.0.1:{port} is taken by somebody else"
    machine.root = checks.ROOT
    found = _one(machine)
    assert (found.level, found.id) == ("warning", "web-listen")
    assert found.text.startswith(f"127.0.0.1:{port} is taken by {sys.executable} -c[{pid}]")
    assert "--port 0" in found.hint
    monkeypatch.setattr(os, "readlink", lambda _: "")  # as of another user's program
    assert f"127.0.0.1:{port} is taken by a program of " in _one(machine).text


def test_our_own_server_is_no_fault(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        machine.settings = f'[web]\nlisten = "127.0.0.1:{port}"\n'
        machine.put("proc/net/tcp", f"head\n0: 0100007F:{port:04X} 0:0 0A 0:0 0:0 0 0 0 77 1\n")
        machine.put("proc/12/cmdline", "python3\0/bin/gpuwatchctl\0web\0")
        (machine.root / "proc/12/fd").mkdir()
        (machine.root / "proc/12/fd/3").symlink_to("socket:[77]")
        found = _one(machine)
    assert (found.level, found.text) == (
        "ok", f"gpuwatchctl web, pid 12, serves it at 127.0.0.1:{port}"
    )  # fmt: skip


def test_who_has_no_page_is_not_warned_of_another_users(
    machine: Machine, taken: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = config.WebSection(listen=f"127.0.0.1:{taken[0]}")
    monkeypatch.setattr(config, "WebSection", lambda: section)
    machine.settings = f'[web]\nlisten = "127.0.0.1:{taken[0]}"\n'
    assert _one(machine).level == "ok"
    _token()
    assert _one(machine).level == "warning"


def test_an_address_of_another_machine_is_none(machine: Machine) -> None:
    machine.settings = '[web]\nlisten = "192.0.2.1:0"\nremote = true\n'
    assert {*machine.faults("web")} == {"web-remote", "web-listen"}


def test_a_socket_where_something_else_is(machine: Machine) -> None:
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        place = Path(folder) / "s"
        machine.settings = f'[web]\nlisten = "unix:{place}"\n'
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(place))
            server.listen()
            assert _one(machine).text == f"gpuwatchctl web serves it at unix:{place}"
        assert _one(machine).level == "ok", "of a server that is no more"
        place.unlink()
        place.write_text("mine")
        assert "something is there already" in machine.faults("web")["web-listen"].text
        machine.settings = f'[web]\nlisten = "unix:{folder}/no/s"\n'
        assert "is no folder" in machine.faults("web")["web-listen"].text


@pytest.mark.parametrize("kind", ["open", "link", "folder"])
def test_a_token_that_others_may_read_is_told_of(machine: Machine, kind: str) -> None:
    if kind == "open":
        _token(0o640)
    elif kind == "link":
        _token().rename(config.state_dir() / "other")
        (config.state_dir() / "web-token").symlink_to("other")
    else:
        (config.state_dir() / "web-token").mkdir(parents=True)
    found = machine.faults("web")["web-token"]
    assert {"open": "mode 0640", "link": "is a link", "folder": "is no file"}[kind] in found.text
    if kind != "folder":
        assert main(found.hint.split()[1:]) == 0
        assert _one(machine).level == "ok"
