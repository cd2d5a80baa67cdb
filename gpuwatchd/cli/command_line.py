"""The command line: lazily loaded verbs, exit codes, and errors of one line and one hint."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuwatchd import __version__
from gpuwatchd.cli import exits, options
from gpuwatchd.cli.global_flags import Globals
from gpuwatchd.cli.verbs import COMMANDS, GROUPS, VERBS
from gpuwatchd.core import registry, text, units
from gpuwatchd.core.errors import FAILED, OK, USAGE, GpuwatchdError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAME = exits.NAME
_WIDEST = 80
"""Columns of help."""


class Verbs(click.Group):
    """Verbs of the ``COMMANDS`` table, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the verbs in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, importing its module; None when there is no such verb."""
        if cmd_name not in COMMANDS:
            return None
        try:
            return load(cmd_name)
        except ImportError as error:
            if ctx.resilient_parsing or ctx.info_name == cmd_name:
                return None
            raise GpuwatchdError(
                f"the verb {cmd_name} cannot be loaded: {error}",
                hint="reinstall gpuwatchd; the other verbs work",
                page="errors#installation",
            ) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the verbs, without importing any."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for TAB alone

        if incomplete[:1] == "-":
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=line)
            for name, (line, _) in VERBS.items()
            if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; an unknown one names the nearest."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"no such verb: {name}{text.guess(name, COMMANDS, 0.5)}")
        ctx.ensure_object(Globals).verb = name
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the verbs in their groups."""
        widest = max(map(len, VERBS))
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(f"{n:<{widest}}", line) for n, (line, _) in verbs.items()])


_loaded: dict[str, click.Command] = {}


def load(name: str) -> click.Command:
    """Return the verb ``name`` with the global flags; ImportError where its module is missing."""
    if name not in _loaded:
        try:
            command: click.Command = registry.load(COMMANDS, name)
        except AttributeError as error:
            raise ImportError(str(error)) from error
        _loaded[name] = options.add_globals(command, VERBS[name][1] if name in VERBS else "cli")
    return _loaded[name]


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    subcommand_metavar="VERB [ARGUMENTS]",
    context_settings={"max_content_width": _WIDEST},
    epilog=options.examples("status", "analyze training.csv"),
)
@click.version_option(__version__, message=f"{NAME} %(version)s", help="Show the version.")
@click.pass_context
def program(ctx: click.Context) -> int:
    """Watch GPU memory: who leaks, how fast, and when it will be full."""
    flags = ctx.ensure_object(Globals)
    if ctx.invoked_subcommand is not None:
        return OK
    from gpuwatchd.cli import status_output  # noqa: PLC0415 - 40 ms, only without a verb

    return status_output.run_brief(flags)


options.add_globals(program)


def _verbs_of(ctx: click.Context | None) -> str:
    group = None if ctx is None else ctx.command
    return ", ".join(group.list_commands(ctx)) if ctx and isinstance(group, click.Group) else ""


_INSTEAD = {
    **dict.fromkeys(("config show", "config list", "config get"), "config print"),
    "config check": "config validate",
    "config edit": "config path",
    **dict.fromkeys(("prometheus", "grafana", "exporter"), "metrics"),
    **dict.fromkeys(("list", "ps"), "status"),
    **{name: f"service {name}" for name in ("start", "stop", "restart", "logs", "install")},
}
"""What people type, and the verb that does it."""


def _meant(arguments: list[str]) -> str:
    from gpuwatchd.core.config import channels  # noqa: PLC0415 - 50 ms, only for mistakes

    words = [word for word in arguments if not word.startswith("-")]
    name = words[1:2] if words[:1] == ["notify"] else words[:1]
    if {*name} & {*channels.ADDED}:
        return f"{NAME} notify add {name[0]}"
    meant = _INSTEAD.get(" ".join(words[:2])) or _INSTEAD.get(" ".join(words[:1]))
    return f"{NAME} {meant}" if meant else ""


def _help_width() -> int:
    """Return how wide help is, as click has it: that would load ten modules to ask."""
    columns = os.environ.get("COLUMNS", "")
    wide = int(columns) if units.is_number(columns) else 0
    with contextlib.suppress(AttributeError, ValueError, OSError):
        wide = wide or os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    return max(min(wide or _WIDEST, _WIDEST) - 2, 50)


def call(arguments: list[str]) -> int:
    """Parse one command line, run its verb and return the exit code.

    KeyboardInterrupt and BrokenPipeError are raised also when click noticed them first.
    """
    streams = sys.stdout, sys.stderr
    try:
        result: Any = program.main(
            args=arguments,
            prog_name=NAME,
            standalone_mode=False,
            obj=Globals(),
            terminal_width=_help_width(),
        )
    except click.UsageError as error:
        message = error.format_message().replace("\n", " ")
        hint = f"{NAME if error.ctx is None else error.ctx.command_path} --help"
        if error.ctx is not None and isinstance(error.ctx.command, click.Group):
            hint = _meant(arguments) or hint
        if isinstance(error, click.NoSuchOption) and units.is_number(error.option_name[1:2]):
            word = next(word for word in arguments if word.startswith(error.option_name))
            message = f"{word!r}: no number here is below zero"
        if message.startswith("Missing command") or isinstance(
            error, click.exceptions.NoArgsIsHelpError
        ):
            # The library would say its whole help in one line.
            message = f"which verb? {_verbs_of(error.ctx)}"
        return exits.fail(arguments, error, message, hint, USAGE)
    except click.ClickException as error:
        return exits.fail(arguments, error, error.format_message(), "", FAILED)
    except click.Abort:
        raise KeyboardInterrupt from None
    except SystemExit:
        if sys.stdout is streams[0]:
            raise
        # click met a closed pipe: it has wrapped the streams, and would leave with 1.
        sys.stdout, sys.stderr = streams
        raise BrokenPipeError from None
    return result if isinstance(result, int) else OK


def answer_tab(arguments: list[str]) -> int:
    """Answer TAB; the line is in the environment. Whatever breaks, no error spoils it."""
    from click.shell_completion import add_completion_class  # noqa: PLC0415 - for TAB alone

    from gpuwatchd.cli import completion_answers  # noqa: PLC0415

    add_completion_class(completion_answers.Words)
    with (
        contextlib.suppress(Exception, SystemExit),  # an incomplete line may be wrong in any way
        open(os.devnull, "w") as nowhere,  # noqa: PTH123
        contextlib.redirect_stderr(nowhere),
    ):
        call(arguments)
    return 0
