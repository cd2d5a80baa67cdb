"""Findings + rules + past alerts -> decisions: when people are told, by what, and why not.

Pure: the state comes in as an :class:`~gpuwatchd.model.Alert` and goes out as a new one; the store
keeps it, so that a restart, a crash or a reboot changes nothing.
"""

from gpuwatchd.policy.hours import Until, quiet_until
from gpuwatchd.policy.inhibition import inhibitor
from gpuwatchd.policy.life import (
    FAST_S,
    SLOW_S,
    STOPPED,
    alert_hold_s,
    announce,
    clear_hold_s,
    ended,
    evaluate,
    inherited,
    notice_due,
    pause_s,
    watch_hold_s,
)
from gpuwatchd.policy.matching import fits, matches, rules_for
from gpuwatchd.policy.routing import may_grow, routes, silenced, told_as
from gpuwatchd.policy.rules import Effective, Local, Outcome, Override, Route, Rules

__all__ = [
    "FAST_S",
    "SLOW_S",
    "STOPPED",
    "Effective",
    "Local",
    "Outcome",
    "Override",
    "Route",
    "Rules",
    "Until",
    "alert_hold_s",
    "announce",
    "clear_hold_s",
    "ended",
    "evaluate",
    "fits",
    "inherited",
    "inhibitor",
    "matches",
    "may_grow",
    "notice_due",
    "pause_s",
    "quiet_until",
    "routes",
    "rules_for",
    "silenced",
    "told_as",
    "watch_hold_s",
]
