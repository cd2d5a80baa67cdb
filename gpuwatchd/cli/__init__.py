"""``gpuwatchctl``: the fast ways out first, then the command line."""

from __future__ import annotations

import os
import sys

from gpuwatchd.cli.verbs import COMMANDS as COMMANDS


def main(argv: list[str] | None = None) -> int:
    """Run ``gpuwatchctl`` and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; by default those of the process.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--version"]:  # asked by scripts in loops: not worth a command-line parser
        return _version()
    try:
        return _run(arguments, whole=argv is None)
    except KeyboardInterrupt:  # while modules are imported
        return 130


def _run(arguments: list[str], *, whole: bool) -> int:
    """Run it; ``whole``: the process is for this alone, and may end at once."""
    if "_GPUWATCHCTL_COMPLETE" in os.environ:
        from gpuwatchd.cli import command_line  # noqa: PLC0415 - for TAB alone

        return command_line.answer_tab(arguments)
    from gpuwatchd.cli import exits, status_fast_path  # noqa: PLC0415 - after the fast way out

    wish = status_fast_path.read(arguments)
    if wish is not None or not arguments:
        code = exits.run_with_exit_code(arguments, lambda _: status_fast_path.run(wish))
        return exits.leave(code) if whole else code

    def call(words: list[str]) -> int:
        from gpuwatchd.cli import command_line  # noqa: PLC0415

        return command_line.call(words)

    code = exits.run_with_exit_code(arguments, call)
    return exits.leave(code) if whole and arguments == ["--help"] else code


def _version() -> int:
    from gpuwatchd import __version__  # noqa: PLC0415

    try:
        print(f"gpuwatchctl {__version__}", flush=True)
    except BrokenPipeError:
        from gpuwatchd.cli import exits  # noqa: PLC0415

        return exits.discard_output()
    return 0
