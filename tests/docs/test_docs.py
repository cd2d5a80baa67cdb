"""The documentation says what the program does."""

from __future__ import annotations

import re

import pytest

from gpuwatchd.core import config
from tests.conftest import ROOT
from tests.docs import generate


@pytest.mark.parametrize("name", list(generate.PAGES))
def test_the_reference_is_what_the_code_says(name: str) -> None:
    assert (generate.DOCS / name).read_text(encoding="utf-8") == generate.PAGES[name]()


def test_every_key_has_its_meaning_in_the_reference() -> None:
    page = (ROOT / "docs/reference/config.md").read_text()
    for key, _ in list(config.keys()):
        name = re.escape(key.rpartition(".")[2])
        assert re.search(rf"^\| `{name}` \| `.*` \| \S", page, re.MULTILINE), key
