"""The shapes of a message."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.core.model import Button, Message
from gpuwatchd.notify import plain_text
from gpuwatchd.notify.channels.email.message import as_html
from tests import making
from tests.notify.conftest import HOSTILE

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def test_a_bare_message_has_no_empty_blocks() -> None:
    bare = Message(id="1", notice="test", severity="info", subject="s", body="It works.")
    assert "\n\n\n" not in plain_text.plain(bare)
    assert not {"<table", "<pre"} & set(re.findall(r"<\w+", as_html(bare)))


def test_money_and_buttons_are_in_both_parts_once(message: Message) -> None:
    buttons = (
        Button(name="snooze", label="Snooze 1 h", command="gpuwatchctl snooze 4711 1h"),
        Button(name="show", label="Show", command="gpuwatchctl alerts show abc"),
        Button(name="checkpoint", label="Ask to save", command="gpuwatchctl ask 4711"),
    )
    facts = message.facts | {"Silence": "gpuwatchctl snooze 4711 1h"}
    cost = "$25.28 since start <b>"
    full = msgspec.structs.replace(message, buttons=buttons, facts=facts, cost=cost)
    for shape in (plain_text.plain(full), as_html(full)):
        assert shape.count("$25.28 since start") == 1
        assert shape.count("gpuwatchctl snooze 4711 1h") == 1
        assert shape.count("gpuwatchctl ask 4711") == 1
        assert "alerts show" not in shape  # what to do next says it
        assert shape.index("$25.28") < shape.rindex("0 (A100 80GB)")  # the first of its table
    assert "<b>" not in as_html(full)


def test_lines_are_wrapped_and_commands_are_not(message: Message) -> None:
    typed = f"gpuwatchctl {'x' * 90}"
    long = msgspec.structs.replace(
        message, body="word " * 60, facts={"Who": "word " * 40, "Silence": typed}
    )
    lines = plain_text.plain(long).splitlines()
    assert f"Silence: {typed}" in lines
    assert max(len(line) for line in lines if "x" * 90 not in line) <= plain_text.WIDTH_CHARS
    begins = lines.index(next(line for line in lines if line.startswith("Who:")))
    assert lines[begins + 1].index("word") == lines[begins].index("word") == len("Silence: ")


@pytest.mark.parametrize(
    ("notice", "severity", "word"),
    [
        ("resolved", "info", "recovered"),
        ("resolved", "critical", "critical"),
        ("firing", "info", "info"),
        ("test", "info", "test"),
    ],
)
def test_the_severity_is_a_word(notice: str, severity: str, word: str) -> None:
    assert plain_text.word(making.message(notice=notice, severity=severity)) == word


class _Reader(HTMLParser):
    """What a mail program sees: tags, attributes, text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_the_html_holds_everything_and_loads_nothing(message: Message) -> None:
    page = as_html(message)
    seen = _read(page)
    for part in (message.subject, "Full in 47 min.", *message.facts.values(), message.command):
        assert part in seen.text
    assert "WARNING" in seen.text
    assert seen.tags.count("tr") == 3
    assert not {"script", "img", "a", "link", "iframe"} & set(seen.tags)
    assert not re.search(r"@import|url\(|https?:", page)
    assert not {"src", "href", "onclick"} & seen.attributes
    assert "url(" not in page


def test_hostile_text_stays_text() -> None:
    facts = {HOSTILE: HOSTILE}
    hostile = making.message(subject=HOSTILE, body=HOSTILE, facts=facts, command=HOSTILE)
    page = as_html(hostile)
    assert "<b>" not in page
    assert "&lt;b&gt;bold" in page
    _read(page)
    assert "\n" not in plain_text.subject(hostile)
    for shape in (page, plain_text.plain(hostile), plain_text.popup(hostile, markup=True)):
        assert not CONTROL.search(shape)
    popup = plain_text.popup(hostile, markup=True)
    assert "<" not in popup
    assert "&lt;b&gt;" in popup
    assert "<b>" in plain_text.popup(hostile, markup=False)


def test_a_popup_is_short_and_ends_with_the_command(message: Message) -> None:
    long = msgspec.structs.replace(message, body="\n".join(["x" * 90] * 40))
    popup = plain_text.popup(long, markup=False)
    assert popup.endswith("\ngpuwatchctl explain 4711")
    assert len(popup.splitlines()) <= plain_text.POPUP_LINES + 1
    assert len(popup) <= plain_text.POPUP_CHARS + 300


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_no_text_breaks_a_shape(subject: str, body: str, facts: dict[str, str]) -> None:
    odd = Message(id="1", notice="firing", severity="info", subject=subject, body=body, facts=facts)
    _read(as_html(odd))
    for shape in (as_html(odd), plain_text.plain(odd), plain_text.popup(odd, markup=True)):
        assert not CONTROL.search(shape)
        shape.encode()
    assert plain_text.subject(odd)
