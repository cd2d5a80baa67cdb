"""``gpuwatchctl``: one verb is one file here and one line in ``COMMANDS``."""

from __future__ import annotations

import os
import sys

COMMANDS: dict[str, str] = {
    "status": "gpuwatchd.ctl.status:command",
    "watch": "gpuwatchd.ctl.watch:command",
    "top": "gpuwatchd.ctl.top:command",
    "predict": "gpuwatchd.ctl.predict:command",
    "explain": "gpuwatchd.ctl.explain:command",
    "zombies": "gpuwatchd.ctl.zombies:command",
    "plot": "gpuwatchd.ctl.plot:command",
    "history": "gpuwatchd.ctl.history:command",
    "report": "gpuwatchd.ctl.report:command",
    "alerts": "gpuwatchd.ctl.alerts:command",
    "snooze": "gpuwatchd.ctl.snooze:command",
    "feedback": "gpuwatchd.ctl.feedback:command",
    "cost": "gpuwatchd.ctl.cost:command",
    "checkpointed": "gpuwatchd.ctl.checkpointed:command",
    "analyze": "gpuwatchd.ctl.analyze:command",
    "backtest": "gpuwatchd.ctl.backtest:command",
    "web": "gpuwatchd.ctl.web:command",
    "doctor": "gpuwatchd.ctl.doctor:command",
    "ask-checkpoint": "gpuwatchd.ctl.ask_checkpoint:command",
    "release": "gpuwatchd.ctl.release:command",
    "config": "gpuwatchd.ctl.config:command",
    "policy": "gpuwatchd.ctl.policy:command",
    "notify": "gpuwatchd.ctl.notify:command",
    "check": "gpuwatchd.ctl.check:command",
    "service": "gpuwatchd.ctl.service:command",
    "demo": "gpuwatchd.ctl.demo:command",
    "docs": "gpuwatchd.ctl.docs:command",
    "schema": "gpuwatchd.ctl.schema:command",
    "completion": "gpuwatchd.ctl.completion:command",
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
        from gpuwatchd.ctl import completing  # noqa: PLC0415 - for TAB alone

        return completing.answer(arguments)
    from gpuwatchd.ctl import exits, quick  # noqa: PLC0415 - after the fast way out

    wish = quick.read(arguments)
    if wish is not None:
        return exits.guard(arguments, lambda _: quick.run(wish))

    def call(words: list[str]) -> int:
        from gpuwatchd.ctl import program  # noqa: PLC0415

        return program.call(words)

    return exits.guard(arguments, call)


def _version() -> int:
    from gpuwatchd import __version__  # noqa: PLC0415

    try:
        print(f"gpuwatchctl {__version__}", flush=True)
    except BrokenPipeError:
        from gpuwatchd.ctl import exits  # noqa: PLC0415

        return exits.silence()
    return 0
