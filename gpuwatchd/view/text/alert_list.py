"""Alerts, one line each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuwatchd.core import units
from gpuwatchd.view import blocks
from gpuwatchd.view.text import alert_details, delivery_text, verdict_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.core.model import Alert
    from gpuwatchd.view.blocks import Page
    from gpuwatchd.view.queries.incidents import Incidents


_STYLE = {"critical": "red-bold", "warning": "yellow-bold", "info": ""}


def table(out: Page, alerts: Sequence[Alert], found: Incidents, *, only_open: bool) -> None:
    """Write alerts, one line each, and what is silent."""
    for _, sentence in found.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    now_s = time.time()
    for alert in alerts:
        out.flow(line(alert, found, now_s), rest=" " * 8)
        if out.verbose:
            out.flow([(alert.key, "dim")], first=" " * 8, rest=" " * 8)
    for silence in found.silences:
        text = delivery_text.silence(silence, now_s=now_s, alerts=found.alerts)
        out.flow(blocks.sentence(f"silent: {text}", "dim"), rest="  ", gap=" ")
    if not alerts:
        out.line(
            "no open alert; alerts --all lists the resolved ones"
            if only_open
            else "no alert in this period"
        )
    elif not out.quiet:
        out.flow([(f"gpuwatchctl alerts show {alerts[0].code} shows the first in full", "dim")])


def line(alert: Alert, found: Incidents, now_s: float) -> list[blocks.Part]:
    """Return one alert in a line: what it is, then what became of it."""
    ended = alert.resolved_at_s
    until = f" - {units.clock(ended, now_s=now_s)}" if ended is not None else ""
    rate = verdict_text.growth(alert.finding.rate_bytes_per_s)
    calm = verdict_text.calmed(alert, now_s=now_s)
    shape = f"{alert.finding.pattern}, {calm}" if calm else f"{rate} {alert.finding.pattern}"
    return [
        (alert.code, "cyan"),
        (f"{alert.state} {alert.severity}", _STYLE[alert.severity]),
        f"since {verdict_text.since(alert, now_s=now_s)}{until}",
        alert.title or alert.subject.id,
        shape if alert.kind == "leak" else alert.finding.reason,
        f"{alert.notices} notices" if alert.notices != 1 else "1 notice",
        ("not delivered yet", "red-bold") if alert.key in found.untold else "",
        *alert_details.suppression_reasons(alert, found, now_s),
        f"came and went {verdict_text.times(alert.flaps)}" if alert.flaps else "",
        (f"resolved: {alert.ended}", "dim") if alert.ended else "",
        verdict_text.user_label(found.user_label(alert)),
    ]
