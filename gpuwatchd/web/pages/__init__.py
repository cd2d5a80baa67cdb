"""What ``gpuwatchctl web`` shows in the browser: a pair of files for each view.

``NAME.py`` says what there is, in the words that the verbs use; ``NAME.js`` draws it. Nothing is
formatted twice: the browser gets words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.core import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatchd.view.query import Query

    Maker = Callable[[Query, Mapping[str, str]], dict[str, Any]]


# What the page asks for: one answer for each of its views, in words.

ANSWERS: Final = {
    "overview": "gpuwatchd.web.pages.overview:overview",
    "predict": "gpuwatchd.web.pages.predict:predictions",
    "gpu": "gpuwatchd.web.pages.process:gpu",
    "process": "gpuwatchd.web.pages.process:process",
    "evidence": "gpuwatchd.web.pages.process:evidence",
    "picture": "gpuwatchd.web.pages.picture:picture",
    "alerts": "gpuwatchd.web.pages.alerts:alerts",
    "alert": "gpuwatchd.web.pages.alerts:alert",
    "held": "gpuwatchd.web.pages.idle_memory:idle_memory",
    "help": "gpuwatchd.web.pages.legend:legend",
}
"""Name in the address -> what answers it, imported when it is first asked for."""


def answer(name: str, flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what one view shows, as plain JSON; ``query`` comes from a stranger.

    Raises
    ------
    KeyError
        When there is no such view.
    GpuwatchdError
        When it cannot be shown now, with the words for it.
    """
    if name not in ANSWERS:
        raise KeyError(name)
    maker: Maker = registry.load(ANSWERS, name)
    return maker(flags, query)
