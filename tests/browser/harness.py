"""What tests ask of a page in a real browser."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from playwright.sync_api import ConsoleMessage, Page, Route

_HERE = {"localhost", "127.0.0.1", "::1", None}
_SAID: WeakKeyDictionary[Page, list[str]] = WeakKeyDictionary()
_COUNT = """(selector) => {
  const canvas = document.querySelector(selector);
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const found = {};
  for (let n = 0; n < data.length; n += 4) {
    if (data[n + 3] < 250) continue;
    const parts = [data[n], data[n + 1], data[n + 2]];
    const key = "#" + parts.map((v) => v.toString(16).padStart(2, "0")).join("");
    found[key] = (found[key] || 0) + 1;
  }
  return found;
}"""


def chromium() -> str | None:
    """Return the browser of this system."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


def only_this_machine(route: Route) -> None:
    """Let through what is asked of this machine; the rest fails, and is written down."""
    address = route.request.url
    parts = urlsplit(address)
    if parts.scheme in {"file", "data", "blob"} or parts.hostname in _HERE:
        route.continue_()
        return
    route.abort()


def listen(page: Page) -> None:
    """Write down whatever a page complains of."""
    said = _SAID.setdefault(page, [])
    page.on("console", lambda m: said.append(m.text) if _complains(m) else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: _foreign(request.url, said))


def _complains(message: ConsoleMessage) -> bool:
    # That a canvas is read often is what `canvas_colours` does.
    return message.type in {"error", "warning"} and "willReadFrequently" not in message.text


def _foreign(address: str, said: list[str]) -> None:
    parts = urlsplit(address)
    if parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname not in _HERE:
        said.append(f"asks another machine: {address}")


def assert_no_console_errors(page: Page, but: Iterable[str] = ()) -> None:
    """Fail when a page has complained of anything that does not contain one of ``but``.

    It complains by errors, by warnings and by requests to other machines.
    """
    allowed = tuple(but)
    found = [said for said in _SAID[page] if not any(part in said for part in allowed)]
    assert not found, "\n".join(found)


def axe(page: Page) -> list[str]:
    """Return what is not accessible on a page as it is now, one line each."""
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    found = []
    for one in Axe().run(page).response["violations"]:
        nodes = "; ".join(node["html"][:160] for node in one["nodes"][:4])
        found.append(f"{one['id']} ({one['impact']}): {one['help']}: {nodes}")
    return found


def canvas_colours(page: Page, selector: str = "canvas") -> dict[str, int]:
    """Return how many opaque pixels of each colour (``#rrggbb``) a canvas has."""
    found: dict[str, int] = page.evaluate(_COUNT, selector)
    return found


def settle(page: Page) -> None:
    """Wait until a page has drawn what it knows: two frames."""
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def overflow(page: Page) -> list[str]:
    """Return what is wider than the window, so that the page would scroll sideways."""
    found: list[str] = page.evaluate(
        """() => {
          const wide = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= wide) return [];
          const out = [...document.querySelectorAll("body *")].filter((one) =>
            one.getBoundingClientRect().right > wide + 1 && !one.closest(".scroll, svg, .hidden"));
          return ["page", ...out.slice(0, 5).map((one) => one.outerHTML.slice(0, 120))];
        }"""
    )
    return found
