"""Addresses of chat services: where they are read from, and that no name of one is a secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify.channels import chat
from gpuwatchd.notify.channels.chat import ChatNotifier
from tests.notify.chatting import SECRET, _nothing_set, write

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Message

__all__ = ["_nothing_set", "write"]


def test_a_file_that_others_can_read_is_refused(write: Any, message: Message) -> None:
    notifier = ChatNotifier(write(f"slack://{SECRET}/B/C", mode=0o644))
    available = notifier.probe()
    assert not available.ok
    assert available.hint.startswith("chmod 600 ")
    with pytest.raises(NotifyError, match="others can read it") as caught:
        notifier.send(message)
    assert caught.value.permanent


@pytest.mark.parametrize("content", [b"", b"# none\n", b"\xff\xfe\x00"])
def test_a_file_without_addresses_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "urls"
    file.write_bytes(content)
    file.chmod(0o600)
    available = ChatNotifier(str(file)).probe()
    assert not available.ok
    assert "address" in available.reason


def test_a_pipe_in_place_of_the_file_hangs_nobody(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "urls", 0o600)
    assert not ChatNotifier(str(tmp_path / "urls")).probe().ok
    assert "No such file" in ChatNotifier(str(tmp_path / "none")).probe().reason


def test_credential_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ChatNotifier().probe().ok
    monkeypatch.setenv(chat.VARIABLE, "ntfy://127.0.0.1/gpu slack://A/B/C")
    assert ChatNotifier().probe().reason == "ntfy at 127.0.0.1, slack (address 2)"
    (tmp_path / chat.CREDENTIAL).write_text("json://localhost/x\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert ChatNotifier().probe().reason == "json at localhost"


def test_addresses_that_were_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from gpuwatchd.notify import credentials

    monkeypatch.setattr(credentials, "_withheld", {})
    monkeypatch.setenv(chat.VARIABLE, "ntfy://127.0.0.1/gpu")
    credentials.withhold()
    assert chat.VARIABLE not in os.environ
    assert ChatNotifier().probe().ok


SECRETIVE = [
    f"slack://{SECRET}/B1/C2",
    f"discord://4174216298/{SECRET}",
    f"pagerduty://{SECRET}@{SECRET}",
    f"ntfy://{SECRET.lower()}",
    f"ntfys://me:{SECRET}@ntfy.example.org/{SECRET}",
    f"tgram://123456789:{SECRET}/12315544/",
    f"sendgrid://SG.{SECRET}.{SECRET}:me@example.org",
    f"https://hooks.slack.com/services/T1/B1/{SECRET}",
    f"json://user:{SECRET}@127.0.0.1:8/{SECRET}?{SECRET}=1",
    f"json://{SECRET}.{SECRET}.org/",
    f"{SECRET}",
    f"x y://{SECRET}",
    f"json://[{SECRET}",
]


@pytest.mark.parametrize("url", SECRETIVE)
def test_no_secret_is_in_the_name_of_an_address(url: str) -> None:
    (address,) = chat.parse(url)
    for shown in (address.name, repr(address), f"{[address]}", address.fingerprint):
        assert SECRET.lower() not in shown.lower()


@given(st.text(min_size=1, max_size=40))
def test_every_line_has_a_name(line: str) -> None:
    for address in chat.parse(line):
        assert re.fullmatch(r"[a-z0-9+.-]* ?(at [0-9a-z.:-]+|\(?address \d+\)?)", address.name)
