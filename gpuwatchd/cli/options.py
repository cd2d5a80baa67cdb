"""Flags that every verb has, before or after its name, and the types of arguments."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.core import units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from click.shell_completion import CompletionItem

    _ParamType = click.ParamType[Any]
else:
    # Generic for the type checker only: click 8.3 has no parameter.
    _ParamType = click.ParamType

_DOCS = "Documentation: gpuwatchctl docs "


def current() -> Globals:
    """Return the global flags of the running verb."""
    found = click.get_current_context().find_object(Globals)
    return found if found is not None else Globals()


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value is None or value is False or value == ():
        return value
    flags = ctx.ensure_object(Globals)
    if param.name == "config":
        from pathlib import Path  # noqa: PLC0415 - 14 ms, a fifth of --help

        value = Path(value)
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


def complete_from(
    words: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem | str]]:
    """Return what offers those of some words that begin with what is typed."""
    return lambda _ctx, _param, start: [word for word in words() if word.startswith(start)]


complete_gpu = _complete("gpus")
complete_process = _complete("processes")
complete_key = _complete("alert_keys")
complete_subject = _complete("subjects")
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
        option("--config", type=click.Path(), metavar="FILE",
               help="Read this configuration only."),
        option("--color", type=click.Choice(["auto", "always", "never"]),
               help="When to use colour (auto)."),
        option("--ascii", is_flag=True, help="Plain characters only."),
        option("-q", "--quiet", is_flag=True, help="Results only."),
        option("-v", "--verbose", is_flag=True, help="More detail."),
        option("--debug", is_flag=True, help="Show the traceback of an error."),
    ]  # fmt: skip


def add_globals(command: click.Command, page: str = "cli") -> click.Command:
    """Give a verb, and those below it, the global flags that it lacks and the page of its help."""
    taken = {name for param in command.params for name in param.opts}
    command.params.extend(o for o in global_options() if not taken.intersection(o.opts))
    if command.add_help_option:
        command.add_help_option = False  # ours is the same in every context
        click.help_option("-h", "--help")(command)
    command.context_settings.setdefault("max_content_width", 80)
    command.epilog = (command.epilog or "").replace(f"{_DOCS}cli", f"{_DOCS}{page}")
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        add_globals(child, page)
    return command


def examples(*lines: str) -> str:
    """Return the end of a help text: the examples and the page of the documentation.

    A line that does not call the program itself (in a pipe, say) gets its name in front.
    """
    body = "\n".join(f"  {'' if 'gpuwatchctl' in line else 'gpuwatchctl '}{line}" for line in lines)
    return f"\b\nExamples:\n{body}\n\n{_DOCS}cli"


class Parsed(_ParamType):
    """What ``read`` makes of a text; its ValueError says what is wrong with that."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what the text means; what is no text is converted already."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _span(words: str) -> float:
    seconds = units.parse_duration(words)
    if seconds <= 0:
        raise ValueError("must be more than zero")
    return seconds


def _instant(words: str, *, past: bool = False) -> float:
    from gpuwatchd.view.queries import state_location  # noqa: PLC0415 - 43 ms, half of --help

    now_s = state_location.now_s()
    at_s = units.parse_instant(words, now_s=now_s, bare=False)
    if past and at_s > now_s:
        raise ValueError(f"{words!r} lies in the future")
    return at_s


def _who(words: str) -> str:
    if not words.strip():
        raise ValueError("names no user: write a name, a glob, a number, or me")
    return words


INSTANT = Parsed("time", _instant)
"""ISO 8601, ``today``, ``yesterday`` or a duration meaning "ago" -> epoch seconds."""
PAST = Parsed("time", partial(_instant, past=True))
"""The same, but not in the future."""
SPAN = Parsed("duration", _span)
"""A duration such as ``15m``, or a number of seconds -> seconds, more than zero."""


def _pids(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(pid for word in words for pid in _named(word)))


def one_pid(_: click.Context, __: click.Parameter, word: str) -> int:
    """Return the pid of the one process that a word names."""
    return _named(word, one=True)[0]


def _named(word: str, *, one: bool = False) -> list[int]:
    if units.is_number(word) and int(word) == 0:
        raise click.BadParameter("0 is no pid")
    from gpuwatchd.view.queries import subjects  # noqa: PLC0415 - 38 ms, for a name alone

    return [subjects.pid(word)] if one else subjects.pids(word)


pid_option = click.option(
    "--pid",
    "pids",
    multiple=True,
    metavar="PID",
    callback=_pids,
    shell_complete=complete_process,
    help="Only this process; or those of a program, job or alert; repeatable.",
)
pid_argument = click.argument(
    "pid", metavar="PID", callback=one_pid, shell_complete=complete_process
)
"""One process that holds GPU memory: its pid, or what is shown of it."""
device_option = click.option(
    "--device",
    "gpu",
    multiple=True,
    metavar="GPU",
    expose_value=False,
    callback=_keep,
    shell_complete=complete_gpu,
    help="The same as --gpu.",
)
user_option = click.option(
    "--user",
    type=Parsed("name", _who),
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
every_option = click.option(
    "--all", "every", is_flag=True, expose_value=False, callback=_keep, help="Stable GPUs too."
)
