"""The files of the live page: small, whole, and without a way for a word to become markup."""

from __future__ import annotations

import re
from importlib import resources

import pytest

FOLDER = resources.files("gpuwatchd.web") / "pages"
FILES = {
    one.name: one.read_text("utf-8")
    for one in sorted(FOLDER.iterdir(), key=lambda one: one.name)
    if one.name.endswith((".js", ".css", ".html"))
}
SCRIPTS = [name for name in FILES if name.endswith(".js")]
MADE = {"chart.js", "page.css"}
"""Put together from parts by `pictures.assets`."""


@pytest.mark.parametrize("name", FILES)
def test_it_is_short_and_asks_nothing_of_elsewhere(name: str) -> None:
    words = FILES[name]
    assert len(words.splitlines()) <= 400
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", words)) <= allowed
    assert "url(" not in words
    assert "@import" not in words


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_word_can_become_markup_or_a_program(name: str) -> None:
    forbidden = (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
        "srcdoc", "createContextualFragment", "DOMParser", "setHTML",
    )  # fmt: skip
    assert [word for word in forbidden if word in FILES[name]] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_it_imports_is_there_and_used(name: str) -> None:
    for names, other in re.findall(r'import \{([^}]*)\} from "\./([^"]+)"', FILES[name]):
        for one in (word.strip() for word in names.split(",")):
            exported = rf"export (?:async )?(?:function|class|const) {one}\b"
            assert re.search(exported, FILES[other]), f"{one} of {other}"
            assert len(re.findall(rf"\b{one}\b", FILES[name])) > 1, f"{one} is not used"


def test_what_is_exported_is_used_elsewhere() -> None:
    for name in SCRIPTS:
        others = "\n".join(words for other, words in FILES.items() if other != name)
        for one in re.findall(r"export (?:async )?(?:function|class|const) (\w+)", FILES[name]):
            asked = re.search(rf"\b{one}\b", others)
            assert asked, f"{one} of {name}"


def test_every_view_has_what_the_page_asks_of_it() -> None:
    views = re.findall(r"import \* as \w+ from \"\./(\w+\.js)\"", FILES["live.js"])
    assert len(views) == 7
    for name in views:
        for wanted in ("path", "title", "tree"):
            assert f"export function {wanted}(" in FILES[name], name


def test_the_page_names_files_that_are_served_and_runs_nothing_inline() -> None:
    page = FILES["index.html"]
    named = set(re.findall(r'"/static/([^"]+)"', page))
    assert named - MADE <= set(FILES)
    assert {*SCRIPTS, *MADE} - named == set(), "a browser would look for it late"
    assert not re.search(r"<script(?![^>]* src=)", page)
    assert "<style" not in page
    assert not re.search(r"\son\w+=|\sstyle=", page)
