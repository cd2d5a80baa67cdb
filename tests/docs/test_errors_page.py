"""Every error has its section, and every section its error."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import pages, program
from gpuwatchd.cli.error_pages import ERROR_PAGES
from tests.docs import errors_page, generate

if TYPE_CHECKING:
    import click

    from gpuwatchd.cli.error_pages import ErrorPage

IDS = [one.id for one in ERROR_PAGES]


def test_what_is_named_is_documented_and_what_is_documented_is_named() -> None:
    assert len(set(IDS)) == len(IDS)
    assert set(errors_page.raised()) == set(IDS)


def test_the_root_of_the_tree_is_raised_with_a_section_of_its_own_only() -> None:
    assert errors_page.unnamed() == []


def test_every_class_has_a_page_and_they_differ() -> None:
    found = {name: kind.default_page for name, kind in errors_page.classes().items()}
    assert len(set(found.values())) == len(found)
    assert all(page.startswith("errors#") for page in found.values())


@pytest.mark.parametrize("one", ERROR_PAGES, ids=IDS)
def test_a_section_says_what_to_do(one: ErrorPage) -> None:
    assert one.title
    assert one.means.endswith(".")
    assert one.causes
    assert one.do
    words = " ".join([one.means, *one.causes, *one.do])
    for line in re.findall(r"`gpuwatchctl ([^`]+)`", words):
        _understood(line)


def _understood(line: str) -> None:
    """Fail where a command of a section is none; page names are those of files."""
    words = line.split()
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] == "--config" else words[1:]
    if not words:
        return
    verb, *rest = words
    command = program.load(verb)
    if verb == "docs":
        (name,) = rest
        assert name in pages.files(generate.DOCS), line
    flags = _flags(command)
    children = getattr(command, "commands", {})
    for child in (children[word] for word in rest if word in children):
        flags |= _flags(child)
    assert {word for word in rest if word.startswith("-")} <= flags, line


def _flags(command: click.Command) -> set[str]:
    return {flag for one in command.params for flag in [*one.opts, *one.secondary_opts]}
