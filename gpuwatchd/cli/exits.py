"""Exit codes, and errors of one line and one hint."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

from gpuwatchd.cli.verbs import COMMANDS
from gpuwatchd.core.errors import FAILED, INTERRUPTED, OK, PIPE_CLOSED, GpuwatchdError

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "gpuwatchctl"
PLUGIN, PLUGIN_UNKNOWN = "check", 3
"""The verb with exit codes of its own: whatever fails, a monitoring system is told UNKNOWN."""


def docs_reference(page: str) -> str:
    """Return the line that names a page of the documentation.

    Examples
    --------
    >>> docs_reference("errors#no-gpu")
    'see: gpuwatchctl docs errors#no-gpu'
    """
    return f"see: {NAME} docs {page}"


def fail(
    arguments: list[str],
    error: BaseException,
    message: str,
    hint: str,
    code: int,
    *,
    page: str = "",
) -> int:
    """Say what is wrong and return ``code``.

    One line, one hint and the page of the documentation on stderr; with ``--json`` an object on
    stdout too, with ``--debug`` the traceback before them. The monitoring plug-in says it as such,
    on stdout. Without a page (a usage error: the hint is the verb's help) there is no third line.
    """
    verb = next((word for word in arguments if word in COMMANDS), "")
    code = PLUGIN_UNKNOWN if verb == PLUGIN else code
    if "--debug" in arguments:
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
    if "--json" in arguments:
        from gpuwatchd.cli import output  # noqa: PLC0415
        from gpuwatchd.view.answers import base  # noqa: PLC0415

        kind = type(error).__name__
        output.emit_json(base.failure(verb, kind, message, hint=hint, exit_code=code, page=page))
    elif verb == PLUGIN:
        from gpuwatchd.cli import monitoring_plugin  # noqa: PLC0415

        more = (*((f"hint: {hint}",) if hint else ()), *((docs_reference(page),) if page else ()))
        print(
            monitoring_plugin.render(
                monitoring_plugin.Answer(monitoring_plugin.UNKNOWN, message, more=more)
            )
        )
        return code
    from gpuwatchd.core import text  # noqa: PLC0415

    lines = [f"{NAME}: {text.clean(message, limit=1024)}"]
    if hint:
        first, *rest = hint.splitlines()
        lines.append(f"hint: {text.clean(first, limit=1024)}")
        lines += [f"  {text.clean(line, limit=1024)}" for line in rest]
    if page:
        lines.append(text.clean(docs_reference(page)))
    with contextlib.suppress(OSError, ValueError):  # perhaps nobody listens
        print("\n".join(lines), file=sys.stderr)
    return code


def discard_output() -> int:
    """Point stdout at nothing, so that the interpreter's last flush fails no more; return 141."""
    with contextlib.suppress(OSError, ValueError):  # a test's stream has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return PIPE_CLOSED


def leave(code: int) -> int:
    """End the process at once: taking apart what nobody needs any more is 10 ms of ``status``.

    Only where no thread and nothing at exit is left to do. Returns the code where streams fail.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return code
    os._exit(code)


def run_with_exit_code(arguments: list[str], work: Callable[[list[str]], int]) -> int:
    """Run ``work`` and return the exit code. Raises nothing, prints no traceback."""
    # Started with closed descriptors, Python has no streams at all.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    try:
        try:
            code = work(arguments)
            sys.stdout.flush()
        except GpuwatchdError as error:
            return fail(
                arguments, error, error.message, error.hint, error.exit_code, page=error.page
            )
    except BrokenPipeError:
        return discard_output()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as leaving:  # shell completion leaves this way
        return leaving.code if isinstance(leaving.code, int) else OK
    except Exception as error:  # noqa: BLE001 - no traceback ever reaches a user
        return _unexpected(arguments, error)
    return code


def _unexpected(arguments: list[str], error: Exception) -> int:
    words, hint = f"internal error: {type(error).__name__}: {error}", "run again with --debug"
    page = "errors#internal"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        discard_output()
        words, hint = (
            "the result cannot be written: no space left",
            "free some space and run it again",
        )
        page = "errors#no-space"
    try:
        return fail(arguments, error, words, hint, FAILED, page=page)
    except BrokenPipeError:
        return discard_output()
    except OSError:  # the object for --json cannot be written either
        discard_output()
        return fail([], error, words, hint, FAILED, page=page)
