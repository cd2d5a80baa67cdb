"""What the live state and the alerts answer: one function per question, for programs.

Each raises :class:`.GpuwatchdError` where there is nothing to answer from, what is named is not
there or not one thing, or the history cannot be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from gpuwatchd.core.errors import FINDINGS, OK
from gpuwatchd.view.answers import alerts as structs
from gpuwatchd.view.answers import current
from gpuwatchd.view.answers.base import Answered, answer_of, fill
from gpuwatchd.view.answers.current import Predict, Status, observed
from gpuwatchd.view.queries import (
    alert_changes,
    alert_query,
    current_state,
    state_location,
    subjects,
    user_filter,
)
from gpuwatchd.view.text import alert_details

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.answers.base import Answer
    from gpuwatchd.view.queries.alert_query import Incidents
    from gpuwatchd.view.query import Query

_RANK: Final = {"info": 0, "warning": 1, "critical": 2}
_DAY_S: Final = 86400.0


def status(query: Query, pids: Sequence[int] = ()) -> Answered:
    """Return every GPU now; of some processes those alone."""
    view = current_state.load_view(query)
    current_state.narrow(view, pids)
    return Answered(observed(Status, view), current_state.exit_code(view, query, pids))


def predict(query: Query, pids: Sequence[int] = ()) -> Answered:
    """Return the same with a verdict in any case: without a live state, from the history."""
    view = subjects.judged_view(query)
    current_state.narrow(view, pids)
    leaks = current_state.leaks(view, query, pids)
    return Answered(observed(Predict, view), FINDINGS if leaks else OK)


def idle_memory(query: Query, slurm_s: float | None = None) -> Answered:
    """Return idle memory, who has device files open, and as there jobs of Slurm."""
    from gpuwatchd.view.queries import direct_holdings  # noqa: PLC0415 - 45 ms: what reads /proc

    view, loose = direct_holdings.idle_memory(query, slurm_s)
    answer = answer_of(current.IdleMemory, current.idle_memory(view, loose), view=view)
    return Answered(answer, FINDINGS if view.holdings or view.jobs else OK)


def explain(query: Query, target: str | None = None) -> Answered:
    """Return the reasoning of one verdict: on a GPU, a pid or an alert; None for the worst."""
    from gpuwatchd.view.answers.explanation import Explain, explained  # noqa: PLC0415 - 8 ms: only where something is explained
    from gpuwatchd.view.text import explanation  # noqa: PLC0415 - 240 ms: numpy and SQLite come with it

    case, warnings = explanation.case_of(query, target)
    return Answered(answer_of(Explain, explained(case), view=case.view, warnings=warnings))


def alerts(
    query: Query,
    *,
    every: bool = False,
    since_s: float | None = None,
    severity: str | None = None,
) -> Answered:
    """Return alerts, open ones first.

    Parameters
    ----------
    every
        Also those that are over.
    since_s
        Not older than this (epoch seconds); by default any that are open, else a week.
    severity
        Of this severity and above.
    """
    found, chosen = chosen_alerts(query, only_open=not every, since_s=since_s, severity=severity)
    from gpuwatchd.view.queries import cost_entries  # noqa: PLC0415 - 11 ms: prices come with it

    data = tuple(structs.alert(alert, found) for alert in cost_entries.up_to_now(query, chosen))
    answer = answer_of(structs.Alerts, data, source=found.source, warnings=found.warnings)
    return Answered(answer, FINDINGS if current_state.shown(chosen) else OK)


def chosen_alerts(
    query: Query, *, only_open: bool, since_s: float | None, severity: str | None
) -> tuple[Incidents, list[Alert]]:
    """Return all alerts that are known, and those that :func:`alerts` is about."""
    if since_s is None:
        since_s = 0.0 if only_open else state_location.now_s() - 7 * _DAY_S
    found = alert_query.gather(since_s, only_open=only_open)
    if query.user:
        found.keep_of(user_filter.People(query.user))
    found.warnings.extend(current_state.require_gpus(query, list(found.devices.values())))
    least = _RANK[severity or "info"]
    return found, [
        alert
        for alert in found.alerts
        if _RANK[alert.severity] >= least and found.wanted(query, alert)
    ]


def alert(query: Query, key: str) -> Answered:
    """Return one alert: why, what was decided, where it was delivered.

    It is named by its id or key, a unique part of the key, a pid, or "latest".
    """
    found = alert_query.gather(0.0, only_open=False)
    record = alert_details.load(query, alert_query.pick(found.alerts, key), found)
    data = structs.alert(record.alert, found, record)
    return Answered(
        answer_of(structs.AlertShown, data, source=found.source, warnings=found.warnings)
    )


def snoozes(_: Query, *, every: bool = False) -> Answered:
    """Return what is snoozed, the newest first; ``every``: also what is over or was cleared."""
    now_s = state_location.now_s()
    silences, known = alert_changes.standing(now_s, every=every)
    data = tuple(
        fill(
            structs.SilenceShape,
            silence,
            state=alert_changes.state_of(silence, now_s, known),
            fits=[alert.key for alert in alert_changes.fitting(silence, known)],
        )
        for silence in silences
    )
    return _recorded(structs.Snooze, data, state_location.service_warnings())


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
    """
    snoozed = alert_changes.snooze(
        query.gpu, rule, for_, named=alert, why=why, even_critical=even_critical
    )
    entry = fill(
        structs.SilenceShape,
        snoozed.silence,
        state="in-force",
        fits=[fitting.key for fitting in snoozed.fits],
        daemon_running=snoozed.running,
    )
    return _recorded(structs.Snooze, (entry,))


def unsnooze(_: Query, target: str | None) -> Answered:
    """Take back the silences that a number or an alert names, or with None all of them."""
    silences = alert_changes.clear(target).silences
    entries = [fill(structs.SilenceShape, each, state="cleared", fits=()) for each in silences]
    return _recorded(structs.Snooze, entries)


def labels(_: Query, *, every: bool = False) -> Answered:
    """Return the labels of alerts, newest first; ``every``: also those that were taken back."""
    labels = alert_changes.labels(every=every)
    return _recorded(structs.Feedback, labels, state_location.service_warnings())


def label(
    _: Query, alert: str, word: Literal["normal", "leak"], why: str | None = None
) -> Answered:
    """Mark an alert as normal or as a leak."""
    labelled = alert_changes.label(alert, word, why)
    entry = fill(
        structs.WordShape,
        labelled.label,
        program_known=labelled.learned,
        daemon_running=labelled.running,
    )
    return _recorded(structs.Feedback, (entry,))


def unlabel(_: Query, target: str) -> Answered:
    """Take the label of an alert back."""
    return _recorded(structs.Feedback, [alert_changes.unlabel(target)])


def _recorded(kind: type[Answer], data: Any, warnings: Sequence[tuple[str, str]] = ()) -> Answered:
    """Return what the history answers."""
    return Answered(answer_of(kind, data, source="database", warnings=warnings))
