"""``snooze``: no messages about an alert, or about whatever matches a rule, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import units
from gpuwatchd.view.queries import alert_changes, current_state, live_answers, state_location
from gpuwatchd.view.queries.alert_changes import UNTIL_RESOLVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click.shell_completion import CompletionItem

_PLAIN = frozenset({"--json", "--ascii", "--debug", "-q", "--quiet", "-v", "--verbose"})
_VALUED = frozenset({"--config", "--color"})


class _Setting(click.Group):
    """A group whose verb "set" may be left out: ``snooze latest 1h``, ``snooze --user bob 8h``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = iter(enumerate(args))
        for at, word in words:
            if word in _VALUED:
                next(words, None)
            elif word not in _PLAIN:
                if word not in self.commands and word not in {"-h", "--help"}:
                    args = [*args[:at], "set", *args[at:]]
                break
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer alerts beside the verbs: "set" may be left out."""
        from gpuwatchd.cli import completion_answers  # noqa: PLC0415 - only at a TAB

        return [
            *super().shell_complete(ctx, incomplete),
            *completion_answers.alert_keys(incomplete),
        ]


def _complete(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem] | list[str]:
    """Offer alerts first, then for how long."""
    given = ctx.params.get("words") or ()
    ruled = any(ctx.params.get(name) for name in alert_changes.CONDITIONS)
    if given or ruled:
        return [term for term in alert_changes.TERMS if term.startswith(incomplete)]
    return options.complete_key(ctx, param, incomplete)


@click.group(
    "snooze",
    cls=_Setting,
    invoke_without_command=True,
    subcommand_metavar="ALERT|RULE DURATION | VERB ...",
    epilog=options.examples(
        "snooze latest 1h",
        'snooze 4711 until-resolved --why "known, runs out tonight"',
        "snooze --user bob --gpu 0 8h",
        "snooze list",
        "snooze clear --all",
    ),
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Silence an alert, or what matches a rule, for a while.

    DURATION is 1h, 8h, 2d (at most 30d) or until-resolved. ALERT is as `alerts` prints it: its
    key, a part of it, a pid, or "latest". A rule is any of --gpu, --user, --process, --framework,
    --job and --kind. What is snoozed is still monitored and shown. A message is still sent when it
    becomes critical, unless it is so already or --even-critical is given. All options of a rule:
    `snooze set --help`.
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("of which alert, and for how long? snooze latest 1h")


def _conditions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that a rule is made of."""
    for name, words in (
        ("job", "Of this job, such as 'slurm 42*'."),
        ("framework", "Of this framework, such as PyTorch or vLLM."),
        ("process", "Of processes of this name, without arguments."),
        ("user", "Of processes of this user."),
    ):
        function = click.option(f"--{name}", metavar="GLOB", help=words)(function)
    function = click.option(
        "--gpu",
        metavar="GLOB",
        shell_complete=options.complete_gpu,
        help="On this GPU: index, name or UUID, as a glob like all of these.",
    )(function)
    kinds = click.Choice(["leak", "gpu", "held", "limit"])
    return click.option("--kind", type=kinds, help="Alerts of this kind.")(function)


@command.command(
    "set", epilog=options.examples("snooze latest 1h", "snooze --framework vLLM --kind leak 2d")
)
@click.argument("words", nargs=-1, metavar="[ALERT] DURATION", shell_complete=_complete)
@_conditions
@click.option("--even-critical", is_flag=True, help="Also silence it when it is critical.")
@click.option("--why", metavar="TEXT", help="Why, for those who ask later.")
def set_(words: tuple[str, ...], even_critical: bool, why: str | None, **rule: str | None) -> int:  # noqa: FBT001
    """Set it; `snooze ALERT DURATION` is the same. One on the same alerts replaces an older one."""
    flags = options.current()
    try:
        named, term = _read(words, ruled=any(rule.values()) or bool(flags.gpu))
        if flags.json:
            answered = live_answers.snooze(
                flags, for_=term, alert=named, why=why, even_critical=even_critical, **rule
            )
            return output.emit_answered(answered)
        snoozed = alert_changes.snooze(
            flags.gpu, rule, term, named=named, why=why, even_critical=even_critical
        )
    except alert_changes.BadRequest as error:
        raise click.UsageError(str(error)) from error
    alert, silence = snoozed.alert, snoozed.silence
    out = output.Out(flags)
    about = alert.title or alert.key if alert else alert_changes.rule_of(silence.matcher)
    out.flow([(about, "bold")], rest="  ")
    for line in alert_changes.follows(snoozed):
        out.flow(line.split(" "), first="  ", rest="  ", gap=" ")
    return 0


def _read(words: Sequence[str], *, ruled: bool) -> tuple[str | None, str]:
    """Return which alert and for how long; UsageError when something is missing or too much."""
    if ruled and len(words) == 1:
        return None, words[0]
    if len(words) == 2:
        return words[0], words[1]
    if not words:
        raise click.UsageError("of which alert, and for how long? snooze latest 1h")
    if len(words) == 1 and _is_term(words[0]):
        raise click.UsageError(f"of which alert? snooze latest {words[0]}")
    if len(words) == 1:
        raise click.UsageError(f"for how long? snooze {words[0]} 1h (or 8h, 2d, until-resolved)")
    raise click.UsageError("one ALERT and one DURATION: snooze latest 1h")


def _is_term(word: str) -> bool:
    try:
        return word == UNTIL_RESOLVED or bool(units.parse_duration(word))
    except ValueError:
        return False


@command.command("list", epilog=options.examples("snooze list", "snooze list --all --json"))
@click.option("--all", "everything", is_flag=True, help="Also what has expired or was cleared.")
def list_(everything: bool) -> int:  # noqa: FBT001
    """List what is snoozed, the newest first."""
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.snoozes(flags, every=everything))
    now_s = state_location.now_s()
    silences, alerts = alert_changes.standing(now_s, every=everything)
    out = output.Out(flags)
    state_location.head(out)
    if not silences:
        out.line("nothing is snoozed")
    for silence in silences:
        alert_changes.show(out, silence, alerts, now_s)
    return 0


@command.command(
    "clear", epilog=options.examples("snooze clear 3", "snooze clear latest", "snooze clear --all")
)
@click.argument("which", required=False, metavar="[ID|ALERT]", shell_complete=options.complete_key)
@click.option("--all", "everything", is_flag=True, help="Everything that is snoozed.")
def clear(which: str | None, everything: bool) -> int:  # noqa: FBT001
    """Remove it: by its number in `snooze list`, by its ALERT, or --all."""
    if (which is None) != everything:
        raise click.UsageError("which one? its number in `snooze list`, its ALERT, or --all")
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.unsnooze(flags, which))
    cleared = alert_changes.clear(which)
    out = output.Out(flags)
    for silence in cleared.silences:
        about = alert_changes.called(silence.matcher, cleared.alerts)
        out.flow([f"{silence.row}", (about, "bold"), "cleared"], rest="  ")
    if not cleared.in_force:
        out.line("nothing is snoozed")
    elif not current_state.running():
        out.line("no daemon is running: messages are sent again when one is")
    return 0
