r"""The life of an alert: it opens, fires, gets worse or milder, and is over.

::

    pending -> watch -> firing -> resolved
          \------------/   \-> resolved

A finding opens as a *watch* (shown, not sent) when several evaluations in a row support it, and
*fires* when the evidence of an alert, averaged over a time that is weighed against the time that is
left, is enough: with 20 h to out-of-memory an hour of certainty is free, with 20 min it is not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from gpuwatchd.alerts import wording
from gpuwatchd.alerts.policy_types import HOUR_S, RANK, Outcome, Rules
from gpuwatchd.alerts.routing import rules_for
from gpuwatchd.core.codes import DIED, Ending, FactName
from gpuwatchd.core.model import Alert, Finding, Value
from gpuwatchd.core.model.alerts import SAID_FOR_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.core.codes import Facts
    from gpuwatchd.core.model import Severity


class AlertHistory(Value, frozen=True, kw_only=True):
    """The resolved alerts of one key, as far as they still matter."""

    last: Alert
    """The last one that people were told of; without any, the last one."""
    ends_s: tuple[float, ...] = ()
    """When they ended, within the last hour."""


def remembered(past: AlertHistory | None, over: Alert, now_s: float) -> AlertHistory:
    """Return the history of a key after its alert has ended, or the notice of that was sent."""
    ends = () if past is None else past.ends_s
    at_s = over.resolved_at_s
    if at_s is not None and over.firing_at_s is not None and at_s not in ends:
        ends = (*ends, at_s)
    ends = tuple(end for end in ends if now_s - end < HOUR_S)
    last = over if past is None or over.notices > 0 or past.last.notices == 0 else past.last
    return AlertHistory(last=last, ends_s=ends)


def recalled(alerts: Iterable[Alert], now_s: float) -> dict[str, AlertHistory]:
    """Return key -> its history, from resolved alerts; those in the future end now."""
    pasts: dict[str, AlertHistory] = {}
    for over in sorted(alerts, key=lambda alert: alert.resolved_at_s or 0.0):
        pasts[over.key] = remembered(pasts.get(over.key), over, now_s)
    return pasts


def matters(past: AlertHistory, rules: Rules, now_s: float) -> bool:
    """Say whether a history can still change when a notice of its key is sent."""
    ends_s = max((past.last.resolved_at_s or 0.0, past.last.last_notice_at_s or 0.0))
    owes = past.last.next_notice_at_s is not None
    return owes or now_s - ends_s < max(HOUR_S, rules.cooldown_s, rules.group_interval_s)


def reopened(alert: Alert, past: AlertHistory | None, rules: Rules, now_s: float) -> Alert:
    """Return an alert that has just fired, with the notices that were sent before it was resolved.

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
            next_notice_at_s=reminder_at_s(
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
    if alert.last_notice_at_s is None or passes_cooldown(alert):
        return held_s
    return max(held_s, alert.last_notice_at_s + rules.cooldown_s)


def passes_cooldown(alert: Alert) -> bool:
    """Say whether an alert passes the cool-down: it is worse than what people were last told."""
    if alert.notices == 0:
        return alert.severity == "critical" and alert.told_severity != "critical"
    told = alert.told_severity
    return told is not None and RANK[alert.severity] > RANK[told]


def reminder_at_s(
    notices: int, steps_s: tuple[float, ...], rules: Rules, now_s: float
) -> float | None:
    """Return when the reminder after a notice is due; None without reminders.

    ``steps_s``: pauses after the first, the second ... notice; the last one repeats.
    """
    if not steps_s:
        return None
    return now_s + max(steps_s[min(notices, len(steps_s) - 1)], rules.cooldown_s)


SURE = 0.9
"""From this confidence on the short end of the time that is left counts, too."""
MILDER_HOLD_S = 600.0
"""What is less urgent again is shown as such after this time without a break."""
_CRITICAL_S, _SOONEST_S = HOUR_S, HOUR_S / 2
_RELIEF = 2.0
"""Something critical is so until the time that is left is this much longer than it took."""


def grade(finding: Finding, before: Severity | None = None) -> Severity:
    """Return how severe an alert on a finding is.

    Critical: full within an hour, or perhaps within half an hour where that is sure. Without a
    time that is left nothing is critical, however much has grown.

    ``before``: what it was until now: a time around a bound must not turn it to and fro.
    """
    if finding.tier != "alert":
        return "info" if finding.severity == "info" else "warning"
    if finding.eta is not None:
        ease = _RELIEF if before == "critical" else 1.0
        soon = finding.eta.mid_s < ease * _CRITICAL_S
        sure = before == "critical" or finding.confidence >= SURE
        if soon or (sure and finding.eta.low_s < ease * _SOONEST_S):
            return "critical"
    slight = finding.severity == "info" and (before is None or RANK[before] == 0)
    return "info" if slight else "warning"


_URGENT_S = 7200.0
_LONGEST_PAUSE_S = 300.0
LEAST_HOLD_S = 40.0
"""The evidence of an alert lasts at least so long, however strong it is."""
_CLEAR_ODDS = 0.5
"""Log odds above the level of an alert from which growth is not waited for as long."""
_FIRST_EVIDENCE = -0.3
"""Log odds that the mean begins with: those of a watch."""

SLOW_S = 60.0
"""Time between two judgements of one subject while nothing is urgent."""
FAST_S = 10.0
"""The same while memory may run out within two hours, or something has just begun to grow."""


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def watch_hold_s(finding: Finding) -> float:
    """Return how long the evidence must last before a watch opens."""
    left = finding.eta.mid_s if finding.eta is not None else HOUR_S
    return _clip(0.02 * left, 20.0, 180.0)


_LOADS_BYTES_PER_S = 5e9 / 60.0
"""What grows faster is being loaded, as far as is known."""


def is_loading(finding: Finding) -> bool:
    """Say whether growth looks like a load or a warm-up: nobody is shown a watch on that."""
    fast = (finding.rate_bytes_per_s or 0.0) > _LOADS_BYTES_PER_S
    return fast or any(fact.name is FactName.WARM_UP for fact in finding.facts or ())


def evidence_s(finding: Finding) -> float:
    """Return over how long the evidence of an alert is averaged, the time constant of the mean.

    A twentieth of the time that is left, between five minutes (a quarter of what is left, where
    that is less) and twenty: certainty is bought with time where there is some. From two fifths of
    the time to full on it is a minute at least: then it is running out.
    """
    left = finding.eta.mid_s if finding.eta is not None else 2 * HOUR_S
    onset_at_s = finding.onset_at_s
    gone_s = 0.0 if onset_at_s is None else finding.judged_at_s - onset_at_s
    least = 60.0 if left < 1.5 * gone_s else _clip(0.25 * left, 60.0, 300.0)
    # Beyond what earlier runs of the program did there is no harmless ramp to wait for.
    most = 300.0 if any(fact.beyond for fact in finding.facts or ()) else 1200.0
    return _clip(0.05 * left, least, most)


def _log_odds(confidence: float) -> float:
    """Return the logarithm of the odds of a confidence (0-1), at most 7 away from 0."""
    share = _clip(confidence, 0.001, 0.999)
    return math.log(share / (1.0 - share))


def pause_s(finding: Finding, alert: Alert | None, *, young: bool, calm_looks: int) -> float:
    """Return how long to wait before the same subject is judged again.

    A ``young`` subject has too few samples for a full judgement yet. ``calm_looks`` is how many
    judgements in a row found it calm (sawtooth, plateau ...): whoever asks must look sooner when
    such a subject rises above everything seen so far.
    """
    left = finding.eta.mid_s if finding.eta is not None and finding.tier != "none" else None
    forming = alert is not None and alert.state == "pending"
    if alert is not None and alert.state == "firing" and left is not None:
        # It has been told; what can still change is how soon.
        return _clip(left / 120.0, FAST_S, _LONGEST_PAUSE_S)
    if young or forming or (left is not None and left < _URGENT_S):
        return FAST_S
    if alert is None and finding.tier == "none":
        return min(SLOW_S * (1 + calm_looks // 15), _LONGEST_PAUSE_S)
    watched = alert is not None and alert.state == "watch"
    if watched and left is None and finding.onset_at_s is not None:
        # No forecast yet: what began a few minutes ago may be full in ten.
        return _clip((finding.judged_at_s - finding.onset_at_s) / 60.0, FAST_S, SLOW_S)
    return SLOW_S


def clear_hold_s(alert: Alert) -> float:
    """Return how long the evidence must be absent before an alert is resolved.

    In proportion to the age of the growth: a staircase that rises every ten minutes has not
    recovered because it stood still for three.
    """
    onset = alert.finding.onset_at_s
    age = alert.finding.judged_at_s - onset if onset is not None else 0.0
    if alert.state == "firing":
        return _clip(0.25 * age, 300.0, 3600.0)
    return _clip(0.1 * age, 60.0, 900.0)


def evaluate(
    finding: Finding,
    alert: Alert | None,
    rules: Rules,
    *,
    now_s: float,
    title: str,
) -> Outcome:
    """Return the alert after one evaluation of its subject."""
    if finding.tier == "none":
        return _without_evidence(finding, alert, rules, now_s)
    if alert is None:
        alert = _opened(finding, now_s, title)
    grown = msgspec.structs.replace(
        alert,
        finding=finding,
        # Nobody was told of a watch: what it is worth now counts, up or down.
        severity=alert.severity if alert.state == "firing" else grade(finding),
        confirmations=alert.confirmations + 1,
        held_since_s=now_s if alert.held_since_s is None else alert.held_since_s,
        clears=0,
        clear_since_s=None,
        **_alert_evidence(finding, alert, rules),
    )
    outcome = _promote(grown, rules, now_s)
    alert = outcome.alert
    if alert is None or alert.finding.severity == alert.severity:
        return outcome
    # Whoever shows the judgement of an alert must not say another severity than the alert has.
    judged = msgspec.structs.replace(finding, severity=alert.severity)
    alert = msgspec.structs.replace(alert, finding=judged)
    return msgspec.structs.replace(outcome, alert=alert)


def mean_confidence(alert: Alert) -> float:
    """Return the confidence (0-1) that the mean evidence of an alert comes to; 0 without any."""
    return 0.0 if alert.evidence is None else 1.0 / (1.0 + math.exp(-alert.evidence))


def _alert_evidence(finding: Finding, alert: Alert, rules: Rules) -> dict[str, Any]:
    """Return the mean evidence of an alert, as log odds, and how often it was supported.

    An exponential mean, as in a cumulative sum test: one lucky moment does not make an alert, and
    one weak look between two segments of the allocator does not undo what was seen before. What
    does not support an alert, however sure, never lifts the mean above its level. After a pause
    one look counts for the time constant at most. What is clearly above the level is averaged over
    less time: .015 of what is left, 45 s to four minutes.
    """
    supported = finding.tier == "alert"
    value, level = _log_odds(finding.confidence), _log_odds(rules.alert_confidence)
    before = _FIRST_EVIDENCE if alert.evidence is None else alert.evidence
    passed_s = max(finding.judged_at_s - alert.finding.judged_at_s, 0.0)
    over_s = evidence_s(finding)
    if supported and value >= level + _CLEAR_ODDS:
        left = finding.eta.mid_s if finding.eta is not None else 2 * HOUR_S
        over_s = min(over_s, _clip(0.015 * left, 45.0, 240.0))
    share = -math.expm1(-min(passed_s, max(over_s, SLOW_S)) / over_s)
    mean = before + share * ((value if supported else min(value, level)) - before)
    since_s, count = alert.alert_since_s, alert.alert_confirmations
    if supported:
        since_s = finding.judged_at_s if since_s is None else since_s
    elif since_s is not None:
        # A weak look does not count, and takes one confirmation back.
        since_s = since_s + passed_s if count > 1 else None
    return {
        "evidence": mean,
        "alert_since_s": since_s,
        "alert_confirmations": count + 1 if supported else max(count - 1, 0),
    }


def _opened(finding: Finding, now_s: float, title: str) -> Alert:
    return Alert(
        key=f"leak:{finding.subject.id}",
        kind="leak",
        subject=finding.subject,
        state="pending",
        severity=grade(finding),
        finding=finding,
        opened_at_s=now_s,
        changed_at_s=now_s,
        title=title,
    )


def _promote(alert: Alert, rules: Rules, now_s: float) -> Outcome:
    finding = alert.finding
    held = now_s - (alert.held_since_s if alert.held_since_s is not None else now_s)
    if (
        alert.state != "firing"
        and finding.tier == "alert"
        and alert.alert_confirmations >= rules.confirm
        and now_s - (now_s if alert.alert_since_s is None else alert.alert_since_s) >= LEAST_HOLD_S
        and mean_confidence(alert) >= rules.alert_confidence
    ):
        fired = msgspec.structs.replace(
            alert,
            state="firing",
            severity=grade(finding),
            watch_at_s=now_s if alert.watch_at_s is None else alert.watch_at_s,
            firing_at_s=now_s,
            changed_at_s=now_s,
        )
        first_s = first_notice_s(fired, rules)
        if fired.severity == "critical":
            fired = msgspec.structs.replace(fired, critical_at_s=now_s)
        fired = msgspec.structs.replace(fired, next_notice_at_s=first_s)
        return Outcome(alert=fired, changed=True)
    if (
        alert.state == "pending"
        and alert.confirmations >= rules.confirm
        and held >= watch_hold_s(finding)
        and not is_loading(finding)
    ):
        watched = msgspec.structs.replace(
            alert, state="watch", severity=grade(finding), watch_at_s=now_s, changed_at_s=now_s
        )
        return Outcome(alert=watched, changed=True)
    return _regraded(alert, rules, now_s) if alert.state == "firing" else _same(alert)


def _same(alert: Alert) -> Outcome:
    return Outcome(alert=alert, changed=False)


def _regraded(alert: Alert, rules: Rules, now_s: float) -> Outcome:
    """Return a firing alert with the severity that its newest evidence has held.

    Worse counts at once, and is news; milder only when it has lasted, and is shown in silence.
    """
    worth, is_now = grade(alert.finding, alert.severity), RANK[alert.severity]
    if worth == "info" and is_now > 0:
        worth = "warning"  # What has been an alert for people stays one until it is over.
    if RANK[worth] == is_now:
        calm = alert.milder_since_s is None
        return _same(alert if calm else msgspec.structs.replace(alert, milder_since_s=None))
    if RANK[worth] < is_now:
        since_s = now_s if alert.milder_since_s is None else alert.milder_since_s
        if now_s - since_s < MILDER_HOLD_S:
            return _same(msgspec.structs.replace(alert, milder_since_s=since_s))
    told = alert.told_severity
    if told is None and alert.notices > 0:
        told = alert.severity
    graded = msgspec.structs.replace(
        alert, severity=worth, told_severity=told, changed_at_s=now_s, milder_since_s=None
    )
    if worth == "critical":
        graded = msgspec.structs.replace(graded, critical_at_s=now_s)
    next_s = _replanned_s(graded, rules, worse=RANK[worth] > is_now)
    return Outcome(alert=msgspec.structs.replace(graded, next_notice_at_s=next_s), changed=True)


def _replanned_s(alert: Alert, rules: Rules, *, worse: bool) -> float | None:
    """Return when the next notice of an alert is due whose severity has just changed.

    What is worse than people know passes every pause (see :func:`passes_cooldown`). What is as bad
    again as they know it, after it was milder, is sent when the first reminder would be: on a long
    ladder that would take hours.
    """
    planned_s, last_s = alert.next_notice_at_s, alert.last_notice_at_s
    if alert.notices == 0:
        return first_notice_s(alert, rules) if worse else planned_s
    steps_s = rules_for(alert, rules).repeat_s
    if last_s is None or not steps_s:
        return planned_s
    usual_s = reminder_at_s(alert.notices - 1, steps_s, rules, last_s)
    if not worse:
        return usual_s
    soon_s = reminder_at_s(0, steps_s, rules, last_s)
    return min(one for one in (usual_s, soon_s) if one is not None)


def _without_evidence(finding: Finding, alert: Alert | None, rules: Rules, now_s: float) -> Outcome:
    if alert is None or alert.state == "pending":
        return Outcome(alert=None, changed=False)
    if finding.pattern == "unknown":
        # Missing data is not health: an alert is never resolved by silence.
        return Outcome(alert=alert, changed=False)
    since = now_s if alert.clear_since_s is None else alert.clear_since_s
    cleared = msgspec.structs.replace(
        alert,
        clears=alert.clears + 1,
        clear_since_s=since,
        confirmations=0,
        held_since_s=None,
        alert_confirmations=0,
        alert_since_s=None,
        evidence=None,
    )
    if cleared.clears < rules.clear_after or now_s - since < clear_hold_s(alert):
        return Outcome(alert=cleared, changed=False)
    return Outcome(
        alert=_resolve(cleared, wording.ending(Ending.STOPPED_GROWING), rules, now_s), changed=True
    )


def ended(
    alert: Alert,
    code: Ending,
    rules: Rules,
    *,
    now_s: float,
    quietly: bool = False,
    facts: Facts | None = None,
) -> Outcome:
    """Return the alert after its subject has gone (the process ended, the memory came back).

    ``quietly``: no notice is sent, another alert goes on in its place.
    """
    if alert.state == "pending":
        return Outcome(alert=None, changed=False)
    over = _resolve(alert, wording.ending(code, **(facts or {})), rules, now_s)
    if code in DIED:
        over = msgspec.structs.replace(over, severity="critical")
    if quietly:
        over = msgspec.structs.replace(over, next_notice_at_s=None)
    return Outcome(alert=over, changed=True)


def inherited(alert: Alert, before: Alert) -> Alert:
    """Return an alert that has just fired, in the place of one on the same growth.

    What people were told about the other they need not be told again: the next notice is the
    reminder that the other would have sent, unless it is worse.
    """
    if before.notices <= alert.notices:
        return alert
    return msgspec.structs.replace(
        alert,
        notices=before.notices,
        last_notice_at_s=before.last_notice_at_s,
        next_notice_at_s=before.next_notice_at_s,
        told_severity=before.told_severity or before.severity,
        told_on=before.told_on,
        told_flapping=before.told_flapping,
        first_message=before.first_message,
        flaps=max(alert.flaps, before.flaps),
    )


def _resolve(alert: Alert, why: dict[str, Any], rules: Rules, now_s: float) -> Alert:
    notified = rules.recovered and alert.notices > 0
    # Of one that comes and goes people hear when it has been calm for an hour.
    notify_at_s = now_s + HOUR_S if alert.told_flapping else now_s
    return msgspec.structs.replace(
        alert,
        state="resolved",
        resolved_at_s=now_s,
        changed_at_s=now_s,
        **why,
        next_notice_at_s=notify_at_s if notified else None,
        inhibited_by="",
        # Of what nobody was told it stays known why.
        **(wording.NOT_HELD if alert.notices > 0 else {}),
    )


_MOST_DEATHS = 16
"""A job that dies again and again must not fill the live state."""


def recent_deaths(alerts: Iterable[Alert], now_s: float) -> tuple[Alert, ...]:
    """Return those of the last day whose process ran out of memory, newest first."""
    fresh = [alert for alert in alerts if alert.died and now_s - alert.ended_at_s < SAID_FOR_S]
    of_processes = [alert for alert in fresh if alert.subject.process is not None]
    newest = sorted(fresh, key=lambda alert: alert.ended_at_s, reverse=True)
    # The death of a process says all of an alert on its device as a whole.
    return tuple(
        alert
        for alert in newest
        if alert.subject.process is not None
        or not any(
            other.subject.device_uid == alert.subject.device_uid
            and alert.opened_at_s <= other.ended_at_s <= alert.ended_at_s
            for other in of_processes
        )
    )[:_MOST_DEATHS]
