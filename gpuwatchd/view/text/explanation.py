"""One explanation put together: the case, its sections, its steps, and the same as JSON."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from gpuwatchd.analysis.verdict import WATCH_CONFIDENCE
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import StoreError
from gpuwatchd.core.model import is_leak
from gpuwatchd.view import blocks
from gpuwatchd.view.answers import envelope, payload
from gpuwatchd.view.answers.base import finite
from gpuwatchd.view.queries import cost_entries, evidence, history_query, subjects
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

    from gpuwatchd.core.model import Alert, Delivery, Signal
    from gpuwatchd.view.blocks import Page
    from gpuwatchd.view.queries.current_state import View
    from gpuwatchd.view.queries.subjects import NamedSubject
    from gpuwatchd.view.query import Query

_LINE = 1024
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
    found = evidence.gather(_wanted(meant, now_s), loaded.config.detection)
    warnings = [("no-series", found)] if isinstance(found, str) else []
    return ExplanationInput(
        view=view,
        item=meant.item,
        process=meant.process,
        subject=meant.subject,
        finding=meant.finding,
        alert=alert,
        evidence=found,
        config=loaded.config,
        now_s=now_s,
        word=meant.word,
        deliveries=_deliveries(meant),
        known=meant.known,
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


def _wanted(meant: NamedSubject, until_s: float) -> evidence.Wanted:
    finding = meant.finding
    others = sum(
        process.finding.rate_bytes_per_s or 0.0
        for process in meant.item.processes or ()
        if process.finding is not None
        and is_leak(process.finding)
        and process.info.key != meant.subject.process
    )
    return evidence.Wanted(
        subject=meant.subject,
        device=meant.item.device,
        info=None if meant.process is None else meant.process.info,
        until_s=until_s,
        limit_bytes=None if finding is None else finding.limit_bytes,
        others_bytes_per_s=others if meant.subject.process is not None else 0.0,
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


def as_json(case: ExplanationInput, parts: list[Section], todo: list[Step]) -> dict[str, Any]:
    """Return the explanation with its numbers."""
    section, diagnosis = case.config.detection, process_facts.diagnose(case)
    return {
        "device": payload.device_json(case.item.device),
        "process": None if case.process is None else payload.process_json(case.process),
        "unattributed": case.subject.unattributed,
        "on_host": case.subject.host,
        "held_bytes": case.held_bytes,
        "verdict": payload.verdict_json(case.finding),
        "blame": payload.blame_json(() if case.finding is None else case.finding.blame),
        "ledger": payload.ledger_json(case.item.ledger),
        "measured": _looked(case),
        "signals": [_signal(signal) for signal in _signals(case)],
        "levels": {
            "watch_confidence": min(WATCH_CONFIDENCE, section.confidence_threshold),
            "alert_confidence": section.confidence_threshold,
            "minimum_samples": section.minimum_samples,
            "minimum_duration_s": float(section.minimum_duration),
            "eta_horizon_s": float(section.eta_horizon),
        },
        "alert": None
        if case.alert is None
        else {
            **envelope.fields(case.alert, "key state confirmations alert_confirmations notices"),
            "held_back": text.clean(case.alert.held_back) or None,
            "deliveries": [_delivery(delivery) for delivery in case.deliveries],
        },
        "hardware": {
            "word": diagnosis.word,
            "sentence": text.clean(diagnosis.sentence, limit=_LINE),
            "look_first": diagnosis.word == "hardware",
            "events": [payload.event_json(event) for event in process_facts.events(case)],
        },
        "sections": [
            {"title": part.title, "lines": [text.clean(line, limit=_LINE) for line in part.lines]}
            for part in parts
            if part.lines
        ],
        "next_steps": [
            {
                "text": text.clean(step.text, limit=_LINE),
                "command": text.clean(step.command, limit=_LINE) or None,
            }
            for step in todo
        ],
    }


def _delivery(delivery: Delivery) -> dict[str, Any]:
    return {
        "at": units.instant(delivery.sent_at_s or delivery.created_at_s),
        "channel": text.clean(delivery.channel),
        "notice": delivery.message.notice,
        "state": delivery.state,
        "error": None if delivery.error is None else text.clean(delivery.error),
    }


def _looked(case: ExplanationInput) -> dict[str, Any] | None:
    found = case.measured
    if found is None:
        return None
    view, grown = found.view, found.growth
    best = None if grown is None else grown.best
    return {
        **envelope.fields(view, "samples span_s interval_s"),
        "until_at": units.instant(view.now_s),
        "noise_bytes": round(view.noise_bytes),
        "minimum_growth_bytes": round(found.least_bytes),
        "growth_bytes": None if grown is None else round(float(grown.found.growth[best])),
        "growth_age_s": None if grown is None else float(grown.found.age_s[best]),
        "growth_events": None if grown is None else float(grown.found.events[best]),
        "confidence": None if grown is None else grown.confidence,
    }


def _signals(case: ExplanationInput) -> list[Signal]:
    signals = list(case.finding.signals) if case.finding is not None else []
    names = {signal.detector for signal in signals}
    found = case.measured
    asked = [
        signal for _, signal in (found.signals if found is not None else ()) if signal is not None
    ]
    return [*signals, *(signal for signal in asked if signal.detector not in names)]


def _signal(signal: Signal) -> dict[str, Any]:
    return {
        **envelope.fields(signal, "detector pattern rate_bytes_per_s confidence"),
        "since_at": units.instant(signal.since_s),
        "n": signal.n,
        "facts": {name: finite(value) for name, value in signal.facts.items()},
    }


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
