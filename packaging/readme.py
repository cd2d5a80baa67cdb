"""The long description of the package: README.md without links that only a checkout can follow.

hatchling calls :class:`Readme`. An index shows the text alone: there, a link to ``docs/...`` leads
nowhere. The pages are inside the package, so the link becomes its text and the name of the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^[ \t]*!\[[^\]]*\]\((?!https?:)[^)]*\)[ \t]*\n?", re.MULTILINE)
_PICTURE_TAG = re.compile(r"^[ \t]*(?:</?(?:p|img|picture|source)\b[^>]*>[ \t]*)+\n?", re.MULTILINE)
_PAGE = re.compile(r"\[([^\]]+)\]\(docs/([^)#\s]+)\.md(#[^)\s]*)?\)")
_ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?!https?:|mailto:|#)[^)]*\)")


def portable(text: str) -> str:
    """Return a README whose every link works without the files beside it."""
    parts = _FENCE.split(text)
    for index in range(0, len(parts), 2):
        part = _PICTURE_TAG.sub("", _PICTURE.sub("", parts[index]))
        part = _PAGE.sub(_page, part)
        parts[index] = _ELSEWHERE.sub(r"\1", part)
    return "".join(parts)


def _page(link: re.Match[str]) -> str:
    text, page, anchor = link[1], link[2], link[3] or ""
    if text == f"docs/{page}.md":  # a link that spells its own target
        return f"`gpuwatchctl docs {page}`"
    return f"{text} (`gpuwatchctl docs {page}{anchor}`)"


class Readme(MetadataHookInterface):
    """Gives the project its ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": portable(text)}
