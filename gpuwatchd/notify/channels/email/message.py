"""A message as a mail: its headers and its parts. Opens no connection."""

from __future__ import annotations

import email.policy
import email.utils
import re
from email.message import EmailMessage, MIMEPart
from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.charts import text_description
from gpuwatchd.core import design, text
from gpuwatchd.notify import plain_text

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

    A repeat or the recovery refers to the first message of its incident, so that mail programs show
    them as one conversation. Everything in it has seven bits and short lines, as every server takes
    it; only an address of other letters asks for more. A chart without a ``picture`` (PNG) is shown
    as a line of text.

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
    # A digest waits, however bad what it tells of is.
    mail["X-Priority"] = _PRIORITY["warning" if message.notice == "digest" else message.severity]
    name = f"chart.{_NOT_IN_CID.sub('-', own[1:-1])}" if picture is not None else ""
    try:
        plain, html = plain_text.plain(message), as_html(message, picture=name)
    except (ArithmeticError, IndexError, ValueError):
        # A chart of odd numbers costs itself, and not the mail.
        message, picture = msgspec.structs.replace(message, chart=None), None
        plain, html = plain_text.plain(message), as_html(message)
    mail.set_content(plain, cte="quoted-printable")
    mail.add_alternative(html, subtype="html", cte="quoted-printable")
    if picture is not None:
        (_, mimepart) = mail.iter_parts()
        if isinstance(mimepart, MIMEPart):
            mimepart.add_related(
                picture, "image", "png", cid=f"<{name}>", filename="chart.png", disposition="inline"
            )
    return mail


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


# A message as the HTML part of a mail: one self-contained page, nothing in it that is fetched.
# Mail programs know little of CSS: what matters is inline and holds without a style sheet; the
# sheet adds what a dark screen and a narrow one need. Every text is escaped.

_LOOKS = {
    **{severity: design.LOOKS[kind] for severity, kind in design.SEVERITY_KINDS.items()},
    "resolved": design.LOOKS["calm"],
}
_FONT = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_MONO = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_WIDTH_PX = 640
PICTURE_PX = (640, 380)

_SHEET = (
    "@media (prefers-color-scheme:dark){"
    + "".join(
        f".{name}{{color:{look.dark} !important}}.{name}-bar{{border-color:{look.dark} !important}}"
        for name, look in _LOOKS.items()
    )
    # A white picture in a dark room: turned dark, with its hues kept, where the program can.
    + ".chart{filter:invert(.9) hue-rotate(180deg)}}"
    "@media (max-width:480px){.page{padding:10px !important}"
    ".bar{padding-left:10px !important}"
    ".facts tr{display:block !important;padding:3px 0 !important}"
    ".facts th,.facts td{display:inline !important}"
    ".facts th{padding-right:8px !important}}"
)


def as_html(message: Message, *, picture: str = "") -> str:
    """Return the page; its chart is ``picture``, a content id of its mail, or a line of text."""
    well = plain_text.word(message) == "recovered"
    kind = "resolved" if well else message.severity
    colour = _LOOKS[kind].light
    subject = text.for_html(plain_text.subject(message))
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="supported-color-schemes" content="light dark">',
        f"<style>{_SHEET}</style>",
        f"<title>{subject}</title></head>",
        '<body style="margin:0;padding:0">',
        (
            f'<div class="page" style="{_FONT};font-size:15px;line-height:1.45;padding:16px;'
            'overflow-wrap:anywhere">'
        ),
        (
            f'<div class="bar {kind}-bar" style="max-width:{_WIDTH_PX}px;padding-left:14px;'
            f'border-left:4px solid {colour}">'
        ),
        (
            f'<p class="{kind}" style="margin:0 0 2px;color:{colour};font-weight:600;'
            f'font-size:13px;letter-spacing:.06em">{plain_text.word(message).upper()}</p>'
        ),
        f'<h1 style="font-size:19px;line-height:1.3;margin:0 0 8px">{subject}</h1>',
        *_body(message),
        *_chart(message, picture),
        *_money(message),
        *_next(message),
        *_facts(message),
        '<p style="margin:0;opacity:.65;font-size:13px">Sent by gpuwatchd.</p>',
        "</div></div></body></html>\n",
    ]
    return "\n".join(parts)


def _body(message: Message) -> list[str]:
    body = [text.for_html(line) for line in plain_text.lines(message.body)]
    return [f'<p style="margin:0 0 12px">{"<br>".join(body)}</p>'] if any(body) else []


def _chart(message: Message, picture: str) -> list[str]:
    chart = text_description.drawable(message.chart)
    if chart is None:
        return []
    words = text.for_html(text_description.words(chart))
    if not picture:
        marks, _, scale = text_description.sparkline(chart).partition("\n")
        return [
            (
                f'<p style="{_MONO};margin:0;font-size:13px;line-height:1.1;white-space:pre;'
                f'overflow:hidden">{text.for_html(marks)}</p>'
            ),
            f'<p style="margin:2px 0 12px;font-size:13px;opacity:.8">{text.for_html(scale)}</p>',
        ]
    width, height = PICTURE_PX
    return [
        (
            f'<img class="chart" src="cid:{text.for_html(picture)}" alt="{words}" width="{width}" '
            f'height="{height}" style="display:block;width:100%;max-width:{width}px;height:auto;'
            'border:0;border-radius:6px">'
        ),
        f'<p style="margin:4px 0 12px;font-size:13px;opacity:.8">{_legend(message)}</p>',
    ]


def _legend(message: Message) -> str:
    chart = message.chart
    if chart is None or chart.level_bytes is None:
        return ""
    if chart.mid_s is None or chart.limit_bytes is None:
        return "Solid: memory. Dashed: the fit."
    return "Solid: memory. Dashed: the fit, and where it leads. Shaded: nine of ten cases."


def _money(message: Message) -> list[str]:
    if not message.cost:
        return []
    cost = text.for_html(text.clean(message.cost, limit=plain_text.LINE_CHARS))
    return [f'<p style="margin:0 0 12px"><strong>{cost}</strong></p>']


def _next(message: Message) -> list[str]:
    if not message.command:
        return []
    command = text.for_html(text.clean(message.command, limit=plain_text.LINE_CHARS))
    return [
        '<p style="margin:0 0 4px">What to do next:</p>',
        (
            f'<pre style="{_MONO};margin:0 0 12px;padding:8px 10px;border:1px solid #8888;'
            f'border-radius:6px;white-space:pre-wrap">{command}</pre>'
        ),
    ]


def _facts(message: Message) -> list[str]:
    facts = plain_text.rows(message)
    if not facts:
        return []
    rows = "\n".join(
        '<tr><th scope="row" style="text-align:left;font-weight:500;padding:2px 16px 2px 0;'
        f'vertical-align:top;white-space:nowrap;opacity:.75">{text.for_html(label)}</th>'
        f'<td style="padding:2px 0;{f"{_MONO};font-size:13px" if typed else ""}">'
        f"{text.for_html(value)}</td></tr>"
        for label, value, typed in facts
    )
    return [
        (
            '<table class="facts" style="border-collapse:collapse;'
            f'margin:0 0 12px;font-size:14px">\n{rows}\n</table>'
        )
    ]
