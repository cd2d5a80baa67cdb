"""``d``: everything about one process: its memory, the verdict and why, what it costs, alerts."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.core.model import Subject
from gpuwatchd.tui.base import SCROLLING, Settled
from gpuwatchd.tui.screens.chart_screen import ChartScreen, ReadPicture, picture_of
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import cost_entries, incidents, subjects
from gpuwatchd.view.text import alert_list as alerts
from gpuwatchd.view.text import badges, explanation, process_facts, verdict_text
from gpuwatchd.view.text import cost_table as cost
from gpuwatchd.view.text import explanation as explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from textual.binding import BindingType

    from gpuwatchd.core.model import Alert, ProcessKey
    from gpuwatchd.store.live import LiveDevice, LiveProcess
    from gpuwatchd.tui.base import Keys
    from gpuwatchd.tui.widgets.texts import Written
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.queries.incidents import Incidents
    from gpuwatchd.view.queries.subjects import NamedSubject
    from gpuwatchd.view.query import Query

_MOST_ALERTS: Final = 12
_TEXT_S: Final = 2.0
_COST_AGAIN_S: Final = 30.0
"""Seconds between two readings: a cost changes slowly."""


class About(NamedTuple):
    """Whom the view is about."""

    item: LiveDevice
    process: LiveProcess
    ended: bool
    """Whether it is among the processes no more; then it is as it was seen last."""


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
        self._about: About | None = None
        self._key: ProcessKey | None = None
        self._uid: str | None = None
        self._due_text_s = self._due_cost_s = 0.0
        self._drawn = False
        self._text: tuple[Written, ...] = ()
        self._cost: tuple[Written, ...] = ()

    def redrawn(self) -> None:
        """Follow the process in what is seen now."""
        super().redrawn()
        assert self.view is not None  # noqa: S101
        if self._key is None:
            uid = self.top.selected_device_uid
            chosen = _find(self.view, uid, self.top.selected_process) or _worst(self.view, uid)
            if chosen is not None:
                self._uid, self._key = chosen[0].device.uid, chosen[1].info.key
        pair = _find(self.view, self._uid, self._key)
        if pair is not None:
            self._about = About(*pair, ended=False)
        elif self._about is not None:
            self._about = self._about._replace(ended=True)

    def subject(self) -> Iterable[Part]:
        """Return who it is."""
        about = self._about
        if about is None:
            yield "no process is known here", "faint"
            return
        badge = badges.process(about.process)
        yield verdict_text.who(about.process.info), "bold"
        if about.ended:
            yield "it has ended", "watch bold"
        yield f"on {about.item.device.label}"
        yield badge.words, badge.kind

    def usual_span(self) -> tuple[str, float | None]:
        """Return a span that holds the growth."""
        return self.spanning(None if self._about is None else self._about.process.finding)

    def job(self) -> Callable[[], ReadDetail] | None:
        """Return what reads the chart, and text and cost where they are due.

        At first the chart alone, then the text, then the cost, so that each is there soon: who
        explains a verdict asks much, and hours of many devices may go into a cost. Zoom and pan
        read the chart alone.
        """
        view, about, query = self.view, self._about, self.top.query_asked
        if view is None or about is None:
            return None
        make = partial(
            picture_of, view=view, item=about.item, process=about.process, gone=about.ended
        )
        picture = self.picture_job(about.item.device.uid, make)
        now_s = time.monotonic()
        has_text = self._drawn and now_s >= self._due_text_s
        has_cost = self._drawn and not has_text and now_s >= self._due_cost_s

        def read() -> ReadDetail:
            text = _text(query, view, about) if has_text else None
            return ReadDetail(picture(), text, _cost(query, about) if has_cost else None)

        return read

    def answered(self, detail: ReadDetail) -> None:
        """Show the chart, and what else was read."""
        self.put(detail.picture)
        now_s, was_drawn = time.monotonic(), self._drawn
        self._drawn = True
        if detail.text is not None:
            self._text, self._due_text_s = detail.text, now_s + max(self.top.every_s, _TEXT_S)
        if detail.cost is not None:
            self._cost, self._due_cost_s = detail.cost, now_s + _COST_AGAIN_S
        if detail.text is not None or detail.cost is not None:
            self.page.write(*self._text[:1], *self._cost, *self._text[1:])
        if not was_drawn or (detail.text is not None and now_s >= self._due_cost_s):
            self.request(anew=True)


def _find(
    view: View, uid: str | None, key: ProcessKey | None
) -> tuple[LiveDevice, LiveProcess] | None:
    pairs = [
        (item, process)
        for item in view.devices
        for process in item.processes or ()
        if process.info.key == key
    ]
    here = [pair for pair in pairs if pair[0].device.uid == uid]
    return next(iter(here or pairs), None)


def _worst(view: View, uid: str | None) -> tuple[LiveDevice, LiveProcess] | None:
    """Return the process that deserves a look most, of the chosen device if it has any."""
    every = [(item, process) for item in view.devices for process in item.processes or ()]
    mine = [one for one in every if one[0].device.uid == uid] or every
    order = ("critical", "leak", "watch", "held", "trouble", "unknown", "calm")

    def place(pair: tuple[LiveDevice, LiveProcess]) -> tuple[int, int]:
        return order.index(badges.process(pair[1]).kind), -(pair[1].used_bytes or 0)

    return min(mine, key=place, default=None)


# ---- what is read, in a thread


def _text(query: Query, view: View, about: About) -> tuple[Written, ...]:
    """Return what is told of a process, part by part."""
    settled = Settled(query)
    found = _incidents()
    meant = _named_subject(view, about, found)
    case, _ = explanation.case_about(settled, view, meant)
    who = partial(_who, about=about, now_s=view.taken_at_s)
    mine = [] if found is None else _alerts_of(found, about.process.info.key)
    explained = partial(
        explain.write_explanation,
        case=case,
        sections=explanation.sections(case),
        steps=explanation.steps(case),
    )
    return (who, *_listed(mine, found), explained)


def _incidents() -> Incidents | None:
    try:
        return incidents.gather(0.0, only_open=False)
    except GpuwatchdError:  # there is no history and no live state: nothing was ever told
        return None


def _named_subject(view: View, about: About, found: Incidents | None) -> NamedSubject:
    """Return what is judged of a process; of one that has ended, what was judged last."""
    if not about.ended:
        return subjects.of_process(view, about.item, about.process)
    process = about.process
    subject = Subject(device_uid=about.item.device.uid, process=process.info.key)
    mine = [] if found is None else _alerts_of(found, process.info.key)
    alert = next((one for one in mine if one.kind == "leak" and one.subject == subject), None)
    finding = alert.finding if alert is not None else process.finding
    word = found.user_label(alert) if found is not None and alert is not None else None
    return subjects.NamedSubject(about.item, process, subject, finding, alert, word)


def _alerts_of(found: Incidents, key: ProcessKey) -> list[Alert]:
    return [alert for alert in found.alerts if alert.subject.process == key]


def _who(out: Page, about: About, now_s: float) -> None:
    """Write who it is: all of it, one thing after the other."""
    info = about.process.info
    facts = [text for text in (process_facts.runs(info),) if text]
    facts += [text for text, _ in process_facts.wide(about.process, now_s=now_s)]
    if about.ended:
        out.flow(blocks.sentence("it has ended; this is what was known of it last", "yellow"),
                 rest="  ", gap=" ")  # fmt: skip
    if facts:
        out.flow([(fact, "") for fact in facts], rest="  ", whole=True)


def _cost(query: Query, about: About) -> tuple[Written, ...]:
    """Return what it has cost and may cost yet; nothing where nothing was ever told of it."""
    found = _incidents()
    mine = [] if found is None else _alerts_of(found, about.process.info.key)
    if not mine:
        return ()
    keys = {alert.key for alert in mine}
    try:
        bill = cost_entries.gather(Settled(query), time.time() - cost_entries.PERIOD_S)
    except GpuwatchdError:
        return ()
    bill.entries = [entry for entry in bill.entries if entry.key in keys]
    if not bill.entries:
        return ()
    return lambda out: out.line(("Cost", "bold")), partial(cost.incidents, bill=bill)


def _listed(mine: list[Alert], found: Incidents | None) -> Iterator[Written]:
    """Yield its alerts, the newest first."""
    if not mine or found is None:
        return
    now_s = time.time()
    yield lambda out: out.line(("Alerts", "bold"))
    for alert in mine[:_MOST_ALERTS]:
        yield partial(_alert, alert, found, now_s)


def _alert(alert: Alert, found: Incidents, now_s: float, out: Page) -> None:
    out.flow(alerts.line(alert, found, now_s), first="  ", rest="    ")
