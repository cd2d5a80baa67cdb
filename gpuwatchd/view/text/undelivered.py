"""Alerts that nobody has heard of: the banner of ``status``, and what is silent on purpose."""

from __future__ import annotations

import time
from itertools import zip_longest
from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.core.codes import ProblemCode
from gpuwatchd.view import blocks
from gpuwatchd.view.text import delivery_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_state import View

_NAMED = 3
MARK, ALARM = "! ", "red-bold"
"""Begins what must be seen, and its style."""


def banner(out: Page, view: View) -> None:
    """Write which alerts have reached nobody, why, and what to do; nothing when all is well."""
    if view.lost:
        _lost(out, view)
    if not view.untold:
        return
    now_s = time.time()
    alerts = [alert for alert in view.alerts if alert.key in view.untold]
    count = len(view.untold)
    what = "1 alert was" if count == 1 else f"{count} alerts were"
    named = ", ".join(alert.code for alert in alerts[:_NAMED])
    more = ", ..." if named and count > min(len(alerts), _NAMED) else ""
    who = f" ({named}{more})" if named else ""
    parts = blocks.sentence(f"{MARK}{what} not delivered{who}", ALARM)
    out.flow(parts, rest="  ", gap=" ")
    bad = delivery_text.failing(view.channels, now_s=now_s)
    for line in bad or ["no channel has delivered it so far"]:
        out.flow(blocks.sentence(line, "yellow"), first="  ", rest="    ", gap=" ")
    out.flow(
        [("to try it now:", ""), ("gpuwatchctl notify test", "cyan")],
        first="  ",
        rest="  ",
        gap=" ",
    )


def _lost(out: Page, view: View) -> None:
    """Write which alerts were over before anybody was told, and what became of them."""
    count, now_s = len(view.lost), time.time()
    what = "1 alert was" if count == 1 else f"{count} alerts were"
    head = f"{MARK}{what} resolved before a message was delivered"
    out.flow(blocks.sentence(head, ALARM), rest="  ", gap=" ")
    for alert in view.lost[-_NAMED:][::-1]:
        ended = text.clean(alert.ended) or "it is resolved"
        value = f"{text.clean(alert.title)} ({alert.code}): {ended};"
        at = units.clock(alert.ended_at_s, now_s=now_s)
        parts = [(at, ""), *blocks.sentence(value, "yellow")]
        parts.append((f"gpuwatchctl alerts show {alert.code}", "cyan"))
        out.flow(parts, first="  ", rest="    ", gap=" ")
    if count > _NAMED:
        more = [(f"and {count - _NAMED} more:", ""), ("gpuwatchctl alerts --all", "cyan")]
        out.flow(more, first="  ", rest="    ", gap=" ")
    if not view.untold:
        for line in delivery_text.failing(view.channels, now_s=now_s):
            out.flow(blocks.sentence(line, "yellow"), first="  ", rest="    ", gap=" ")


def other_problems(view: View) -> Sequence[str]:
    """Return what is missing or broken, without what the banner has said: that of channels."""
    daemon = view.daemon
    if not (view.untold or view.lost):
        return daemon.problems
    pairs = zip_longest(daemon.problems, daemon.problem_codes)
    return [problem for problem, code in pairs if problem and code is not ProblemCode.CHANNEL]


def silent(out: Page, view: View) -> None:
    """Write the silences in force in one line; nothing without one."""
    now_s = time.time()
    held = delivery_text.in_force(view.silences, now_s)
    if not held:
        return
    first = delivery_text.silence(held[0], now_s=now_s, alerts=view.alerts)
    more = f"; and {len(held) - 1} more: gpuwatchctl snooze list" if len(held) > 1 else ""
    out.flow(blocks.sentence(f"silent: {first}{more}", "dim"), rest="  ", gap=" ")


def delivery_marks(alert: Alert, view: View) -> list[Part]:
    """Return why nobody hears of an alert: it could not be told, is silent or no news."""
    found: list[Part] = []
    if alert.key in view.untold:
        found.append(("not delivered", "red-bold"))
    if alert.inhibited_by:
        other = next((one for one in view.alerts if one.key == alert.inhibited_by), None)
        beside = alert.inhibited_by if other is None else other.title or other.code
        found.append((f"inhibited by {beside}", "dim"))
    if view.silences:
        from gpuwatchd import alerts  # noqa: PLC0415 - only where something is silent

        now_s = time.time()
        silence = alerts.silenced(alert, delivery_text.in_force(view.silences, now_s), now_s)
        if silence is not None:
            found.append((delivery_text.silent(silence, now_s=now_s), "dim"))
    return found
