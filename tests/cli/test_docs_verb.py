"""``docs``: every page reads well in a pipe and on a terminal, and mistakes are helped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from click import Argument, Context

from gpuwatchd.cli import COMMANDS
from gpuwatchd.cli.verbs import docs
from gpuwatchd.view import manual, manual_text
from gpuwatchd.view.blocks import width_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calls import Ctl


PAGES = {name: manual.read(file) for name, file in manual.files(manual.folder()).items()}
NAMES = list(PAGES)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_reads_well_in_a_pipe(name: str) -> None:
    text = manual_text.render(PAGES[name].text, 80)
    assert text.startswith(PAGES[name].title + "\n====")
    for line in text.splitlines():
        # Code and single long words are never broken.
        assert width_of(line) <= 80 or line.startswith(" ") or " " not in line.strip(), line
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "](" not in prose
    assert "<!--" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_a_page_is_lost(name: str) -> None:
    def words(text: str) -> set[str]:
        return set(re.findall(r"[a-z]{4,}", text.lower()))

    shown = words(manual_text.render(PAGES[name].text, 80).replace("\n", " "))
    there = words(re.sub(r"\]\([^)]*\)", "] ", PAGES[name].text))
    assert {word for word in there - shown if word not in {"tutorial", "text", "toml"}} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_word_is_cut_in_a_terminal(name: str, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = ctl("docs", name, "--color", "always")
    written = PAGES[name].text
    assert shown.count("\N{HORIZONTAL ELLIPSIS}") <= written.count("\N{HORIZONTAL ELLIPSIS}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("docs sgnals", "no such page: sgnals; did you mean signals"),
        ("docs exit-codes#gpuwatch", "no section gpuwatch in exit-codes; did you mean gpuwatchctl"),
        ("docs --search", "which words?"),
        ("docs --list --search x", "--list stands alone"),
    ],
)
def test_mistakes_are_helped(line: str, said: str, ctl: Ctl) -> None:
    assert said in ctl.err(*line.split(), code=2)


@pytest.mark.parametrize(("typed", "page"), [("popup", "be-warned"), ("e-mail", "be-warned")])
def test_search_does_not_ask_for_hyphens(typed: str, page: str) -> None:
    assert page in [hit.page for hit in manual.search(list(PAGES.values()), [typed])]


def test_every_answer_of_a_search_is_a_section() -> None:
    hits = manual.search(list(PAGES.values()), ["the"])
    assert len(hits) == 15
    for hit in hits:
        assert PAGES[hit.page].part(hit.anchor).startswith("#")


def test_tab_offers_pages_and_sections() -> None:
    def offered(word: str) -> list[str]:
        context = Context(docs.command)
        return docs.complete_page(context, Argument(["x"]), word)

    assert offered("exit") == ["exit-codes"]
    assert offered("exit-codes#gpuwatchc") == ["exit-codes#gpuwatchctl"]
    assert offered("xyzzy#") == []


def test_a_program_without_its_pages_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ctl: Ctl
) -> None:
    monkeypatch.setattr("gpuwatchd.view.manual.resources.files", lambda _: tmp_path)
    said = ctl.err("docs")
    assert "the pages were not installed with the program" in said
    assert "reinstall" in said


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_help_of_a_verb_ends_with_its_page(verb: str, ctl: Ctl) -> None:
    last = ctl(verb, "--help").rstrip().splitlines()[-1].strip()
    assert last.startswith("Documentation: gpuwatchctl docs ")
    name, anchor = manual.wanted(last.split()[-1])
    assert PAGES[name].part(anchor) if anchor else PAGES[name].text


def test_code_is_not_touched() -> None:
    text = "Say\n\n```sh\na  `b` | c # [x](y)\n\n# no heading\n```\n\nand\n"
    assert manual_text.render(text, 40) == (
        "Say\n\n    a  `b` | c # [x](y)\n\n    # no heading\n\nand\n"
    )
    assert manual.Page(name="p", kind="", text="# P\n" + text).sections()[-1].title == "P"


def test_the_same_heading_twice_has_two_anchors() -> None:
    page = manual.Page(name="p", kind="", text="# A\n## B\nx\n# C\n## B\ny\n")
    assert [one.anchor for one in page.sections()] == ["a", "b", "c", "b_1"]
    assert page.part("b_1") == "## B\ny\n"
    assert page.part("a") == "# A\n## B\nx\n"
