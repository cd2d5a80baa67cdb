"""The command line: lazily loaded verbs, exit codes, and errors of one line and one hint."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import click

from gpuwatchd import __version__
from gpuwatchd.ctl import COMMANDS, options
from gpuwatchd.errors import GpuwatchdError

NAME = "gpuwatchctl"
OK, FAILED, USAGE, FINDINGS, BAD_INPUT = 0, 1, 2, 3, 5
INTERRUPTED, PIPE_CLOSED = 130, 141


class _PipeClosed(Exception):
    """The reader of our output has gone. Not an OSError: click would turn that into exit 1."""


class Verbs(click.Group):
    """Verbs of the ``COMMANDS`` table, imported when they are called."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; a closed pipe passes click by."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _PipeClosed from error

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
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; an unknown one names the nearest."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib  # noqa: PLC0415 - only for mistakes

            near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
            guess = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"no such verb: {name}{guess}")
        ctx.ensure_object(options.Globals).verb = name
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs; one that cannot be loaded does not hide the others."""
        rows = []
        for name in self.list_commands(ctx):
            try:
                rows.append((name, load(name).get_short_help_str(limit=60)))
            except ImportError:
                rows.append((name, "(cannot be loaded here)"))
        with formatter.section("Verbs"):
            formatter.write_dl(rows)


_loaded: dict[str, click.Command] = {}


def load(name: str) -> click.Command:
    """Return the verb ``name`` with the global flags.

    Raises
    ------
    ImportError
        When its module (or something that it needs) is missing.
    """
    if name not in _loaded:
        from gpuwatchd import registry  # noqa: PLC0415

        try:
            command: click.Command = registry.load(COMMANDS, name)
        except AttributeError as error:
            raise ImportError(str(error)) from error
        _loaded[name] = options.add_globals(command)
    return _loaded[name]


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001
    if value and not ctx.resilient_parsing:
        click.echo(f"{NAME} {__version__}")
        ctx.exit()


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    subcommand_metavar="VERB [ARGUMENTS]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog=options.examples("status", "analyze training.csv"),
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version.",
)  # fmt: skip
@click.pass_context
def program(ctx: click.Context) -> int:
    """Watch GPU memory: who leaks, how fast, and when it will be full."""
    ctx.ensure_object(options.Globals)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return USAGE
    return OK


options.add_globals(program)


def _verb_of(arguments: list[str]) -> str:
    return next((word for word in arguments if word in COMMANDS), "")


def _fail(arguments: list[str], error: BaseException, message: str, hint: str, code: int) -> int:
    """Say what is wrong: one line and one hint, and with ``--json`` an object on stdout too."""
    if "--debug" in arguments:
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
    if "--json" in arguments:
        from gpuwatchd.ctl import envelope, output  # noqa: PLC0415

        kind = type(error).__name__
        output.emit_json(
            envelope.failure(_verb_of(arguments), kind, message, hint=hint, exit_code=code)
        )
    from gpuwatchd import text  # noqa: PLC0415

    lines = [f"{NAME}: {text.clean(message, limit=1024)}"]
    if hint:
        lines.append(f"hint: {text.clean(hint, limit=1024)}")
    with contextlib.suppress(OSError, ValueError):
        print("\n".join(lines), file=sys.stderr)
    return code


def _silence() -> None:
    """Point stdout at nothing, so that the interpreter's last flush meets no closed pipe."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _call(arguments: list[str]) -> int:
    try:
        result: Any = program.main(
            args=arguments, prog_name=NAME, standalone_mode=False, obj=options.Globals()
        )
        sys.stdout.flush()
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else NAME
        message = error.format_message().replace("\n", " ")
        return _fail(arguments, error, message, f"{path} --help", USAGE)
    except click.ClickException as error:
        return _fail(arguments, error, error.format_message(), "", FAILED)
    except GpuwatchdError as error:
        return _fail(arguments, error, error.message, error.hint, error.exit_code)
    return result if isinstance(result, int) else OK


def run(arguments: list[str]) -> int:
    """Run one command line and return the exit code. Raises nothing, prints no traceback."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return _call(arguments)
    except (BrokenPipeError, _PipeClosed):
        _silence()
        return PIPE_CLOSED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except SystemExit as leaving:  # shell completion leaves this way
        return leaving.code if isinstance(leaving.code, int) else OK
    except Exception as error:  # noqa: BLE001 - no traceback ever reaches a user
        try:
            words = f"internal error: {type(error).__name__}: {error}"
            return _fail(arguments, error, words, "run again with --debug", FAILED)
        except BrokenPipeError:
            _silence()
            return PIPE_CLOSED
