"""``gpuwatchctl``: one verb is one file here and one line in ``COMMANDS``."""

from __future__ import annotations

import os
import sys

COMMANDS: dict[str, str] = {
    "status": "gpuwatchd.cli.verbs.status:command",
    "watch": "gpuwatchd.cli.verbs.watch:command",
    "top": "gpuwatchd.cli.verbs.top:command",
    "predict": "gpuwatchd.cli.verbs.predict:command",
    "explain": "gpuwatchd.cli.verbs.explain:command",
    "zombies": "gpuwatchd.cli.verbs.zombies:command",
    "plot": "gpuwatchd.cli.verbs.plot:command",
    "history": "gpuwatchd.cli.verbs.history:command",
    "report": "gpuwatchd.cli.verbs.report:command",
    "alerts": "gpuwatchd.cli.verbs.alerts:command",
    "snooze": "gpuwatchd.cli.verbs.snooze:command",
    "feedback": "gpuwatchd.cli.verbs.feedback:command",
    "cost": "gpuwatchd.cli.verbs.cost:command",
    "checkpointed": "gpuwatchd.cli.verbs.checkpointed:command",
    "analyze": "gpuwatchd.cli.verbs.analyze:command",
    "backtest": "gpuwatchd.cli.verbs.backtest:command",
    "web": "gpuwatchd.cli.verbs.web:command",
    "doctor": "gpuwatchd.cli.verbs.doctor:command",
    "ask-checkpoint": "gpuwatchd.cli.verbs.ask_checkpoint:command",
    "release": "gpuwatchd.cli.verbs.release:command",
    "config": "gpuwatchd.cli.verbs.config:command",
    "policy": "gpuwatchd.cli.verbs.policy:command",
    "notify": "gpuwatchd.cli.verbs.notify:command",
    "check": "gpuwatchd.cli.verbs.check:command",
    "service": "gpuwatchd.cli.verbs.service:command",
    "demo": "gpuwatchd.cli.verbs.demo:command",
    "docs": "gpuwatchd.cli.verbs.docs:command",
    "schema": "gpuwatchd.cli.verbs.schema:command",
    "completion": "gpuwatchd.cli.verbs.completion:command",
}


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
