"""``snooze``: nobody is told of an alert, or of whatever fits a rule, for a while."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli import options, output
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import GpuwatchdError, StoreError
from gpuwatchd.core.model import Matcher, Silence
from gpuwatchd.view.queries import (
    current_state,
    incidents,
    silence_changes,
    state_location,
    user_filter,
)
from gpuwatchd.view.queries.silence_changes import UNTIL_RESOLVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from click.shell_completion import CompletionItem


_TITLES_S = 31 * 86_400.0
"""How far back alerts are looked up for their titles."""
_VALUE_CHARS = 200
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
    ruled = any(ctx.params.get(name) for name in silence_changes.CONDITIONS)
    if given or ruled:
        return [term for term in silence_changes.TERMS if term.startswith(incomplete)]
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
    kinds = click.Choice(["leak", "gpu", "held"])
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
    now_s = time.time()
    matcher = _matcher(rule, flags.gpu)
    named, term = _read(words, ruled=matcher != Matcher())
    for_s = _seconds(term, named=named)
    found = incidents.kept("snoozed")
    meant = None if named is None else incidents.pick(found.alerts, named)
    if meant is not None:
        silence = silence_changes.of_alert(
            meant, term, now_s=now_s, named=named or "", why=why, even_critical=even_critical
        )
    else:
        silence = Silence(
            matcher=matcher,
            from_at_s=now_s,
            until_at_s=now_s + for_s,
            even_critical=even_critical,
            who=user_filter.user(),
            why=silence_changes.because(why),
        )
    kept = silence_changes.keep(silence)
    fits = silence_changes.fitting(kept, found.alerts)
    running = current_state.running()
    if flags.json:
        entry = silence_changes.entry(kept, fits, now_s) | {"daemon_running": running}
        output.emit("snooze", [entry], source="database")
        return 0
    out = output.Out(flags)
    out.flow(
        [(meant.title or meant.key if meant else silence_changes.rule_of(matcher), "bold")],
        rest="  ",
    )
    texts = silence_changes.follows(kept, meant, fits, running=running, now_s=now_s)
    for line in (*texts, f"gpuwatchctl snooze clear {kept.row} takes it back"):
        out.flow(line.split(" "), first="  ", rest="  ", gap=" ")
    return 0


def _matcher(rule: dict[str, str | None], before: Sequence[str]) -> Matcher:
    """Return what the options name; ``--gpu`` may stand before the verb, too."""
    values = {
        name: text.clean(rule.get(name) or "", limit=_VALUE_CHARS)
        for name in silence_changes.CONDITIONS
    }
    gpus = [*before, *([values["gpu"]] if values["gpu"] else [])]
    if len(gpus) > 1:
        raise click.UsageError("one --gpu only; a glob may name several: --gpu '[01]'")
    values["gpu"] = gpus[0].removeprefix("GPU ") if gpus else ""
    return Matcher(**values)


def _read(words: Sequence[str], *, ruled: bool) -> tuple[str | None, str]:
    """Return which alert and for how long; UsageError when something is missing or too much."""
    if ruled and len(words) == 1:
        return None, words[0]
    if not ruled and len(words) == 2:
        return words[0], words[1]
    if ruled and len(words) == 2:
        raise click.UsageError("an ALERT or a rule, not both")
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


def _seconds(term: str, *, named: str | None) -> float:
    if term == UNTIL_RESOLVED and named is None:
        raise click.UsageError("until-resolved needs an ALERT; a rule needs a duration: 8h, 2d")
    try:
        return silence_changes.seconds(term)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


# ---- list and clear -----------------------------------------------------------------------------


@command.command("list", epilog=options.examples("snooze list", "snooze list --all --json"))
@click.option("--all", "everything", is_flag=True, help="Also what has expired or was cleared.")
def list_(everything: bool) -> int:  # noqa: FBT001
    """List what is snoozed, the newest first."""
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415

    flags = options.current()
    now_s = time.time()
    with history_query.reader() as history:
        silences = history.silences(all_of_them=everything)[::-1]
        alerts = history.alerts(now_s - _TITLES_S)
    shown = [
        silence
        for silence in silences
        if everything or silence_changes.state_of(silence, now_s) == "in-force"
    ]
    if flags.json:
        data = [
            silence_changes.entry(silence, silence_changes.fitting(silence, alerts), now_s, alerts)
            for silence in shown
        ]
        pairs = state_location.service_warnings()
        output.emit("snooze", data, source="database", warnings=pairs)
        return 0
    out = output.Out(flags)
    state_location.head(out)
    if not shown:
        out.line("nothing is snoozed")
    for silence in shown:
        silence_changes.show(out, silence, alerts, silence_changes.fitting(silence, alerts), now_s)
    return 0


@command.command(
    "clear", epilog=options.examples("snooze clear 3", "snooze clear latest", "snooze clear --all")
)
@click.argument("which", required=False, metavar="[ID|ALERT]", shell_complete=options.complete_key)
@click.option("--all", "everything", is_flag=True, help="Everything that is snoozed.")
def clear(which: str | None, everything: bool) -> int:  # noqa: FBT001
    """Remove it: by its number in `snooze list`, by its ALERT, or --all."""
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415

    if (which is None) != everything:
        raise click.UsageError("which one? its number in `snooze list`, its ALERT, or --all")
    flags = options.current()
    now_s = time.time()
    with history_query.reader() as history:
        standing = [
            silence
            for silence in history.silences()
            if silence_changes.state_of(silence, now_s) == "in-force"
        ]
        alerts = history.alerts(now_s - _TITLES_S)
    chosen = standing if which is None else _chosen(standing, which)
    done = silence_changes.take_back(chosen, now_s)
    running = current_state.running()
    if flags.json:
        data = [
            silence_changes.entry(silence, (), now_s)
            | {"state": "cleared", "cleared_at": units.instant(now_s)}
            for silence in chosen
        ]
        output.emit("snooze", data, source="database")
        return 0
    out = output.Out(flags)
    for silence in chosen:
        out.flow(
            [
                f"{silence.row}",
                (silence_changes.called(silence.matcher, alerts), "bold"),
                "cleared",
            ],
            rest="  ",
        )
    if not done:
        out.line("nothing is snoozed")
    elif not running:
        out.line("no daemon is running: messages are sent again when one is")
    return 0


def _chosen(standing: Sequence[Silence], which: str) -> list[Silence]:
    """Return the silences that a number or an alert names; GpuwatchdError when there is none."""
    numbered = [silence for silence in standing if str(silence.row) == which]
    exact = numbered or [silence for silence in standing if silence.matcher.key == which]
    if exact:
        return exact
    try:
        key = incidents.pick(incidents.kept("snoozed").alerts, which).key
    except StoreError:
        raise
    except GpuwatchdError as error:
        words = f"no silence is named {text.clean(which, limit=_VALUE_CHARS)!r}"
        raise GpuwatchdError(
            words, hint="gpuwatchctl snooze list", page="errors#not-snoozed"
        ) from error
    of_it = [silence for silence in standing if silence.matcher.key == key]
    if not of_it:
        raise GpuwatchdError(
            f"{key} is not snoozed", hint="gpuwatchctl snooze list", page="errors#not-snoozed"
        )
    return of_it
