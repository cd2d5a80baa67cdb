"""Every error has its section, and every section its error."""

from __future__ import annotations

import re

import pytest

from gpuwatchd.view import manual
from tests.docs import errors_page, generate

SECTIONS = errors_page.sections()


def test_what_is_named_is_documented_and_what_is_documented_is_named() -> None:
    assert set(errors_page.raised()) == set(SECTIONS)


def test_the_root_of_the_tree_is_raised_with_a_section_of_its_own_only() -> None:
    assert errors_page.unnamed() == []


def test_every_class_has_a_page_and_they_differ() -> None:
    found = {name: kind.default_page for name, kind in errors_page.classes().items()}
    assert len(set(found.values())) == len(found)
    assert all(page.startswith("errors#") for page in found.values())


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_what_to_do(name: str) -> None:
    text = SECTIONS[name]
    form = (
        r"\n\n\*\*[^*]+\.\*\* .+\.\n"
        r"\nUsual causes:\n\n(\* .+\n)+\nWhat to do:\n\n(\* .+\n)+\n`kind`: "
    )
    assert re.match(form, text)
    # The verbs and flags that it names are looked at with those of every page: test_commands.
    pages = re.findall(r"`gpuwatchctl docs ([^`]+)`", text)
    assert set(pages) <= manual.files(generate.DOCS).keys()
