"""``d``: everything about one process: its memory, the verdict and why, what it costs, alerts."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Subject
from gpuwatchd.tui.base import SCROLLING, Settled
from gpuwatchd.tui.screens.chart_screen import About, ChartScreen, Identity, ReadPicture, every
from gpuwatchd.view.queries import alert_query, cost_entries, state_location, subjects
from gpuwatchd.view.text import (
    alert_details,
    badges,
    cost_text,
    explanation,
    explanation_page,
    subject_facts,
    verdict_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.binding import BindingType

    from gpuwatchd.core.model import Alert, ProcessKey
    from gpuwatchd.store.live import LiveProcess
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.tui.widgets.texts import Written
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.queries.subjects import NamedSubject
    from gpuwatchd.view.query import Query

_MOST_ALERTS: Final = 12
_TEXT_S: Final = 2.0
_COST_AGAIN_S: Final = 30.0
"""Seconds between two readings: a cost changes slowly."""


class ReadDetail(NamedTuple):
    """What was read; None where it was not to be read."""

    picture: ReadPicture
    text: tuple[Written, ...] | None
    cost: tuple[Written, ...] | None


class DetailScreen(ChartScreen):
    """The chosen process, or where none is chosen the one that deserves a look most."""

    name_shown = "Detail"
    own_keys: ClassVar[Keys] = (("↑↓", "scroll"), *ChartScreen.chart_keys, ("s", "snooze"))
    BINDINGS: ClassVar[list[BindingType]] = SCROLLING
    beside_columns = 130
    DEFAULT_CSS = """
    DetailScreen #left { height: 2fr; min-height: 7; width: 1fr; }
    DetailScreen #text { height: 3fr; width: 1fr; }
    DetailScreen.beside #text { height: 1fr; width: 64; margin-left: 1; }
    DetailScreen.beside #left { height: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._identity: Identity | None = None
        self._due_text_s = self._due_cost_s = 0.0
        self._drawn = False
        self._text: tuple[Written, ...] = ()
        self._cost: tuple[Written, ...] = ()

    def redrawn(self) -> None:
        """Follow the process in what is seen now."""
        super().redrawn()
        assert self.view is not None  # noqa: S101
        if self._identity is None:
            uid = self.shared.selected_device_uid
            chosen = _find(self.view, uid, self.shared.selected_process) or _worst(self.view, uid)
            self._identity = chosen.identity if chosen is not None else None
        about = None if self._identity is None else _find(self.view, *self._identity)
        if about is None and self.about is not None:
            about = self.about._replace(ended=True)
        self.about = about

    def subject(self) -> Iterable[Part]:
        """Return who it is."""
        about = self.about
        if about is None or about.process is None:
            yield "no process is known here", "faint"
            return
        badge = badges.process(about.process)
        yield verdict_text.who(about.process.info), "bold"
        if about.ended:
            yield "it has ended", "watch bold"
        yield f"on {about.item.device.label}"
        yield badge.words, badge.kind

    def job(self) -> Callable[[], ReadDetail] | None:
        """Return what reads the chart, and text and cost where they are due.

        At first the chart alone, then the text, then the cost, so that each is there soon: who
        explains a verdict asks much, and hours of many devices may go into a cost. Zoom and pan
        read the chart alone.
        """
        picture, view, about = super().job(), self.view, self.about
        if picture is None or view is None or about is None or about.process is None:
            return None
        query, key = self.shared.query, about.process.info.key
        now_s = time.monotonic()
        has_text = self._drawn and now_s >= self._due_text_s
        has_cost = self._drawn and not has_text and now_s >= self._due_cost_s

        def read() -> ReadDetail:
            text = _text(query, view, about) if has_text else None
            return ReadDetail(picture(), text, _cost(query, key) if has_cost else None)

        return read

    def answered(self, detail: ReadDetail) -> None:  # type: ignore[override]
        """Show the chart, and what else was read."""
        super().answered(detail.picture)
        now_s, was_drawn = time.monotonic(), self._drawn
        self._drawn = True
        if detail.text is not None:
            self._text, self._due_text_s = detail.text, now_s + max(self.shared.every_s, _TEXT_S)
        if detail.cost is not None:
            self._cost, self._due_cost_s = detail.cost, now_s + _COST_AGAIN_S
        if detail.text is not None or detail.cost is not None:
            self.page.write(*self._text[:1], *self._cost, *self._text[1:])
        if not was_drawn or (detail.text is not None and now_s >= self._due_cost_s):
            self.request(anew=True)


def _find(view: View, uid: str | None, key: ProcessKey | None) -> About | None:
    abouts = [about for about in every(view) if about.process is not None and about.key == key]
    here = [about for about in abouts if about.item.device.uid == uid]
    return next(iter(here or abouts), None)


def _worst(view: View, uid: str | None) -> About | None:
    """Return the process that deserves a look most, of the chosen device if it has any."""
    pairs = [
        (
            badges.WORST_FIRST.index(badges.process(about.process).kind),
            -(about.process.used_bytes or 0),
            about,
        )
        for about in every(view)
        if about.process is not None
    ]
    mine = [pair for pair in pairs if pair[2].item.device.uid == uid] or pairs
    return min(mine, key=lambda pair: pair[:2], default=(0, 0, None))[2]


def _text(query: Query, view: View, about: About) -> tuple[Written, ...]:
    """Return what is known of a process, part by part: who it is, its alerts, the verdict."""
    process = about.process
    assert process is not None  # noqa: S101 - asked before
    found, mine = _alerts_of(process.info.key)
    case, _ = explanation.case_about(Settled(query), view, _named_subject(view, about, found, mine))
    parts: list[Written] = [
        partial(_who, process=process, ended=about.ended, now_s=view.taken_at_s)
    ]
    if found is not None and mine:
        parts.append(lambda out: out.line(("Alerts", "bold")))
        parts += [partial(_alert, alert, found, found.now_s) for alert in mine[:_MOST_ALERTS]]
    sections, steps = explanation.sections(case), explanation.steps(case)
    return (
        *parts,
        partial(explanation_page.write_explanation, case=case, sections=sections, steps=steps),
    )


def _alerts_of(key: ProcessKey) -> tuple[Incidents | None, list[Alert]]:
    """Return all incidents and those of a process; neither where nothing was ever reported."""
    try:
        found = alert_query.gather(0.0, only_open=False)
    except GpuwatchdError:  # there is no history and no live state
        return None, []
    return found, [alert for alert in found.alerts if alert.subject.process == key]


def _named_subject(
    view: View, about: About, found: Incidents | None, mine: list[Alert]
) -> NamedSubject:
    """Return what is judged of a process; of one that has ended, what was judged last."""
    item, process, ended = about
    assert process is not None  # noqa: S101 - asked before
    if not ended:
        return subjects.of_process(view, item, process)
    subject = Subject(device_uid=item.device.uid, process=process.info.key)
    alert = next((one for one in mine if one.kind == "leak" and one.subject == subject), None)
    finding = alert.finding if alert is not None else process.finding
    word = found.user_label(alert) if found is not None and alert is not None else None
    return subjects.NamedSubject(item, process, subject, finding, alert, word)


def _who(out: Page, process: LiveProcess, ended: bool, now_s: float) -> None:  # noqa: FBT001
    """Write who it is: all of it, one thing after the other."""
    facts = [subject_facts.runs(process.info)]
    facts += [text for text, _ in subject_facts.wide(process, now_s=now_s)]
    if ended:
        out.prose("it has ended; this is what was known of it last", "yellow", rest="  ")
    if any(facts):
        out.flow([fact for fact in facts if fact], rest="  ", whole=True)


def _cost(query: Query, key: ProcessKey) -> tuple[Written, ...]:
    """Return what it has cost and may cost yet; nothing where nothing was ever told of it."""
    keys = {alert.key for alert in _alerts_of(key)[1]}
    bill = cost_entries.of_alerts(Settled(query), keys, state_location.now_s())
    if bill is None or not bill.entries:
        return ()
    return lambda out: out.line(("Cost", "bold")), partial(cost_text.incidents, bill=bill)


def _alert(alert: Alert, found: Incidents, now_s: float, out: Page) -> None:
    out.flow(alert_details.line(alert, found, now_s), first="  ", rest="    ")
