"""Setting a silence or a label of an alert and taking it back: for verbs, screen and page.

Each is one row that this program writes into the history itself (see :mod:`store.tables`); a
running daemon notices it within a tick, one that is stopped when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import structs

from gpuwatchd import alerts as policy
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError, StoreError
from gpuwatchd.core.model import Matcher, Silence
from gpuwatchd.view.queries import alert_query, current_state, state_location, user_filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.tables import UserLabel
    from gpuwatchd.view.blocks import Page, Part


UNTIL_RESOLVED = "until-resolved"
State = Literal["in-force", "over", "cleared"]
TERMS = ("1h", "8h", "2d", UNTIL_RESOLVED)
"""How long people are offered."""
WHY_CHARS = 200
CONDITIONS = ("gpu", "user", "process", "framework", "job", "kind")
"""What a rule may be made of, in the order in which it is shown."""
_VALUE_CHARS = 200
_TITLES_S = 31 * 86_400.0
"""How far back alerts are looked up for their titles."""


class BadRequest(ValueError):
    """What is asked cannot be: one sentence."""


class Snoozed(NamedTuple):
    """A silence that was just set."""

    silence: Silence
    alert: Alert | None
    """The one that was named; None for a rule."""
    fits: list[Alert]
    """Open alerts that it is about."""
    running: bool
    """Whether a daemon runs."""
    at_s: float


def snooze(
    gpus: Sequence[str],
    conditions: Mapping[str, str | None],
    term: str,
    *,
    named: str | None = None,
    why: str | None = None,
    even_critical: bool = False,
) -> Snoozed:
    """Set a silence of the alert that is named, or of what fits a rule.

    Parameters
    ----------
    gpus
        GPUs that the rule names beside its conditions.
    conditions
        The rule: :data:`CONDITIONS`, of which each may be absent.

    Raises
    ------
    BadRequest
        When it is neither an alert nor a rule, or both, or the term is none.
    GpuwatchdError
        When there is no such alert, no history, or it cannot be written.
    """
    now_s = state_location.now_s()
    matcher = _matcher(gpus, conditions)
    ruled = matcher != Matcher()
    if ruled and named is not None:
        raise BadRequest("an ALERT or a rule, not both")
    if not ruled and named is None:
        raise BadRequest(f"of which alert? snooze latest {term}")
    if ruled and term == UNTIL_RESOLVED:
        raise BadRequest("until-resolved needs an ALERT; a rule needs a duration: 8h, 2d")
    for_s = seconds(term)
    found = alert_query.kept("snoozed")
    alert = None if named is None else alert_query.pick(found.alerts, named)
    if alert is not None:
        silence = of_alert(
            alert, term, now_s=now_s, named=named or "", why=why, even_critical=even_critical
        )
    else:
        silence = Silence(
            matcher=matcher,
            from_at_s=now_s,
            until_at_s=now_s + for_s,
            even_critical=even_critical,
            who=user_filter.user(),
            why=because(why),
        )
    kept = keep(silence)
    return Snoozed(kept, alert, fitting(kept, found.alerts), current_state.running(), now_s)


def _matcher(gpus: Sequence[str], conditions: Mapping[str, str | None]) -> Matcher:
    values = {
        name: text.clean(conditions.get(name) or "", limit=_VALUE_CHARS) for name in CONDITIONS
    }
    named = [text.clean(gpu, limit=_VALUE_CHARS) for gpu in (*gpus, values["gpu"]) if gpu]
    if len(named) > 1:
        raise BadRequest("one --gpu only; a glob may name several: --gpu '[01]'")
    values["gpu"] = named[0].removeprefix("GPU ") if named else ""
    return Matcher(**values)


def standing(now_s: float, *, every: bool = False) -> tuple[list[Silence], list[Alert]]:
    """Return the silences in force, newest first, or every one, and the alerts of the last weeks.

    Raises
    ------
    StoreError
        When there is no usable history.
    """
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - 80 ms: SQLite comes with it

    with history_query.reader() as history:
        silences = history.silences(all_of_them=every)
        alerts = history.alerts(now_s - _TITLES_S)
    return [s for s in silences if every or state_of(s, now_s) == "in-force"][::-1], alerts


class Cleared(NamedTuple):
    """Silences that were just taken back."""

    silences: list[Silence]
    alerts: list[Alert]
    """Those of the last weeks."""
    in_force: int
    """How many were in force until now."""


def clear(which: str | None) -> Cleared:
    """Take back the silences that a number or an alert names, or with None all of them.

    Raises
    ------
    GpuwatchdError
        When nothing of that name is snoozed, or the history cannot be written.
    """
    now_s = state_location.now_s()
    silences, alerts = standing(now_s)
    chosen = silences if which is None else _chosen(silences, which)
    count = take_back(chosen, now_s)
    cleared = [structs.replace(silence, cleared_at_s=now_s) for silence in chosen]
    return Cleared(cleared, alerts, count)


def _chosen(silences: Sequence[Silence], which: str) -> list[Silence]:
    numbered = [silence for silence in silences if str(silence.row) == which]
    exact = numbered or [silence for silence in silences if silence.matcher.key == which]
    if exact:
        return exact
    try:
        key = alert_query.pick(alert_query.kept("snoozed").alerts, which).key
    except StoreError:
        raise
    except GpuwatchdError as error:
        raise _not_snoozed(
            f"no silence is named {text.clean(which, limit=_VALUE_CHARS)!r}"
        ) from error
    of_it = [silence for silence in silences if silence.matcher.key == key]
    if not of_it:
        raise _not_snoozed(f"{key} is not snoozed")
    return of_it


def _not_snoozed(why: str) -> GpuwatchdError:
    return GpuwatchdError(why, hint="gpuwatchctl snooze list", page="errors#not-snoozed")


def seconds(term: str) -> float:
    """Return how long a silence of this term lasts at most.

    Raises
    ------
    BadRequest
        When it is no duration, none at all or too long.
    """
    from gpuwatchd.store.tables import LONGEST_S  # noqa: PLC0415 - 17 ms: SQLite comes with it

    if term == UNTIL_RESOLVED:
        return LONGEST_S
    try:
        length_s = units.parse_duration(term, bare=False)
    except ValueError as error:
        raise BadRequest(f"{error}, or until-resolved") from error
    if length_s <= 0:
        raise BadRequest("the duration must be more than zero")
    if length_s > LONGEST_S:
        raise BadRequest("at most 30d, so that no silence is forgotten")
    return length_s


def because(why: str | None) -> str:
    """Return a reason as it is kept."""
    return text.clean(why, limit=WHY_CHARS).strip() if why else ""


def of_alert(
    alert: Alert,
    term: str,
    *,
    now_s: float,
    named: str = "",
    why: str | None = None,
    even_critical: bool = False,
) -> Silence:
    """Return a silence of one alert, by who asks, not kept yet.

    ``named`` is how the user called the alert, for the hint.

    Raises
    ------
    GpuwatchdError
        When it is over, and the silence would be too.
    BadRequest
        When the term is none.
    """
    from gpuwatchd.store import tables  # noqa: PLC0415 - 17 ms: SQLite comes with it

    for_s = seconds(term)
    until_resolved = term == UNTIL_RESOLVED
    if until_resolved and alert.state not in alert_query.OPEN:
        raise GpuwatchdError(
            "it is resolved already",
            hint=f"give a duration: gpuwatchctl snooze {named or alert.code} 8h",
            page="errors#already-over",
        )
    return tables.silence_of(
        alert,
        now_s=now_s,
        for_s=for_s,
        until_resolved=until_resolved,
        even_critical=even_critical,
        who=user_filter.user(),
        why=because(why),
    )


def keep(silence: Silence) -> Silence:
    """Write a silence into the history that is meant, and return it with its row.

    Raises
    ------
    StoreError
        When there is no history, or it cannot be written.
    NotAllowed
        When it belongs to somebody else.
    """
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - 27 ms: SQLite comes with it

    with state_location.writing(*_words(silence)) as place:
        return checked_connection.transaction(place.state_dir, tables.write_silence, silence)


def _given(matcher: Matcher) -> list[tuple[str, str]]:
    """Return the conditions of a rule, and what each has to be."""
    return [(name, value) for name in CONDITIONS if (value := getattr(matcher, name))]


def _words(silence: Silence) -> list[str]:
    """Return the verb that sets a silence."""
    key = silence.matcher.key
    rule = [key] if key else [f"--{name}={value}" for name, value in _given(silence.matcher)]
    minutes = round((silence.until_at_s - silence.from_at_s) / 60)
    more = ["--even-critical"] if silence.even_critical else []
    more += [f"--why={silence.why}"] if silence.why else []
    return ["snooze", *rule, UNTIL_RESOLVED if silence.until_resolved else f"{minutes}m", *more]


def take_back(standing: Sequence[Silence], now_s: float) -> int:
    """End silences before their time, and return how many were in force.

    Raises
    ------
    StoreError
        When there is no history, or it cannot be written.
    NotAllowed
        When it belongs to somebody else.
    """
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - 27 ms: SQLite comes with it

    rows = tuple(silence.row for silence in standing if silence.row is not None)
    with state_location.writing("snooze", "clear", *map(str, rows)) as place:
        if not rows:
            return 0
        return checked_connection.transaction(place.state_dir, tables.end_silences, rows, now_s)


def follows(snoozed: Snoozed) -> list[str]:
    """Return what a silence that was just set does, one sentence a line."""
    silence, alert, count = snoozed.silence, snoozed.alert, len(snoozed.fits)
    end = until(silence, snoozed.at_s)
    lines = [f"silenced {end}; it is still monitored, and shown by status and alerts"]
    if alert is None:
        now = units.count(count, "open alert") if count else "no open alert"
        verb = "fits" if count < 2 else "fit"
        lines.append(f"{now} {verb} it now")
    elif alert.state not in alert_query.OPEN:
        lines.append("it is resolved already: this applies if it fires again")
    if not silence.even_critical:
        lines.append("critical alerts are still sent (not with --even-critical)")
    elif alert is not None and alert.severity == "critical":
        lines.append("also of what is critical, as it is now")
    else:
        lines.append("also of what is critical")
    if not snoozed.running:
        lines.append("no daemon runs: it holds from when one does")
    return [*lines, f"gpuwatchctl snooze clear {silence.row} takes it back"]


# Silences as people are shown them: what they are about, until when, and what they fit.


def until(silence: Silence, now_s: float) -> str:
    """Return until when a silence lasts."""
    at = units.moment(silence.until_at_s, now_s=now_s, zone=True)
    if silence.until_resolved:
        return f"until it is resolved, at the latest until {at}"
    return f"until {at} (for {units.duration(max(0.0, silence.until_at_s - now_s))})"


def fitting(silence: Silence, alerts: Sequence[Alert]) -> list[Alert]:
    """Return the open alerts that a silence is about."""
    found = {
        alert.key: alert
        for alert in alerts
        if alert.state in alert_query.OPEN and policy.matches(silence.matcher, alert)
    }
    return list(found.values())


def state_of(silence: Silence, now_s: float, alerts: Sequence[Alert] = ()) -> State:
    """Return whether a silence is in force, over, or taken back.

    Parameters
    ----------
    alerts
        Say whether the alert of a silence that lasts until it is over was open at its end: then
        somebody took it back.
    """
    ended = silence.cleared_at_s
    if ended is not None:
        # The daemon strikes those whose time is over, too.
        of_it = [alert for alert in alerts if alert.key == silence.matcher.key]
        was_open = any(
            alert.opened_at_s <= ended < (alert.resolved_at_s or float("inf")) for alert in of_it
        )
        timely = ended >= silence.until_at_s or (silence.until_resolved and not was_open)
        return "over" if timely else "cleared"
    return "in-force" if now_s < silence.until_at_s else "over"


def rule_of(matcher: Matcher) -> str:
    """Return a rule as it was typed."""
    rule = " ".join(f"--{name} {value}" for name, value in _given(matcher))
    return matcher.key or rule or "every alert"


def called(matcher: Matcher, alerts: Sequence[Alert]) -> str:
    """Return what a silence is about: the title of its alert where it is known, else its rule."""
    titles = (alert.title for alert in reversed(alerts) if alert.key == matcher.key and alert.title)
    return next(titles, "") or rule_of(matcher)


def show(out: Page, silence: Silence, alerts: Sequence[Alert], now_s: float) -> None:
    """Write one silence in a line or two."""
    state = state_of(silence, now_s, alerts)
    ended = silence.until_at_s if silence.cleared_at_s is None else silence.cleared_at_s
    when = (
        until(silence, now_s)
        if state == "in-force"
        else f"{'cleared' if state == 'cleared' else 'expired'} {units.moment(ended, now_s=now_s)}"
    )
    parts: list[Part] = [
        f"{silence.row}",
        (called(silence.matcher, alerts), "bold"),
        (when, "" if state == "in-force" else "dim"),
        "also of what is critical" if silence.even_critical else "",
        f"by {silence.who}" if silence.who else "",
        silence.why,
    ]
    out.flow([part for part in parts if part], rest="  ")
    if state == "in-force" and not silence.matcher.key:
        count = len(fitting(silence, alerts))
        out.flow([(f"fits {units.count(count, 'open alert')}", "dim")], first="  ")


class Labelled(NamedTuple):
    """A label that was just set."""

    label: UserLabel
    alert: Alert
    learned: bool
    """Whether the program's next runs are judged by it."""
    recorded: bool
    """Whether it is of a device that is simulated or replayed."""
    running: bool
    """Whether a daemon runs."""


def label(named: str, word: Literal["normal", "leak"], why: str | None) -> Labelled:
    """Set the label of an alert, over an older one.

    Raises
    ------
    GpuwatchdError
        When there is no such alert, it is not about growth, or the history cannot be written.
    """
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - 27 ms: SQLite comes with it

    found = alert_query.kept("said")
    alert = alert_query.pick(found.alerts, named)
    if alert.kind != "leak":
        raise GpuwatchdError(
            "this alert cannot be labelled: it is not about growth",
            hint=f"to silence it: gpuwatchctl snooze {alert.key} 8h",
            page="errors#nothing-to-learn",
        )
    given = tables.UserLabel(
        alert_key=alert.key,
        opened_at_s=alert.opened_at_s,
        subject=alert.subject,
        title=text.clean(alert.title or alert.key),
        word=word,
        given_at_s=state_location.now_s(),
        why=because(why) or None,
        who=user_filter.user(),
    )
    more = [f"--why={given.why}"] if given.why else []
    with state_location.writing("feedback", alert.key, word, *more) as place:
        kept = checked_connection.transaction(place.state_dir, tables.write_label, given)
    learned = alert.subject.process is not None and alert.subject.process in found.known
    device = found.devices.get(alert.subject.device_uid)
    recorded = device is not None and device.recorded
    return Labelled(kept, alert, learned, recorded, current_state.running())


def unlabel(named: str) -> UserLabel:
    """Take the label of an alert back, and return it.

    Raises
    ------
    GpuwatchdError
        When there is no such alert, it has none, or the history cannot be written.
    """
    from gpuwatchd.store import checked_connection, tables  # noqa: PLC0415 - 27 ms: SQLite comes with it

    found = alert_query.kept("said")
    none = GpuwatchdError(
        f"no label for {named}", hint="gpuwatchctl feedback list", page="errors#nothing-said"
    )
    if named == "latest" and found.words:
        key = found.words[-1].alert_key
    elif any(label.alert_key == named for label in found.words):
        key = named  # as `feedback list` prints it; the alert itself may be forgotten by now
    else:
        try:
            labelled = [alert for alert in found.alerts if found.user_label(alert) is not None]
            key = alert_query.pick(labelled, named).key
        except GpuwatchdError as error:
            alert_query.pick(found.alerts, named)  # says so when there is no such alert at all
            raise none from error
    last = next(label for label in reversed(found.words) if label.alert_key == key)
    now_s = state_location.now_s()
    with state_location.writing("feedback", "undo", key) as place:
        undone = checked_connection.transaction(place.state_dir, tables.remove_label, key, now_s)
    if not undone:
        raise none
    return structs.replace(last, undone_at_s=now_s)


def labels(*, every: bool = False) -> list[UserLabel]:
    """Return the labels, newest first; ``every``: also those that were taken back.

    Raises
    ------
    StoreError
        When there is no usable history.
    """
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - 80 ms: SQLite comes with it

    with history_query.reader() as history:
        return history.user_labels(all_of_them=every)[::-1]
