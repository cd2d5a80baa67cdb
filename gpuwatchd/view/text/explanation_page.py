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
_ANY = 10**6


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
    before = [("warnings", [_prose(f"! {words}", "yellow", rest="  ")]) for words in warnings]
    answer = [
        (part.title, [_prose(line, first="  ", rest="    ")])
        for part in sections
        if part.answer
        for line in part.lines
    ]
    todo = [(f"step {number}", _step(out, number, step)) for number, step in enumerate(steps, 1)]
    reasons = [
        (
            part.title,
            [_title(part.title), *(_prose(it, first="  ", rest="    ") for it in part.lines)],
        )
        for part in sections
        if part.lines and not part.answer
    ]
    begin = [head, _title("What to do")]
    first = [block for _, step in todo[:_FIRST_STEPS] for block in step]
    left = _ANY if everything else MOST_LINES - _LAST_LINES - _height(out, [*begin, *first])
    missing: dict[str, None] = {}

    def write(parts: Sequence[tuple[str, Sequence[Block]]]) -> None:
        nonlocal left
        for title, part in parts:
            height = _height(out, part)
            if height > left:
                missing[title] = None
                continue
            left -= height
            for block in part:
                out.add(block)

    write(before)
    out.add(begin[0])
    write(answer)
    out.add(begin[1])
    left += _height(out, first)
    write([*todo, *reasons])
    if missing:
        count, named = len(missing), ", ".join(list(missing)[:_NAMED])
        parts = "1 more part" if count == 1 else f"{count} more parts"
        out.add(_prose(f"--all shows {parts}: {named}{' ...' if count > _NAMED else ''}", "dim"))


def _height(out: Page, part: Sequence[Block]) -> int:
    return sum(len(list(out.lay_out(block))) for block in part)


def _title(words: str) -> Block:
    return blocks.Line(((words, "bold"),))


def _prose(words: str, style: str = "", *, first: str = "", rest: str = "") -> Block:
    return blocks.Flow(tuple(blocks.sentence(words, style)), first=first, rest=rest, gap=" ")


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
