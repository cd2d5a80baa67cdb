"""``policy``: what the rules say, and what they would have done with one finding."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, get_args

import click
import msgspec

from gpuwatchd import alerts
from gpuwatchd.alerts import wording
from gpuwatchd.cli import config_text, options, output, rules_text
from gpuwatchd.core import text, units
from gpuwatchd.core.codes import Ending, TitleRole
from gpuwatchd.core.errors import GpuwatchdError, StoreError
from gpuwatchd.core.model import Alert, AlertSubject, NoticeKind, Pattern, Severity
from gpuwatchd.core.model.alerts import Title, TitlePart
from gpuwatchd.pipeline.state import rules_of
from gpuwatchd.view.answers import alerts as answers
from gpuwatchd.view.queries import alert_query, state_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuwatchd.alerts import Rules
    from gpuwatchd.cli.global_flags import Globals
    from gpuwatchd.core.config import Config
    from gpuwatchd.core.model import Silence

NOTICES: Final = ("firing", "escalated", "repeat", "resolved")
_STYLES: Final = {"send": "green", "wait": "yellow", "hold": "dim"}
_WORDS: Final = {"send": "sent", "wait": "waits", "hold": "held"}
_ABOUT: Final = (
    *("gpu", "gpu-name", "user", "process", "framework", "command", "job", "container"),
)
_SETTABLE: Final = (*_ABOUT, "severity", "pattern")
_LATER_S: Final = 60.0
_INSTEAD: Final = "gpuwatchctl policy show explains the rules"


@click.group("policy", epilog=options.examples("policy show", "policy test latest"))
def command() -> None:
    """Explain the rules, and try them on a finding."""


@command.command("show", epilog=options.examples("policy show", "policy show --json"))
def show() -> int:
    """Explain in plain sentences which messages go to which channel and when."""
    flags = options.current()
    config = flags.load_config().config
    rules = answers.Rules(
        rules=tuple(rules_text.explain(config)),
        notes=tuple(rules_text.notes(config)),
        problems=tuple(config_text.problems(config)),
    )
    if flags.json:
        output.emit_answer(answers.PolicyShown, rules, source="files")
        return 0
    out = output.Out(flags)
    for sentence in rules.rules:
        out.flow([sentence], whole=True)
    for note in rules.notes:
        out.flow([(f"note: {note}", "yellow")], whole=True)
    for problem in rules.problems:
        out.flow([(f"cannot work: {problem}", "red")], whole=True)
    return 0


def _pairs(_: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for one in given:
        key, mark, value = one.partition("=")
        if not mark or key not in _SETTABLE:
            raise click.BadParameter(
                f"{one!r}: KEY=VALUE with one of {', '.join(_SETTABLE)}", param=param
            )
        words = {"severity": get_args(Severity), "pattern": get_args(Pattern)}.get(key)
        if words is not None and value not in words:
            raise click.BadParameter(f"{one!r}: {key} is one of {', '.join(words)}", param=param)
        values[key] = text.clean(value)
    return values


@command.command(
    "test", epilog=options.examples("policy test latest", "policy test latest --set user=alice")
)
@click.argument("alert", required=False, shell_complete=options.complete_key)
@click.option(
    "--notice",
    type=click.Choice(NOTICES),
    default="firing",
    help="Which message about it (firing).",
)
@click.option(
    "--at", "at_s", type=options.INSTANT, metavar="TIME", help="As if it were then (when it fired)."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_pairs,
    help="As if it were about another: user, process, severity ...; repeatable.",
)
def test(alert: str | None, notice: NoticeKind, at_s: float | None, changes: dict[str, str]) -> int:
    """Show what would be sent about a finding, by which channel, when, and why not; sends nothing.

    ALERT is a key, part of one, a pid or "latest" (the default). The rules are those in force now,
    or those of --config.
    """
    flags = options.current()
    trial = _Trial(flags.load_config().config, notice, alert)
    trial.run(at_s, changes)
    if flags.json:
        output.emit_answer(answers.PolicyTested, trial, source=trial.source)
    else:
        _write(flags, trial)
    return 0


class _Trial:
    """One alert, one notice, one set of rules, and what they make of it."""

    def __init__(self, config: Config, notice: NoticeKind, key: str | None) -> None:
        """Take an alert from the history, or the live state."""
        from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - SQLite comes with it

        self.config = config
        self.notice: NoticeKind = notice
        self.rules: Rules = rules_of(config)
        try:
            found = alert_query.gather(0.0, only_open=False)
            self.alert = alert_query.pick(found.alerts, key or "latest")
        except GpuwatchdError as error:
            if key:
                raise
            raise GpuwatchdError(
                "no alert is recorded to try it on", hint=_INSTEAD, page="errors#no-such-alert"
            ) from error
        self.source = found.source
        self.others = [alert for alert in found.alerts if alert.key != self.alert.key]
        self.silences: list[Silence] = []
        with contextlib.suppress(StoreError), history_query.reader() as history:
            self.silences = history.silences(all_of_them=True)

    def due_s(self) -> float:
        """Return when the notice was due, or would have been, epoch seconds."""
        if self.notice == "resolved" and self.alert.resolved_at_s is not None:
            return self.alert.resolved_at_s
        return self.alert.firing_at_s or self.alert.changed_at_s

    def run(self, at_s: float | None, changes: Mapping[str, str]) -> None:
        """Ask policy as if it were then, about an alert that is changed, and make the message."""
        from gpuwatchd.pipeline import messages  # noqa: PLC0415

        self.at_s = at_s or self.due_s()
        self.alert = _changed(self.alert, changes)
        then = _as(self.alert, self.notice, self.at_s)
        effective = alerts.rules_for(then, self.rules)
        self.applied = effective.applied
        alert = msgspec.structs.replace(then, severity=alerts.capped_severity(then, effective))
        # An older judgement is not kept: the text is of the one that is, and of its time.
        self.as_of_s = max(self.at_s, alert.finding.judged_at_s)
        self.message = messages.compose(alert, self.notice, now_s=self.as_of_s)
        self.routes = alerts.routes(
            then,
            self.notice,
            self.rules,
            local=units.Local.at(self.at_s),
            silences=_then(self.silences, self.at_s),
            others=[other for other in self.others if _was_open(other, self.at_s)],
        )

    def never(self) -> str:
        """Return why such a notice is never due at all; "" where it may be."""
        if self.alert.firing_at_s is None:
            return "it was only watched; that is not sent"
        if self.notice == "resolved" and not self.rules.recovered:
            return "recovered is off; its end is not sent"
        steps = alerts.rules_for(self.alert, self.rules).repeat_s
        return "" if self.notice != "repeat" or steps else "it has no reminders"


def _write(flags: Globals, trial: _Trial) -> None:
    from gpuwatchd.notify import plain_text  # noqa: PLC0415

    out = output.Out(flags)
    alert, now_s = trial.alert, state_location.now_s()
    out.flow([alert.title or alert.key, f"{alert.severity} {alert.finding.pattern}"])
    out.line(f"{trial.notice} at {units.clock(trial.at_s, now_s=now_s)}")
    if trial.as_of_s - trial.at_s >= _LATER_S:
        # What it was judged to be at first is not kept.
        at = units.clock(trial.as_of_s, now_s=now_s)
        out.prose(f"its severity and text are from its last evaluation, at {at}", "dim", rest="  ")
    never = trial.never()
    if never:
        out.flow([(f"never sent: {never}; were it due:", "yellow")])
    if not trial.routes:
        out.line("by no channel: none is in use")
    for route in trial.routes:
        reason = "" if route.kind == "send" else route.reason
        out.flow(
            [(_WORDS[route.kind], _STYLES[route.kind]), reason],
            first=f"  {text.clean(route.channel):<9}",
        )
    fallback = trial.config.policy.fallback
    if fallback and any(route.kind == "send" for route in trial.routes):
        out.line(f"  if none of them delivers: {', then '.join(map(text.clean, fallback))}")
    for key, name in trial.applied:
        if key == "grows" and ("grows_to_bytes", name) in trial.applied:
            continue  # The same key of the file.
        out.line(f"  {name} sets {key.removesuffix('_s').removesuffix('_bytes').replace('_', '-')}")
    if flags.quiet:
        return
    out.line("")
    out.line(trial.message.subject)
    for line in plain_text.plain(trial.message).splitlines():
        out.line(f"  {line}".rstrip())


def _as(alert: Alert, notice: NoticeKind, at_s: float) -> Alert:
    """Return an alert as it was, or would have been, when that notice was due."""
    if notice == "resolved":
        over = alert.resolved_at_s if alert.state == "resolved" else None
        return msgspec.structs.replace(
            alert,
            state="resolved",
            resolved_at_s=at_s if over is None else over,
            **({} if alert.ended_code else wording.ending(Ending.STOPPED_GROWING)),
            notices=max(alert.notices, 2),
        )
    return msgspec.structs.replace(
        alert,
        state="firing",
        firing_at_s=at_s if alert.firing_at_s is None else alert.firing_at_s,
        resolved_at_s=None,
        ended="",
        ended_code=None,
        notices=1 if notice == "firing" else max(alert.notices, 2),
    )


def _was_open(alert: Alert, at_s: float) -> bool:
    begun, over = alert.firing_at_s, alert.resolved_at_s
    return begun is not None and begun <= at_s and (over is None or over > at_s)


def _then(silences: Iterable[Silence], at_s: float) -> Sequence[Silence]:
    """Return silences as they stood at an instant: one that was taken back later was in force."""
    return [
        msgspec.structs.replace(silence, cleared_at_s=None)
        for silence in silences
        if silence.from_at_s <= at_s
        and (silence.cleared_at_s is None or silence.cleared_at_s > at_s)
    ]


def _changed(alert: Alert, changes: Mapping[str, str]) -> Alert:
    """Return an alert that is about somebody or something else."""
    about = {key.replace("-", "_"): value for key, value in changes.items() if key in _ABOUT}
    finding: dict[str, Any] = {
        key: changes[key] for key in ("pattern", "framework") if key in changes
    }
    whom = msgspec.structs.replace(alert.about or AlertSubject(), **about)
    named = {"user", "process", "gpu", "gpu-name"} & set(changes)
    title = _title(whom).fields if named else {}
    severity: Any = changes.get("severity", alert.severity)
    return msgspec.structs.replace(
        alert,
        about=whom,
        **title,
        severity=severity,
        finding=msgspec.structs.replace(alert.finding, severity=severity, **finding),
    )


def _title(whom: AlertSubject) -> Title:
    parts = (
        (f"GPU {whom.gpu}", TitleRole.DEVICE),
        (f" ({whom.gpu_name})" if whom.gpu_name else "", TitleRole.MODEL),
        (": ", TitleRole.DEVICE),
        (whom.process, TitleRole.NONE),
        ("" if whom.pid is None else f"[{whom.pid}]", TitleRole.PID),
        (f" of {whom.user}", TitleRole.OWNER),
    )
    return Title(tuple(TitlePart(text=text, role=role) for text, role in parts))
