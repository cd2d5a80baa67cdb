"""An explanation as people read it: the answer, what to do, and as much reasoning as fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwatchd.view import blocks
from gpuwatchd.view.text import verdict_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatchd.view.blocks import Block, Page
    from gpuwatchd.view.queries.remeasure import ExplanationInput
    from gpuwatchd.view.text.explanation_parts import Section, Step

MOST_LINES = 40
"""Of an explanation at 80 columns that is not asked for in full."""


def write_explanation(
    out: Page,
    case: ExplanationInput,
    sections: list[Section],
    steps: list[Step],
    *,
    everything: bool = True,
) -> None:
    """Write one explanation: the answer, what to do, then the reasoning.

    ``everything`` False leaves out whole parts, so that it is at most :data:`MOST_LINES` long.
    """
    device = case.item.device
    out.flow([(device.label, "bold"), (device.name, "bold"), _headline(case)])
    left = MOST_LINES - 5  # warnings before it, the headline, and what says what is left out
    for section in sections:
        if section.answer:
            left -= _write(out, _section(section, titled=False))
    left -= _write(out, [blocks.Line((("What to do", "bold"),))])
    parts = [(f"step {number}", _step(out, number, step)) for number, step in enumerate(steps, 1)]
    parts += [(part.title, _section(part)) for part in sections if part.lines and not part.answer]
    missing = []
    for title, part in parts:
        if everything or _height(out, part) <= left:
            left -= _write(out, part)
        else:
            missing.append(title)
    if missing:
        rest = f"--all shows {len(missing)} more parts: {', '.join(missing[:3])} ..."
        out.flow(blocks.sentence(rest, "dim"), gap=" ")


def _height(out: Page, part: Sequence[Block]) -> int:
    return sum(len(list(out.lay_out(block))) for block in part)


def _write(out: Page, part: Sequence[Block]) -> int:
    """Write blocks, and return how many lines they take."""
    for block in part:
        out.add(block)
    return _height(out, part)


def _section(section: Section, *, titled: bool = True) -> list[Block]:
    part: list[Block] = [blocks.Line(((section.title, "bold"),))] if titled else []
    for line in section.lines:
        words = tuple(blocks.sentence(line))
        part.append(blocks.Flow(words, first="  ", rest="    ", gap=" "))
    return part


def _step(out: Page, number: int, step: Step) -> list[Block]:
    words = tuple(blocks.sentence(step.text))
    part: list[Block] = [blocks.Flow(words, first=f"  {number}. ", rest="     ", gap=" ")]
    if step.command:
        # Not broken between words: it is there to be copied.
        command = tuple(blocks.sentence(step.command, "cyan"))
        if not out.terminal:
            command = ((step.command, "cyan"),)
        part.append(blocks.Flow(command, first="     ", rest="     ", gap=" "))
    return part


def _headline(case: ExplanationInput) -> blocks.Part:
    """Return the verdict in a few words; of an alert that needs none how much it is worth."""
    alert = case.alert
    if alert is None or alert.kind == "leak":
        return verdict_text.verdict(case.finding)
    if alert.state == "resolved":
        return "resolved"
    return alert.severity.upper(), "red-bold" if alert.severity == "critical" else "yellow-bold"
