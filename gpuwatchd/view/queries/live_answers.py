"""What the live state and the alerts answer: one function per question, for programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gpuwatchd.core.errors import FAILED, FINDINGS, OK
from gpuwatchd.view.answers import envelope, payload
from gpuwatchd.view.queries import (
    alert_order,
    current_state,
    incidents,
    label_changes,
    silence_changes,
    state_location,
    subjects,
    user_filter,
)
from gpuwatchd.view.text import alert_details
from gpuwatchd.view.text import status as status_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.queries.incidents import Incidents
    from gpuwatchd.view.query import Query

_RANK: Final = {"info": 0, "warning": 1, "critical": 2}
_DAY_S: Final = 86400.0


class Answered(NamedTuple):
    """An answer, and what it comes to."""

    answer: Any
    exit_code: int = OK
    """As of the verb with ``--exit-code``: 1 where no GPU could be read, 3 for findings."""


def status(query: Query, pids: Sequence[int] = ()) -> Answered:
    """Return every GPU now; of some processes those alone.

    Raises
    ------
    GpuwatchdError
        When no GPU was found, none is what the query names, or no process has one of the pids.
    """
    view = current_state.load_view(query)
    current_state.narrow(view, pids)
    answer = status_text.answer("status", view)
    if all(item.reading is None for item in view.devices):
        return Answered(answer, FAILED)
    leaks = current_state.leaks(view, whole=not pids and not query.user)
    return Answered(answer, FINDINGS if leaks else OK)


def predict(query: Query, pids: Sequence[int] = ()) -> Answered:
    """Return the same with a verdict in any case: without a live state, from the history.

    Raises
    ------
    GpuwatchdError
        As with :func:`status`, and when there is nothing to judge.
    """
    view = subjects.judged_view(query)
    current_state.narrow(view, pids)
    leaks = current_state.leaks(view, whole=not pids and not query.user)
    return Answered(status_text.answer("predict", view), FINDINGS if leaks else OK)


def zombies(query: Query) -> Answered:
    """Return idle memory, and who has device files open.

    Raises
    ------
    GpuwatchdError
        When no GPU was found anywhere, or none is what the query names.
    """
    from gpuwatchd.view.queries import direct_holdings  # noqa: PLC0415 - it reads /proc

    view = direct_holdings.idle_view(query)
    loose = direct_holdings.openers(query, view)
    answer = envelope.answer("zombies", payload.idle_json(view, loose), view=view)
    return Answered(answer, FINDINGS if view.holdings else OK)


def explain(query: Query, target: str | None = None) -> Answered:
    """Return the whole reasoning of one verdict.

    Parameters
    ----------
    target
        A GPU, a pid or an alert; None for the worst verdict.

    Raises
    ------
    GpuwatchdError
        When there is nothing to explain, or nothing that fits.
    """
    from gpuwatchd.view.text import explanation  # noqa: PLC0415 - numpy and SQLite come with it

    case, warnings = explanation.case_of(query, target)
    data = explanation.as_json(case, explanation.sections(case), explanation.steps(case))
    return Answered(envelope.answer("explain", data, view=case.view, warnings=warnings))


def alerts(
    query: Query,
    *,
    only_open: bool = True,
    since_s: float | None = None,
    severity: str | None = None,
) -> Answered:
    """Return alerts, open ones first.

    Parameters
    ----------
    only_open
        Not those that are over.
    since_s
        Not older than this (epoch seconds); by default any that are open, else a week.
    severity
        Of this severity and above.

    Raises
    ------
    GpuwatchdError
        When there is neither a live state nor a history.
    """
    found, chosen = chosen_alerts(query, only_open=only_open, since_s=since_s, severity=severity)
    from gpuwatchd.view.queries import cost_entries  # noqa: PLC0415 - prices come with it

    counted = cost_entries.up_to_now(query, chosen)
    data = [alert_details.as_json(alert, found) for alert in counted]
    answer = envelope.answer("alerts", data, source=found.source, warnings=found.warnings)
    return Answered(answer, FINDINGS if alert_order.shown(chosen) else OK)


def chosen_alerts(
    query: Query, *, only_open: bool, since_s: float | None, severity: str | None
) -> tuple[Incidents, list[Alert]]:
    """Return all alerts that are known, and those that :func:`alerts` is about."""
    if since_s is None:
        since_s = 0.0 if only_open else time.time() - 7 * _DAY_S
    found = incidents.gather(since_s, only_open=only_open)
    if query.user:
        found.keep_of(user_filter.People(query.user))
    least = _RANK[severity or "info"]
    return found, [
        alert
        for alert in found.alerts
        if _RANK[alert.severity] >= least and found.wanted(query, alert)
    ]


def alert(query: Query, key: str) -> Answered:
    """Return one alert: why, what was decided, where it was delivered.

    Parameters
    ----------
    key
        Its id or key, a unique part of the key, a pid, or "latest".

    Raises
    ------
    GpuwatchdError
        When there is none, or more than one.
    """
    found = incidents.gather(0.0, only_open=False)
    story = alert_details.load(query, incidents.pick(found.alerts, key), found)
    data = alert_details.as_json(story.alert, found, story)
    return Answered(envelope.answer("alerts", data, source=found.source, warnings=found.warnings))


def snoozes(_: Query, *, every: bool = False) -> Answered:
    """Return what is snoozed, the newest first; ``every``: also what is over or was cleared.

    Raises
    ------
    StoreError
        When there is no usable history.
    """
    now_s = time.time()
    silences, known = silence_changes.standing(now_s, every=every)
    data = [
        silence_changes.entry(silence, silence_changes.fitting(silence, known), now_s, known)
        for silence in silences
    ]
    pairs = state_location.service_warnings()
    return Answered(envelope.answer("snooze", data, source="database", warnings=pairs))


def snooze(
    query: Query,
    *,
    for_: str,
    alert: str | None = None,
    why: str | None = None,
    even_critical: bool = False,
    **rule: str | None,
) -> Answered:
    """Set a silence.

    Parameters
    ----------
    for_
        A duration, at most 30d; of an alert also "until-resolved".
    alert
        Of which; None where there is a rule.
    even_critical
        Also what is critical.
    rule
        Conditions: gpu, user, process, framework, job, kind.

    Raises
    ------
    BadRequest
        When that cannot be: one sentence.
    GpuwatchdError
        When there is no such alert, no history, or it cannot be written.
    """
    snoozed = silence_changes.snooze(
        query.gpu, rule, for_, named=alert, why=why, even_critical=even_critical
    )
    entry = silence_changes.entry(snoozed.silence, snoozed.fits, snoozed.at_s)
    data = [entry | {"daemon_running": snoozed.running}]
    return Answered(envelope.answer("snooze", data, source="database"))


def unsnooze(_: Query, target: str | None) -> Answered:
    """Take back the silences that a number or an alert names, or with None all of them.

    Raises
    ------
    GpuwatchdError
        When nothing of that name is snoozed, or the history cannot be written.
    """
    cleared = silence_changes.clear(target)
    data = [
        silence_changes.entry(silence, (), cleared.at_s) | {"state": "cleared"}
        for silence in cleared.silences
    ]
    return Answered(envelope.answer("snooze", data, source="database"))


def labels(_: Query, *, every: bool = False) -> Answered:
    """Return the labels of alerts, newest first; ``every``: also those that were taken back.

    Raises
    ------
    StoreError
        When there is no usable history.
    """
    data = [label_changes.entry(label) for label in label_changes.labels(every=every)]
    pairs = state_location.service_warnings()
    return Answered(envelope.answer("feedback", data, source="database", warnings=pairs))


def label(
    _: Query, alert: str, word: Literal["normal", "leak"], why: str | None = None
) -> Answered:
    """Mark an alert as normal or as a leak.

    Raises
    ------
    GpuwatchdError
        When there is no such alert, it is not about growth, or the history cannot be written.
    """
    labelled = label_changes.label(alert, word, why)
    more = {"program_known": labelled.learned, "daemon_running": labelled.running}
    data = [label_changes.entry(labelled.label) | more]
    return Answered(envelope.answer("feedback", data, source="database"))


def unlabel(_: Query, target: str) -> Answered:
    """Take the label of an alert back.

    Raises
    ------
    GpuwatchdError
        When there is no such alert, it has none, or the history cannot be written.
    """
    data = [label_changes.entry(label_changes.unlabel(target))]
    return Answered(envelope.answer("feedback", data, source="database"))
