"""``alerts``: what is open, what was, what was sent, and what was held back and why."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import alert_query, current_state, live_answers
from gpuwatchd.view.text import alert_details


@click.group(
    "alerts",
    invoke_without_command=True,
    epilog=options.examples("alerts", "alerts --all --since 2d --user alice", "alerts show 4711"),
)
@click.option(
    "--open/--all", "only_open", default=True, help="Open ones only (the default), or all."
)
@click.option(
    "--since", type=options.PAST, metavar="TIME", help="Not older than this (with --all: 7d)."
)
@click.option(
    "--severity",
    type=click.Choice(["info", "warning", "critical"]),
    help="This severity and above.",
)
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
    if flags.json:
        answered = live_answers.alerts(flags, every=not only_open, since_s=since, severity=severity)
        return output.emit_answered(answered, exit_code=exit_code)
    found, chosen = live_answers.chosen_alerts(
        flags, only_open=only_open, since_s=since, severity=severity
    )
    alert_details.table(output.Out(flags), chosen, found, only_open=only_open)
    return 3 if exit_code and current_state.shown(chosen) else 0


@command.command("show", epilog=options.examples("alerts show 4711", "alerts show latest --json"))
@click.argument("key", metavar="ID", shell_complete=options.complete_key)
def show(key: str) -> int:
    """Show when an alert was raised, why, what was held, and where it was delivered.

    ID is what `alerts` prints first, the key of an alert or a unique part of it, a pid
    (PID/host: of what the process holds on the host), or "latest".
    """
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.alert(flags, key))
    found = alert_query.gather(0.0, only_open=False)
    story = alert_details.load(flags, alert_query.pick(found.alerts, key), found)
    out = output.Out(flags)
    for _, sentence in found.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    alert_details.show(out, story)
    return 0
