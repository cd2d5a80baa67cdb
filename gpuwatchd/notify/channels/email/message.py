"""A message as a mail: its headers and its parts. Opens no connection."""

from __future__ import annotations

import email.policy
import email.utils
import re
from email.message import EmailMessage, MIMEPart
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.core import text
from gpuwatchd.notify import plain_text
from gpuwatchd.notify.channels.email import html as page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Message

_NOT_IN_ID = re.compile(r"[^A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+")
_NOT_IN_CID = re.compile(r"[^A-Za-z0-9.@-]+")
_PRIORITY = {"critical": "1 (Highest)", "warning": "3 (Normal)", "info": "5 (Lowest)"}


def compose(
    message: Message, *, sender: str, to: Sequence[str], host: str, picture: bytes | None = None
) -> EmailMessage:
    """Return the mail: text and HTML, the same Message-ID for the same message.

    A repeat or the recovery refers to the first message of its incident, so that mail programs
    show them as one conversation. Everything in it has seven bits and short lines, as every
    server takes it; only an address of other letters asks for more.

    Parameters
    ----------
    message
        What is told.
    sender, to
        Plain addresses.
    host
        Name of this machine.
    picture
        Its chart as PNG; without one it is shown as a line of text.

    Raises
    ------
    ValueError
        When an address holds a line break.
    """
    mail = EmailMessage(policy=email.policy.SMTP)
    domain = sender.rpartition("@")[2]
    own = message_id(message.id, domain)
    mail["Subject"] = plain_text.subject(message)
    mail["From"] = email.utils.formataddr((f"gpuwatchd on {text.clean(host, limit=64)}", sender))
    mail["To"] = ", ".join(to)
    mail["Date"] = email.utils.localtime()
    mail["Message-ID"] = own
    if message.thread and message.thread != message.id:
        mail["In-Reply-To"] = message_id(message.thread, domain)
        mail["References"] = message_id(message.thread, domain)
    # RFC 3834: no holiday answers to a machine; and what Exchange calls the same.
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    mail["X-Priority"] = _priority(message)
    name = f"chart.{_NOT_IN_CID.sub('-', own[1:-1])}" if picture is not None else ""
    try:
        plain, html = plain_text.plain(message), page.html(message, picture=name)
    except (ArithmeticError, IndexError, ValueError):
        # A chart of odd numbers costs itself, and not the mail.
        message, picture = msgspec.structs.replace(message, chart=None), None
        plain, html = plain_text.plain(message), page.html(message)
    mail.set_content(plain, cte="quoted-printable")
    mail.add_alternative(html, subtype="html", cte="quoted-printable")
    if picture is not None:
        (_, mimepart) = mail.iter_parts()
        if isinstance(mimepart, MIMEPart):
            mimepart.add_related(
                picture, "image", "png", cid=f"<{name}>", filename="chart.png", disposition="inline"
            )
    return mail


def _priority(message: Message) -> str:
    """Return how soon it should be read: a digest waits, and what is over, however bad it is."""
    over = message.notice == "resolved" and message.severity != "info"
    return _PRIORITY["warning" if over or message.notice == "digest" else message.severity]


def message_id(name: str, domain: str) -> str:
    """Return a Message-ID header from our own id.

    Examples
    --------
    >>> message_id("a1-b2", "example.org"), message_id("<x y>@z", "")
    ('<a1-b2@example.org>', '<-x-y-z@localhost>')
    """
    right = _NOT_IN_ID.sub("-", domain) or "localhost"
    left, _, given = name.partition("@")
    if given == right:
        name = left
    return f"<{_NOT_IN_ID.sub('-', name)[:200] or 'message'}@{right}>"
