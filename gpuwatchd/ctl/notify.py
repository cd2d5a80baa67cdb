"""``notify``: the channels, and a test through the real path."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.ctl import envelope, options, output
from gpuwatchd.errors import GpuwatchdError, NotifyError
from gpuwatchd.model import Message
from gpuwatchd.notify import NOTIFIERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.config import Config
    from gpuwatchd.ctl.flags import Globals
    from gpuwatchd.ports import Notifier

_STYLES = {"arrived": "green", "usable": "green", "failed": "red", "not usable": "yellow"}


@click.group("notify", epilog=options.examples("notify list", "notify test desktop"))
def command() -> None:
    """List the channels and test them."""


def _build(config: Config, names: Iterable[str]) -> dict[str, Notifier]:
    from gpuwatchd.notify import outbox  # noqa: PLC0415 - mail and threads come with it

    return outbox.build(config.notify, names)


def _message() -> Message:
    host = envelope.host()
    return Message(
        id=f"{uuid.uuid4().hex[:24]}@gpuwatchd",
        notice="test",
        severity="info",
        subject=f"Test: gpuwatchd on {host} can reach you",
        body=f"This is a test from {host}. Warnings about GPU memory will arrive this way.",
        facts={"Host": host, "Sent": time.strftime("%Y-%m-%d %H:%M:%S %Z")},
        command="gpuwatchctl status",
    )


def _row(name: str, result: str, detail: str, hint: str = "") -> dict[str, Any]:
    return {"channel": name, "result": result, "detail": detail, "hint": hint or None}


def _probe(name: str, notifier: Notifier) -> dict[str, Any]:
    found = notifier.probe()
    return _row(name, "usable" if found.ok else "not usable", found.reason, found.hint)


def _send(name: str, notifier: Notifier, message: Message) -> dict[str, Any]:
    """Send for real; only what the channel itself confirmed counts as arrived."""
    try:
        return _row(name, "arrived", notifier.send(message))
    except NotifyError as error:
        again = "" if error.permanent else " (the daemon would try again)"
        return _row(name, "failed", f"{error.message}{again}", error.hint)


def _tell(flags: Globals, rows: list[dict[str, Any]]) -> None:
    if flags.json:
        output.emit_json(envelope.answer("notify", rows, source="channels"))
        return
    out = output.Out(flags)
    for row in rows:
        detail = row["detail"]
        used = " (in use)" if row.get("in_use") else ""
        words = [(row["result"] + used, _STYLES[row["result"]]), detail]
        out.flow(words, first=f"{row['channel']:<9}", rest=" " * 9)
        if row["hint"]:
            out.flow([(f"hint: {row['hint']}", "dim")], first=" " * 9, rest=" " * 9)


@command.command("list", epilog=options.examples("notify list", "notify list --json"))
def list_() -> int:
    """List every channel, whether it can work here, and which ones are in use."""
    flags = options.current()
    config = flags.load_config().config
    rows = [_probe(name, notifier) for name, notifier in _build(config, NOTIFIERS).items()]
    for row in rows:
        row["in_use"] = row["channel"] in config.policy.channels
    _tell(flags, rows)
    return 0


@command.command("test", epilog=options.examples("notify test", "notify test email --dry-run"))
@click.argument(
    "channels",
    nargs=-1,
    metavar="[CHANNEL]...",
    shell_complete=lambda _ctx, _param, start: [n for n in NOTIFIERS if n.startswith(start)],
)
@click.option("--dry-run", is_flag=True, help="Only say whether it could be sent.")
def test(channels: tuple[str, ...], dry_run: bool) -> int:  # noqa: FBT001
    """Send a test message and report what is known to have arrived.

    Without CHANNEL: every channel in use.
    """
    flags = options.current()
    config = flags.load_config().config
    names = channels or config.policy.channels
    if not names:
        raise GpuwatchdError(
            "no channel is in use", hint="set [policy] channels, or name one: notify test desktop"
        )
    unknown = [name for name in names if name not in NOTIFIERS]
    if unknown:
        raise click.BadParameter(f"no channel {unknown[0]!r}; known: {', '.join(NOTIFIERS)}")
    message = _message()
    rows = [
        _probe(name, notifier) if dry_run else _send(name, notifier, message)
        for name, notifier in _build(config, names).items()
    ]
    _tell(flags, rows)
    return 0 if all(row["result"] in {"arrived", "usable"} for row in rows) else 1
