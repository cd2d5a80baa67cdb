"""What the builder of the site is told about the pages (``hooks`` in ``.mkdocs.yml``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from gpuwatchd.view import manual

_LEAVING = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")
_LINKED = re.compile(r"\]\(([a-z-]+)/([a-z0-9-]+)\.md[#)]")
_TITLES = {"tutorial": "Tutorial", "how-to": "How to", "reference": "Reference",
           "explanation": "Explanation"}  # fmt: skip


def navigation(place: Path) -> list[dict[str, Any]]:
    """Return the navigation: the four kinds of pages, each in the order of the front page."""
    order = [name for _, name in _LINKED.findall((place / "index.md").read_text(encoding="utf-8"))]
    nav: list[dict[str, Any]] = [{"gpuwatchd": "index.md"}]
    for kind in manual.KINDS:
        found = sorted(
            (place / kind).glob("*.md"),
            key=lambda file: (order.index(file.stem) if file.stem in order else len(order), file),
        )
        rows = [{manual.read(file).title: f"{kind}/{file.name}"} for file in found]
        nav.append({_TITLES[kind]: rows})
    return nav


def on_config(config: Any) -> Any:
    """Fill in the navigation."""
    config.nav = navigation(Path(config.docs_dir))
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add a style, and a stand-in for a worker: else the search asks another server for one."""
    for name in ("iframe-worker.js", "site.css"):
        own = str(Path(__file__).with_name(name))
        files.append(File.generated(config, f"assets/{name}", abs_src_path=own))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Name what lies outside of the pages (examples in ``contrib``) instead of linking it."""
    here = Path(config.docs_dir, page.file.src_uri).parent

    def kept(match: re.Match[str]) -> str:
        target = (here / match[2].partition("#")[0]).resolve()
        inside = target.is_relative_to(Path(config.docs_dir).resolve())
        return match[0] if inside else f"`{match[1].strip('`')}`"

    return _LEAVING.sub(kept, markdown)
