"""What ``doctor`` says of mail servers that are there, and of those that are not."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.cli.doctor import channels
from tests.cli.sick import Machine
from tests.real import mailserver

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.cli.doctor.answer import Check

pytestmark = pytest.mark.real_smtp


class Server:
    """What a machine is told to send its mail through."""

    def __init__(self, folder: Path, post: mailserver.Post) -> None:
        self.machine = Machine(folder)
        self.values = {**post.settings, "to": ["a@example.org"]}
        self.values.pop("timeout")

    def ask(self, **changes: Any) -> Check:
        """Return what doctor says of it."""
        lines = [f"{key.replace('_', '-')} = {value!r}"
                 for key, value in {**self.values, **changes}.items()]  # fmt: skip
        self.machine.settings = "\n".join(
            ["[policy]", "channels = ['email']", "[notify.email]", *lines]
        )
        (found,) = self.machine.ask("mail")
        return found


@pytest.fixture
def server(tmp_path: Path, post: mailserver.Post) -> Server:
    return Server(tmp_path, post)


def test_a_server_that_answers_is_well_and_gets_nothing(
    server: Server, post: mailserver.Post
) -> None:
    found = server.ask(port=post.start())
    assert (found.level, found.id) == ("ok", "mail")
    assert "login offered" in found.text
    assert post.box.mails == []
    assert mailserver.PASSWORD not in found.text


@pytest.mark.parametrize("certificate", ["other", "wrong-name"])
def test_a_certificate_that_is_not_trusted(
    certificate: str, server: Server, post: mailserver.Post
) -> None:
    found = server.ask(port=post.start(certificate=certificate))
    assert found.id == "mail-certificate"
    assert "ca-file" in found.hint


def test_a_server_without_tls_and_one_without_a_login(
    server: Server, post: mailserver.Post
) -> None:
    plain = post.start(certificate="")
    assert server.ask(port=plain).id == "mail-tls"
    assert server.ask(port=plain, security="none").id == "mail-login"
    found = server.ask(port=plain, security="none", username="")
    assert (found.level, "answers" in found.text) == ("ok", True)


def test_a_port_where_nobody_listens_and_a_name_that_nobody_has(server: Server) -> None:
    assert server.ask(port=mailserver.free_port()).id == "mail-unreachable"
    began_s = time.monotonic()
    assert server.ask(host="mail.invalid").id in {"mail-name", "mail-unreachable"}
    assert time.monotonic() - began_s < channels.WITHIN_S + channels.NAMES_S + 2


def test_a_server_that_never_says_a_word_is_left_in_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "WITHIN_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began_s = time.monotonic()
        found = server.ask(port=mute.getsockname()[1])
    assert found.id == "mail-unreachable"
    assert time.monotonic() - began_s < 3


def test_offline_asks_nobody(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as watched:
        server.machine.offline = True
        found = server.ask(port=watched.getsockname()[1])
        watched.setblocking(False)
        with pytest.raises(BlockingIOError):
            watched.accept()
    assert (found.level, "--offline" in found.text) == ("ok", True)
