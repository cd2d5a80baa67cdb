"""What ``gpuwatchctl web`` shows in the browser: a pair of files for each view.

``NAME.py`` says what there is, in the words that the verbs use, as a Struct of its own that only
``NAME.js`` reads, which draws it. Nothing is formatted twice: the browser gets words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.view.query import Query
    from gpuwatchd.web.pages.page_parts import PageAnswer


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


def answer(name: str, query: Query, parameters: Mapping[str, str]) -> PageAnswer:
    """Return what one view, a key of :data:`ANSWERS`, shows; parameters come from a stranger.

    Raises
    ------
    GpuwatchdError
        When it cannot be shown now, with the words for it.
    """
    shown: PageAnswer = registry.load(ANSWERS, name)(query, parameters)
    return shown
