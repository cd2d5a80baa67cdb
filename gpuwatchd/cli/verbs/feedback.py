"""``feedback``: the user's word on an alert, which teaches what its program's runs are judged by.

The word is one row that this program writes into the history itself (see :mod:`store.words`); a
running daemon notices it within a tick, one that is stopped when it starts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError
from gpuwatchd.view.answers import envelope
from gpuwatchd.view.queries import current_state, incidents, state_location, user_filter
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.core.model import Alert
    from gpuwatchd.store.labels import UserLabel
    from gpuwatchd.view import blocks

_WHY_CHARS = 200


class _FeedbackGroup(click.Group):
    """A group whose verb "say" may be left out: ``feedback ALERT normal``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["say", *args]
        return super().resolve_command(ctx, args)


@click.group(
    "feedback",
    cls=_FeedbackGroup,
    invoke_without_command=True,
    subcommand_metavar="ALERT normal|leak | VERB ...",
    epilog=options.examples(
        'feedback latest normal --why "fills its cache"', "feedback 4711 leak", "feedback undo 4711"
    ),
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Mark an alert as normal or as a leak.

    A normal alert resolves immediately and stays quiet within that level; the next runs of
    the same program use it too. ALERT is as `alerts` prints it: its key, a part of the key
    that is unique, a pid, or "latest".
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("of which alert, and what? feedback ALERT normal|leak")


@command.command(
    "say",
    epilog=options.examples(
        'feedback say latest normal --why "fills its cache"', "feedback 4711 leak"
    ),
)
@click.argument("alert", shell_complete=options.complete_key)
@click.argument("word", type=click.Choice(["normal", "leak"]))
@click.option("--why", metavar="TEXT", help="Why, for those who ask later.")
def give(alert: str, word: str, why: str | None) -> int:
    """Set the label; `feedback ALERT normal` is the same. A new label replaces an older one."""
    from gpuwatchd.store import labels as store  # noqa: PLC0415 - SQLite comes with it

    flags = options.current()
    found = incidents.kept("said")
    meant = incidents.pick(found.alerts, alert)
    if meant.kind != "leak":
        raise GpuwatchdError(
            "this alert cannot be labelled: it is not about growth",
            hint=f"to silence it: gpuwatchctl snooze {meant.key} 8h",
            page="errors#nothing-to-learn",
        )
    given = store.UserLabel(
        alert_key=meant.key,
        opened_at_s=meant.opened_at_s,
        subject=meant.subject,
        title=text.clean(meant.title or meant.key),
        word="normal" if word == "normal" else "leak",
        given_at_s=time.time(),
        why=(text.clean(why, limit=_WHY_CHARS).strip() or None) if why else None,
        who=user_filter.user(),
    )
    with state_location.writing() as place:
        label = store.write(place.state_dir, given)
    learned = meant.subject.process is not None and meant.subject.process in found.known
    running = current_state.running()
    if flags.json:
        entry = _entry(label) | {"program_known": learned, "daemon_running": running}
        output.emit("feedback", [entry], source="database")
        return 0
    out = output.Out(flags)
    out.flow([(label.title, "bold"), verdict_text.user_label(label)], rest="  ")
    out.flow(
        _follows(meant, label, learned=learned, running=running), first="  ", rest="  ", gap=" "
    )
    return 0


def _follows(meant: Alert, label: UserLabel, *, learned: bool, running: bool) -> list[str]:
    if label.word == "leak":
        first = "the alert stays open"
    elif meant.state in incidents.OPEN:
        when = "within seconds" if running else "when the daemon runs again"
        first = f"the alert resolves {when}, and no alert fires while it stays within this"
    else:
        first = "the alert is resolved already"
    then = (
        "it applies to the next runs of this program"
        if learned
        else "it applies to this run only: the program cannot be recognised in later runs"
    )
    return f"{first}; {then}".split(" ")


@command.command("undo", epilog=options.examples("feedback undo 4711", "feedback undo latest"))
@click.argument("alert", shell_complete=options.complete_key)
def undo(alert: str) -> int:
    """Remove the label of an alert; it is evaluated as if it had none."""
    from gpuwatchd.store import labels as store  # noqa: PLC0415

    flags = options.current()
    found = incidents.kept("said")
    alerts = [a for a in found.alerts if found.user_label(a) is not None]
    none = GpuwatchdError(
        f"no label for {alert}", hint="gpuwatchctl feedback list", page="errors#nothing-said"
    )
    if alert == "latest" and found.words:
        key = found.words[-1].alert_key
    elif any(word.alert_key == alert for word in found.words):
        key = alert  # as `feedback list` prints it; the alert itself may be forgotten by now
    else:
        try:
            key = incidents.pick(alerts, alert).key
        except GpuwatchdError as error:
            incidents.pick(found.alerts, alert)  # says so when there is no such alert at all
            raise none from error
    last = next(word for word in reversed(found.words) if word.alert_key == key)
    with state_location.writing() as place:
        undone = store.remove_label(place.state_dir, key, time.time())
    if not undone:
        raise none
    if flags.json:
        entry = _entry(last) | {"undone_at": units.instant(time.time())}
        output.emit("feedback", [entry], source="database")
    else:
        parts: list[blocks.Part] = [
            (last.title, "bold"),
            f"removed: {verdict_text.user_label(last)}",
        ]
        output.Out(flags).flow(parts, rest="  ")
    return 0


@command.command("list", epilog=options.examples("feedback list", "feedback list --all --json"))
@click.option("--all", "everything", is_flag=True, help="Also removed labels.")
def list_(everything: bool) -> int:  # noqa: FBT001
    """List the labels, newest first."""
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415

    flags = options.current()
    with history_query.reader() as history:
        labels = history.user_labels(all_of_them=everything)[::-1]
    if flags.json:
        data = [_entry(word) for word in labels]
        pairs = state_location.service_warnings()
        output.emit("feedback", data, source="database", warnings=pairs)
    else:
        _table(flags, labels)
    return 0


def _table(flags: Globals, labels: Sequence[UserLabel]) -> None:
    out = output.Out(flags)
    state_location.head(out)
    if not labels:
        out.line("no alert has a label")
    now_s = time.time()
    for word in labels:
        taken = word.undone_at_s
        parts: list[blocks.Part] = [
            units.clock(word.given_at_s, now_s=now_s),
            verdict_text.user_label(word),
            word.title,
            (f"removed {units.clock(taken, now_s=now_s)}", "dim") if taken is not None else "",
        ]
        out.flow(parts, rest="  ")
        out.flow([(word.alert_key, "dim")], first="  ", rest="  ")


def _entry(word: UserLabel) -> dict[str, Any]:
    process = word.subject.process
    return {
        "key": text.clean(word.alert_key),
        "title": text.clean(word.title),
        "opened_at": units.instant(word.opened_at_s),
        "device_uid": text.clean(word.subject.device_uid),
        "process": envelope.process_json(process),
        "on_host": word.subject.host,
        **envelope.word_json(word),
    }
