"""A message as text, as HTML and as a pop-up body: pure functions, one per shape.

The wording is made before (subject, body, facts, command); here it is only laid out and escaped
for its sink. Every line passes through ``text.clean``, so a hostile process name stays text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd import text

if TYPE_CHECKING:
    from gpuwatchd.model import Message, Severity

LINE_CHARS = 2000
POPUP_LINES = 12
POPUP_CHARS = 600

_COLOURS: dict[Severity, str] = {"info": "#2563a8", "warning": "#a05a00", "critical": "#b3261e"}
_RESOLVED_COLOUR = "#2e7d32"
_FONT = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_MONO = "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def lines(body: str) -> list[str]:
    r"""Return the lines of a text, each of them safe.

    Examples
    --------
    >>> lines("one\x1b[2J\ntwo\u202e")
    ['one', 'two']
    """
    return [text.clean(line, limit=LINE_CHARS).rstrip() for line in body.splitlines()]


def subject(message: Message) -> str:
    """Return the subject on one line."""
    return text.clean(message.subject, limit=200).strip() or "gpuwatchd"


def word(message: Message) -> str:
    """Return the severity as a word that does not need a colour to be understood.

    Examples
    --------
    >>> from gpuwatchd.model import Message
    >>> word(Message(id="1", notice="resolved", severity="critical", subject="s", body="b"))
    'recovered'
    """
    if message.notice == "resolved":
        return "recovered"
    return "test" if message.notice == "test" else message.severity


def _facts(message: Message) -> list[tuple[str, str]]:
    return [
        (text.clean(label, limit=60), text.clean(value, limit=LINE_CHARS))
        for label, value in message.facts.items()
    ]


def plain(message: Message) -> str:
    """Return the text part of a mail: body, facts in columns, what to type next.

    Examples
    --------
    >>> from gpuwatchd.model import Message
    >>> print(plain(Message(id="1", notice="firing", severity="warning", subject="s",
    ...     body="It grows.", facts={"GPU": "0", "Rate": "12.4 MB/min"}, command="x explain 1")),
    ...     end="")
    It grows.
    <BLANKLINE>
    GPU:  0
    Rate: 12.4 MB/min
    <BLANKLINE>
    What to do next:
        x explain 1
    <BLANKLINE>
    --
    gpuwatchd (warning)
    """
    blocks = ["\n".join(lines(message.body))]
    facts = _facts(message)
    if facts:
        width = max(len(label) for label, _ in facts) + 1
        blocks.append("\n".join(f"{label + ':':<{width}} {value}" for label, value in facts))
    if message.command:
        blocks.append(f"What to do next:\n    {text.clean(message.command, limit=LINE_CHARS)}")
    blocks.append(f"--\ngpuwatchd ({word(message)})")
    return "\n\n".join(block for block in blocks if block) + "\n"


def html(message: Message) -> str:
    """Return the HTML part of a mail: one self-contained page without images, links or scripts."""
    colour = _RESOLVED_COLOUR if message.notice == "resolved" else _COLOURS[message.severity]
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{text.for_html(subject(message))}</title></head>",
        f'<body style="{_FONT};font-size:15px;line-height:1.45;margin:0;padding:16px">',
        f'<div style="max-width:640px;border-left:4px solid {colour};padding-left:14px">',
        f'<p style="margin:0 0 4px;color:{colour};font-weight:600">{word(message).upper()}</p>',
        f'<h1 style="font-size:18px;margin:0 0 10px">{text.for_html(subject(message))}</h1>',
    ]
    body = [text.for_html(line) for line in lines(message.body)]
    if any(body):
        parts.append(f'<p style="margin:0 0 12px">{"<br>".join(body)}</p>')
    facts = _facts(message)
    if facts:
        rows = "\n".join(
            '<tr><th scope="row" style="text-align:left;font-weight:500;padding:2px 16px 2px 0;'
            f'vertical-align:top;white-space:nowrap">{text.for_html(label)}</th>'
            f'<td style="padding:2px 0">{text.for_html(value)}</td></tr>'
            for label, value in facts
        )
        parts.append(f'<table style="border-collapse:collapse;margin:0 0 12px">\n{rows}\n</table>')
    if message.command:
        command = text.for_html(text.clean(message.command, limit=LINE_CHARS))
        parts.append(
            '<p style="margin:0 0 4px">What to do next:</p>'
            f'<pre style="{_MONO};margin:0 0 12px;padding:8px 10px;border:1px solid #8888;'
            f'white-space:pre-wrap">{command}</pre>'
        )
    parts.append('<p style="margin:0;opacity:.65;font-size:13px">Sent by gpuwatchd.</p>')
    parts.append("</div></body></html>\n")
    return "\n".join(parts)


def popup(message: Message, *, markup: bool) -> str:
    """Return the body of a pop-up: the text and the command, short enough for a screen corner.

    Parameters
    ----------
    message
        What is told; the facts are left to longer channels.
    markup
        True when the server reads the body as Pango markup: then it is escaped.
    """
    wanted = [line for line in lines(message.body) if line][:POPUP_LINES]
    kept = text.cut("\n".join(wanted), POPUP_CHARS)
    if message.command:
        kept = f"{kept}\n{text.clean(message.command)}" if kept else text.clean(message.command)
    if not markup:
        return kept
    return "\n".join(text.for_pango(line) for line in kept.split("\n"))
