"""The morning after: one line for each job that ran out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.core import text, units
from gpuwatchd.core.design import FLAGS

if TYPE_CHECKING:
    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.blocks import Page, Part
    from gpuwatchd.view.queries.current_view import View

_NAMED = 3


def write(out: Page, view: View) -> None:
    """Write the deaths of the last day, newest first; nothing without one."""
    now_s = view.now_s
    for alert in view.deaths[:_NAMED]:
        out.flow(line(alert, now_s=now_s), rest="  ", gap=" ")
    if len(view.deaths) > _NAMED:
        more = f"and {len(view.deaths) - _NAMED} more that ran out of memory:"
        out.flow([(more, ""), ("gpuwatchctl alerts --all", "cyan")], first="  ", gap=" ")


def line(alert: Alert, *, now_s: float) -> list[Part]:
    """Return one death: when, who, after how long, what was lost, and what to type."""
    at = units.clock(alert.ended_at_s, now_s=now_s)
    who = alert.program or alert.title or alert.subject.id
    kind = "host memory" if alert.subject.host else "memory"
    fact = f"{who} ran out of {kind} after {units.duration(ran_s(alert))}"
    if amount := lost(alert):
        fact += f", {amount} lost"
    return [
        (f"{FLAGS['died'].mark} {at}", "red-bold"),
        *text.clean(f"{fact};", limit=400).split(" "),
        (f"explain {alert.code}", "cyan"),
    ]


def ran_s(alert: Alert) -> float:
    """Return for how long the process had run; where that is unknown, how long it had grown."""
    process, onset_s = alert.subject.process, alert.finding.onset_at_s
    begun_s = None if process is None else process.started_at_s
    if begun_s is None:
        begun_s = alert.opened_at_s if onset_s is None else onset_s
    return max(0.0, alert.ended_at_s - begun_s)


def lost(alert: Alert) -> str:
    """Return what its run has cost: money, else GPU-hours; "" where nothing is known."""
    cost = alert.cost
    if cost is None:
        return ""
    from gpuwatchd.analysis import cost as money  # noqa: PLC0415 - 4 ms, only after a death

    if cost.spent_usd is not None:
        return money.in_currency(cost.spent_usd, cost)
    return "" if cost.gpu_hours is None else f"{money.in_hours(cost.gpu_hours)} GPU-hours"
