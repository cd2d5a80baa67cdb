"""The mail channel: SMTP with verified TLS, or not at all.

A connection that cannot be verified is refused, never downgraded. The password is read at each
send, from a systemd credential, a file of 0600, the environment or a keyring, and is kept nowhere.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import ipaddress
import os
import re
import smtplib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from gpuwatchd.charts import drawing_process
from gpuwatchd.core import text
from gpuwatchd.core.config import expanded
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Availability
from gpuwatchd.notify import credentials
from gpuwatchd.notify.channels.email import message as mail

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from email.message import EmailMessage

    from gpuwatchd.core.model import Message

# SMTP clients whose whole conversation has one time limit, not each line of an answer its own.

MOST_BYTES: Final = 1 << 20
"""No answer of a mail server is as long."""


class Client(smtplib.SMTP):
    """A client whose ``timeout`` bounds the conversation with the server.

    The time limit of a socket begins anew with every byte: a server that says a line now and then
    and never comes to an end would hold us for ever.
    """

    def __init__(self, host: str, port: int, *, timeout: float, **options: Any) -> None:
        self._ends_s = time.monotonic() + timeout
        super().__init__(host, port, timeout=timeout, **options)

    def getreply(self) -> tuple[int, bytes]:
        """Return one answer, code and text.

        Raises
        ------
        TimeoutError
            When it has not ended in time.
        smtplib.SMTPException
            As the standard library does.
        """
        if self.sock is None:
            return super().getreply()
        over = threading.Event()
        # A duplicate: it stays the same while TLS is wrapped around the connection.
        connection = socket.socket(fileno=os.dup(self.sock.fileno()))

        def cut() -> None:
            over.set()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(0.0, self._ends_s - time.monotonic()), cut)
        timer.daemon = True
        timer.start()
        if self.file is None:
            self.file = self.sock.makefile("rb")
        whole, bounded = self.file, _Bounded(self.file)
        self.file = bounded
        try:
            return super().getreply()
        except (smtplib.SMTPServerDisconnected, OSError):
            if over.is_set():
                raise TimeoutError from None
            if bounded.left <= 0:
                raise OSError(errno.EMSGSIZE, "its answer has no end") from None
            raise
        finally:
            if self.file is bounded:
                self.file = whole
            timer.cancel()
            connection.close()


class _Bounded:
    """What a server says, up to a bound for one answer: the library keeps every line of it."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self.left = MOST_BYTES

    def readline(self, most: int = -1) -> bytes:
        """Return the next line.

        Raises
        ------
        OSError
            The answer is longer than any that is meant.
        """
        line: bytes = self._whole.readline(most)
        self.left -= len(line)
        if self.left <= 0:
            raise OSError(errno.EMSGSIZE, "its answer has no end")
        return line

    def close(self) -> None:
        """Close what is read from."""
        self._whole.close()


class TlsClient(Client, smtplib.SMTP_SSL):
    """The same over TLS from the first byte."""


CREDENTIAL = "smtp-password"
VARIABLE = "GPUWATCHD_SMTP_PASSWORD"
DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_ADDRESS = re.compile(r"[^@\s<>,;:\"()\[\]\\\x00-\x1f\x7f]+@[^@\s<>,;:\"()\\\x00-\x1f\x7f]+")
_TOO_BIG = 552


class EmailNotifier:
    """Send one mail per message; the section ``[notify.email]`` is the call of this class.

    ``timeout`` is for all of the conversation, and at most a quarter of it for the picture.
    """

    name = "email"

    def __init__(  # noqa: PLR0913 (one argument per key of [notify.email])
        self,
        *,
        host: str = "",
        port: int | None = None,
        security: Literal["starttls", "tls", "none"] = "starttls",
        ca_file: str = "",
        username: str = "",
        password_file: str = "",
        password_keyring: str = "",
        sender: str = "",
        to: Sequence[str] = (),
        chart: bool = True,
        timeout: float = 20.0,
    ) -> None:
        self._host = host
        self._port = port or DEFAULT_PORTS[security]
        self._security = security
        self._ca_file = ca_file
        self._username = username
        self._password_file = password_file
        self._password_keyring = password_keyring
        self._sender = sender or (username if _ADDRESS.fullmatch(username) else "")
        self._to = tuple(to)
        self._chart = chart
        self.timeout_s = float(timeout)

    def __repr__(self) -> str:
        return f"EmailNotifier({self._where}, {self._security}, {len(self._to)} recipients)"

    @property
    def _where(self) -> str:
        return f"{text.clean(self._host)}:{self._port}"

    def probe(self) -> Availability:
        """Say whether the settings can work. Connects to nobody."""
        try:
            self._check()
            self._password()
            self._context()
        except NotifyError as error:
            return Availability(ok=False, reason=error.message, hint=error.hint)
        pictures = (
            "" if not self._chart or drawing_process.available() else f"; {drawing_process.MISSING}"
        )
        return Availability(
            ok=True, reason=f"{self._where} ({self._security}) to {', '.join(self._to)}{pictures}"
        )

    def send(self, message: Message) -> str:
        """Send the mail and return what the server said about it.

        A server that finds it too large gets it without the picture.

        Raises
        ------
        NotifyError
            Permanent for refused logins, senders, recipients and certificates and for settings
            that cannot work; else transient.
        """
        ends_s = time.monotonic() + self.timeout_s
        self._check()
        password = self._password()
        image: bytes | None = None
        if self._chart and message.chart is not None:
            most_s = min(drawing_process.DEADLINE_S, 0.25 * self.timeout_s)
            image = drawing_process.draw(message.chart, deadline_s=most_s)
        failure, refused = self._attempt(message, password, image, ends_s)
        if image is not None and isinstance(failure, _TooBigError):
            failure, refused = self._attempt(message, password, None, ends_s)
        # Raised outside the handler: what is chained to an error could hold the password.
        if failure is not None:
            raise failure
        accepted = len(self._to) - len(refused)
        value = f"accepted by {text.clean(self._host)} for {accepted} of {len(self._to)}"
        for address, (code, answer) in refused.items():
            value += f"; {text.clean(address)} refused: {code} {_safe(answer, password)}"
        return value

    def _attempt(
        self, message: Message, password: str | None, image: bytes | None, ends_s: float
    ) -> tuple[NotifyError | None, Mapping[str, tuple[int, bytes]]]:
        try:
            written = mail.compose(
                message,
                sender=_on_the_wire(self._sender),
                to=[_on_the_wire(value) for value in self._to],
                host=socket.gethostname(),
                picture=image,
            )
            return None, self._deliver(written, password, ends_s)
        except NotifyError as error:
            return error, {}
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return self._translate(error, password), {}

    def _deliver(
        self, written: EmailMessage, password: str | None, ends_s: float
    ) -> Mapping[str, tuple[int, bytes]]:
        with self._connected(max(0.1, ends_s - time.monotonic())) as client:
            if password is not None:
                client.login(self._username, password)
            return client.send_message(written)

    @contextlib.contextmanager
    def _connected(self, timeout_s: float) -> Iterator[smtplib.SMTP]:
        """Yield a connection as it is set up, by TLS where that is asked for; then say goodbye."""
        context = self._context()
        client: smtplib.SMTP
        if self._security == "tls" and context is not None:
            client = TlsClient(self._host, self._port, timeout=timeout_s, context=context)
        else:
            client = Client(self._host, self._port, timeout=timeout_s)
        try:
            if self._security == "starttls":
                client.starttls(context=context)
            yield client
            # A server that is rude at the farewell has the mail nevertheless.
            with contextlib.suppress(smtplib.SMTPException, OSError):
                client.quit()
        finally:
            client.close()

    def _check(self) -> None:
        """Refuse settings that cannot work, by the name of their key."""
        wrong: tuple[str, str] | None = None
        if not self._host:
            wrong = "host is not set", 'set [notify.email] host = "smtp.example.org"'
        elif not self._to:
            wrong = "no recipient", 'set [notify.email] to = ["you@example.org"]'
        elif bad := [value for value in self._to if not _ADDRESS.fullmatch(value)]:
            wrong = f"{text.clean(bad[0])!r} is not an address", "one plain address per entry of to"
        elif not _ADDRESS.fullmatch(self._sender):
            wrong = "sender is not an address", 'set [notify.email] sender = "gpu@example.org"'
        elif self._security == "none" and not is_loopback(self._host):
            wrong = (
                f"security = none is refused for {text.clean(self._host)}: anyone could read it",
                'set security = "starttls" or "tls"',
            )
        if wrong is not None:
            raise _failure(f"[notify.email] {wrong[0]}", permanent=True, hint=wrong[1])

    def _context(self) -> ssl.SSLContext | None:
        if self._security == "none":
            return None
        ca_file = str(expanded(self._ca_file)) if self._ca_file else None
        try:
            return ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or "no certificate in it"
            raise _failure(
                f"[notify.email] ca-file {text.clean(self._ca_file)}: {text.clean(why)}",
                permanent=True,
                hint="a file of PEM certificates, or leave it out for the system's",
            ) from None

    def _password(self) -> str | None:
        """Return the password, None where no login is wanted; raise where it cannot be had."""
        if not self._username:
            return None
        keyring = (self._password_keyring, self._username) if self._password_keyring else None
        value = credentials.read(
            credential=CREDENTIAL, file=self._password_file, variable=VARIABLE, keyring=keyring
        )
        if value is None:
            raise _failure(
                "[notify.email] username is set, but no password",
                permanent=True,
                hint="set password-file to a file that only you can read (chmod 600)",
            )
        return value

    def _translate(self, error: Exception, password: str | None) -> NotifyError:
        """Return the error in our words: is it for good, and what can be done."""
        if isinstance(error, smtplib.SMTPRecipientsRefused):
            return _recipients_refused(error, password)
        if isinstance(error, smtplib.SMTPResponseException):
            return self._response(error, password)
        permanent, why, hint = self._reason(error)
        return _failure(f"{self._where}: {why}", permanent=permanent, hint=hint)

    def _response(self, error: smtplib.SMTPResponseException, password: str | None) -> NotifyError:
        code = error.smtp_code
        hint = ""
        if isinstance(error, smtplib.SMTPAuthenticationError):
            what, hint = "login refused", "check username and the password file"
        elif code == 530:
            what, hint = "the server wants a login", "set username and password-file"
        elif isinstance(error, smtplib.SMTPSenderRefused):
            what, hint = "sender refused", "check [notify.email] sender"
        else:
            what = "refused"
        kind: type[NotifyError] = NotifyError
        if code == _TOO_BIG:
            kind, what, hint = _TooBigError, "refused", "raise the size that the server takes"
        # RFC 5321: 5xx is for good, everything else may pass.
        return kind(
            f"{self._where}: {what}: {code} {_safe(error.smtp_error, password)}",
            permanent=500 <= code <= 599,
            hint=hint,
        )

    def _reason(self, error: Exception) -> tuple[bool, str, str]:
        """Return (permanent, why, hint) of what is no answer of the server."""
        if isinstance(error, ssl.SSLError):
            return _tls_reason(error)
        if isinstance(error, smtplib.SMTPNotSupportedError):
            return self._lacking(str(error))
        if type(error) is smtplib.SMTPException and "authentication" in str(error):
            why = "it offers no login that is known here (CRAM-MD5, PLAIN, LOGIN)"
            return True, why, "where it wants OAuth, use an app password or a local relay"
        # smtplib turns a timeout while it reads an answer into "disconnected".
        if isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
            return False, f"no answer within {self.timeout_s:g} s", ""
        for kind, permanent, why, hint in _REASONS:
            if isinstance(error, kind):
                return permanent, why, hint
        if isinstance(error, OSError):
            return False, text.clean(error.strerror or type(error).__name__).lower(), ""
        return False, type(error).__name__, ""

    def _lacking(self, value: str) -> tuple[bool, str, str]:
        """Return (permanent, why, hint) of what the settings ask for and the server has not."""
        if self._security == "starttls" and "STARTTLS" in value:
            return True, "it does not offer STARTTLS", 'try security = "tls" and its port'
        if "AUTH" in value:
            return True, "it offers no login here", "check port and security, or leave out username"
        if "SMTPUTF8" in value:
            return True, "it takes no address with other letters than ASCII", "check sender and to"
        return True, text.clean(value), "the server lacks what the settings ask for"


def _failure(why: str, *, permanent: bool = False, hint: str = "") -> NotifyError:
    """Return the error for a mail that was not sent."""
    return NotifyError(why, permanent=permanent, hint=hint, page="errors#mail")


class _TooBigError(NotifyError):
    """The server takes no mail of this size."""


_BASE64 = re.compile(r"[A-Za-z0-9+/]{4,}={0,2}")
_REASONS: tuple[tuple[type[Exception], bool, str, str], ...] = (
    (UnicodeError, True, "the login has characters that SMTP cannot carry", "use ASCII"),
    (binascii.Error, True, "its question for the login makes no sense", "check host and port"),
    (ValueError, True, "these settings make no valid mail", "check sender and to"),
    (socket.gaierror, False, "its name cannot be resolved", "check host and the network"),
    (smtplib.SMTPServerDisconnected, False, "it closed the connection", ""),
)


def _tls_reason(error: ssl.SSLError) -> tuple[bool, str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            True,
            f"its certificate is not trusted: {text.clean(error.verify_message)}",
            "set ca-file to the certificate that signed it; host must be the name in it",
        )
    hint = 'check port and security ("tls" is 465, "starttls" 587)'
    reason = getattr(error, "reason", None) or "unknown"
    if reason == "WRONG_VERSION_NUMBER":
        return True, "it does not offer TLS here", hint
    return False, f"TLS failed: {text.clean(reason)}", hint


def _recipients_refused(error: smtplib.SMTPRecipientsRefused, password: str | None) -> NotifyError:
    """Every recipient was refused; one that may be accepted later is worth a retry."""
    answers = list(error.recipients.values())
    value = "; ".join(
        f"{text.clean(address)}: {code} {_safe(answer, password)}"
        for address, (code, answer) in error.recipients.items()
    )
    permanent = all(500 <= code <= 599 for code, _ in answers)
    return _failure(
        f"recipient refused: {text.clean(value)}",
        permanent=permanent,
        hint="check [notify.email] to",
    )


def _safe(answer: bytes | str, password: str | None) -> str:
    """Return a server's answer on one line, without the password should it repeat it."""
    value = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
    if password:
        value = _BASE64.sub(lambda word: _masked(word[0], password), value)
        value = value.replace(password, text.MASK)
    return text.clean(value, limit=160)


def _masked(word: str, password: str) -> str:
    """Return a word of an answer, masked where it is the password as it went over the wire."""
    padded = word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4)
    try:
        plain = base64.b64decode(padded).decode("utf-8", "replace")
    except binascii.Error:
        return word
    return text.MASK if password in plain else word


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _on_the_wire(address: str) -> str:
    """Return an address as any server takes it, where only its domain has other letters."""
    local, _, domain = address.rpartition("@")
    if not local.isascii() or domain.isascii():
        return address
    with contextlib.suppress(UnicodeError):
        return f"{local}@{domain.encode('idna').decode('ascii')}"
    return address


# How far one comes at a mail server without sending anything.

Fault = Literal[
    "mail-name", "mail-unreachable", "mail-tls", "mail-certificate", "mail-login", "mail-refuses"
]
_KINDS: Final[tuple[tuple[type[Exception], Fault], ...]] = (
    (socket.gaierror, "mail-name"),
    (ssl.SSLCertVerificationError, "mail-certificate"),
    (ssl.SSLError, "mail-tls"),
    (smtplib.SMTPNotSupportedError, "mail-tls"),
    (smtplib.SMTPResponseException, "mail-refuses"),
    (OSError, "mail-unreachable"),
)


class Reach(EmailNotifier):
    """The mail channel, asked up to the login and no further; ``fault`` is what was wrong."""

    fault: Fault = "mail-unreachable"

    def reach(self) -> str:
        """Connect, say hello, start TLS, see whether a login is offered; return what is known.

        Neither the login nor any address is told to the server.

        Raises
        ------
        NotifyError
            What keeps a mail from being sent.
        """
        try:
            text = self._hello()
        except NotifyError as error:
            failure = error
        except (smtplib.SMTPException, OSError, ValueError) as error:
            kinds = (name for kind, name in _KINDS if isinstance(error, kind))
            self.fault = next(kinds, self.fault)
            failure = self._translate(error, None)
        else:
            return text
        raise failure

    def _hello(self) -> str:
        with self._connected(self.timeout_s) as client:
            client.ehlo_or_helo_if_needed()
            offered = client.esmtp_features.get("auth", "").split()
            if self._username and not offered:
                self.fault = "mail-login"
                raise NotifyError(
                    f"{self._where}: it offers no login here",
                    permanent=True,
                    hint="check port and security, or leave out username",
                )
        login = f", login offered ({', '.join(sorted(offered))})" if self._username else ""
        return f"{self._where} answers ({self._security}){login}"
