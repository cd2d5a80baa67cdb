"""The documentation says what the program does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpuwatchd import config
from gpuwatchd.ctl import COMMANDS
from tests.conftest import ROOT
from tests.docs import generate

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("name", list(generate.PAGES))
def test_the_reference_is_what_the_code_says(name: str) -> None:
    assert (generate.DOCS / name).read_text(encoding="utf-8") == generate.PAGES[name]()


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_is_in_the_reference(verb: str) -> None:
    assert f"### {verb}\n" in (ROOT / "docs/reference/cli.md").read_text()


def test_every_key_has_its_meaning_in_the_reference() -> None:
    page = (ROOT / "docs/reference/config.md").read_text()
    for key, _ in list(config.keys()):
        name = re.escape(key.rpartition(".")[2])
        assert re.search(rf"^\| `{name}` \| `.*` \| \S", page, re.MULTILINE), key


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_files_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
