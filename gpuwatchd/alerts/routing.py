"""By which channels one notice goes, when, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuwatchd.alerts.inhibition import inhibitor
from gpuwatchd.alerts.matching import matches, rules_for
from gpuwatchd.alerts.quiet_hours import quiet_until
from gpuwatchd.alerts.rules import HOUR_S, RANK, Effective, Local, Route, Rules
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.core.model import Alert, NoticeKind, Severity, Silence

ALL_CHANNELS = "all"
_ENDLESS_S = 7.5 * 86_400.0
"""Quiet hours that last longer than a week are those of every day."""


def told_as(alert: Alert, effective: Effective) -> Severity:
    """Return the severity that people are told of."""
    cap = effective.severity
    return alert.severity if cap is None or RANK[alert.severity] <= RANK[cap] else cap


def may_grow(alert: Alert, effective: Effective, level_bytes: float | None = None) -> str:
    """Return why nobody is told of a growth that is meant to be; "" where it is told.

    Parameters
    ----------
    level_bytes
        What the subject holds now; by default what follows from its judgement.
    """
    if not effective.grows:
        return ""
    bound = effective.grows_to_bytes
    if bound is not None:
        level = _level(alert) if level_bytes is None else level_bytes
        below = level is not None and level < bound
        return f"it may grow to {units.size(bound)} ({effective.grows})" if below else ""
    eta = alert.finding.eta
    if eta is not None and eta.mid_s < HOUR_S:
        return ""  # However it is meant, memory is about to be full.
    return f"it may grow ({effective.grows})"


def _level(alert: Alert) -> float | None:
    """Return what a subject holds, by its judgement: the limit less what grows until then."""
    finding = alert.finding
    if finding.limit_bytes is None or finding.eta is None or finding.rate_bytes_per_s is None:
        return None
    return finding.limit_bytes - finding.rate_bytes_per_s * finding.eta.mid_s


def silenced(
    alert: Alert,
    silences: Iterable[Silence],
    now_s: float | None,
    severity: Severity | None = None,
) -> Silence | None:
    """Return the silence in force that lasts longest; None without one.

    What is critical is told all the same, unless a silence says that it is meant, too.

    Parameters
    ----------
    severity
        With which people are told; by default its own.
    """
    urgent = (severity or alert.severity) == "critical"
    found = [
        silence
        for silence in silences
        if silence.cleared_at_s is None
        and (now_s is None or now_s < silence.until_at_s)
        and (silence.even_critical or not urgent)
        and not (silence.until_resolved and alert.state == "resolved")
        and matches(silence.matcher, alert)
    ]
    return max(found, key=lambda silence: silence.until_at_s, default=None)


def routes(
    alert: Alert,
    notice: NoticeKind,
    rules: Rules,
    *,
    local: Local | None = None,
    silences: Sequence[Silence] = (),
    others: Iterable[Alert] = (),
    level_bytes: float | None = None,
) -> tuple[Route, ...]:
    """Return what becomes of a notice on each channel that its alert has.

    Cool-down, grouping and the limit per hour are about when a notice is due at all; here it is.

    Parameters
    ----------
    alert
        With what is known of whom it is about.
    local
        The time where people are; None: it is never quiet, and every silence counts.
    silences
        Those that may be in force.
    others
        Alerts that are open beside it: one of them may say it all.
    level_bytes
        What its subject holds now, where that is known better than by its judgement.
    """
    effective = rules_for(alert, rules)
    case = _RoutingCase(alert, notice, effective, told_as(alert, effective), local)
    held, until_s = _held(case, silences, others, level_bytes)
    if held:
        return tuple(
            Route(channel=name, kind="hold", reason=held, until_at_s=until_s)
            for name in effective.channels
        )
    return tuple(_route(name, case, rules) for name in effective.channels)


class _RoutingCase(NamedTuple):
    """One notice, and what holds for it."""

    alert: Alert
    notice: NoticeKind
    effective: Effective
    severity: Severity
    local: Local | None


def _held(
    case: _RoutingCase,
    silences: Sequence[Silence],
    others: Iterable[Alert],
    level_bytes: float | None,
) -> tuple[str, float | None]:
    """Return why no channel is used at all, and until when where that is known."""
    alert, now_s = case.alert, None if case.local is None else case.local.now_s
    if case.effective.mute:
        return f"muted by {case.effective.mute}", None
    if case.notice != "resolved":
        grows = may_grow(alert, case.effective, level_bytes)
        if grows:
            return grows, None
        above = inhibitor(alert, others)
        if above is not None:
            return _inhibition_reason(above), None
    silence = silenced(alert, silences, now_s, case.severity)
    if silence is None:
        return "", None
    who = f" by {silence.who}" if silence.who else ""
    why = f": {silence.why}" if silence.why else ""
    until = "it is over" if silence.until_resolved else units.clock(silence.until_at_s, now_s=now_s)
    return f"silenced{who} until {until}{why}", silence.until_at_s


def _inhibition_reason(above: Alert) -> str:
    """Return why another alert makes one no news."""
    who, what = above.title or above.key, above.finding.reason.partition(";")[0]
    if above.kind == "gpu" and what:
        return f"{who}: {what}"
    return f"the alert on {who} says it all"


def _route(channel: str, case: _RoutingCase, rules: Rules) -> Route:
    over = case.notice == "resolved"
    if over and case.alert.told_on and channel not in case.alert.told_on:
        return Route(channel=channel, kind="hold", reason="it was not told of its beginning")
    least = rules.severity.get(channel, "info")
    # Who was told that it began is told that it is over, whatever it was worth at its end.
    if not over and RANK[case.severity] < RANK[least]:
        above = "critical alerts only" if least == "critical" else f"{least} and above"
        return Route(channel=channel, kind="hold", reason=f"{channel} is for {above}")
    ranges = (*rules.quiet.get(channel, ()), *rules.quiet.get(ALL_CHANNELS, ()))
    urgent = case.severity == "critical" and not over
    if ranges and case.local is not None and not urgent:
        until = quiet_until(ranges, case.local)
        endless = until is not None and until.at_s - case.local.now_s > _ENDLESS_S
        if endless and not over:
            return Route(channel=channel, kind="hold", reason="quiet hours that do not end")
        if until is not None and not endless:
            why = f"quiet hours until {until.clock}"
            return Route(channel=channel, kind="wait", reason=why, until_at_s=until.at_s)
    return Route(channel=channel, kind="send", reason=case.notice)
