"""A message as text and as a pop-up body: pure functions, one per shape (HTML: ``page``).

The wording is made before (subject, body, facts, command); here it is only laid out and escaped
for its sink. Every line passes through ``text.clean``, so a hostile process name stays text.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from gpuwatchd.charts import text_description
from gpuwatchd.core import text
from gpuwatchd.core.codes import TypedFact

if TYPE_CHECKING:
    from gpuwatchd.core.model import Message

LINE_CHARS = 2000
POPUP_LINES = 12
POPUP_CHARS = 600
WIDTH_CHARS = 78
"""Of the text part of a mail."""


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
    >>> from gpuwatchd.core.model import Message
    >>> word(Message(id="1", notice="resolved", severity="info", subject="s", body="b"))
    'recovered'
    """
    if message.notice == "resolved" and message.severity == "info":
        return "recovered"  # What ran out of memory is over and critical.
    return "test" if message.notice == "test" else message.severity


def facts(message: Message) -> list[tuple[str, str]]:
    """Return labels and values, each of them safe."""
    return [
        (text.clean(label, limit=60), text.clean(value, limit=LINE_CHARS))
        for label, value in message.facts.items()
    ]


def commands(message: Message) -> list[tuple[str, str]]:
    """Return what the buttons do, as label and command, where no fact or command says it already.

    Examples
    --------
    >>> from gpuwatchd.core.model import Button, Message
    >>> press = Button(name="snooze", label="Snooze 1 h", command="gpuwatchctl snooze 4711 1h")
    >>> commands(Message(id="1", notice="firing", severity="info", subject="s", body="b",
    ...                  buttons=(press,)))
    [('Snooze 1 h', 'gpuwatchctl snooze 4711 1h')]
    """
    names = {message.command, *message.facts.values()}
    return [
        (text.clean(button.label, limit=60), text.clean(button.command, limit=LINE_CHARS))
        for button in message.buttons
        # What the button "show" shows is what to do next.
        if button.name != "show" and button.command and button.command not in names
    ]


def rows(message: Message) -> list[tuple[str, str, bool]]:
    """Return labels and values, and which are there to be typed: facts, then commands."""
    typed = frozenset(TypedFact)
    return [
        *((label, value, label in typed) for label, value in facts(message)),
        *((label, value, True) for label, value in commands(message)),
    ]


def plain(message: Message) -> str:
    """Return the text part of a mail: body, curve, facts in columns, what to type next.

    Examples
    --------
    >>> from gpuwatchd.core.model import Message
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
    blocks = ["\n".join(_wrapped(line) for line in lines(message.body))]
    chart = text_description.drawable(message.chart)
    if chart is not None:
        blocks.append(text_description.sparkline(chart))
    table = rows(message)
    if message.cost:
        table.insert(0, ("Cost", text.clean(message.cost, limit=LINE_CHARS), False))
    if table:
        width = max(len(row[0]) for row in table) + 1
        blocks.append("\n".join(_row(*row, width) for row in table))
    if message.command:
        blocks.append(f"What to do next:\n    {text.clean(message.command, limit=LINE_CHARS)}")
    blocks.append(f"--\ngpuwatchd ({word(message)})")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _wrapped(line: str, indent: str = "") -> str:
    """Return a line in lines of a mail's width; words that are longer stay whole."""
    return textwrap.fill(
        line, WIDTH_CHARS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _row(label: str, value: str, typed: bool, width: int) -> str:  # noqa: FBT001
    row = f"{label + ':':<{width}} {value}"
    # What is to be typed stays on one line.
    if typed or width > WIDTH_CHARS // 2:
        return row
    return _wrapped(row, " " * (width + 1))


def popup(message: Message, *, markup: bool) -> str:
    """Return the body of a pop-up: the text and the command, short enough for a screen corner.

    It is escaped for a server that reads it as Pango ``markup``.
    """
    wanted = [line for line in lines(message.body) if line][:POPUP_LINES]
    value = text.cut("\n".join(wanted), POPUP_CHARS)
    if message.command:
        value = f"{value}\n{text.clean(message.command)}" if value else text.clean(message.command)
    if not markup:
        return value
    return "\n".join(text.for_pango(line) for line in value.split("\n"))
