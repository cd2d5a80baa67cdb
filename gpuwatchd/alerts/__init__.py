"""Findings + rules + past alerts -> decisions: when a notice is sent, by what, and why not.

Pure: the state comes in as an :class:`~gpuwatchd.core.model.Alert` and goes out as a new one; the
store keeps it, so that a restart, a crash or a reboot changes nothing.
"""

from gpuwatchd.alerts.grouping import (
    Notice,
    Notifications,
    SendingContext,
    due_notices,
    group_of,
    notice_due,
    regrouped,
)
from gpuwatchd.alerts.lifecycle import (
    FAST_S,
    SLOW_S,
    AlertHistory,
    clear_hold_s,
    ended,
    evaluate,
    evidence_s,
    grade,
    inherited,
    matters,
    mean_confidence,
    pause_s,
    recalled,
    recent_deaths,
    remembered,
    reopened,
    watch_hold_s,
)
from gpuwatchd.alerts.policy_types import Outcome, Override, Route, Rules
from gpuwatchd.alerts.routing import (
    Until,
    capped_severity,
    fits,
    is_about,
    matches,
    may_grow,
    quiet_until,
    routes,
    rules_for,
    silenced,
)
