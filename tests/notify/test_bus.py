"""The session bus is looked for where it may be, and nowhere that others can plant one."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.notify.channels.desktop import session_bus
from tests.conftest import ON_LINUX

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = ON_LINUX


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def _usual(found: list[str]) -> list[str]:
    """Return what was found, without the bus of whoever runs the tests."""
    return [one for one in found if not one.startswith(f"unix:path=/run/user/{os.getuid()}/")]


def test_the_variable_comes_first_and_the_usual_place_next(tmp_path: Path, home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "bus"))
        environ = {session_bus.VARIABLE: "unix:path=/old", "XDG_RUNTIME_DIR": str(tmp_path)}
        found = _usual(session_bus.addresses(environ, home))
    assert found == ["unix:path=/old", f"unix:path={tmp_path}/bus"]


def test_a_file_that_is_no_socket_is_no_bus(tmp_path: Path, home: Path) -> None:
    (tmp_path / "bus").write_text("")
    assert _usual(session_bus.addresses({"XDG_RUNTIME_DIR": str(tmp_path)}, home)) == []


def test_the_notes_of_dbus_launch_are_read_newest_first(home: Path) -> None:
    folder = home / ".dbus/session-bus"
    folder.mkdir(parents=True)
    for age, name in enumerate(("c", "b", "a")):
        note = folder / f"machine-{name}"
        note.write_text(
            f"# a note\nDBUS_SESSION_BUS_ADDRESS='unix:abstract=/tmp/{name}'\n"
            "DBUS_SESSION_BUS_PID=5\n"
        )
        os.utime(note, (1000 + age, 1000 + age))
    assert _usual(session_bus.addresses({}, home)) == [
        f"unix:abstract=/tmp/{name}" for name in ("a", "b", "c")
    ]
    (folder / "machine-a").write_bytes(b"\xff\xfe")
    assert "unix:abstract=/tmp/b" in session_bus.addresses({}, home)


def test_nothing_is_found_where_there_is_nothing(home: Path) -> None:
    assert _usual(session_bus.addresses({}, home)) == []


@pytest.mark.parametrize("before", [None, "unix:path=/ours"])
def test_two_who_try_addresses_leave_the_variable_as_it_was(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(session_bus.VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(session_bus.VARIABLE, before)
    first, second = session_bus.variable.tried(), session_bus.variable.tried()
    first.__enter__()
    os.environ[session_bus.VARIABLE] = "unix:path=/first"
    second.__enter__()
    os.environ[session_bus.VARIABLE] = "unix:path=/second"
    first.__exit__(None, None, None)
    assert os.environ[session_bus.VARIABLE] == "unix:path=/second"
    second.__exit__(None, None, None)
    assert os.environ.get(session_bus.VARIABLE) == before
