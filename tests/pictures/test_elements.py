"""HTML from values: foreign text stays text, whatever it says."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatchd.charts.svg import element
from gpuwatchd.core.text import clean
from gpuwatchd.view.report.document import (
    Card,
    Document,
    Facts,
    Figure,
    Figures,
    Says,
    Section,
    Step,
    Steps,
    Table,
)
from gpuwatchd.view.report.html import render

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


@given(HOSTILE, HOSTILE)
def test_text_and_attributes_come_back_as_they_were(value: str, title: str) -> None:
    found = Reader(element("p", {"title": title, "id": None}, value, [element("b", {}, value)]))
    assert found.tags == [("p", {"title": title.replace("\x00", "\ufffd")}), ("b", {})]
    assert found.text == value.replace("\x00", "\ufffd") * 2
    assert found.comments == 0


@given(HOSTILE)
@settings(max_examples=30)
def test_a_report_shows_foreign_text_clean_and_as_text(value: str) -> None:
    def page(value: str) -> Reader:
        table = Table(caption=value, heads=(value,), rows=((value,),), left_out=value)
        step = Step(text=value, why=value, command=value)
        facts = Facts(rows=((value, value), ("", value)))
        figure = Figure(value=value, label=value, note=value)
        blocks = (Says(text=value), Figures(figures=(figure,)), facts, table, Steps(steps=(step,)))
        card = Card(key="k", title=value, kind="leak", word=value, said=value, blocks=blocks)
        section = Section(key="s", title=value, blocks=(*blocks, card))
        return Reader(render(Document(title=value, about=value, sections=(section,), foot=value)))

    found, plain = page(f"§§{value}"), page("§§")
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert found.comments == 0
    assert found.text.replace(clean(f"§§{value}"), "§§") == plain.text
    assert {tag: list(keys) for tag, keys in found.tags} == {
        tag: list(keys) for tag, keys in plain.tags
    }


def test_a_table_says_on_a_phone_what_each_cell_is() -> None:
    rows = (("alice", "1 GiB"),)
    table = Table(caption="Users", heads=("who", "memory"), rows=rows, right=frozenset({1}))
    section = Section(key="s", title="Who", blocks=(table,))
    found = Reader(render(Document(title="x", about="", sections=(section,))))
    cells = [attributes for tag, attributes in found.tags if tag == "td"]
    assert cells == [{"class": "number", "role": "cell", "data-label": "memory"}]
