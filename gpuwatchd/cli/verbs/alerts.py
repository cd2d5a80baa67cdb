"""``alerts``: what is open, what was, who was told, and what was held back and why."""

from __future__ import annotations

import time

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import incidents, user_filter
from gpuwatchd.view.text import alert_details, alert_list

_RANK = {"info": 0, "warning": 1, "critical": 2}
_DAY_S = 86400.0


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
        output.emit("alerts", data, source=found.source, warnings=found.warnings)
    else:
        alert_list.table(output.Out(flags), chosen, found, only_open=only_open)
    return 3 if exit_code and any(a.state in {"watch", "firing"} for a in chosen) else 0


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
        output.emit("alerts", data, source=found.source, warnings=found.warnings)
        return 0
    out = output.Out(flags)
    for _, sentence in found.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    alert_details.show(out, story)
    return 0
