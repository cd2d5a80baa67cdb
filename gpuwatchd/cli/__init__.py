"""``gpuwatchctl``: one verb is one file in ``verbs`` and one line in ``PAGES``."""

from __future__ import annotations

import os
import sys

PAGES: dict[str, str] = {
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
    "analyze": "analyse-a-log",
    "backtest": "backtest-your-settings",
    "web": "live-page",
    "doctor": "troubleshoot",
    "ask-checkpoint": "be-warned",
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
"""Verb -> the page of the documentation that its help ends with, in the order of the help."""
COMMANDS = {verb: f"{__name__}.verbs.{verb.replace('-', '_')}:command" for verb in PAGES}


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
        return _run(arguments)
    except KeyboardInterrupt:  # while modules are imported
        return 130


def _run(arguments: list[str]) -> int:
    if "_GPUWATCHCTL_COMPLETE" in os.environ:
        from gpuwatchd.cli import completion_answers  # noqa: PLC0415 - for TAB alone

        return completion_answers.answer(arguments)
    from gpuwatchd.cli import exits, status_fast_path  # noqa: PLC0415 - after the fast way out

    wish = status_fast_path.read(arguments)
    if wish is not None:
        return exits.run_with_exit_code(arguments, lambda _: status_fast_path.run(wish))

    def call(words: list[str]) -> int:
        from gpuwatchd.cli import command_line  # noqa: PLC0415

        return command_line.call(words)

    return exits.run_with_exit_code(arguments, call)


def _version() -> int:
    from gpuwatchd import __version__  # noqa: PLC0415

    try:
        print(f"gpuwatchctl {__version__}", flush=True)
    except BrokenPipeError:
        from gpuwatchd.cli import exits  # noqa: PLC0415

        return exits.discard_output()
    return 0
