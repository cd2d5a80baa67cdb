"""The files of the live page: known by name, read once, so that no address leads elsewhere."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final, NamedTuple

from gpuwatchd.charts import assets

INDEX: Final = "index.html"
PREFIX: Final = "/static/"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_STYLE: Final = "text/css; charset=utf-8"
_TYPES: Final = {".html": "text/html; charset=utf-8", ".css": _STYLE, ".js": _SCRIPT}
"""What has another ending is not served."""


class Page(NamedTuple):
    """One file as it is answered."""

    body: bytes
    media_type: str
    tag: str
    """For If-None-Match."""


def pages() -> dict[str, Page]:
    """Return address -> file: ``/`` and what is below :data:`PREFIX`."""
    found = {
        f"{PREFIX}chart.js": page_of(assets.script().encode(), _SCRIPT),
        f"{PREFIX}page.css": page_of(assets.style().encode(), _STYLE),
        f"{PREFIX}uPlot.LICENSE": page_of(
            assets.plotting_terms().encode(), "text/plain; charset=utf-8"
        ),
    }
    for file in (resources.files("gpuwatchd.web") / "pages").iterdir():
        media_type = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if media_type is not None:
            address = "/" if file.name == INDEX else PREFIX + file.name
            found[address] = page_of(file.read_bytes(), media_type)
    return found


def page_of(body: bytes, media_type: str) -> Page:
    """Return a file with the tag of its content."""
    return Page(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
