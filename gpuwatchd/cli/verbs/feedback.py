"""``feedback``: the user's label of an alert; the program's next runs are judged by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import units
from gpuwatchd.view.queries import alert_changes, alert_query, live_answers, state_location
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from gpuwatchd.view import blocks
    from gpuwatchd.view.queries.alert_changes import Labelled


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
def give(alert: str, word: Literal["normal", "leak"], why: str | None) -> int:
    """Set the label; `feedback ALERT normal` is the same. A new label replaces an older one."""
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.label(flags, alert, word, why))
    labelled = alert_changes.label(alert, word, why)
    out = output.Out(flags)
    out.flow([(labelled.label.title, "bold"), verdict_text.user_label(labelled.label)], rest="  ")
    out.flow(_follows(labelled), first="  ", rest="  ", gap=" ")
    return 0


def _follows(labelled: Labelled) -> list[str]:
    if labelled.label.word == "leak":
        first = "the alert stays open"
    elif labelled.alert.state in alert_query.OPEN:
        when = "within seconds" if labelled.running else "when the daemon runs again"
        first = f"the alert resolves {when}, and no alert fires while it stays within this"
    else:
        first = "the alert is resolved already"
    then = "it applies to the next runs of this program"
    if not labelled.learned:
        why = "earlier runs are not kept of what is simulated or replayed"
        if not labelled.recorded:
            why = "the program cannot be recognised in later runs"
        then = f"it applies to this run only: {why}"
    return f"{first}; {then}".split(" ")


@command.command("undo", epilog=options.examples("feedback undo 4711", "feedback undo latest"))
@click.argument("alert", shell_complete=options.complete_key)
def undo(alert: str) -> int:
    """Remove the label of an alert; it is evaluated as if it had none."""
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.unlabel(flags, alert))
    label = alert_changes.unlabel(alert)
    output.Out(flags).flow(
        [(label.title, "bold"), f"removed: {verdict_text.user_label(label)}"], rest="  "
    )
    return 0


@command.command("list", epilog=options.examples("feedback list", "feedback list --all --json"))
@click.option("--all", "everything", is_flag=True, help="Also removed labels.")
def list_(everything: bool) -> int:  # noqa: FBT001
    """List the labels, newest first."""
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.labels(flags, every=everything))
    labels = alert_changes.labels(every=everything)
    out = output.Out(flags)
    state_location.head(out)
    if not labels:
        out.line("no alert has a label")
    now_s = state_location.now_s()
    for label in labels:
        taken = label.undone_at_s
        parts: list[blocks.Part] = [
            units.clock(label.given_at_s, now_s=now_s),
            verdict_text.user_label(label),
            label.title,
            (f"removed {units.clock(taken, now_s=now_s)}", "dim") if taken is not None else "",
        ]
        out.flow(parts, rest="  ")
        out.flow([(label.alert_key, "dim")], first="  ", rest="  ")
    return 0
