"""Setting a silence and taking it back: what the verb, the live screen and its page have in common.

A silence is one row that this program writes into the history itself (see :mod:`store.silences`); a
running daemon notices it within a tick, one that is stopped when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import envelope
from gpuwatchd.view.queries import incidents, state_location, user_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert, Matcher, Silence
    from gpuwatchd.view.blocks import Page, Part

UNTIL_RESOLVED = "until-resolved"
TERMS = ("1h", "8h", "2d", UNTIL_RESOLVED)
"""How long people are offered."""
WHY_CHARS = 200


def seconds(term: str) -> float:
    """Return how long a silence of this term lasts at most.

    Raises
    ------
    ValueError
        With one sentence, when it is no duration, none at all or too long.
    """
    from gpuwatchd.store.silences import LONGEST_S  # noqa: PLC0415 - SQLite comes with it

    if term == UNTIL_RESOLVED:
        return LONGEST_S
    try:
        length_s = units.parse_duration(term)
    except ValueError as error:
        raise ValueError(f"{error}, or until-resolved") from error
    if term.strip().replace(".", "").isdecimal():
        raise ValueError(f"{term} of what? {term}m or {term}h")
    if length_s <= 0:
        raise ValueError("the duration must be more than zero")
    if length_s > LONGEST_S:
        raise ValueError("at most 30d, so that no silence is forgotten")
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

    Parameters
    ----------
    named
        As the user called the alert: for the hint.

    Raises
    ------
    GpuwatchdError
        When it is over, and the silence would be too.
    ValueError
        When the term is none.
    """
    from gpuwatchd.store import silences as store  # noqa: PLC0415 - SQLite comes with it

    for_s = seconds(term)
    until_resolved = term == UNTIL_RESOLVED
    if until_resolved and alert.state not in incidents.OPEN:
        raise GpuwatchdError(
            "it is resolved already",
            hint=f"give a duration: gpuwatchctl snooze {named or alert.code} 8h",
            page="errors#already-over",
        )
    return store.of_alert(
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
    from gpuwatchd.store import silences as store  # noqa: PLC0415 - SQLite comes with it

    with state_location.writing() as place:
        return store.add(place.state_dir, silence)


def take_back(standing: Sequence[Silence], now_s: float) -> int:
    """End silences before their time, and return how many were in force.

    Raises
    ------
    StoreError
        When there is no history, or it cannot be written.
    NotAllowed
        When it belongs to somebody else.
    """
    from gpuwatchd.store import silences as store  # noqa: PLC0415 - SQLite comes with it

    rows = tuple(silence.row for silence in standing if silence.row is not None)
    with state_location.writing() as place:
        return store.clear(place.state_dir, rows, now_s) if rows else 0


def follows(
    silence: Silence, meant: Alert | None, fits: Sequence[Alert], *, running: bool, now_s: float
) -> list[str]:
    """Return what a silence that was just set does, one sentence a line.

    Parameters
    ----------
    meant
        The alert that it names; None for a rule.
    fits
        Open alerts that it is about.
    running
        Whether a daemon runs.
    """
    end = until(silence, now_s)
    lines = [f"silenced {end}; it is still monitored, and shown by status and alerts"]
    if meant is None:
        count = len(fits)
        now = "no open alert" if not count else "1 open alert" if count == 1 else ""
        verb = "fits" if count < 2 else "fit"
        lines.append(f"{now or f'{count} open alerts'} {verb} it now")
    elif meant.state not in incidents.OPEN:
        lines.append("it is resolved already: this applies if it fires again")
    if not silence.even_critical:
        lines.append("critical alerts are still sent (not with --even-critical)")
    elif meant is not None and meant.severity == "critical":
        lines.append("also of what is critical, as it is now")
    else:
        lines.append("also of what is critical")
    if not running:
        lines.append("no daemon runs: it holds from when one does")
    return lines


# Silences as people are shown them: what they are about, until when, and what they fit.

CONDITIONS = ("gpu", "user", "process", "framework", "job", "kind")
"""What a rule may be made of, in the order in which it is shown."""


def until(silence: Silence, now_s: float) -> str:
    """Return until when a silence lasts."""
    at = units.moment(silence.until_at_s, now_s=now_s, zone=True)
    left = units.duration(max(0.0, silence.until_at_s - now_s))
    if silence.until_resolved:
        return f"until it is resolved, at the latest until {at}"
    return f"until {at} (for {left})"


def fitting(silence: Silence, alerts: Sequence[Alert]) -> list[Alert]:
    """Return the open alerts that a silence is about."""
    from gpuwatchd import alerts as policy  # noqa: PLC0415 - only these verbs judge a rule

    found = {
        alert.key: alert
        for alert in alerts
        if alert.state in incidents.OPEN and policy.matches(silence.matcher, alert)
    }
    return list(found.values())


def state_of(silence: Silence, now_s: float, alerts: Sequence[Alert] = ()) -> str:
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
    if matcher.key:
        return matcher.key
    given = ((name, getattr(matcher, name)) for name in CONDITIONS)
    return " ".join(f"--{name} {value}" for name, value in given if value) or "every alert"


def called(matcher: Matcher, alerts: Sequence[Alert]) -> str:
    """Return what a silence is about: the title of its alert where it is known, else its rule."""
    titles = (alert.title for alert in reversed(alerts) if alert.key == matcher.key and alert.title)
    return next(titles, "") or rule_of(matcher)


def entry(
    silence: Silence, fits: Sequence[Alert], now_s: float, alerts: Sequence[Alert] = ()
) -> dict[str, Any]:
    """Return a silence as JSON."""
    matcher = {
        name: text.clean(value)
        for name in ("key", *CONDITIONS)
        if (value := getattr(silence.matcher, name))
    }
    return {
        "id": silence.row,
        "matcher": matcher,
        "state": state_of(silence, now_s, alerts),
        **envelope.fields(silence, "from_at until_at until_resolved even_critical"),
        "who": envelope.maybe(silence.who or None),
        "why": envelope.maybe(silence.why or None),
        "cleared_at": units.instant(silence.cleared_at_s),
        "fits": [text.clean(alert.key) for alert in fits],
    }


def show(
    out: Page, silence: Silence, alerts: Sequence[Alert], fits: Sequence[Alert], now_s: float
) -> None:
    """Show one silence in a line or two."""
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
        count = len(fits)
        out.flow([(f"fits {count} open alert{'' if count == 1 else 's'}", "dim")], first="  ")
