"""``alerts``: what is open, what was, who was told, and what was held back and why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd import text, units
from gpuwatchd.ctl import envelope, incidents, options, output, words
from gpuwatchd.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.ctl.incidents import Found
    from gpuwatchd.model import Alert, Delivery
    from gpuwatchd.store.words import Word

_RANK = {"info": 0, "warning": 1, "critical": 2}
_DAY_S = 86400.0
_STYLE = {"critical": "red-bold", "warning": "yellow-bold", "info": ""}


@click.group(
    "alerts",
    invoke_without_command=True,
    epilog=options.examples("alerts", "alerts --all --since 2d"),
)
@click.option(
    "--open/--all", "only_open", default=True, help="Open ones only (the default), or all."
)
@click.option(
    "--since", type=options.Instant(), metavar="TIME", help="Not older than this (with --all: 7d)."
)
@click.option("--severity", type=click.Choice(list(_RANK)), help="This severity and above.")
@options.exit_code_option
@click.pass_context
def command(
    ctx: click.Context,
    only_open: bool,  # noqa: FBT001
    since: float | None,
    severity: str | None,
    exit_code: bool,  # noqa: FBT001
) -> int:
    """List alerts; `alerts show KEY` tells everything about one."""
    if ctx.invoked_subcommand is not None:
        return 0
    flags = options.current()
    since_s = since
    if since_s is None:
        since_s = 0.0 if only_open else time.time() - 7 * _DAY_S
    found = incidents.gather(since_s, only_open=only_open)
    chosen = [
        alert
        for alert in found.alerts
        if _RANK[alert.severity] >= _RANK[severity or "info"] and found.wanted(flags, alert)
    ]
    if flags.json:
        data = [alert_json(alert, None, found.said(alert)) for alert in chosen]
        output.emit_json(
            envelope.answer("alerts", data, source=found.source, warnings=found.warnings)
        )
    else:
        _table(flags, chosen, found, only_open=only_open)
    return 3 if exit_code and any(a.state in {"watch", "firing"} for a in chosen) else 0


def _table(
    flags: Globals,
    alerts: Sequence[Alert],
    found: Found,
    *,
    only_open: bool,
) -> None:
    out = output.Out(flags)
    for _, sentence in found.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    if not alerts:
        out.line(
            "no open alert; alerts --all lists those that are over"
            if only_open
            else "no alert in this period"
        )
        return
    now_s = time.time()
    for alert in alerts:
        ended = alert.resolved_at_s
        until = f" - {units.clock(ended, now_s=now_s)}" if ended is not None else ""
        rate = words.growth(alert.finding.rate_bytes_per_s)
        calm = words.calmed(alert, now_s=now_s)
        out.flow(
            [
                (f"{alert.state} {alert.severity}", _STYLE[alert.severity]),
                f"since {words.since(alert, now_s=now_s)}{until}",
                alert.title or alert.subject.id,
                f"{alert.finding.pattern}, {calm}" if calm else f"{rate} {alert.finding.pattern}",
                f"{alert.notices} notices" if alert.notices != 1 else "1 notice",
                (f"held back: {alert.held_back}", "yellow") if alert.held_back else "",
                (f"ended: {alert.ended}", "dim") if alert.ended else "",
                words.said(found.said(alert)),
            ],
            rest="  ",
        )
        out.flow([(alert.key, "dim")], first="  ", rest="  ")


def alert_json(
    alert: Alert, deliveries: Sequence[Delivery] | None, word: Word | None
) -> dict[str, Any]:
    """Return one alert; ``deliveries`` is None where they were not asked for."""
    process = alert.subject.process
    return {
        "key": text.clean(alert.key),
        "kind": alert.kind,
        "state": alert.state,
        "severity": alert.severity,
        "title": text.clean(alert.title),
        "device_uid": text.clean(alert.subject.device_uid),
        "process": None
        if process is None
        else {"pid": process.pid, "started_at": units.instant(process.started_at_s)},
        "unattributed": alert.subject.unattributed,
        "on_host": alert.subject.host,
        "opened_at": units.instant(alert.opened_at_s),
        "watch_at": units.instant(alert.watch_at_s),
        "firing_at": units.instant(alert.firing_at_s),
        "resolved_at": units.instant(alert.resolved_at_s),
        "changed_at": units.instant(alert.changed_at_s),
        "notices": alert.notices,
        "next_notice_at": units.instant(alert.next_notice_at_s),
        "held_back": text.clean(alert.held_back) or None,
        "ended": text.clean(alert.ended) or None,
        "feedback": None if word is None else envelope.word_json(word),
        "verdict": envelope.verdict_json(alert.finding),
        "deliveries": None if deliveries is None else [_delivery_json(d) for d in deliveries],
    }


def _delivery_json(delivery: Delivery) -> dict[str, Any]:
    return {
        "channel": delivery.channel,
        "notice": delivery.message.notice,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "created_at": units.instant(delivery.created_at_s),
        "sent_at": units.instant(delivery.sent_at_s),
        "next_try_at": units.instant(delivery.next_try_at_s),
        "error": text.clean(delivery.error) if delivery.error else None,
        "dry_run": delivery.dry_run,
    }


@command.command("show", epilog=options.examples("alerts show 4711", "alerts show KEY --json"))
@click.argument("key", shell_complete=options.complete_key)
def show(key: str) -> int:
    """Tell when an alert was raised, why, what was held back, and where it was delivered.

    KEY is the key of an alert, a part of it that fits only one, or a pid (PID/host: of what the
    process holds on the host).
    """
    flags = options.current()
    found = incidents.gather(0.0, only_open=False)
    alert = incidents.pick(found.alerts, key)
    deliveries: list[Delivery] | None = None
    try:
        from gpuwatchd.ctl import past  # noqa: PLC0415

        with past.reader() as history:
            deliveries = list(history.deliveries(alert.key))
    except StoreError:
        pass  # already said by gather
    if flags.json:
        data = alert_json(alert, deliveries, found.said(alert))
        output.emit_json(
            envelope.answer("alerts", data, source=found.source, warnings=found.warnings)
        )
    else:
        out = output.Out(flags)
        for _, sentence in found.warnings:
            out.flow([(f"! {sentence}", "yellow")])
        _tell(out, alert, deliveries, words.said(found.said(alert)))
    return 0


def _tell(out: output.Out, alert: Alert, deliveries: Sequence[Delivery] | None, said: str) -> None:
    finding = alert.finding
    out.line((alert.title or alert.key, "bold"))
    now_s = time.time()
    steps = (
        ("noticed", alert.opened_at_s),
        ("watched", alert.watch_at_s),
        ("raised", alert.firing_at_s),
        ("resolved", alert.resolved_at_s),
    )
    facts = [("key", alert.key), ("state", f"{alert.state}, {alert.severity}")]
    if finding.onset_at_s is not None:
        facts.append(("since", words.since(alert, now_s=now_s)))
    facts += [(name, units.clock(at, now_s=now_s)) for name, at in steps if at is not None]
    calm = words.calmed(alert, now_s=now_s)
    facts += [
        ("judgement", words.verdict(finding)[0]),
        ("growth", calm or words.growth(finding.rate_bytes_per_s)),
        ("full in", "" if calm else words.eta(finding.eta) or "?"),
        ("because", finding.reason or "?"),
        ("ended", alert.ended),
        ("feedback", said),
        ("held back", alert.held_back or _why_quiet(alert)),
    ]
    for label, value in facts:
        if value:
            out.flow(value.split(" "), first=f"  {label:<11}", rest=" " * 13, gap=" ")
    _deliveries(out, deliveries)


def _why_quiet(alert: Alert) -> str:
    """Return why nothing was sent although something was seen; "" when something was."""
    if alert.notices or alert.state == "resolved":
        return "" if alert.notices else "it was over before a notice was due"
    if alert.state in {"pending", "watch"}:
        return "the evidence is not strong enough for an alert yet; a watch is shown, not sent"
    return "the first notice waits, in case it is over at once"


def _deliveries(out: output.Out, deliveries: Sequence[Delivery] | None) -> None:
    if deliveries is None:
        out.flow(["?", "(the history cannot be read)"], first="  delivered  ", rest="  ")
        return
    for delivery in deliveries:
        at = units.clock(delivery.sent_at_s or delivery.created_at_s)
        dry = " (dry run)" if delivery.dry_run else ""
        style = {"sent": "green", "failed": "red", "pending": "yellow"}[delivery.state]
        parts: list[output.Part] = [
            f"{at}  {delivery.message.notice}",
            (f"{delivery.channel}: {delivery.state}{dry}", style),
            f"{delivery.attempts} tries" if delivery.attempts != 1 else "1 try",
            delivery.error or "",
        ]
        out.flow(parts, first="  ", rest="    ")
    if not deliveries:
        out.line("  delivered  nowhere")
