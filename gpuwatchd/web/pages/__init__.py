"""What ``gpuwatchctl web`` shows in the browser: a pair of files for each view.

``NAME.py`` says what there is, in the words that the verbs use, as a Struct of its own that only
``NAME.js`` reads, which draws it. Nothing is formatted twice: the browser gets words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.web.pages import alerts, overview, process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuwatchd.view.query import Query
    from gpuwatchd.web.pages.parts import PageAnswer

ANSWERS: Final[dict[str, Callable[[Query, Mapping[str, str]], PageAnswer]]] = {
    "overview": overview.overview,
    "predict": overview.predictions,
    "gpu": process.gpu,
    "process": process.process,
    "evidence": process.evidence,
    "picture": process.picture,
    "alerts": alerts.alerts,
    "alert": alerts.alert,
    "held": overview.idle_memory,
    "help": overview.legend,
}
"""Name in the address -> what answers it; its parameters come from a stranger."""
