"""Markdown -> plain text: lists, tables, code, links."""

from __future__ import annotations

import pytest

from gpuwatchd.cli import pages


def test_items_keep_their_shape() -> None:
    text = (
        "Two:\n\n* one thing\n  that goes on\n* another\n\n1. first\n   more\n2. second\n\nEnd.\n"
    )
    assert pages.render(text, 80) == (
        "Two:\n\n- one thing that goes on\n- another\n1. first more\n2. second\n\nEnd.\n"
    )


def test_code_is_not_touched() -> None:
    text = "Say\n\n```sh\na  `b` | c # [x](y)\n\n# no heading\n```\n\nand\n"
    assert pages.render(text, 40) == ("Say\n\n    a  `b` | c # [x](y)\n\n    # no heading\n\nand\n")
    assert pages.Page(name="p", kind="", text="# P\n" + text).sections()[-1].title == "P"


def test_a_narrow_table_stays_one_and_a_wide_one_becomes_a_list() -> None:
    table = "| a | meaning |\n|---|---|\n| `x` | says \\| much |\n"
    assert pages.render(table, 40) == "a  meaning\n--------------\nx  says | much\n"
    long = table.replace("much", "much " * 20)
    shown = pages.render(long, 40)
    assert shown.startswith(f"a  meaning\n{'-' * 40}\nx  says | much")
    assert all(len(line) <= 40 for line in shown.splitlines())
    three = "| tool | licence | words |\n|--|--|--|\n| gpu | free | " + "long " * 20 + "|\n"
    assert pages.render(three, 40).startswith(
        f"tool / licence / words\n{'-' * 40}\ngpu\n    licence: free\n    words: long"
    )


def test_a_table_without_a_head_has_none() -> None:
    rows = "| | |\n|---|---|\n| a | b |\n"
    assert pages.render(rows, 40) == "a  b\n"
    shown = pages.render(rows.replace(" b ", " word" * 30 + " "), 40)
    assert shown.startswith("a  word word")
    assert all(len(line) <= 40 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("see [quiet](quiet.md)", "see quiet"),
        ("see [below](#end)", "see below"),
        ("[`[[override]]`](rules.md#some)", "[[override]] (rules#some)"),
        ("![a leak](x.svg) here", "[picture: a leak] here"),
        ("[site](https://example.org/a)", "site (https://example.org/a)"),
    ],
)
def test_links_are_told(words: str, shown: str) -> None:
    assert pages.inline(words) == shown


def test_the_same_heading_twice_has_two_anchors() -> None:
    page = pages.Page(name="p", kind="", text="# A\n## B\nx\n# C\n## B\ny\n")
    assert [one.anchor for one in page.sections()] == ["a", "b", "c", "b_1"]
    assert page.part("b_1") == "## B\ny\n"
    assert page.part("a") == "# A\n## B\nx\n"
