"""``doctor``: what works here, what is missing, and the command that mends it."""

from __future__ import annotations

import click
import msgspec

from gpuwatchd.ctl import checks, envelope, options, output

_WORDS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "failed": ("FAILED", "red-bold")}
_WIDTH = 9


@click.command("doctor", epilog=options.examples("doctor", "doctor --json"))
def command() -> int:
    """Say what works here, what is missing, and which command mends it.

    Exit 0 all fine, 3 warnings, 1 a required part fails.
    """
    flags = options.current()
    answers = []
    out = output.Out(flags)
    for check in checks.every(flags):
        answers.append(check)
        if flags.json or (flags.quiet and check.level == "ok"):
            continue
        word, style = _WORDS[check.level]
        text, hint = f"{check.name}: {check.text}", f"-> {check.hint}"
        # A pipe gets whole lines, to be searched; a terminal gets them broken at its width.
        broken = out.terminal
        if broken:
            first: output.Part = (word.ljust(_WIDTH - 1), style)
            out.flow([first, *output.sentence(text)], rest=" " * _WIDTH, gap=" ")
        else:
            out.line((word.ljust(_WIDTH), style), text)
        if check.hint:
            hints = output.sentence(hint, "cyan") if broken else [(hint, "cyan")]
            out.flow(hints, first=" " * _WIDTH, rest=" " * (_WIDTH + 3), gap=" ")
        out.flush()
    if flags.json:
        data = [msgspec.to_builtins(check) for check in answers]
        output.emit_json(envelope.answer("doctor", data, source="checks"))
    levels = {check.level for check in answers}
    if "failed" in levels:
        return 1
    return 3 if "warning" in levels else 0
