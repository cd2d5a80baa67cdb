"""Pictures and tables of the pages are those that the code makes."""

from __future__ import annotations

import re
from unittest import mock
from xml.etree import ElementTree as ET

import msgspec
import pytest
from PIL import Image

from gpuwatchd.view.query import Query
from gpuwatchd.web import pages
from tests.docs import made, page_pictures, pictures, screens
from tests.docs.scenes import SCENES, Scene
from tests.scenarios.bench import page

TEXT = page.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_pictures_are_what_the_detectors_say() -> None:
    assert made.stale(pictures.FOLDER, pictures.PICTURES) == {}, "run make docs"


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.pattern)
def test_every_scene_shows_its_pattern(scene: Scene) -> None:
    assert pictures.pattern_of(scene.series()) == scene.pattern
    assert f"](../pictures/pattern-{scene.pattern}.svg)" in TEXT
    assert f"\n### {scene.pattern}\n" in TEXT


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_sound_and_says_what_it_shows(name: str) -> None:
    text = (pictures.FOLDER / name).read_text(encoding="utf-8")
    root = ET.fromstring(text)
    names = {child.tag.rpartition("}")[2]: child.text for child in root}
    assert len(names["title"] or "") > 10
    assert len(names["desc"] or "") > 20
    assert "prefers-color-scheme: dark" in text
    assert "nan" not in re.sub(r"<(title|desc|style).*?</\1>", "", text, flags=re.DOTALL)
    assert len(text) < 60_000


def test_every_picture_of_a_page_has_words_beside_it() -> None:
    found = re.findall(r"!\[([^\]]*)\]\(([^)]+\.svg)\)", TEXT)
    assert {target.rpartition("/")[2] for _, target in found} == set(pictures.PICTURES)
    assert all(len(words) > 10 for words, _ in found)
    assert all((page.PAGE.parent / target).is_file() for _, target in found)


def test_the_tables_are_those_of_the_figures_beside_the_page() -> None:
    figures = msgspec.json.decode(page.FIGURES.read_bytes())
    assert page.filled(TEXT, figures) == TEXT, "python -m tests.scenarios.bench --docs FILE"


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
