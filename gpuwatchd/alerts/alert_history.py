"""What people know of an alert from the last times that it was open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpuwatchd.alerts.matching import rules_for
from gpuwatchd.alerts.policy_types import HOUR_S, RANK, Rules
from gpuwatchd.core.model import Alert, Value

if TYPE_CHECKING:
    from collections.abc import Iterable


class AlertHistory(Value, frozen=True, kw_only=True):
    """The last times that one key was open, as far as they still matter."""

    last: Alert
    """The last one that people were told of; without any, the last one."""
    ends_s: tuple[float, ...] = ()
    """When it was over, within the last hour."""


def remembered(past: AlertHistory | None, over: Alert, now_s: float) -> AlertHistory:
    """Return the past of a key after an alert of it is over, or an owed notice of it was told."""
    ends = () if past is None else past.ends_s
    at_s = over.resolved_at_s
    if at_s is not None and over.firing_at_s is not None and at_s not in ends:
        ends = (*ends, at_s)
    ends = tuple(end for end in ends if now_s - end < HOUR_S)
    last = over if past is None or over.notices > 0 or past.last.notices == 0 else past.last
    return AlertHistory(last=last, ends_s=ends)


def recalled(alerts: Iterable[Alert], now_s: float) -> dict[str, AlertHistory]:
    """Return key -> its past, from alerts that are over; those in the future end now."""
    pasts: dict[str, AlertHistory] = {}
    for over in sorted(alerts, key=lambda alert: alert.resolved_at_s or 0.0):
        pasts[over.key] = remembered(pasts.get(over.key), over, now_s)
    return pasts


def matters(past: AlertHistory, rules: Rules, now_s: float) -> bool:
    """Say whether a past can still change what people are told."""
    ends_s = max((past.last.resolved_at_s or 0.0, past.last.last_notice_at_s or 0.0))
    owes = past.last.next_notice_at_s is not None
    return owes or now_s - ends_s < max(HOUR_S, rules.cooldown_s, rules.group_interval_s)


def reopened(alert: Alert, past: AlertHistory | None, rules: Rules, now_s: float) -> Alert:
    """Return an alert that has just fired, with what people know of it from before.

    Where they still believe that it goes on (its end has not been told yet), or know that it comes
    and goes, it takes up where it was: the next they hear is a reminder. Otherwise it is news: at
    once after the cool-down, and within it when it is critical and they were last told less.
    """
    if past is None or alert.notices > 0:
        return alert
    last = past.last
    flaps = sum(1 for end in past.ends_s if now_s - end < HOUR_S)
    alert = msgspec.structs.replace(alert, flaps=flaps)
    if last.notices == 0 or last.last_notice_at_s is None:
        return alert
    told_s = min(last.last_notice_at_s, now_s)
    believed = last.next_notice_at_s is not None and not last.told_over
    if believed or (last.told_flapping and not last.told_over and flaps > 0):
        return msgspec.structs.replace(
            alert,
            notices=last.notices,
            last_notice_at_s=told_s,
            next_notice_at_s=ladder_s(
                last.notices - 1, rules_for(alert, rules).repeat_s, rules, told_s
            ),
            told_severity=last.told_severity or last.severity,
            told_on=last.told_on,
            told_flapping=last.told_flapping,
            first_message=last.first_message,
        )
    known = None if last.told_over else last.told_severity or last.severity
    again = msgspec.structs.replace(alert, last_notice_at_s=told_s, told_severity=known)
    return msgspec.structs.replace(again, next_notice_at_s=first_notice_s(again, rules))


def first_notice_s(alert: Alert, rules: Rules) -> float:
    """Return when the first notice of an alert that fires is due."""
    fired_s = alert.opened_at_s if alert.firing_at_s is None else alert.firing_at_s
    held_s = fired_s + rules.flap_hold_s
    if alert.last_notice_at_s is None or passes(alert):
        return held_s
    return max(held_s, alert.last_notice_at_s + rules.cooldown_s)


def passes(alert: Alert) -> bool:
    """Say whether an alert passes the cool-down: it is worse than what people were last told."""
    if alert.notices == 0:
        return alert.severity == "critical" and alert.told_severity != "critical"
    told = alert.told_severity
    return told is not None and RANK[alert.severity] > RANK[told]


def ladder_s(notices: int, steps_s: tuple[float, ...], rules: Rules, now_s: float) -> float | None:
    """Return when the reminder after a notice is due; None without reminders.

    ``steps_s``: pauses after the first, the second ... notice; the last one repeats.
    """
    if not steps_s:
        return None
    return now_s + max(steps_s[min(notices, len(steps_s) - 1)], rules.cooldown_s)
