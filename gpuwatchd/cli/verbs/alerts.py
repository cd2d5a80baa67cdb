"""``alerts``: what is open, what was, who was told, and what was held back and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import (
    alert_details,
    delivery_text,
    envelope,
    incidents,
    options,
    output,
    user_filter,
    verdict_text,
)
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.cli.incidents import Incidents
    from gpuwatchd.core.model import Alert

_RANK = {"info": 0, "warning": 1, "critical": 2}
_DAY_S = 86400.0
_STYLE = {"critical": "red-bold", "warning": "yellow-bold", "info": ""}


@click.group(
    "alerts",
    invoke_without_command=True,
    epilog=options.examples("alerts", "alerts --all --since 2d --user alice", "alerts show 4711"),
)
@click.option(
    "--open/--all", "only_open", default=True, help="Open ones only (the default), or all."
)
@click.option(
    "--since", type=options.Instant(), metavar="TIME", help="Not older than this (with --all: 7d)."
)
@click.option("--severity", type=click.Choice(list(_RANK)), help="This severity and above.")
@options.user_option
@options.exit_code_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    only_open: bool,
    since: float | None,
    severity: str | None,
    exit_code: bool,
) -> int:
    """List alerts; `alerts show ID` shows one in full."""
    if ctx.invoked_subcommand is not None:
        return 0
    flags = options.current()
    since_s = since
    if since_s is None:
        since_s = 0.0 if only_open else time.time() - 7 * _DAY_S
    found = incidents.gather(since_s, only_open=only_open)
    if flags.user:
        found.keep_of(user_filter.People(flags.user))
    chosen = [
        alert
        for alert in found.alerts
        if _RANK[alert.severity] >= _RANK[severity or "info"] and found.wanted(flags, alert)
    ]
    if flags.json:
        data = [alert_details.as_json(alert, found) for alert in chosen]
        envelope.emit("alerts", data, source=found.source, warnings=found.warnings)
    else:
        _table(flags, chosen, found, only_open=only_open)
    return 3 if exit_code and any(a.state in {"watch", "firing"} for a in chosen) else 0


def _table(flags: Globals, alerts: Sequence[Alert], found: Incidents, *, only_open: bool) -> None:
    out = output.Out(flags)
    for _, sentence in found.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    now_s = time.time()
    for alert in alerts:
        out.flow(line(alert, found, now_s), rest=" " * 8)
        if flags.verbose:
            out.flow([(alert.key, "dim")], first=" " * 8, rest=" " * 8)
    for silence in found.silences:
        text = delivery_text.silence(silence, now_s=now_s, alerts=found.alerts)
        out.flow(output.sentence(f"silent: {text}", "dim"), rest="  ", gap=" ")
    if not alerts:
        out.line(
            "no open alert; alerts --all lists the resolved ones"
            if only_open
            else "no alert in this period"
        )
    elif not flags.quiet:
        out.flow([(f"gpuwatchctl alerts show {alerts[0].code} shows the first in full", "dim")])


def line(alert: Alert, found: Incidents, now_s: float) -> list[output.Part]:
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


@command.command("show", epilog=options.examples("alerts show 4711", "alerts show latest --json"))
@click.argument("key", metavar="ID", shell_complete=options.complete_key)
def show(key: str) -> int:
    """Show when an alert was raised, why, what was held, and where it was delivered.

    ID is what `alerts` prints first, the key of an alert or a unique part of it, a pid
    (PID/host: of what the process holds on the host), or "latest".
    """
    flags = options.current()
    found = incidents.gather(0.0, only_open=False)
    alert = incidents.pick(found.alerts, key)
    story = alert_details.load(flags, alert, found)
    if flags.json:
        data = alert_details.as_json(story.alert, found, story)
        envelope.emit("alerts", data, source=found.source, warnings=found.warnings)
        return 0
    out = output.Out(flags)
    for _, sentence in found.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    alert_details.show(out, story)
    return 0
