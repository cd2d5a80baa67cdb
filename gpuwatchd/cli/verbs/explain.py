"""``explain``: the whole reasoning of one verdict, in plain words with its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuwatchd.cli import envelope, options, output, verdict_text

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gpuwatchd.cli.explanation_curve import ExplanationInput, Section
    from gpuwatchd.cli.next_steps import Step


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [
        *options.complete_gpu(ctx, param, incomplete),
        *options.complete_pid(ctx, param, incomplete),
        *options.complete_key(ctx, param, incomplete),
    ]


@click.command("explain", epilog=options.examples("explain", "explain 4711", "explain 0 --json"))
@click.argument("target", required=False, metavar="[GPU|PID|ALERT]", shell_complete=_complete)
def command(target: str | None) -> int:
    """Explain the reasoning of one verdict in full, and what to do next.

    Of the worst verdict, or of a GPU (index, UUID, glob), a pid, or the key of an alert. Of what
    is calm it tells why it is no leak.
    """
    from gpuwatchd.cli import explanation  # noqa: PLC0415 - numpy and SQLite come with it

    flags = options.current()
    case, warnings = explanation.case_of(flags, target)
    sections = explanation.sections(case)
    steps = explanation.steps(case)
    if flags.json:
        data = explanation.as_json(case, sections, steps)
        envelope.emit("explain", data, view=case.view, warnings=warnings)
    else:
        out = output.Out(flags)
        for _, sentence in case.view.warnings:  # The others are told where they matter.
            out.flow(output.sentence(f"! {sentence}", "yellow"), rest="  ", gap=" ")
        write_explanation(out, case, sections, steps)
    return 0


def write_explanation(
    out: output.Out, case: ExplanationInput, sections: list[Section], steps: list[Step]
) -> None:
    """Write one explanation, then what to do."""
    device = case.item.device
    out.flow([(device.label, "bold"), (device.name, "bold"), _verdict(case)])
    for section in sections:
        if section.lines:
            out.line((section.title, "bold"))
        for line in section.lines:
            out.flow(output.sentence(line), first="  ", rest="    ", gap=" ")
    out.line(("What to do", "bold"))
    for number, step in enumerate(steps, 1):
        out.flow(output.sentence(step.text), first=f"  {number}. ", rest="     ", gap=" ")
        if step.command:
            # Not broken between words: it is there to be copied.
            out.flow(
                [(step.command, "cyan")]
                if not out.terminal
                else output.sentence(step.command, "cyan"),
                first="     ",
                rest="     ",
                gap=" ",
            )


def _verdict(case: ExplanationInput) -> output.Part:
    """Return the verdict in a few words; of an alert that needs none how much it is worth."""
    alert = case.alert
    if alert is None or alert.kind == "leak":
        return verdict_text.verdict(case.finding)
    if alert.state == "resolved":
        return "resolved"
    return alert.severity.upper(), "red-bold" if alert.severity == "critical" else "yellow-bold"
