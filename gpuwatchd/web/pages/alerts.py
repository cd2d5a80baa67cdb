"""Alerts, open and past, what is snoozed, and everything about one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuwatchd.core import text
from gpuwatchd.view.answers.base import Shape, fill
from gpuwatchd.view.queries import alert_changes, alert_query, current_state
from gpuwatchd.view.text import alert_details, badges, verdict_text
from gpuwatchd.web.pages.parts import BadgeMark, PageAnswer, address, frame, joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.queries.current_view import View
    from gpuwatchd.view.query import Query

_DAYS: Final = {"1d": 1, "7d": 7, "30d": 30}
_DAY_S: Final = 86400.0
_MOST: Final = 200
_AFTER: Final = {
    False: "It is still monitored and shown. A message is still sent when it becomes critical.",
    True: "It is still monitored and shown. It is critical already: no message is sent.",
}
"""What a snooze of an alert means, by whether it is critical now; as `snooze` has it."""
_NAMED_TERMS: Final = {alert_changes.UNTIL_RESOLVED: "until it is resolved"}
_TERMS: Final = tuple((term, _NAMED_TERMS.get(term, f"for {term}")) for term in alert_changes.TERMS)


class SilenceRow(Shape):
    """A silence in the list."""

    id: int | None
    about: str
    of_alert: bool
    """Of one alert, not of a rule."""
    line: str


class AlertRow(Shape):
    """One alert as the list has it."""

    id: str
    key: str
    opened: str
    open: bool
    badge: BadgeMark
    state: str
    when: str
    title: str
    line: str
    code: str
    silence: SilenceRow | None
    after: str
    """What a snooze of it means."""


class AlertList(PageAnswer, kw_only=True):
    """The open alerts, those of the last days, and what is snoozed."""

    missing: tuple[str, ...]
    open: tuple[AlertRow, ...]
    past: tuple[AlertRow, ...]
    more: int
    since: str
    terms: tuple[tuple[str, str], ...] = _TERMS
    silences: tuple[SilenceRow, ...]
    can: bool
    """Whether something can be snoozed."""


class AlertPage(PageAnswer, kw_only=True):
    """Everything about one alert."""

    alert: AlertRow
    lines: tuple[tuple[str, str], ...]
    about: dict[str, str]
    """Where on the page its GPU and its process are, as far as they are here."""
    terms: tuple[tuple[str, str], ...] = _TERMS
    can: bool


def alerts(query: Query, parameters: Mapping[str, str]) -> AlertList:
    """Return the list of alerts, the past ones of ``since``."""
    view = current_state.load_view(query)
    now_s = view.now_s
    since = parameters.get("since", "")
    since = since if since in _DAYS else "7d"
    gathered = alert_query.gather(now_s - _DAYS[since] * _DAY_S, only_open=False)
    chosen = [alert for alert in gathered.alerts if gathered.wanted(query, alert)]
    rows = [row(alert, gathered, now_s) for alert in chosen]
    past = [each for each in rows if not each.open]
    return AlertList(
        page=frame(view),
        missing=tuple(
            text.clean(words) for code, words in gathered.warnings if "daemon" not in code
        ),
        open=tuple(each for each in rows if each.open),
        past=tuple(past[:_MOST]),
        more=max(0, len(past) - _MOST),
        since=since,
        silences=tuple(_silence(silence, gathered.alerts, now_s) for silence in gathered.silences),
        can=gathered.trouble is None,
    )


def alert(query: Query, parameters: Mapping[str, str]) -> AlertPage:
    """Return everything about the alert that ``id`` names."""
    view = current_state.load_view(query)
    gathered = alert_query.gather(0.0, only_open=False)
    chosen = alert_query.pick(gathered.alerts, parameters.get("id", ""))
    story = alert_details.load(query, chosen, gathered)
    return AlertPage(
        page=frame(view),
        alert=row(chosen, gathered, gathered.now_s),
        lines=tuple((label, joined([words])) for label, words, _ in alert_details.lines(story)),
        about=_about(view, chosen),
        can=gathered.trouble is None,
    )


def row(alert: Alert, gathered: Incidents, now_s: float) -> AlertRow:
    """Return one alert as the list has it."""
    code, state, when, title, *rest = alert_details.line(alert, gathered, now_s)
    silence = gathered.silence(alert, now_s)
    return AlertRow(
        id=alert.code,
        key=text.clean(alert.key),
        opened=str(round(alert.opened_at_s * 1000)),
        open=alert.state in alert_query.OPEN,
        badge=fill(BadgeMark, badges.alert(alert)),
        state=joined([state]),
        when=joined([when]),
        title=joined([title]),
        line=joined(rest),
        code=joined([code]),
        silence=None if silence is None else _silence(silence, gathered.alerts, now_s),
        after=_AFTER[alert.severity == "critical"],
    )


def _silence(silence: Silence, known: list[Alert], now_s: float) -> SilenceRow:
    count = len(alert_changes.fitting(silence, known))
    parts = (
        alert_changes.until(silence, now_s),
        "" if silence.matcher.key else f"fits {count} open alert{'' if count == 1 else 's'}",
        "also of what is critical" if silence.even_critical else "",
        f"by {silence.who}" if silence.who else "",
        silence.why,
    )
    return SilenceRow(
        id=silence.row,
        about=text.clean(alert_changes.called(silence.matcher, known), limit=400),
        of_alert=bool(silence.matcher.key),
        line=joined(parts),
    )


def _about(view: View, alert: Alert) -> dict[str, str]:
    subject = alert.subject
    places: dict[str, str] = {}
    for item in view.devices:
        if item.device.uid == subject.device_uid:
            places |= {"gpu": text.clean(item.device.uid), "label": text.clean(item.device.label)}
            for process in item.processes or ():
                if process.info.key == subject.process:
                    who = text.clean(verdict_text.who(process.info))
                    places |= {"process": address(item, process), "who": who}
    return places
