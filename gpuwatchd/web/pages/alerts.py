"""Alerts, open and past, what is snoozed, and everything about one of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from gpuwatchd.core import text
from gpuwatchd.view.queries import current_state, incidents, silence_changes
from gpuwatchd.view.text import alert_details, badges, verdict_text
from gpuwatchd.web.pages import overview, page_parts
from gpuwatchd.web.pages.page_parts import head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatchd.core.model import Alert, Silence
    from gpuwatchd.view.queries.incidents import Incidents
    from gpuwatchd.view.query import Query

_DAYS: Final = {"1d": 1, "7d": 7, "30d": 30}
_DAY_S: Final = 86400.0
_MOST: Final = 200
_AFTER: Final = {
    False: "It is still monitored and shown. A message is still sent when it becomes critical.",
    True: "It is still monitored and shown. It is critical already: no message is sent.",
}
"""What a snooze of an alert means, by whether it is critical now; as `snooze` has it."""


def alerts(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the open alerts, those of the last days, and what is snoozed."""
    view = current_state.load_view(flags)
    now_s = time.time()
    since = query.get("since", "7d")
    found = incidents.gather(now_s - _DAYS.get(since, 7) * _DAY_S, only_open=False)
    rows = [one for one in found.alerts if found.wanted(flags, one)]
    past = [one for one in rows if one.state not in incidents.OPEN]
    return {
        "page": head(view),
        "missing": [text.clean(value) for code, value in found.warnings if "daemon" not in code],
        "open": [row(one, found, now_s) for one in rows if one.state in incidents.OPEN],
        "past": [row(one, found, now_s) for one in past[:_MOST]],
        "more": max(0, len(past) - _MOST),
        "since": since if since in _DAYS else "7d",
        "terms": _terms(),
        "silences": [_silence(silence, found.alerts, now_s) for silence in found.silences],
        "can": found.trouble is None,
    }


def alert(flags: Query, query: Mapping[str, str]) -> dict[str, Any]:
    """Return everything about one alert; ``id`` names it."""
    view = current_state.load_view(flags)
    now_s = time.time()
    found = incidents.gather(0.0, only_open=False)
    meant = incidents.pick(found.alerts, query.get("id", ""))
    story = alert_details.load(flags, meant, found)
    return {
        "page": head(view),
        "alert": row(meant, found, now_s),
        "lines": [
            [label, page_parts.joined([value])] for label, value, _ in alert_details.lines(story)
        ],
        "about": _about(view, meant),
        "terms": _terms(),
        "can": found.trouble is None,
    }


def _terms() -> list[list[str]]:
    named = {silence_changes.UNTIL_RESOLVED: "until it is resolved"}
    return [[term, named.get(term, f"for {term}")] for term in silence_changes.TERMS]


def row(one: Alert, found: Incidents, now_s: float) -> dict[str, Any]:
    """Return one alert as the list has it."""
    code, state, when, title, *rest = alert_details.line(one, found, now_s)
    silence = found.silence(one, now_s)
    return {
        "id": one.code,
        "key": text.clean(one.key),
        "opened": str(round(one.opened_at_s * 1000)),
        "open": one.state in incidents.OPEN,
        "badge": overview.badge(badges.alert(one)),
        "state": page_parts.joined([state]),
        "when": page_parts.joined([when]),
        "title": page_parts.joined([title]),
        "line": page_parts.joined(rest),
        "code": page_parts.joined([code]),
        "silence": None if silence is None else _silence(silence, found.alerts, now_s),
        "after": _AFTER[one.severity == "critical"],
    }


def _silence(silence: Silence, known: list[Alert], now_s: float) -> dict[str, Any]:
    fits = silence_changes.fitting(silence, known)
    count = f"fits {len(fits)} open alert{'' if len(fits) == 1 else 's'}"
    parts = (
        silence_changes.until(silence, now_s),
        "" if silence.matcher.key else count,
        "also of what is critical" if silence.even_critical else "",
        f"by {silence.who}" if silence.who else "",
        silence.why,
    )
    return {
        "id": silence.row,
        "about": text.clean(silence_changes.called(silence.matcher, known), limit=400),
        "of_alert": bool(silence.matcher.key),
        "line": page_parts.joined(parts),
    }


def _about(view: current_state.View, meant: Alert) -> dict[str, str]:
    """Return where on the page its GPU and its process are, as far as they are here."""
    subject = meant.subject
    item = next(
        (device for device in view.devices if device.device.uid == subject.device_uid), None
    )
    if item is None:
        return {}
    values = {"gpu": text.clean(item.device.uid), "label": text.clean(item.device.label)}
    for process in item.processes or ():
        if process.info.key == subject.process:
            values["process"] = overview.address(item, process)
            values["who"] = text.clean(verdict_text.who(process.info))
    return values
