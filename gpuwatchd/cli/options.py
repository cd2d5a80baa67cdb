"""Flags that every verb has, before or after its name, and the types of arguments."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    _ToFloat = click.ParamType[float]
    _ToText = click.ParamType[str]
else:
    # Generic for the type checker only: click 8.1 has no parameter.
    _ToFloat = _ToText = click.ParamType

PAGES = {
    "status": "understand-a-verdict",
    "watch": "understand-a-verdict",
    "top": "see-it",
    "predict": "understand-a-verdict",
    "explain": "understand-a-verdict",
    "zombies": "find-idle-memory",
    "plot": "see-it#pictures",
    "history": "storage",
    "report": "report",
    "alerts": "be-warned",
    "snooze": "quiet",
    "feedback": "teach-it-your-programs",
    "cost": "what-it-costs",
    "checkpointed": "what-it-costs",
    "ask-checkpoint": "be-warned",
    "analyze": "analyse-a-log",
    "backtest": "backtest-your-settings",
    "web": "live-page",
    "doctor": "troubleshoot",
    "release": "run-the-service#letting-go-of-the-gpus",
    "config": "config",
    "policy": "rules",
    "notify": "be-warned",
    "check": "nagios",
    "service": "run-the-service",
    "demo": "first-leak",
    "docs": "index",
    "schema": "use-the-json",
    "completion": "install#completion",
}
"""The page that the help of a verb ends with; of one that is not here, the command line's."""
_DOCS = "Documentation: gpuwatchctl docs "


def current() -> Globals:
    """Return the global flags of the running verb."""
    found = click.get_current_context().find_object(Globals)
    return found if found is not None else Globals()


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value is None or value is False or value == ():
        return value
    flags = ctx.ensure_object(Globals)
    if param.name in {"gpu", "user"}:
        getattr(flags, param.name).extend(value)
    else:
        setattr(flags, str(param.name), value)
    return value


def _complete(
    name: str, *more: Any
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what offers values of the state file: a function of ``completion_answers``."""

    def offer(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the values; silent when there is no state file."""
        from gpuwatchd.cli import completion_answers  # noqa: PLC0415 - only at a TAB

        items: list[CompletionItem] = getattr(completion_answers, name)(incomplete, *more)
        return items

    return offer


complete_gpu = _complete("gpus")
complete_pid = _complete("pids")
complete_key = _complete("alert_keys")
complete_user = _complete("users")
complete_setting = _complete("settings", ("detection", "policy"))


def global_options() -> list[click.Option]:
    """Return fresh global options; they fill :class:`Globals` and stay out of the verb's call."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_keep, **settings)

    return [
        option("--json", is_flag=True, help="One JSON object (a stream: one per line)."),
        option("--gpu", multiple=True, metavar="GPU", shell_complete=complete_gpu,
               help="Only this GPU: index, name, UUID or glob; repeatable."),
        option("--config", type=click.Path(path_type=Path), metavar="FILE",
               help="Read this configuration only."),
        option("--color", type=click.Choice(["auto", "always", "never"]),
               help="When to use colour (auto)."),
        option("--ascii", is_flag=True, help="Plain characters only."),
        option("-q", "--quiet", is_flag=True, help="Results only."),
        option("-v", "--verbose", is_flag=True, help="More detail."),
        option("--debug", is_flag=True, help="Show the traceback of an error."),
    ]  # fmt: skip


def add_globals(command: click.Command) -> click.Command:
    """Give a verb (and the verbs below it) the global flags that it does not define itself."""
    taken = {name for param in command.params for name in param.opts}
    command.params.extend(o for o in global_options() if not taken.intersection(o.opts))
    if command.add_help_option:
        command.add_help_option = False  # ours is the same in every context
        click.help_option("-h", "--help")(command)
    command.context_settings.setdefault("max_content_width", 80)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            add_globals(child)
    return command


def examples(*lines: str) -> str:
    """Return the end of a help text: the examples and the page of the documentation.

    A line that does not call the program itself (in a pipe, say) gets its name in front.
    """
    body = "\n".join(f"  {'' if 'gpuwatchctl' in line else 'gpuwatchctl '}{line}" for line in lines)
    return f"\b\nExamples:\n{body}\n\n{_DOCS}cli"


def name_page(command: click.Command, verb: str) -> None:
    """Let the help of a verb, and of those below it, end with the verb's own page."""
    if command.epilog and verb in PAGES:
        command.epilog = command.epilog.replace(f"{_DOCS}cli", f"{_DOCS}{PAGES[verb]}")
    if isinstance(command, click.Group):
        for child in command.commands.values():
            name_page(child, verb)


class Instant(_ToFloat):
    """ISO 8601, ``today``, ``yesterday`` or a duration meaning "ago" -> epoch seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return epoch seconds."""
        if isinstance(value, float):
            return value
        try:
            return units.parse_instant(str(value), now_s=time.time())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Span(_ToFloat):
    """A duration such as ``15m`` -> seconds, more than zero."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        if isinstance(value, float):
            return value
        try:
            seconds = units.parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail("must be more than zero", param, ctx)
        return seconds


class _Who(_ToText):
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        who = str(value)
        if not who.strip():
            self.fail("names no user: write a name, a glob, a number, or me", param, ctx)
        return who


pid_option = click.option(
    "--pid",
    "pids",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="PID",
    shell_complete=complete_pid,
    help="Only this process; repeatable.",
)
user_option = click.option(
    "--user",
    type=_Who(),
    multiple=True,
    metavar="NAME",
    expose_value=False,
    callback=_keep,
    shell_complete=complete_user,
    help="Only processes of this user: name, glob, number or me; repeatable.",
)
"""Fills :class:`Globals`, as ``--wide`` does."""
exit_code_option = click.option("--exit-code", is_flag=True, help="Exit 3 when a leak is found.")
wide_option = click.option(
    "--wide", is_flag=True, expose_value=False, callback=_keep, help="Show all details."
)
