"""Silences as people are shown them: what they are about, until when, and what they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.cli import envelope, incidents
from gpuwatchd.core import text, units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.output import Out, Part
    from gpuwatchd.core.model import Alert, Matcher, Silence

CONDITIONS = ("gpu", "user", "process", "framework", "job", "kind")
"""What a rule may be made of, in the order in which it is shown."""


def until(silence: Silence, now_s: float) -> str:
    """Return until when a silence lasts."""
    at = units.moment(silence.until_at_s, now_s=now_s, zone=True)
    left = units.duration(max(0.0, silence.until_at_s - now_s))
    if silence.until_resolved:
        return f"until it is over, at the latest until {at}"
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
        "from_at": units.instant(silence.from_at_s),
        "until_at": units.instant(silence.until_at_s),
        "until_resolved": silence.until_resolved,
        "even_critical": silence.even_critical,
        "who": envelope.maybe(silence.who or None),
        "why": envelope.maybe(silence.why or None),
        "cleared_at": units.instant(silence.cleared_at_s),
        "fits": [text.clean(alert.key) for alert in fits],
    }


def show(
    out: Out, silence: Silence, alerts: Sequence[Alert], fits: Sequence[Alert], now_s: float
) -> None:
    """Show one silence in a line or two."""
    state = state_of(silence, now_s, alerts)
    ended = silence.until_at_s if silence.cleared_at_s is None else silence.cleared_at_s
    when = (
        until(silence, now_s)
        if state == "in-force"
        else f"{'taken back' if state == 'cleared' else 'over'} {units.moment(ended, now_s=now_s)}"
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
