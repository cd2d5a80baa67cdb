"""A mail server on the loopback: what it got, what it answers, over real TLS."""

from __future__ import annotations

import email
import email.policy
import shutil
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify.channels.email.channel import EmailNotifier
from tests.conftest import need

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatchd.core.model import Message

PASSWORD = "correct-horse-battery"


class Mailbox:
    """What the server got, and what it answers."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.answers: list[str] = []
        self.recipient_answers: dict[str, str] = {}
        self.encrypted: list[bool] = []

    async def handle_RCPT(  # noqa: N802 (the server's name)
        self, server: object, session: object, envelope: Any, address: str, options: object
    ) -> str:
        answer = self.recipient_answers.get(address)
        if answer is not None:
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 (the server's name)
        self, server: object, session: Any, envelope: Any
    ) -> str:
        answer = self.answers.pop(0) if self.answers else "250 accepted"
        if answer.startswith("250"):
            self.encrypted.append(session.ssl is not None)
            self.mails.append(
                email.message_from_bytes(envelope.content, policy=email.policy.default)
            )
        return answer


def certificate(folder: Path, name: str, subject: str) -> Path:
    """Make a self-signed certificate; return its file (the key lies beside it)."""
    certificate = folder / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(folder / f"{name}.key"), "-out", str(certificate)),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate


def certificates(folder: Path) -> dict[str, Path]:
    """Make one to trust, one not to, and one of another host."""
    need(shutil.which("openssl"), "openssl is missing")
    return {
        "good": certificate(folder, "good", "DNS:localhost,IP:127.0.0.1"),
        "other": certificate(folder, "other", "DNS:localhost,IP:127.0.0.1"),
        "wrong-name": certificate(folder, "wrong-name", "DNS:mail.example.org"),
    }


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _authenticate(
    server: object, session: object, envelope: object, mechanism: str, data: Any
) -> Any:
    from aiosmtpd import smtp

    good = (data.login, data.password) == (b"gpu", PASSWORD.encode())
    return smtp.AuthResult(success=good, handled=False)


def start(mailbox: object, file: Path | None, *, port: int | None = None, **settings: Any) -> Any:
    """Start a server; with a certificate it wants STARTTLS and then a login."""
    from aiosmtpd import controller

    if file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file, file.with_suffix(".key"))
        settings = {"tls_context": context, "require_starttls": True} | settings
        settings = {"authenticator": _authenticate, "auth_required": True} | settings
    server = controller.Controller(
        mailbox, hostname="127.0.0.1", port=port or free_port(), **settings
    )
    server.start()
    return server


def refused(channel: EmailNotifier, message: Message, match: str) -> NotifyError:
    """Return the error with which a message is refused."""
    with pytest.raises(NotifyError, match=match) as caught:
        channel.send(message)
    return caught.value


class Post:
    """Mail servers with one mailbox, and the settings of the channel that fit them."""

    def __init__(self, folder: Path, certificates: dict[str, Path]) -> None:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o600)
        self.box = Mailbox()
        self.settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "ca_file": str(certificates["good"]),
            "username": "gpu",
            "password_file": str(secret),
            "sender": "gpu@example.org",
            "to": ("a@example.org", "b@example.org"),
            "timeout": 5.0,
        }
        self._certificates = certificates
        self._running: list[Any] = []

    def start(self, *, certificate: str = "good", port: int | None = None, **settings: Any) -> int:
        """Start a server and return its port."""
        file = self._certificates[certificate] if certificate else None
        self._running.append(start(self.box, file, port=port, **settings))
        return int(self._running[-1].port)

    def channel(self, port: int | None = None, **changes: Any) -> EmailNotifier:
        """Return the channel to a port, or to a server that is started for it."""
        settings = self.settings | changes
        return EmailNotifier(**settings, port=self.start() if port is None else port)

    def close(self) -> None:
        """End the servers."""
        for server in self._running:
            server.stop(no_assert=True)
