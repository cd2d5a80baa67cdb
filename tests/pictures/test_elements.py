"""HTML from values: foreign text stays text, whatever it says."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.charts.svg import Markup, badge, element, facts, join, table
from gpuwatchd.core.design import LOOKS

HOSTILE = st.text() | st.sampled_from(
    [
        *("</script><script>alert(1)</script>", "<!--", "-->", "]]>", "&lt;", "&#0;", "{{7*7}}"),
        *("\"' onload=x", "<img src=x onerror=alert(1)>", "a\"b'c<d>&"),
        *("\u2028\u2029", "\x00", "\u202eevil"),
    ]
)


class Reader(HTMLParser):
    """What a browser would make of markup: its tags, attributes and text."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.comments = 0
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments += 1


def read(text: str) -> str:
    """Return text as a browser reads it back: without what no page can have."""
    return text.replace("\x00", "\ufffd")


@given(HOSTILE, HOSTILE)
def test_text_and_attributes_come_back_as_they_were(text: str, title: str) -> None:
    found = Reader(element("p", {"title": title, "data-x": title}, text, element("b", None, text)))
    assert [tag for tag, _ in found.tags] == ["p", "b"]
    assert found.tags[0][1] == {"title": read(title), "data-x": read(title)}
    assert found.text == read(text) * 2
    assert found.comments == 0


@given(HOSTILE)
def test_tables_facts_and_badges_add_nothing_of_their_own(text: str) -> None:
    made = join(
        [
            table([text, text], [[text, text]], caption=text),
            table([text], [[text]], caption=text, stack=False),
            facts([(text, text)]),
            badge("leak", text or "leak"),
        ]
    )
    found = Reader(made)
    known = {
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "div",
        "dl",
        "dt",
        "dd",
        "span",
    }
    assert {tag for tag, _ in found.tags} <= known
    assert found.comments == 0
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on")]


@pytest.mark.parametrize("name", ["script", "SCRIPT", "style", "a b", "p>", "", "1"])
def test_no_element_that_runs_or_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="no element"):
        element(name)


@pytest.mark.parametrize("key", ["onclick", "ONLOAD", "style", "a b", "x=y", "", 'x"'])
def test_no_attribute_that_runs_or_is_none(key: str) -> None:
    with pytest.raises(ValueError, match="no attribute"):
        element("p", {key: "1"})


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", " javascript:x", "data:text/html,x", "//evil", "ftp://x", ""]
)
def test_no_address_that_runs_or_leaves_unseen(address: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        element("a", {"href": address}, "x")


@pytest.mark.parametrize("address", ["#top", "/api/v1/status", "https://example.org/a?b=1&c"])
def test_addresses_that_are_fine(address: str) -> None:
    assert Reader(element("a", {"href": address}, "x")).tags[0][1] == {"href": address}


def test_nothing_and_switches() -> None:
    assert (
        element("input", {"disabled": True, "checked": False, "value": None}) == "<input disabled>"
    )
    assert join([None, [], "", [None]]) == ""
    assert isinstance(join("<"), Markup)


@pytest.mark.parametrize("kind", LOOKS)
def test_a_badge_says_its_kind_in_a_word(kind: str) -> None:
    found = Reader(badge(kind))  # type: ignore[arg-type]
    assert LOOKS[kind].word in found.text  # type: ignore[index]


def test_a_table_says_on_a_phone_what_each_cell_is() -> None:
    found = Reader(table(["who", "memory"], [["alice", "1 GiB"]], caption="Users", numbers=[1]))
    cells = [attributes for tag, attributes in found.tags if tag == "td"]
    assert cells == [{"class": "number", "role": "cell", "data-label": "memory"}]
    scrolls = Reader(table(["who"], [["alice"]], caption="Users", stack=False)).tags[0]
    assert scrolls[1]["tabindex"] == "0"
