"""One explanation put together: the case, its sections, its steps."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from gpuwatchd.core import text
from gpuwatchd.core.errors import StoreError
from gpuwatchd.view import blocks
from gpuwatchd.view.queries import cost_entries, history_query, remeasure, subjects
from gpuwatchd.view.text import (
    explanation_context,
    explanation_curve,
    next_steps,
    process_facts,
    verdict_text,
)
from gpuwatchd.view.text.explanation_curve import ExplanationInput, Section
from gpuwatchd.view.text.next_steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuwatchd.core.model import Alert, Delivery
    from gpuwatchd.view.blocks import Page
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.queries.subjects import NamedSubject
    from gpuwatchd.view.query import Query

_PLAIN_LINE = 400
_ENDS = {
    "gpu": (
        "it resolves when the GPU has answered for a minute",
        "it stays open while the GPU sleeps, is released or cannot be read",
    ),
    "held": (
        "it resolves when the process has ended, or has been active or held less for five minutes",
        "it stays open while the list of processes cannot be read",
    ),
}
_ABOUT = {"gpu": "how the GPU answers", "held": "idle memory"}


def case_of(query: Query, target: str | None) -> tuple[ExplanationInput, list[tuple[str, str]]]:
    """Return everything about the subject that is meant, and what is missing.

    Raises
    ------
    GpuwatchdError
        When there is nothing to explain, or nothing that fits.
    """
    view = subjects.judged_view(query)
    return case_about(query, view, subjects.pick(view, target))


def case_about(
    query: Query, view: View, meant: NamedSubject
) -> tuple[ExplanationInput, list[tuple[str, str]]]:
    """Return the same about a subject that is known already."""
    loaded, alert = query.load_config(), meant.alert
    if alert is not None:
        (alert,) = cost_entries.up_to_now(query, [alert])
    over = meant.alert is not None and meant.alert.state == "resolved"
    now_s = view.taken_at_s
    if over and meant.finding is not None:
        now_s = meant.finding.judged_at_s
    found = remeasure.gather(meant, now_s, loaded.config.detection)
    warnings = [("no-series", found)] if isinstance(found, str) else []
    return ExplanationInput(
        **meant._replace(alert=alert)._asdict(),
        view=view,
        evidence=found,
        config=loaded.config,
        now_s=now_s,
        deliveries=_deliveries(meant),
    ), warnings


def _deliveries(meant: NamedSubject) -> tuple[Delivery, ...]:
    """Return where the notices of an alert went; () where that is not recorded."""
    if meant.alert is None:
        return ()
    try:
        with history_query.reader() as history:
            deliveries = history.deliveries(meant.alert.key)
    except StoreError:
        return ()
    # A key comes again with the next growth of the same process.
    return tuple(
        delivery for delivery in deliveries if delivery.created_at_s >= meant.alert.opened_at_s
    )


def sections(case: ExplanationInput) -> list[Section]:
    """Return the explanation, part by part; parts without anything to say are empty."""
    if case.alert is not None and case.alert.kind in _ENDS:
        return _plain_sections(case, case.alert)
    pattern = case.finding.pattern if case.finding is not None else "no verdict"
    return [
        Section("Data", tuple(explanation_curve.subject_lines(case))),
        Section("Analysed", tuple(explanation_curve.window_lines(case))),
        Section("Detectors", tuple(explanation_curve.detectors(case))),
        Section(f"Why {pattern}", tuple(explanation_curve.pattern(case))),
        Section("How sure", tuple(explanation_curve.confidence_lines(case))),
        Section("When it is full", tuple(explanation_context.limit_lines(case))),
        Section("Who", tuple(explanation_context.who(case))),
        Section("What is known of the program", tuple(explanation_context.baseline_lines(case))),
        Section("Framework", tuple(explanation_context.framework(case))),
        Section("Hardware", tuple(process_facts.hardware_lines(case))),
        Section("Notifications", tuple(explanation_context.policy_lines(case))),
        Section("What would change it", tuple(explanation_context.change(case))),
    ]


def steps(case: ExplanationInput) -> list[Step]:
    """Return what to do next, in order."""
    if case.alert is not None and case.alert.kind in _ENDS:
        return _plain_steps(case.alert)
    return next_steps.steps(case, hardware_first=process_facts.first(case))


# What is said of an alert that no curve is judged for: a lost GPU, idle memory.


def _plain_sections(case: ExplanationInput, alert: Alert) -> list[Section]:
    """Return the explanation, part by part."""
    return [
        Section("What is sent", tuple(_plain_lines(case, alert))),
        Section("Hardware", tuple(process_facts.hardware_lines(case))),
        Section("Notifications", tuple(explanation_context.policy_lines(case))),
        Section("What would end it", () if alert.state == "resolved" else _ENDS[alert.kind]),
    ]


def _plain_lines(case: ExplanationInput, alert: Alert) -> Iterator[str]:
    yield f"{_ABOUT[alert.kind]}: {text.clean(alert.title)}"
    for part in alert.finding.parts:
        yield text.clean(part.whole, limit=_PLAIN_LINE)
    yield f"since {case.ago(alert.opened_at_s)}"


def _plain_steps(alert: Alert) -> list[Step]:
    """Return what to do next, in order; what follows a colon is there to be typed."""
    found, finding = [], alert.finding
    for line, command in zip_longest(finding.advice, finding.commands or (), fillvalue=""):
        words = line[: -len(f": {command}")] if command else line
        found.append(
            Step(text.clean(words, limit=_PLAIN_LINE), text.clean(command, limit=_PLAIN_LINE))
        )
    if alert.kind == "held":
        found.append(Step("see everything that is held", "gpuwatchctl zombies"))
    elif alert.state != "resolved":
        found.append(Step("see what else the daemon misses", "gpuwatchctl doctor"))
    return found


def write_explanation(
    out: Page, case: ExplanationInput, sections: list[Section], steps: list[Step]
) -> None:
    """Write one explanation, then what to do."""
    device = case.item.device
    out.flow([(device.label, "bold"), (device.name, "bold"), _headline(case)])
    for section in sections:
        if section.lines:
            out.line((section.title, "bold"))
        for line in section.lines:
            out.flow(blocks.sentence(line), first="  ", rest="    ", gap=" ")
    out.line(("What to do", "bold"))
    for number, step in enumerate(steps, 1):
        out.flow(blocks.sentence(step.text), first=f"  {number}. ", rest="     ", gap=" ")
        if step.command:
            # Not broken between words: it is there to be copied.
            out.flow(
                [(step.command, "cyan")]
                if not out.terminal
                else blocks.sentence(step.command, "cyan"),
                first="     ",
                rest="     ",
                gap=" ",
            )


def _headline(case: ExplanationInput) -> blocks.Part:
    """Return the verdict in a few words; of an alert that needs none how much it is worth."""
    alert = case.alert
    if alert is None or alert.kind == "leak":
        return verdict_text.verdict(case.finding)
    if alert.state == "resolved":
        return "resolved"
    return alert.severity.upper(), "red-bold" if alert.severity == "critical" else "yellow-bold"
