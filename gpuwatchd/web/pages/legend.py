"""What the marks, colours and lines mean: from the one design."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core.design import FLAGS, LEGEND, LOOKS, Kind
from gpuwatchd.view.answers.base import Shape
from gpuwatchd.view.queries import current_state
from gpuwatchd.web.pages.parts import BadgeMark, PageAnswer, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.view.query import Query

_MEANS: Final[dict[Kind, str]] = {
    "critical": "leaks, and it will soon be full; a message was sent",
    "leak": "leaks, with evidence enough for an alert",
    "watch": "grows, not yet proven: shown, not sent",
    "calm": "stable, or it rises and falls as it should",
    "unknown": "no verdict: too little is known, or it rests",
    "trouble": "the GPU cannot be read, or is broken",
    "held": "idle memory",
}
_PARTS: Final = {
    "curve": "each point is a sample, or the mean of many",
    "range": "where one point stands for many: from the least to the most of them",
    "floor": "the level that memory always came back to; a leak raises it",
    "fit": "the fitted growth, from where it started",
    "band": "the memory will be full within this time, nine times in ten, if it continues",
    "limit": "where memory ends",
    "gap": "there is no data for this time, and nothing is drawn over it",
    "now": "the newest sample",
}


class Meaning(Shape):
    """A kind of verdict, and what it means."""

    badge: BadgeMark
    means: str


class Legend(PageAnswer):
    """Every mark with its meaning, and every part of a chart with its name."""

    kinds: tuple[Meaning, ...]
    parts: tuple[tuple[str, str, str], ...]
    marks: tuple[tuple[str, str, str], ...]


def legend(query: Query, _: Mapping[str, str]) -> Legend:
    """Return what the marks, colours and lines mean."""
    return Legend(
        page=frame(current_state.load_view(query)),
        kinds=tuple(
            Meaning(
                badge=BadgeMark(kind=kind, mark=look.mark, word=look.word, words=""),
                means=_MEANS[kind],
            )
            for kind, look in LOOKS.items()
        ),
        parts=tuple((part, words, _PARTS[part]) for part, words in LEGEND.items()),
        marks=tuple((flag.mark, flag.word, flag.colour) for flag in FLAGS.values()),
    )
