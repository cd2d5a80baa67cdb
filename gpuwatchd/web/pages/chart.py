"""The chart of a GPU or a process over one of the spans that the page offers."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Final

from msgspec import structs

from gpuwatchd.charts import scales, text_description
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import history as shapes
from gpuwatchd.view.answers.base import Shape
from gpuwatchd.view.queries import charts, current_state
from gpuwatchd.web.pages import parts
from gpuwatchd.web.pages.parts import PageAnswer, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.charts.scales import Picture
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query

SPANS: Final = ("1h", "6h", "24h", "7d", "30d")
POINTS: Final = 400
_NEXT_S: Final = (2.0, 3600.0)


class ChartMark(Shape):
    """Something that happened."""

    when: str
    kind: str
    severity: str | None
    text: str


class DescribedPicture(shapes.PictureShape):
    """A chart, and what it shows in words."""

    sentence: str


class ChartAnswer(PageAnswer):
    """One chart, what happened on it, and after how long it is worth asking again."""

    picture: DescribedPicture
    zones: tuple[tuple[float, float, str], ...]
    """When local time is how far ahead of UTC, and its name."""
    marks: tuple[ChartMark, ...]
    """The newest first."""
    empty: bool
    notes: tuple[str, ...]
    next_s: float


def picture(query: Query, parameters: Mapping[str, str]) -> ChartAnswer:
    """Return one chart; ``tight`` leaves out the time before the record of the subject begins."""
    view = current_state.load_view(query)
    span = parameters.get("span", "")
    span_s = units.parse_duration(span if span in SPANS else SPANS[0])
    end_s = max(time.time(), view.taken_at_s)  # a simulation runs ahead of the clock
    asked = charts.Asked(end_s - span_s, end_s, POINTS)
    history = parts.history()
    with nullcontext() if history is None else closing(history):
        drawn = _picture(view, history, parameters, asked)
        shorter = charts.since_record([drawn], asked) if parameters.get("tight") else asked
        if shorter != asked:
            asked, span_s = shorter, end_s - shorter.begin_s
            drawn = _picture(view, history, parameters, asked)
    least_s, most_s = _NEXT_S
    return ChartAnswer(
        page=frame(view),
        picture=DescribedPicture(
            **structs.asdict(shapes.picture(drawn)), sentence=text_description.sentence(drawn)
        ),
        # A forecast reaches further, at most twice the span again.
        zones=tuple(scales.zone_rows(asked.begin_s, end_s + 2 * span_s)),
        marks=tuple(
            ChartMark(
                when=units.moment(mark.at_s, now_s=end_s),
                kind=mark.kind,
                severity=mark.severity,
                text=text.clean(mark.text, limit=400),
            )
            for mark in drawn.marks[::-1]
        ),
        empty=drawn.empty,
        notes=tuple(text.clean(note, limit=400) for note in drawn.notes),
        next_s=min(most_s, max(least_s, view.interval_s, span_s / POINTS)),
    )


def _picture(
    view: View, history: Reader | None, parameters: Mapping[str, str], asked: charts.Asked
) -> Picture:
    if "pid" not in parameters:
        return charts.of_device(history, view, parts.device(view, parameters), asked)
    item, process = parts.process(view, parameters)
    if item is not None and process is not None:
        return charts.of_process(history, view, item, process, asked)
    info, device = parts.ended(history, parameters)
    if history is None or device is None:
        raise GpuwatchdError(
            "there is no data of it", hint="gpuwatchctl history", page="errors#nothing-recorded"
        )
    return charts.past_process(history, device, info, asked)
