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
_LAST_LINES = 2
"""Say what is left out."""
_FIRST_STEPS = 3
"""They are never left out."""
_NAMED = 3


def write_explanation(
    out: Page,
    case: ExplanationInput,
    sections: Sequence[Section],
    steps: Sequence[Step],
    *,
    warnings: Sequence[str] = (),
    everything: bool = True,
) -> None:
    """Write one explanation: the answer, what to do, then the reasoning.

    ``everything`` False leaves out what does not fit into :data:`MOST_LINES`: lines of the answer,
    else whole parts.
    """
    device = case.item.device
    head = blocks.Flow(((device.label, "bold"), (device.name, "bold"), _headline(case)))
    answer = [(part.title, line) for part in sections if part.answer for line in part.lines]
    reasons = [part for part in sections if part.lines and not part.answer]
    # What is without a title is never left out.
    parts: list[tuple[str, list[Block]]] = [
        *(("warnings", [_prose(f"! {words}", "yellow", rest="  ")]) for words in warnings),
        ("", [head]),
        *((title, [_line(line)]) for title, line in answer),
        ("", [_title("What to do")]),
        *(
            (f"step {number}" if number > _FIRST_STEPS else "", _step(out, number, step))
            for number, step in enumerate(steps, 1)
        ),
        *((part.title, [_title(part.title), *map(_line, part.lines)]) for part in reasons),
    ]
    left = MOST_LINES - _LAST_LINES - sum(_height(out, part) for title, part in parts if not title)
    missing: list[str] = []
    for title, part in parts:
        height = 0 if everything or not title else _height(out, part)
        if height > max(left, 0):
            missing += [] if title in missing else [title]
            continue
        left -= height
        for block in part:
            out.add(block)
    if missing:
        many = "1 more part" if len(missing) == 1 else f"{len(missing)} more parts"
        more = " ..." if len(missing) > _NAMED else ""
        out.add(_prose(f"--all shows {many}: {', '.join(missing[:_NAMED])}{more}", "dim"))


def _height(out: Page, part: Sequence[Block]) -> int:
    return sum(len(list(out.lay_out(block))) for block in part)


def _title(words: str) -> Block:
    return blocks.Line(((words, "bold"),))


def _prose(words: str, style: str = "", *, first: str = "", rest: str = "") -> Block:
    return blocks.Flow(tuple(blocks.sentence(words, style)), first=first, rest=rest, gap=" ")


def _line(words: str) -> Block:
    return _prose(words, first="  ", rest="    ")


def _step(out: Page, number: int, step: Step) -> list[Block]:
    part = [_prose(step.text, first=f"  {number}. ", rest="     ")]
    if step.command and out.terminal:
        part.append(_prose(step.command, "cyan", first="     ", rest="     "))
    elif step.command:
        # Not broken between words: it is there to be copied.
        part.append(blocks.Flow(((step.command, "cyan"),), first="     "))
    return part


def _headline(case: ExplanationInput) -> blocks.Part:
    """Return the verdict in a few words; of an alert that needs none how much it is worth."""
    alert = case.alert
    if alert is None or alert.kind == "leak":
        return verdict_text.verdict(case.finding)
    if alert.state == "resolved":
        return "resolved"
    return alert.severity.upper(), "red-bold" if alert.severity == "critical" else "yellow-bold"
