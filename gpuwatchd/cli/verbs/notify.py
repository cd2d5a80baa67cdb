"""``notify``: the channels, a test through the real path, and the digest at any time."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli import channel_setup, exits, options, output
from gpuwatchd.core.config import channels
from gpuwatchd.core.errors import GpuwatchdError, NotifyError
from gpuwatchd.core.model import Chart, Message
from gpuwatchd.notify import NOTIFIERS
from gpuwatchd.notify.outbox import dispatcher
from gpuwatchd.view.answers import alerts as answers
from gpuwatchd.view.answers import base
from gpuwatchd.view.answers.alerts import Reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Holding
    from gpuwatchd.core.ports import Notifier

_STYLES = {"arrived": "green", "usable": "green", "failed": "red", "not-usable": "yellow"}
_CHANNELS = click.argument(
    "channels",
    nargs=-1,
    metavar="[CHANNEL]...",
    shell_complete=options.complete_from(lambda: NOTIFIERS),
)


@click.group(
    "notify", epilog=options.examples("notify add slack", "notify list", "notify test desktop")
)
def command() -> None:
    """Set up channels, list and test them; send a digest."""


def _message(channel: str = "email") -> Message:
    """Return the test message of a channel; the example of a curve goes into mails alone."""
    host = base.host()
    curve = {"Curve": "an example, not data of this machine"} if channel == "email" else {}
    return Message(
        id=f"{uuid.uuid4().hex[:24]}@gpuwatchd",
        notice="test",
        severity="info",
        subject=f"Test: gpuwatchd on {host} can reach you",
        body=f"This is a test from {host}. Warnings about GPU memory will arrive this way.",
        facts={"Host": host, "Sent": time.strftime("%Y-%m-%d %H:%M:%S %Z"), **curve},
        command="gpuwatchctl status",
        chart=_example(time.time()) if curve else None,
    )


def _example(now_s: float) -> Chart:
    """Return an invented leak: a test mail shows whether pictures are drawn, and what they say."""
    gib, rate = 1024.0**3, 700_000.0
    at_s = tuple(now_s - 5400.0 + 90.0 * k for k in range(61))
    used = tuple(12.0 * gib + rate * max(0.0, at - (now_s - 3600.0)) for at in at_s)
    left_s = 6.0 * gib / rate
    return Chart(
        at_s=at_s,
        used_bytes=used,
        limit_bytes=used[-1] + 6.0 * gib,
        onset_at_s=now_s - 3600.0,
        judged_at_s=now_s,
        rate_bytes_per_s=rate,
        level_bytes=used[-1],
        low_s=0.8 * left_s,
        mid_s=left_s,
        high_s=1.3 * left_s,
    )


def _probe(name: str, notifier: Notifier, **more: bool) -> Reached:
    state = notifier.probe()
    result = "usable" if state.ok else "not-usable"
    return base.fill(
        Reached, state, channel=name, result=result, detail=state.reason, page=None, **more
    )


def _send(name: str, notifier: Notifier, message: Message) -> Reached:
    """Send for real; only what the channel itself confirmed counts as arrived."""
    try:
        detail = notifier.send(message)
    except NotifyError as error:
        again = "" if error.permanent else " (the daemon would try again)"
        detail = f"{error.message}{again}"
        return base.fill(Reached, error, channel=name, result="failed", detail=detail)
    return Reached(channel=name, result="arrived", detail=detail, hint=None, page=None)


def _send_test(name: str, notifier: Notifier) -> Reached:
    return _send(name, notifier, _message(name))


def _write(flags: Globals, rows: Sequence[Reached]) -> int:
    """Write what became of each channel; return 1 where one cannot be used."""
    if flags.json:
        output.emit_answer(answers.Notify, rows, source="channels")
    else:
        _table(output.Out(flags), rows)
    return 0 if all(row.result in {"arrived", "usable"} for row in rows) else 1


def _table(out: output.Out, rows: Sequence[Reached]) -> None:
    for row in rows:
        used = " (in use)" if row.in_use is True else ""
        code: str = row.result
        state = (code.replace("-", " ") + used, _STYLES[row.result])
        out.flow([state, row.detail], first=f"{row.channel:<9}", rest=" " * 9)
        if row.hint:
            out.flow([(f"hint: {row.hint}", "dim")], first=" " * 9, rest=" " * 9)
        if row.page:
            out.flow([(exits.docs_reference(row.page), "dim")], first=" " * 9, rest=" " * 9)


@command.command(
    "add",
    epilog=options.examples(
        "notify add slack",
        "notify add ntfy --url a-topic-that-nobody-guesses",
        "notify add email --to me@example.org --host localhost",
    ),
)
@click.argument("name", metavar="CHANNEL", type=click.Choice(channels.ADDED))
@click.option(
    "--url",
    "--topic",
    "--key",
    "--token",
    "--password",
    "secret",
    default="",
    metavar="SECRET",
    help="Webhook, topic, key, token or password; - reads it from standard input.",
)
@click.option("--chat-id", default="", metavar="ID", help="Telegram: number of the chat.")
@click.option("--to", multiple=True, metavar="ADDRESS", help="Email: recipient; repeatable.")
@click.option("--host", default="", metavar="HOST", help="Email: the mail server.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Email: its port.")
@click.option(
    "--security",
    type=click.Choice(["starttls", "tls", "none"]),
    help="Email: starttls, on this machine none.",
)
@click.option("--username", default="", metavar="NAME", help="Email: the login.")
@click.option("--from", "sender", default="", metavar="ADDRESS", help="Email: the sender.")
@click.option("--force", is_flag=True, help="Replace what is set up.")
@click.option("--no-test", is_flag=True, help="Send no test message.")
def add(name: str, force: bool, no_test: bool, **given: Any) -> int:  # noqa: FBT001
    """Set a channel up: slack, discord, teams, ntfy, pagerduty, telegram or email.

    Asks for what is missing, stores the secret (mode 0600), writes your configuration, sends a
    test, and has the daemon read it. Where the test fails, nothing is kept.
    """
    flags = options.current()
    where, wanted = channel_setup.target(flags), channel_setup.ChannelOptions(**given)
    added = channel_setup.add(
        flags, where, name, wanted, force=force, test=None if no_test else _send_test
    )
    if flags.json:
        output.emit_answer(answers.NotifyAdded, added, source="channels")
    else:
        out = output.Out(flags)
        for line in channel_setup.lines(added):
            out.line(line)
        _table(out, [added.test] if added.test else [])
    return 0 if added.test is None or added.test.result == "arrived" else 1


@command.command("list", epilog=options.examples("notify list", "notify list --json"))
def list_() -> int:
    """List every channel, whether it can work here, and which ones are in use."""
    flags = options.current()
    config = flags.load_config().config
    rows = [
        _probe(name, notifier, in_use=name in config.policy.channels)
        for name, notifier in dispatcher.build(config.notify, NOTIFIERS).items()
    ]
    _write(flags, rows)
    return 0


@command.command("test", epilog=options.examples("notify test", "notify test email --dry-run"))
@_CHANNELS
@click.option("--dry-run", is_flag=True, help="Only check whether it could be sent.")
def test(channels: tuple[str, ...], dry_run: bool) -> int:  # noqa: FBT001
    """Send a test message and report what is known to have arrived.

    Without CHANNEL: every channel in use.
    """
    flags = options.current()
    config = flags.load_config().config
    names = _configured(config, channels or config.policy.channels, "notify test")
    rows = [
        _probe(name, notifier) if dry_run else _send_test(name, notifier)
        for name, notifier in dispatcher.build(config.notify, names).items()
    ]
    return _write(flags, rows)


def _configured(config: Config, names: Sequence[str], verb: str) -> Sequence[str]:
    """Return the channels that are meant; GpuwatchdError when there is none."""
    if not names:
        raise GpuwatchdError(
            "no channel is in use",
            hint=f"set [policy] channels, or name one: {verb} desktop",
            page="errors#no-channel",
        )
    unknown = [name for name in names if name not in NOTIFIERS]
    if unknown:
        there = "chat" in {*channels.set_up(config), *channels.used(config)}
        words = channels.unknown(unknown[0], tuple(NOTIFIERS), verb if there else "")
        raise click.BadParameter(words)
    return names


@command.command(
    "digest",
    epilog=options.examples(
        "notify digest --dry-run", "notify digest --since 7d", "notify digest desktop"
    ),
)
@_CHANNELS
@click.option(
    "--since",
    "since_s",
    type=options.INSTANT,
    default="1d",
    show_default=True,
    metavar="TIME",
    help="Since when: 7d, today, 2026-03-01 ...",
)
@click.option("--dry-run", is_flag=True, help="Only show it.")
def digest(channels: tuple[str, ...], since_s: float, dry_run: bool) -> int:  # noqa: FBT001
    """Send the digest now, or only show it.

    Without CHANNEL: those of [policy] digest-channels. The next one by the clock comes as usual.
    """
    flags = options.current()
    config = flags.load_config().config
    message = _digest(since_s)
    if dry_run:
        _show(flags, message)
        return 0
    names = _configured(config, channels or config.policy.digest_channels, "notify digest")
    built = dispatcher.build(config.notify, names)
    return _write(flags, [_send(name, it, message) for name, it in built.items()])


def _digest(since_s: float) -> Message:
    """Return the digest since an instant, as the history and the daemon know it."""
    from gpuwatchd.pipeline import digests  # noqa: PLC0415
    from gpuwatchd.view.queries import current_state, history_query, state_location  # noqa: PLC0415 - SQLite comes with it

    now_s = state_location.now_s()
    from_s = min(since_s, now_s)
    with history_query.reader() as history:
        alerts = {(alert.key, alert.opened_at_s): alert for alert in history.alerts(from_s)}
        decisions = history.decisions(since_s=from_s)
    state, _ = current_state.read_state()
    holdings: Sequence[Holding] = ()
    if state is not None and current_state.alive(state):
        alerts |= {(alert.key, alert.opened_at_s): alert for alert in state.alerts}
        holdings = state.holdings
    content = digests.news(alerts.values(), decisions, holdings, from_s=from_s)
    return digests.compose(
        content, number=uuid.uuid4().hex, why="on request", from_s=from_s, now_s=now_s
    )


def _show(flags: Globals, message: Message) -> None:
    if flags.json:
        output.emit_answer(answers.NotifyDigest, message, source="database")
        return
    out = output.Out(flags)
    out.flow([(message.subject, "bold")], rest="  ")
    for line in message.body.splitlines():
        out.flow(line.split(" "), gap=" ")
    for label, value in message.facts.items():
        out.flow([(f"{label}:", "dim"), *value.split(" ")], rest="  ", gap=" ")
    if message.command:
        out.line((message.command, "dim"))
