"""The site builds, works without a network, and no link of it or of any page leads nowhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

from gpuwatchd.view import manual
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MARKDOWN = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").rglob("*.md")]
)
_LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_OWN = frozenset({"link", "script", "img", "iframe", "source", "object", "video"})
"""Elements that a browser loads by itself."""


class Reader(HTMLParser):
    """Collects what a page has and where it points."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in _OWN:
            self.loads += [found[name] for name in ("href", "src", "data") if name in found]


def _read(file: Path) -> Reader:
    reader = Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    return reader


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once, every warning an error."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-s", "-f", ".mkdocs.yml", "-d", place],
        check=False, cwd=ROOT, capture_output=True, text=True, timeout=110,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    # Not with --quiet: then its warnings are not counted.
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def read(site: Path) -> dict[str, Reader]:
    """Return path -> what stands in every page of the site."""
    return {str(file.relative_to(site)): _read(file) for file in sorted(site.rglob("*.html"))}


def test_every_page_is_in_the_site(read: dict[str, Reader]) -> None:
    files = manual.files(ROOT / "docs").values()
    wanted = {str(file.relative_to(ROOT / "docs").with_suffix(".html")) for file in files}
    assert wanted == set(read) - {"404.html"}


def test_no_link_of_the_site_leads_nowhere(site: Path, read: dict[str, Reader]) -> None:
    broken = []
    for name, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or name == "404.html":
                continue
            path = (site / name).parent / unquote(parts.path) if parts.path else site / name
            if path.is_dir():
                path /= "index.html"
            where = str(path.resolve().relative_to(site.resolve()))
            known = read.get(where)
            missing = parts.fragment and known and unquote(parts.fragment) not in known.anchors
            if not path.is_file() or missing:
                broken.append(f"{name}: {link}")
    assert broken == []


def test_the_site_loads_nothing_from_elsewhere(site: Path, read: dict[str, Reader]) -> None:
    loaded = {link for page in read.values() for link in page.loads}
    assert any("main." in link for link in loaded)
    assert [link for link in loaded if urlsplit(link).scheme in {"http", "https"}] == []
    assert [link for link in loaded if link.startswith("//")] == []
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(https?:|//)", styles) == []


def test_the_search_of_the_site_knows_every_page(site: Path) -> None:
    index: Any = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {row["location"].partition("#")[0] for row in index["docs"]}
    files = manual.files(ROOT / "docs").values()
    assert found >= {
        str(file.relative_to(ROOT / "docs").with_suffix(".html"))
        for file in files if file.stem != "index"
    }  # fmt: skip


def test_the_search_needs_no_web_server(site: Path, read: dict[str, Reader]) -> None:
    text = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert text.startswith("var __index = {")
    assert (site / "assets" / "iframe-worker.js").is_file()
    assert any(link.endswith("iframe-worker.js") for link in read["index.html"].loads)


def _links(file: Path) -> list[str]:
    return _LINK.findall(_CODE.sub("", file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_link_of_a_page_leads_nowhere(page: Path) -> None:
    for link in _links(page):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme in {"https", "mailto"}, link
            assert parts.path, link
            assert "." in parts.netloc or parts.scheme == "mailto", link
            continue
        target = page.parent / parts.path if parts.path else page
        assert target.exists(), link
        if parts.fragment:
            anchors = {one.anchor for one in manual.read(target).sections()}
            assert parts.fragment in anchors, f"{link}: {sorted(anchors)}"


def test_every_page_is_reached_from_the_front_page() -> None:
    docs = ROOT / "docs"
    seen: set[Path] = set()
    waiting = [docs / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        waiting += [
            (page.parent / urlsplit(link).path).resolve()
            for link in _links(page) if not urlsplit(link).scheme and urlsplit(link).path
        ]  # fmt: skip
    assert set(manual.files(docs).values()) - seen == set()


def test_names_of_pages_are_unique() -> None:
    names = [file.stem for kind in manual.KINDS for file in (ROOT / "docs" / kind).glob("*.md")]
    assert len(names) == len(set(names))
    folders = {file.parent.name for file in (ROOT / "docs").rglob("*.md")}
    assert folders == {*manual.KINDS, "docs"}
