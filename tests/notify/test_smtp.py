"""An answer that never ends does not hold the client."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify.channels.email import smtp
from gpuwatchd.notify.channels.email.channel import EmailNotifier

if TYPE_CHECKING:
    from gpuwatchd.core.model import Message


def test_a_server_that_dribbles_for_ever_is_left_in_time(message: Message) -> None:
    over = threading.Event()

    def dribble(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            while not over.wait(0.05):
                client.sendall(b"220-still thinking\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=dribble, args=(listener,))
        thread.start()
        mail = EmailNotifier(
            host="127.0.0.1", port=listener.getsockname()[1], security="none",
            sender="gpu@example.org", to=("a@example.org",), timeout=0.3,
        )  # fmt: skip
        began = time.monotonic()
        with pytest.raises(NotifyError, match=r"no answer within 0\.3 s") as caught:
            mail.send(message)
        over.set()
        thread.join(5)
    assert not caught.value.permanent
    assert time.monotonic() - began < 3.0


def test_a_server_that_pours_for_ever_fills_no_memory(message: Message) -> None:
    poured = 0

    def pour(listener: socket.socket) -> None:
        nonlocal poured
        client, _ = listener.accept()
        lines = (b"220-" + b"x" * 500 + b"\r\n") * 100
        with client, contextlib.suppress(OSError):
            while poured < 256 << 20:
                client.sendall(lines)
                poured += len(lines)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pour, args=(listener,))
        thread.start()
        mail = EmailNotifier(
            host="127.0.0.1", port=listener.getsockname()[1], security="none",
            sender="gpu@example.org", to=("a@example.org",), timeout=20.0,
        )  # fmt: skip
        with pytest.raises(NotifyError, match="its answer has no end") as caught:
            mail.send(message)
        thread.join(5)
    assert not caught.value.permanent
    assert smtp.MOST_BYTES <= poured < 64 << 20
