"""``explain``: the whole reasoning of one verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gpuwatchd.core.model import AlertState
from gpuwatchd.view.answers.base import (
    BlameShape,
    Bytes,
    Count,
    DevicePlace,
    HappenedShape,
    Instant,
    LedgerShape,
    Seconds,
    Sentence,
    Shape,
    Share,
    SignalShape,
    Verdict,
    fill,
    of_verb,
    sources,
)
from gpuwatchd.view.answers.current import Process
from gpuwatchd.view.text import subject_facts

if TYPE_CHECKING:
    from gpuwatchd.core.model import Signal
    from gpuwatchd.view.queries.remeasure import Evidence, ExplanationInput


class Examined(Shape):
    """The recorded series, measured again."""

    samples: Count
    span_s: Seconds
    interval_s: Seconds | None
    until_at: Instant
    noise_bytes: Bytes
    minimum_growth_bytes: Bytes
    growth_bytes: int | None
    """Of the growth that deserves a verdict most."""
    growth_age_s: Seconds | None
    growth_events: float | None
    confidence: Share | None
    FROM = sources(
        **{name: f"view.{name}" for name in ("samples", "span_s", "interval_s", "noise_bytes")},
        until_at="view.now",
        minimum_growth_bytes="least_bytes",
        growth_bytes=lambda evidence: evidence.growth and round(_best(evidence, "growth")),
        growth_age_s=lambda evidence: _best(evidence, "age_s"),
        growth_events=lambda evidence: _best(evidence, "events"),
        confidence="growth.confidence",
    )


def _best(evidence: Evidence, column: str) -> Any:
    """Return a figure of the growth that deserves a verdict most; None without a growth."""
    grown = evidence.growth
    return None if grown is None else float(getattr(grown.found, column)[grown.best])


def _signals(case: ExplanationInput) -> list[Signal]:
    """Return what the detectors see; of each the verdict's own signal, where it has one."""
    evidence = case.measured
    asked = [signal for _, signal in (evidence.signals if evidence is not None else ()) if signal]
    own = case.finding.signals if case.finding is not None else ()
    names = {signal.detector for signal in own}
    return [*own, *(signal for signal in asked if signal.detector not in names)]


class FactShape(Shape):
    """What was known beside the curve, and counted."""

    name: str
    """A code: declared-share, declared-size, engine-pool, earlier-runs, warm-up, ..."""
    source: str
    """Where it is known from: the command line, a variable, a file, a model server."""
    weight: Share
    """How surely growth ends there, as far as this says."""
    level_bytes: Bytes | None
    """What the subject holds at most, by this."""
    part_bytes: Bytes | None
    """What a part of it holds once it is full."""
    text: Sentence


class Levels(Shape):
    """What it takes."""

    watch_confidence: Share
    alert_confidence: Share
    minimum_samples: Count
    minimum_duration_s: Seconds
    eta_horizon_s: Seconds


class ExplainedDelivery(Shape):
    """One message on one channel."""

    at: Instant
    channel: str
    notice: str
    state: str
    error: str | None
    FROM = sources(
        at=lambda delivery: delivery.sent_at_s or delivery.created_at_s,
        notice="message.notice",
    )


class ExplainedAlert(Shape):
    """The alert that is open, or meant."""

    key: str
    state: AlertState
    confirmations: Count
    alert_confirmations: Count
    notices: Count
    held_back: str | None
    deliveries: tuple[ExplainedDelivery, ...]


class Hardware(Shape):
    """Whether the hardware is to blame."""

    word: Literal["clean", "unreadable", "hardware", "application"]
    """unreadable: it cannot be told."""
    sentence: Sentence
    look_first: bool
    events: tuple[HappenedShape, ...]
    FROM = sources(look_first=lambda diagnosis: diagnosis.word == "hardware")


class Section(Shape):
    """A part of the text."""

    title: str
    lines: tuple[Sentence, ...]


class NextStep(Shape):
    """What to do."""

    text: Sentence
    command: Sentence | None


class Explained(Shape):
    """The whole reasoning of one verdict."""

    device: DevicePlace
    process: Process | None
    unattributed: bool
    on_host: bool
    held_bytes: Bytes | None
    verdict: Verdict | None
    blame: tuple[BlameShape, ...]
    ledger: LedgerShape | None
    measured: Examined | None
    """Null without a recorded series."""
    signals: tuple[SignalShape, ...]
    facts: tuple[FactShape, ...]
    levels: Levels
    alert: ExplainedAlert | None
    hardware: Hardware
    sections: tuple[Section, ...]
    next_steps: tuple[NextStep, ...]
    FROM = sources(
        device="item.device",
        unattributed="subject.unattributed",
        on_host="subject.host",
        verdict="finding",
        blame="finding.blame",
        facts=lambda case: case.finding.facts or () if case.finding is not None else (),
        ledger="item.ledger",
    )


def explained(case: ExplanationInput) -> Explained:
    """Return the reasoning with its numbers."""
    from gpuwatchd.analysis.verdict import WATCH_CONFIDENCE  # noqa: PLC0415 - 192 ms: numpy comes with it
    from gpuwatchd.view.text import explanation  # noqa: PLC0415 - 330 ms: only where something is explained

    detection = case.config.detection
    return fill(
        Explained,
        case,
        signals=_signals(case),
        levels=Levels(
            watch_confidence=min(WATCH_CONFIDENCE, detection.confidence_threshold),
            alert_confidence=detection.confidence_threshold,
            minimum_samples=detection.minimum_samples,
            minimum_duration_s=float(detection.minimum_duration),
            eta_horizon_s=float(detection.eta_horizon),
        ),
        alert=fill(ExplainedAlert, case.alert, deliveries=case.deliveries),
        hardware=fill(Hardware, subject_facts.diagnose(case), events=subject_facts.events(case)),
        sections=[section for section in explanation.sections(case) if section.lines],
        next_steps=explanation.steps(case),
    )


Explain = of_verb("explain", "Explain", Explained, "``explain``.")
