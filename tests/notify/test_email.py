"""Mail: what is composed, what is refused before anybody is called, what a failure means."""

from __future__ import annotations

import base64
import binascii
import contextlib
import email
import email.policy
import errno
import os
import smtplib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Message
from gpuwatchd.notify.channels.email import channel as channel_module
from gpuwatchd.notify.channels.email.channel import EmailNotifier
from gpuwatchd.notify.channels.email.message import compose, message_id
from tests.notify.conftest import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SECRET = "correct-horse-battery"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def notifier(**changes: Any) -> EmailNotifier:
    settings: dict[str, Any] = {
        "host": "mail.example.org",
        "sender": "gpu@example.org",
        "to": ("a@example.org", "b@example.org"),
    }
    return EmailNotifier(**(settings | changes))


class Server:
    """Stands in for smtplib.SMTP: does as told, remembers what it was told."""

    def __init__(self, *, fail: dict[str, Exception] | None = None) -> None:
        self.fail = fail or {}
        self.calls: list[str] = []
        self.mails: list[Any] = []
        self.refused: dict[str, tuple[int, bytes]] = {}

    def connect(self, *_: object, **__: object) -> Server:
        self._do("connect")
        return self

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    def quit(self) -> None:
        self._do("quit")

    def close(self) -> None:
        self.calls.append("close")

    def starttls(self, *, context: ssl.SSLContext) -> None:
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        self._do("starttls")

    def login(self, user: str, password: str) -> None:
        assert (user, password) == ("gpu", SECRET)
        self._do("login")

    def send_message(self, mail: Any) -> dict[str, tuple[int, bytes]]:
        self.mails.append(mail)
        self._do("send")
        return self.refused


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(channel_module, "Client", server.connect)
    monkeypatch.setattr(channel_module, "TlsClient", server.connect)
    return server


def _compose(message: Message) -> Any:
    mail = compose(message, sender="gpu@example.org", to=("a@example.org",), host="lab3")
    return email.message_from_bytes(mail.as_bytes(), policy=email.policy.default)


def test_no_text_can_add_a_header(message: Message) -> None:
    mail = _compose(
        msgspec.structs.replace(message, subject=HOSTILE, body=HOSTILE, facts={HOSTILE: HOSTILE})
    )
    assert mail["Bcc"] is None
    assert "Bcc: victim" in mail["Subject"]
    assert "\x1b" not in mail["Subject"]
    assert mail.get_body(("plain",)).get_content().count("Bcc: victim") >= 1


def test_letters_of_the_world_survive(message: Message) -> None:
    mail = _compose(msgspec.structs.replace(message, subject="GPU 0: Müllers Job 训练 – voll"))
    assert mail["Subject"] == "GPU 0: Müllers Job 训练 – voll"


@given(st.text(max_size=80), st.text(max_size=300), st.text(max_size=60))
def test_any_message_makes_a_mail(subject: str, body: str, name: str) -> None:
    odd = Message(id=name, notice="firing", severity="info", subject=subject, body=body, thread="t")
    mail = _compose(odd)
    assert mail["Bcc"] is None
    assert set(mail.keys()) <= {
        "Subject", "From", "To", "Date", "Message-ID", "In-Reply-To", "References",
        "Auto-Submitted", "X-Auto-Response-Suppress", "X-Priority", "MIME-Version", "Content-Type",
    }  # fmt: skip


def test_an_id_that_has_our_domain_already_keeps_it() -> None:
    assert message_id("x@example.org", "example.org") == "<x@example.org>"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"host": ""}, "host is not set"),
        ({"to": ()}, "no recipient"),
        ({"sender": ""}, "sender is not an address"),
        ({"sender": "me", "to": ("me",)}, "'me' is not an address"),
        ({"sender": "x\r\nBcc: v@example.org"}, "sender is not an address"),
        ({"to": ("a@example.org", "a@b\nBcc: v@example.org")}, "is not an address"),
        ({"security": "none"}, "security = none is refused for mail.example.org"),
        ({"security": "none", "host": "127.0.0.1.example.org"}, "is refused for 127.0.0.1.exam"),
        ({"username": "gpu"}, "no password"),
        ({"ca_file": "/nowhere/ca.pem"}, "ca-file /nowhere/ca.pem"),
    ],
)
def test_settings_that_cannot_work(
    server: Server, message: Message, changes: dict[str, Any], expected: str
) -> None:
    channel = notifier(**changes)
    available = channel.probe()
    assert not available.ok
    assert expected in available.reason
    with pytest.raises(NotifyError, match=r"\[notify\.email\]") as caught:
        channel.send(message)
    assert caught.value.permanent
    assert caught.value.hint
    assert server.calls == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_plain_is_for_loopback(server: Server, message: Message, host: str) -> None:
    channel = notifier(host=host, security="none")
    assert channel.probe().ok
    assert channel.send(message) == f"accepted by {host} for 2 of 2"
    assert server.calls == ["connect", "send", "quit", "close"]


def test_the_user_name_may_be_the_sender(server: Server, password_file: Path) -> None:
    channel = notifier(sender="", username="me@example.org", password_file=str(password_file))
    assert channel.probe().ok


def test_a_login_follows_tls(server: Server, message: Message, password_file: Path) -> None:
    channel = notifier(username="gpu", password_file=str(password_file))
    assert channel.send(message) == "accepted by mail.example.org for 2 of 2"
    assert server.calls == ["connect", "starttls", "login", "send", "quit", "close"]


def test_without_starttls_nothing_is_sent(
    server: Server, message: Message, password_file: Path
) -> None:
    server.fail["starttls"] = smtplib.SMTPNotSupportedError(
        "STARTTLS extension not supported by server."
    )
    with pytest.raises(NotifyError, match="does not offer STARTTLS") as caught:
        notifier(username="gpu", password_file=str(password_file)).send(message)
    assert caught.value.permanent
    assert server.calls == ["connect", "starttls", "close"]


def test_with_a_password_that_others_can_read_no_server_is_asked(
    server: Server, message: Message, password_file: Path
) -> None:
    password_file.chmod(0o640)
    with pytest.raises(NotifyError, match="others can read it"):
        notifier(username="gpu", password_file=str(password_file)).send(message)
    assert server.calls == []


def test_odd_password_files(message: Message, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch(0o600)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    binary.chmod(0o600)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (empty, binary, pipe, tmp_path, tmp_path / "missing"):
        available = notifier(username="gpu", password_file=str(path)).probe()
        assert not available.ok
        assert str(path) in available.reason


def test_the_service_manager_s_credential_comes_first(
    server: Server, message: Message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smtp-password").write_text(SECRET)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    channel = notifier(username="gpu", password_file="/nowhere")
    assert channel.send(message)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert not channel.probe().ok


def _recipients(*codes: int) -> smtplib.SMTPRecipientsRefused:
    return smtplib.SMTPRecipientsRefused(
        {f"{n}@example.org": (code, b"no") for n, code in enumerate(codes)}
    )


@pytest.mark.parametrize(
    ("step", "error", "permanent", "expected"),
    [
        ("login", smtplib.SMTPAuthenticationError(535, b"5.7.8 bad"), True, "login refused: 535"),
        ("login", smtplib.SMTPAuthenticationError(454, b"later"), False, "login refused: 454"),
        ("login", UnicodeEncodeError("ascii", SECRET, 0, 1, "no"), True, "SMTP cannot carry"),
        ("send", smtplib.SMTPSenderRefused(530, b"login first", "x"), True, "wants a login"),
        ("send", smtplib.SMTPSenderRefused(553, b"not yours", "x"), True, "sender refused: 553"),
        ("send", smtplib.SMTPDataError(451, b"busy"), False, "refused: 451 busy"),
        ("send", smtplib.SMTPDataError(552, b"too big"), True, "refused: 552 too big"),
        ("send", _recipients(550, 550), True, "recipient refused"),
        ("send", _recipients(550, 450), False, "0@example.org: 550 no; 1@example.org: 450"),
        ("connect", smtplib.SMTPConnectError(421, b"closing"), False, "refused: 421"),
        ("connect", ConnectionRefusedError(errno.ECONNREFUSED, "Refused"), False, "refused"),
        ("connect", TimeoutError(), False, "no answer within 20 s"),
        ("connect", socket.gaierror(socket.EAI_NONAME, "x"), False, "cannot be resolved"),
        ("send", smtplib.SMTPServerDisconnected("x"), False, "closed the connection"),
        ("starttls", ssl.SSLError(1, "x"), False, "TLS failed"),
    ],
)
def test_what_a_failure_means(
    server: Server,
    message: Message,
    password_file: Path,
    step: str,
    error: Exception,
    permanent: bool,
    expected: str,
) -> None:
    server.fail[step] = error
    channel = notifier(username="gpu", password_file=str(password_file))
    with pytest.raises(NotifyError) as caught:
        channel.send(message)
    assert caught.value.permanent is permanent
    assert expected.lower() in caught.value.message.lower()


@pytest.mark.parametrize(
    "error", [smtplib.SMTPResponseException(421, b"busy"), TimeoutError(), OSError(5, "x")]
)
def test_a_bad_farewell_does_not_send_the_mail_twice(
    server: Server, message: Message, error: Exception
) -> None:
    server.fail["quit"] = error
    assert notifier().send(message) == "accepted by mail.example.org for 2 of 2"
    assert server.calls[-1] == "close"


def test_some_recipients_are_better_than_none(server: Server, message: Message) -> None:
    server.refused = {"b@example.org": (550, b"unknown\x1b[2J user")}
    assert notifier().send(message) == (
        "accepted by mail.example.org for 1 of 2; b@example.org refused: 550 unknown user"
    )


def test_the_password_is_nowhere(
    server: Server, message: Message, password_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    channel = notifier(username="gpu", password_file=str(password_file))
    said: list[str] = [repr(channel), str(vars(channel)), str(channel.probe())]
    for error in (
        smtplib.SMTPAuthenticationError(535, f"bad password {SECRET}".encode()),
        UnicodeEncodeError("ascii", SECRET, 0, 1, "no"),
    ):
        server.fail["login"] = error
        with pytest.raises(NotifyError) as caught:
            channel.send(message)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        said += [repr(caught.value), caught.value.hint]
    assert SECRET not in "\n".join([*said, caplog.text])


def test_a_server_with_no_login_that_is_known_here_is_told_with_a_way_out(
    server: Server, message: Message, password_file: Path
) -> None:
    server.fail["login"] = smtplib.SMTPException("No suitable authentication method found.")
    channel = notifier(username="gpu", password_file=str(password_file))
    with pytest.raises(NotifyError) as caught:
        channel.send(message)
    assert (caught.value.permanent, "OAuth" in caught.value.hint) == (True, True)


@pytest.mark.parametrize("sent", [SECRET, f"\0gpu\0{SECRET}", f"\0someone\0{SECRET}"])
def test_a_server_that_repeats_the_login_tells_nobody_the_password(
    server: Server, message: Message, password_file: Path, sent: str
) -> None:
    coded = base64.b64encode(sent.encode()).decode()
    server.fail["login"] = smtplib.SMTPAuthenticationError(
        500, f"what is AUTH PLAIN {coded}? or {coded.rstrip('=')}; see Documentation".encode()
    )
    channel = notifier(username="gpu", password_file=str(password_file))
    with pytest.raises(NotifyError) as caught:
        channel.send(message)
    assert coded.rstrip("=") not in caught.value.message
    assert "what is AUTH PLAIN ****? or ****; see Documentation" in caught.value.message


def test_a_question_for_the_login_that_makes_no_sense(
    server: Server, message: Message, password_file: Path
) -> None:
    server.fail["login"] = binascii.Error("Incorrect padding")
    with pytest.raises(NotifyError, match="its question for the login makes no sense"):
        notifier(username="gpu", password_file=str(password_file)).send(message)


def refused(
    message: Message, answer: Callable[[socket.socket], None], timeout_s: float, why: str
) -> None:
    """Send to a server that answers so, which is no permanent failure."""

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            answer(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        mail = notifier(
            host="127.0.0.1", port=listener.getsockname()[1], security="none", timeout=timeout_s
        )
        with pytest.raises(NotifyError, match=why) as caught:
            mail.send(message)
        thread.join(5)
    assert not caught.value.permanent


def test_a_server_that_dribbles_for_ever_is_left_in_time(message: Message) -> None:
    def dribble(client: socket.socket) -> None:
        while True:
            client.sendall(b"220-still thinking\r\n")
            time.sleep(0.05)

    began = time.monotonic()
    refused(message, dribble, 0.3, r"no answer within 0\.3 s")
    assert time.monotonic() - began < 3.0


def test_a_server_that_pours_for_ever_fills_no_memory(message: Message) -> None:
    poured = 0

    def pour(client: socket.socket) -> None:
        nonlocal poured
        lines = (b"220-" + b"x" * 500 + b"\r\n") * 100
        while poured < 256 << 20:
            client.sendall(lines)
            poured += len(lines)

    refused(message, pour, 20.0, "its answer has no end")
    assert channel_module.MOST_BYTES <= poured < 64 << 20
