"""One explanation put together: the case, its sections, its steps, and the same as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuwatchd.analysis.verdict import WATCH_CONFIDENCE
from gpuwatchd.cli import (
    consequences,
    curve_reasons,
    envelope,
    evidence,
    history_query,
    next_steps,
    payload,
    plain_alert,
    process_facts,
    subjects,
)
from gpuwatchd.cli.curve_reasons import Case, Section
from gpuwatchd.core import text, units
from gpuwatchd.core.errors import StoreError

if TYPE_CHECKING:
    from gpuwatchd.cli.current_state import View
    from gpuwatchd.cli.flags import Globals
    from gpuwatchd.cli.next_steps import Step
    from gpuwatchd.cli.subjects import NamedSubject
    from gpuwatchd.core.model import Delivery, Signal

_LINE = 1024


def case_of(flags: Globals, target: str | None) -> tuple[Case, list[tuple[str, str]]]:
    """Return everything about the subject that is meant, and what is missing.

    Raises
    ------
    GpuwatchdError
        When there is nothing to explain, or nothing that fits.
    """
    view = subjects.judged_view(flags)
    return case_about(flags, view, subjects.pick(view, target))


def case_about(
    flags: Globals, view: View, meant: NamedSubject
) -> tuple[Case, list[tuple[str, str]]]:
    """Return the same about a subject that is known already."""
    loaded = flags.load_config()
    over = meant.alert is not None and meant.alert.state == "resolved"
    now_s = view.taken_at_s
    if over and meant.finding is not None:
        now_s = meant.finding.judged_at_s
    found = evidence.gather(_wanted(meant, now_s), loaded.config.detection)
    warnings = [("no-series", found)] if isinstance(found, str) else []
    return Case(
        view=view,
        item=meant.item,
        process=meant.process,
        subject=meant.subject,
        finding=meant.finding,
        alert=meant.alert,
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
        and envelope.is_leak(process.finding)
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


def sections(case: Case) -> list[Section]:
    """Return the explanation, part by part; parts without anything to say are empty."""
    if plain_alert.is_plain(case.alert):
        return plain_alert.sections(case)
    pattern = case.finding.pattern if case.finding is not None else "no verdict"
    return [
        Section("What is judged", tuple(curve_reasons.judged(case))),
        Section("What was looked at", tuple(curve_reasons.looked(case))),
        Section("What the detectors say", tuple(curve_reasons.detectors(case))),
        Section(f"Why {pattern}", tuple(curve_reasons.pattern(case))),
        Section("How sure", tuple(curve_reasons.sure(case))),
        Section("When it is full", tuple(consequences.limit_lines(case))),
        Section("Who", tuple(consequences.who(case))),
        Section("What is known of the program", tuple(consequences.baseline_lines(case))),
        Section("Framework", tuple(consequences.framework(case))),
        Section("Hardware", tuple(process_facts.hardware_lines(case))),
        Section("Who was told", tuple(consequences.policy_lines(case))),
        Section("What would change it", tuple(consequences.change(case))),
    ]


def steps(case: Case) -> list[Step]:
    """Return what to do next, in order."""
    if plain_alert.is_plain(case.alert):
        return plain_alert.steps(case)
    return next_steps.steps(case, hardware_first=process_facts.first(case))


def as_json(case: Case, parts: list[Section], todo: list[Step]) -> dict[str, Any]:
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
            "key": text.clean(case.alert.key),
            "state": case.alert.state,
            "confirmations": case.alert.confirmations,
            "alert_confirmations": case.alert.alert_confirmations,
            "notices": case.alert.notices,
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


def _looked(case: Case) -> dict[str, Any] | None:
    found = case.measured
    if found is None:
        return None
    view, grown = found.view, found.growth
    best = None if grown is None else grown.best
    return {
        "samples": view.samples,
        "span_s": view.span_s,
        "interval_s": envelope.finite(view.interval_s),
        "until_at": units.instant(view.now_s),
        "noise_bytes": round(view.noise_bytes),
        "minimum_growth_bytes": round(found.least_bytes),
        "growth_bytes": None if grown is None else round(float(grown.found.growth[best])),
        "growth_age_s": None if grown is None else float(grown.found.age_s[best]),
        "growth_events": None if grown is None else float(grown.found.events[best]),
        "confidence": None if grown is None else grown.confidence,
    }


def _signals(case: Case) -> list[Signal]:
    signals = list(case.finding.signals) if case.finding is not None else []
    names = {signal.detector for signal in signals}
    found = case.measured
    asked = [
        signal for _, signal in (found.signals if found is not None else ()) if signal is not None
    ]
    return [*signals, *(signal for signal in asked if signal.detector not in names)]


def _signal(signal: Signal) -> dict[str, Any]:
    return {
        "detector": signal.detector,
        "pattern": signal.pattern,
        "rate_bytes_per_s": envelope.finite(signal.rate_bytes_per_s),
        "confidence": envelope.finite(signal.confidence),
        "since_at": units.instant(signal.since_s),
        "n": signal.n,
        "facts": {name: envelope.finite(value) for name, value in signal.facts.items()},
    }
