"""Markdown -> plain text: lists, tables, code, links."""

from __future__ import annotations

import pytest

from gpuwatchd.cli import page_text, pages


def test_code_is_not_touched() -> None:
    text = "Say\n\n```sh\na  `b` | c # [x](y)\n\n# no heading\n```\n\nand\n"
    assert page_text.render(text, 40) == (
        "Say\n\n    a  `b` | c # [x](y)\n\n    # no heading\n\nand\n"
    )
    assert pages.Page(name="p", kind="", text="# P\n" + text).sections()[-1].title == "P"


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
    assert page_text.inline(words) == shown


def test_the_same_heading_twice_has_two_anchors() -> None:
    page = pages.Page(name="p", kind="", text="# A\n## B\nx\n# C\n## B\ny\n")
    assert [one.anchor for one in page.sections()] == ["a", "b", "c", "b_1"]
    assert page.part("b_1") == "## B\ny\n"
    assert page.part("a") == "# A\n## B\nx\n"
