"""The detectors' clock: epoch seconds that no step of the wall clock bends.

A sample's time is monotonic, moved by what lies between the monotonic and the wall clock. When
that changes (the wall clock was set, the machine slept), everything remembered is moved with it:
points keep their distances, and times stay those that people read on their clocks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuwatchd import alerts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuwatchd.core.model import Alert, Finding, Holder

STEP_S = 2.0
"""A smaller difference is the jitter of two clocks that are read one after the other."""
_ALERT_TIMES = (
    *("opened_at_s", "changed_at_s", "watch_at_s", "firing_at_s", "resolved_at_s"),
    *("held_since_s", "alert_since_s", "clear_since_s", "last_notice_at_s", "next_notice_at_s"),
    *("milder_since_s", "critical_at_s"),
)


class Clocks(NamedTuple):
    """The clocks of whatever has no sample to take its time from."""

    wall: Callable[[], float] = time.time
    mono: Callable[[], float] = time.monotonic


def moved_finding(finding: Finding, by_s: float) -> Finding:
    """Return a judgement with its times on a clock that was stepped."""
    return msgspec.structs.replace(
        finding,
        judged_at_s=finding.judged_at_s + by_s,
        onset_at_s=None if finding.onset_at_s is None else finding.onset_at_s + by_s,
        signals=tuple(
            msgspec.structs.replace(signal, since_s=signal.since_s + by_s)
            for signal in finding.signals
        ),
        holder=finding.holder and moved_holder(finding.holder, by_s),
    )


def moved_holder(holder: Holder, by_s: float) -> Holder:
    """Return a variable that was found at a time of a clock that was stepped."""
    return msgspec.structs.replace(holder, at_s=holder.at_s + by_s)


def moved_alert(alert: Alert, by_s: float) -> Alert:
    """Return an alert with its times on a clock that was stepped."""
    times = {
        name: value + by_s for name in _ALERT_TIMES if (value := getattr(alert, name)) is not None
    }
    return msgspec.structs.replace(alert, finding=moved_finding(alert.finding, by_s), **times)


def moved_resolved(alert: Alert, by_s: float) -> Alert:
    """Move an alert in time that is over; its row is known by when it opened."""
    return msgspec.structs.replace(moved_alert(alert, by_s), opened_at_s=alert.opened_at_s)


def resumed(alert: Alert, rules: alerts.Rules, now_s: float) -> Alert:
    """Return a stored alert fit for a clock that may have been set back since it was stored.

    What lies in the future counts as now, and no reminder is further away than the longest pause.
    The row of one that is over is known by when it opened, whatever that was.
    """
    kept = {"next_notice_at_s", *(("opened_at_s",) if alert.state == "resolved" else ())}
    times = {
        name: now_s
        for name in _ALERT_TIMES
        if name not in kept and (value := getattr(alert, name)) is not None and value > now_s
    }
    latest_s = now_s + max((*rules.repeat_s, rules.cooldown_s, rules.flap_hold_s))
    if alert.next_notice_at_s is not None and alert.next_notice_at_s > latest_s:
        times["next_notice_at_s"] = latest_s
    ahead_s = alert.finding.judged_at_s - now_s
    if ahead_s > 0.0:
        finding = moved_finding(alert.finding, -ahead_s)
        alert = msgspec.structs.replace(alert, finding=finding)
    return msgspec.structs.replace(alert, **times) if times else alert


def carried_over(alert: Alert, finding: Finding, now_s: float) -> Alert:
    """Return the alert of an earlier run, at the first judgement of its subject in this one.

    After a pause its evidence counts for the growth that began before the pause, not for another.
    """
    last_s, onset_s = alert.finding.judged_at_s, finding.onset_at_s
    same = onset_s is not None and onset_s <= last_s
    if same or now_s - last_s <= 2.0 * alerts.SLOW_S or alert.state == "firing":
        return alert
    return msgspec.structs.replace(
        alert,
        confirmations=0,
        held_since_s=None,
        alert_confirmations=0,
        alert_since_s=None,
        evidence=None,
    )
