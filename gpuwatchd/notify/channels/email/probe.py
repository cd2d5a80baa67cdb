"""How far one comes at a mail server without sending anything."""

from __future__ import annotations

import contextlib
import smtplib
import socket
import ssl
from typing import Final, Literal

from gpuwatchd.core.errors import NotifyError
from gpuwatchd.notify.channels.email import smtp
from gpuwatchd.notify.channels.email.channel import EmailNotifier

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
    """The mail channel, asked up to the login and no further.

    Attributes
    ----------
    fault
        What was wrong, once :meth:`reach` has failed.
    """

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
        context = self._context()
        client: smtplib.SMTP
        if self._security == "tls" and context is not None:
            client = smtp.TlsClient(self._host, self._port, timeout=self.timeout_s, context=context)
        else:
            client = smtp.Client(self._host, self._port, timeout=self.timeout_s)
        try:
            client.ehlo_or_helo_if_needed()
            if self._security == "starttls":
                client.starttls(context=context)
                client.ehlo_or_helo_if_needed()
            offered = client.esmtp_features.get("auth", "").split()
            if self._username and not offered:
                self.fault = "mail-login"
                raise NotifyError(
                    f"{self._where}: it offers no login here",
                    permanent=True,
                    hint="check port and security, or leave out username",
                )
            with contextlib.suppress(smtplib.SMTPException, OSError):
                client.quit()
        finally:
            client.close()
        login = f", login offered ({', '.join(sorted(offered))})" if self._username else ""
        return f"{self._where} answers ({self._security}){login}"
