"""``doctor``: what works here, what is missing, and the command that fixes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import doctor, exits, options, output
from gpuwatchd.view import blocks
from gpuwatchd.view.answers.program import Doctor

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gpuwatchd.cli.doctor import Check

_WORDS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "failed": ("FAILED", "red-bold")}
_WIDTH = 9


def _complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str | CompletionItem]:
    # A listing is for the checks; what they print and their ids come once a letter is typed.
    known = doctor.every_name() if incomplete else doctor.CHECKS
    return [name for name in known if name.startswith(incomplete)]


@click.command("doctor", epilog=options.examples("doctor", "doctor --json", "doctor mail clock"))
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_complete)
@click.option("--offline", is_flag=True, help="Make no network requests.")
def command(names: tuple[str, ...], offline: bool) -> int:  # noqa: FBT001
    """Check what works here, what is missing, and which command fixes it.

    Nothing is changed and nothing is sent. With names only these checks: program, config, gpus,
    host, daemon, probe, instances, service, disk, history, clock, prices, session, channels, mail,
    web, metrics.
    Each is also found by what it prints ("extras") and by an id ("gpu-none").

    Exit 0 all fine, 3 warnings, 1 a required part fails.
    """
    flags = options.current()
    answers = []
    out = output.Out(flags)
    for check in doctor.every(flags, names, offline=offline):
        answers.append(check)
        if not flags.json and not (flags.quiet and check.level == "ok"):
            _show(out, check)
    if flags.json:
        output.emit_answer(Doctor, answers, source="checks")
    levels = {check.level for check in answers}
    if "failed" in levels:
        return 1
    return 3 if "warning" in levels else 0


def _show(out: output.Out, check: Check) -> None:
    word, style = _WORDS[check.level]
    text, hint = f"{check.name}: {check.text}", f"-> {check.hint}"
    # A pipe gets whole lines, to be searched; a terminal gets them broken at its width.
    broken = out.terminal
    if broken:
        first: blocks.Part = (word.ljust(_WIDTH - 1), style)
        out.flow([first, *blocks.sentence(text)], rest=" " * _WIDTH, gap=" ")
    else:
        out.line((word.ljust(_WIDTH), style), text)
    if check.hint:
        hints = blocks.sentence(hint, "cyan") if broken else [(hint, "cyan")]
        out.flow(hints, first=" " * _WIDTH, rest=" " * (_WIDTH + 3), gap=" ")
    if check.page:
        out.line(" " * _WIDTH, (exits.docs_reference(check.page), "dim"))
    out.flush()
