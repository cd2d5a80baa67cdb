"""``explain``: the reasoning of one verdict in full, with its numbers."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import live_answers


@click.command("explain", epilog=options.examples("explain", "explain 4711", "explain 0 --json"))
@click.argument(
    "target", required=False, metavar="[GPU|PID|ALERT]", shell_complete=options.complete_subject
)
def command(target: str | None) -> int:
    """Explain the reasoning of one verdict in full, and what to do next.

    Of the worst verdict, or of a GPU (index, UUID, glob), a pid, or the key of an alert. For a calm
    subject it explains why it is not a leak.
    """
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.explain(flags, target))
    from gpuwatchd.view.text import explanation  # noqa: PLC0415 - numpy and SQLite come with it

    case, _ = explanation.case_of(flags, target)
    out = output.Out(flags)
    for _, sentence in case.view.warnings:  # The others are told where they matter.
        out.flow(blocks.sentence(f"! {sentence}", "yellow"), rest="  ", gap=" ")
    explanation.write_explanation(out, case, explanation.sections(case), explanation.steps(case))
    return 0
