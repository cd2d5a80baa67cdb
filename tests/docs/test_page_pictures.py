"""The pictures of the live page: there, small, and of what the page shows."""

from __future__ import annotations

import re
from unittest import mock

import msgspec
import pytest
from PIL import Image

from gpuwatchd.view.query import Query
from gpuwatchd.web import pages
from tests.docs import page_pictures, screens


@pytest.mark.parametrize("name", page_pictures.SHOTS)
def test_it_is_small_and_says_what_it_was_taken_of(name: str) -> None:
    path = screens.FOLDER / name
    assert path.stat().st_size <= page_pictures.MOST_BYTES
    assert re.fullmatch("[0-9a-f]{64}", page_pictures.shown(path))
    with Image.open(path) as picture:
        assert picture.size == (1200, page_pictures.SHOTS[name].height)


def test_the_same_world_is_the_same_picture() -> None:
    with screens.world(page_pictures.SCENARIO, 5), mock.patch(
        "gpuwatchd.view.answers.base.host", return_value="lab3"
    ):  # fmt: skip
        first, second = page_pictures.digest(), page_pictures.digest()
        said = msgspec.json.encode(pages.ANSWERS["overview"](Query(), {}))
    assert first == second
    assert b"gpuwatchd-screens-" not in said, "the picture would change with its folder"
