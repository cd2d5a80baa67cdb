"""Takes the pictures of the live page: ``python -m tests.docs.page_pictures``.

A simulated world runs through the real pipeline, as for the pictures of the terminal; the page's
own files and answers are given to a browser, which draws them. Browsers differ a little from each
other: the pictures are written anew only when what they show has changed, and not compared.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple
from unittest import mock
from urllib.parse import parse_qsl, urlsplit

import msgspec

from gpuwatchd.charts import page
from gpuwatchd.view.query import Query
from gpuwatchd.web import pages
from tests.docs import screens

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from playwright.sync_api import Browser, Route

SCENARIO, MINUTES = "demo", 70
SITE: Final = "http://127.0.0.1:1"
"""Nothing listens there: every request is answered here."""
MOST_BYTES: Final = 150_000
_MARK = "gpuwatchd-shows"
_PAGES = resources.files("gpuwatchd.web") / "pages"
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
_TOKEN = "t" * 43


class Shot(NamedTuple):
    """One picture."""

    view: str
    wait: str
    """What is there when all of it is."""
    height: int


SHOTS: Final = {
    "page-overview.png": Shot("/", ".processes", 960),
    "page-gpu.png": Shot("/gpu/GPU-simulated-demo-0?span=6h", ".chart-live canvas", 1100),
}


def main() -> int:
    """Write those that show something old; without a browser, say so and leave them."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    with (
        screens.world(SCENARIO, MINUTES),
        mock.patch("gpuwatchd.view.answers.base.host", return_value="lab3"),
    ):
        now = digest()
        old = [name for name in SHOTS if shown(screens.FOLDER / name) != now]
        if not old:
            return 0
        if program is None:
            print(f"{', '.join(old)}: left as they are, there is no Chromium", file=sys.stderr)
            return 0
        from playwright.sync_api import sync_playwright

        with sync_playwright() as drive:
            flags = ["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]
            browser = drive.chromium.launch(executable_path=program, args=flags)
            for name in old:
                save(screens.FOLDER / name, taken(browser, SHOTS[name]), now)
            browser.close()
    return 0


def digest() -> str:
    """Return what stands for everything that the pictures show."""
    parts = [file.read_bytes() for file in sorted(_PAGES.iterdir(), key=lambda one: one.name)
             if file.name.rpartition(".")[2] in _TYPES]  # fmt: skip
    parts += [page.page_script().encode(), page.page_style().encode()]
    for shot in SHOTS.values():
        parts += [json.dumps(one, sort_keys=True).encode() for one in _answers(shot)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _answers(shot: Shot) -> list[object]:
    name, _, query = shot.view[1:].partition("?")
    view, _, uid = name.partition("/")
    asked = {"gpu": uid, **dict(parse_qsl(query))} if uid else {}
    names = [view, "picture"] if uid else ["overview"]
    return [_answer(name, asked) for name in names]


def _answer(name: str, parameters: Mapping[str, str]) -> object:
    return msgspec.to_builtins(pages.ANSWERS[name](Query(), parameters))


def taken(browser: Browser, shot: Shot) -> bytes:
    """Return a picture of one view."""
    page = browser.new_page(
        viewport={"width": 1200, "height": shot.height}, color_scheme="light", timezone_id="UTC"
    )
    page.route("**/*", _give)
    page.goto(f"{SITE}/#token={_TOKEN}&view={shot.view}")
    page.wait_for_selector(shot.wait)
    page.wait_for_load_state("networkidle")
    found = page.screenshot()
    page.close()
    return found


def _give(route: Route) -> None:
    parts = urlsplit(route.request.url)
    name = parts.path.rpartition("/")[2]
    if parts.path.startswith("/api/"):
        route.fulfill(json=_answer(name, dict(parse_qsl(parts.query))))
        return
    made = {"chart.js": page.page_script, "page.css": page.page_style}
    name = name or "index.html"
    body = made[name]() if name in made else (_PAGES / name).read_text("utf-8")
    route.fulfill(body=body, content_type=f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")


def save(path: Path, picture: bytes, says: str) -> None:
    """Write a picture with few colours, and what it shows."""
    from PIL import Image, PngImagePlugin

    told = PngImagePlugin.PngInfo()
    told.add_text(_MARK, says)
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(192)
    few.save(path, pnginfo=told, optimize=True)


def shown(path: Path) -> str:
    """Return what a picture shows, as :func:`digest` had it; "" where it is not there."""
    from PIL import Image

    if not path.is_file():
        return ""
    with Image.open(path) as picture:
        return str(picture.info.get(_MARK, ""))


if __name__ == "__main__":
    sys.exit(main())
