"""The chart of a GPU or a process over one of the spans that the page offers."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatchd.charts import scales, text_description
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import charts as pictures
from gpuwatchd.view.queries import charts, current_state
from gpuwatchd.web.pages import lookup
from gpuwatchd.web.pages.page_parts import head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.charts.chart_model import Mark, Picture
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.query import Query

SPANS: Final = ("1h", "6h", "24h", "7d", "30d")
POINTS: Final = 400
_NEXT_S: Final = (2.0, 3600.0)


def picture(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return one chart, what happened on it, and after how long it is worth asking again.

    ``tight`` leaves out the time before the record of the subject begins.
    """
    view = current_state.load_view(flags)
    span = query.get("span", "")
    span_s = units.parse_duration(span if span in SPANS else SPANS[0])
    end_s = lookup.now_s(view)
    asked = charts.Asked(end_s - span_s, end_s, POINTS)
    history = lookup.history()
    with nullcontext() if history is None else closing(history):
        drawn = _picture(view, history, query, asked)
        shorter = charts.since_record([drawn], asked) if query.get("tight") else asked
        if shorter != asked:
            asked, span_s = shorter, end_s - shorter.begin_s
            drawn = _picture(view, history, query, asked)
    least_s, most_s = _NEXT_S
    return {
        "page": head(view),
        "picture": msgspec.to_builtins(pictures.picture(drawn))
        | {"sentence": text_description.sentence(drawn)},
        # A forecast reaches further, at most twice the span again.
        "zones": scales.zone_rows(asked.begin_s, end_s + 2 * span_s),
        "marks": [_mark(mark, end_s) for mark in drawn.marks][::-1],
        "empty": drawn.empty,
        "notes": [text.clean(note, limit=400) for note in drawn.notes],
        "next_s": min(most_s, max(least_s, view.interval_s, span_s / POINTS)),
    }


def _picture(
    view: View, history: Reader | None, query: Mapping[str, str], asked: charts.Asked
) -> Picture:
    if "pid" not in query:
        return charts.of_device(history, view, lookup.device(view, query), asked)
    here = any(text.clean(one.device.uid) == query.get("gpu") for one in view.devices)
    if here:
        item = lookup.device(view, query)
        process = lookup.process(item, query)
        if process is not None:
            return charts.of_process(history, view, item, process, asked)
    info, device = lookup.ended(history, query), lookup.on(history, query)
    if history is None or device is None:
        raise GpuwatchdError(
            "there is no data of it", hint="gpuwatchctl history", page="errors#nothing-recorded"
        )
    return charts.past_process(history, device, info, asked)


def _mark(mark: Mark, now_s: float) -> dict[str, Any]:
    return {
        "when": units.moment(mark.at_s, now_s=now_s),
        "kind": mark.kind,
        "severity": mark.severity,
        "text": text.clean(mark.text, limit=400),
    }
