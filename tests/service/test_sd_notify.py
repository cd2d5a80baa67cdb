"""The service manager's ear: what it is told, and that nobody waits for it."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.service.own_process import NotifySocket
from tests.conftest import ON_LINUX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A listener that takes in nothing by itself."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(0.0)
        yield listener


def fill(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.settimeout(0.0)
        try:
            for _ in range(100_000):
                other.sendto(b"STATUS=somebody else", listener.getsockname())
        except BlockingIOError:
            return
    pytest.fail("a queue without an end")


def heard(listener: socket.socket) -> list[str]:
    found: list[str] = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


@ON_LINUX
def test_a_manager_whose_queue_is_full_is_not_waited_for_and_told_later(
    manager: socket.socket,
) -> None:
    ear = NotifySocket(manager.getsockname())
    fill(manager)

    def talk() -> None:
        ear.send("READY=1")
        ear.status("1 GPUs")
        ear.status("2 GPUs")
        ear.send("WATCHDOG=1")

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    talker.join(10)
    assert not talker.is_alive()
    assert set(heard(manager)) == {"STATUS=somebody else"}
    ear.send("WATCHDOG=1")
    (late,) = heard(manager)
    assert sorted(late.splitlines()) == ["READY=1", "STATUS=2 GPUs", "WATCHDOG=1"]
    ear.send("WATCHDOG=1")
    assert heard(manager) == ["WATCHDOG=1"]


def test_a_manager_that_has_gone_is_nobodys_problem(tmp_path: Path) -> None:
    ear = NotifySocket(str(tmp_path / "nowhere"))
    ear.send("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "nowhere"))
        listener.settimeout(0.0)
        ear.send("WATCHDOG=1")
        assert heard(listener) == ["WATCHDOG=1"]


def test_a_status_is_told_when_it_is_news(manager: socket.socket) -> None:
    ear = NotifySocket(manager.getsockname())
    for text in ("1 GPUs", "1 GPUs", "2 GPUs"):
        ear.status(text)
    assert heard(manager) == ["STATUS=1 GPUs", "STATUS=2 GPUs"]


def test_a_long_status_is_cut_after_a_word(manager: socket.socket) -> None:
    ear = NotifySocket(manager.getsockname())
    ear.status("seldom " * 60)
    (told,) = heard(manager)
    assert told.endswith(" seldom …")
    assert len(told) <= len("STATUS=") + 256
