"""``explain``: the reasoning of one verdict in full, with its numbers."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import live_answers


@click.command("explain", epilog=options.examples("explain", "explain 4711", "explain 0 --json"))
@click.argument(
    "target", required=False, metavar="[GPU|PID|ALERT]", shell_complete=options.complete_subject
)
@click.option("--all", "everything", is_flag=True, help="All of the reasoning.")
def command(target: str | None, *, everything: bool) -> int:
    """Explain one verdict: the answer, what to do, and the reasoning in at most 40 lines.

    Of the worst firing alert, else the newest death, else the worst verdict; or of a GPU (index,
    name, UUID), a process (pid, program, user, job) or an alert. For a calm subject it explains why
    it is not a leak. Figures of all verdicts: `predict`.
    """
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.explain(flags, target))
    from gpuwatchd.view.text import explanation, explanation_page  # noqa: PLC0415 - numpy and SQLite come with it

    case, _ = explanation.case_of(flags, target)
    explanation_page.write_explanation(
        output.Out(flags),
        case,
        explanation.sections(case),
        explanation.steps(case),
        warnings=[sentence for _, sentence in case.view.warnings],  # others where they matter
        everything=everything,
    )
    return 0
