"""A page with everything in it: what it allows, what it says, what is there without scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd.charts import page, text_description
from gpuwatchd.core.design import FLAGS, LEGEND, LOOKS, PARTS
from gpuwatchd.core.text import clean
from gpuwatchd.view.report.document import Document
from gpuwatchd.view.report.html import render
from tests.browser import gallery
from tests.conftest import ROOT, not_here
from tests.pictures.test_elements import HOSTILE, Reader

if TYPE_CHECKING:
    from pathlib import Path

STATIC = ROOT / "gpuwatchd" / "charts" / "static"


@pytest.fixture(scope="module")
def html() -> str:
    return gallery.html(*gallery.everything())


def policy(html: str) -> dict[str, list[str]]:
    """Return what a page's policy says of each kind of content."""
    said = next(a for t, a in Reader(html).tags if t == "meta" and "http-equiv" in a)["content"]
    rows = (row.split() for row in (said or "").split(";"))
    return {name: rest for name, *rest in rows}


def contents(html: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)


def test_nothing_may_run_or_load_but_what_is_inside(html: str) -> None:
    allowed = policy(html)
    assert allowed["default-src"] == ["'none'"]
    assert allowed["base-uri"] == allowed["form-action"] == ["'none'"]
    for tag, key in (("script", "script-src"), ("style", "style-src")):
        (content,) = contents(html, tag)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert allowed[key] == [f"'sha256-{digest}'"]
    found = Reader(html).tags
    assert not [a for _, a in found for key in a if key.startswith("on") or key == "style"]
    assert not [a for tag, a in found if tag in {"link", "iframe", "img", "object", "base"}]
    assert not [a for _, a in found if a.get("src") or str(a.get("href", "#"))[0] != "#"]


def test_nothing_inside_ends_it_early(html: str) -> None:
    (script,), (style,) = contents(html, "script"), contents(html, "style")
    assert "</" not in style
    assert not re.search(r"</script|<!--", script, re.IGNORECASE)
    assert script.rstrip().endswith("})();")


def test_the_numbers_come_back(html: str) -> None:
    said = re.search(r'id="gpuwatchd-data">(.*?)</script>', html, re.DOTALL)
    assert said is not None
    data = json.loads(said[1])
    pictures = gallery.everything()
    assert [one["title"] for one in data["pictures"]] == [
        clean(one.title, limit=4096) for one in pictures
    ]
    assert data["pictures"][1]["curve"]["used_bytes"] == list(pictures[1].curve.used_bytes)
    assert data["zones"][0][0] <= min(one.begin_s for one in pictures)


@given(
    HOSTILE
    | st.dictionaries(
        HOSTILE, HOSTILE | st.none() | st.floats(allow_nan=False, allow_infinity=False)
    )
)
def test_data_cannot_end_its_element(value: Any) -> None:
    said = page.json_for_html(value)
    assert not set(said) & set("<>&\u2028\u2029")
    assert json.loads(said) == value


def test_what_is_unknown_to_json_is_no_number_in_a_page() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.json_for_html(float("nan"))


def test_a_page_without_pictures_has_no_program() -> None:
    html = render(Document(title="Empty", about="", sections=()))
    assert html.startswith("<!doctype html>")
    assert policy(html)["script-src"] == ["'none'"]
    assert "<script" not in html


def test_every_chart_is_there_without_scripts(html: str) -> None:
    tags = Reader(html).tags
    drawn = [a for tag, a in tags if tag == "svg" and a.get("role") == "img"]
    pictures = gallery.everything()
    assert [a["aria-label"] for a in drawn] == [
        text_description.sentence(one).replace("\x00", "\ufffd") for one in pictures
    ]
    tables = sum((not one.empty) + bool(one.marks) for one in pictures)
    assert sum(tag == "table" for tag, _ in tags) == tables
    assert all(mark.text in Reader(html).text for one in pictures[:2] for mark in one.marks)


def test_colours_words_and_dashes_are_those_of_the_design() -> None:
    style, script = page.page_style(), page.page_script()
    for name, paint in PARTS.items():
        assert f"--{name}:{paint.light};" in style
        assert f"--{name}:{paint.dark};" in style
    for kind, look in LOOKS.items():
        assert f".badge-{kind}{{background:{look.fill}}}" in style
    own = "".join((STATIC / name).read_text("utf-8") for name in ("page.css", *_own()))
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", own.replace('"#888888"', ""))
    said = re.search(r"const GPUWATCHD_DESIGN = (.*);\n", script)
    assert said is not None
    design = json.loads(said[1])
    assert design["legend"] == LEGEND
    assert {kind: flag["glyph"] for kind, flag in design["marks"].items()} == {
        kind: flag.mark for kind, flag in FLAGS.items()
    }


def test_every_colour_that_is_asked_for_is_there() -> None:
    style = page.page_style()
    own = "".join((STATIC / name).read_text("utf-8") for name in ("page.css", *_own()))
    asked = set(re.findall(r"var\(--([a-z-]+)\)", own)) | set(
        re.findall(r'colour\("([a-z-]+)"\)', own)
    )
    assert len(asked) > 12
    assert {name for name in asked if f"--{name}:" not in style} == set()


def _own() -> list[str]:
    return sorted(path.name for path in STATIC.glob("*.js") if not path.name.endswith(".min.js"))


def test_every_file_is_used_and_short() -> None:
    used = {*page.SCRIPTS, page.LICENCE, "boot.js", "page.css", "uPlot.min.css"}
    assert used == {path.name for path in STATIC.iterdir()}
    for name in (*_own(), "page.css"):
        assert len((STATIC / name).read_text("utf-8").splitlines()) <= 400, name


def test_the_terms_of_the_plotting_library_go_with_it() -> None:
    assert "Copyright (c) 2022 Leon Sorokin" in page.plotting_terms()
    assert "Permission is hereby granted, free of charge" in page.page_script()
    assert "v1.6.32" in page.page_script()


def test_scripts_are_well_formed(tmp_path: Path) -> None:
    """The browser's tests run them; where node is, it says on which line they are not."""
    if (node := shutil.which("node")) is None:
        not_here("no node; tests/browser runs the scripts")
    path = tmp_path / "all.js"
    path.write_text(f"{page.page_script()}\n{page.boot()}", "utf-8")
    found = subprocess.run(
        [node, "--check", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
